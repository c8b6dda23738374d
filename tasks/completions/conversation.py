"""One conversation, turn by turn, on the model's own history.

Enters: a Prompt, the plan's parameters, the dispatcher, and turns that an interrupted run left in
a journal. Leaves: an Outcome with one Completion a generation. A conversation stays on the way to
exact ids that it began on; where no server has it any more, it starts anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Self, cast

import msgspec

from tasks.chat.template import ChatTemplate, NotRenderable
from tasks.completions.config import GenerationConfig
from tasks.completions.dispatch import Dispatcher
from tasks.completions.record import Completion, Failure, FailureKind, Outcome, Status
from tasks.completions.replay import HalfDone
from tasks.completions.retry import Asker, GaveUp, Reply
from tasks.completions.script import Next, Script
from tasks.completions.slot import Order, RouteGone
from tasks.completions.wire import GenerationParams, TurnRequest
from tasks.prompts.record import Message, Plan, Prompt
from tasks.serving.record import Capability

# A later turn with less room than this would be cut after a few words, and trip the gates.
_LEAST_ROOM_TOKENS = 64
# The chat route's server writes out the fields that a tool leaves out (null, false) before it
# renders it: room for those, a tool.
_RESERVE_TOKENS_A_TOOL = 48


@dataclass(frozen=True, slots=True)
class Target:
    """What all conversations of a plan are held with."""

    params: GenerationParams
    context_length: int
    max_tokens: int
    template: ChatTemplate
    dispatcher: Dispatcher
    config: GenerationConfig

    @classmethod
    def from_plan(
        cls, plan: Plan, template: ChatTemplate, dispatcher: Dispatcher, config: GenerationConfig
    ) -> Self:
        """Take what the plan says of answers."""
        params = GenerationParams.from_plan(plan)
        return cls(params, plan.context_length, plan.max_tokens, template, dispatcher, config)


class Conversation:
    """One (prompt, sample) on its way to an Outcome."""

    def __init__(
        self,
        target: Target,
        prompt: Prompt,
        sample: int,
        *,
        order: Order,
        attempt: str,
        keep_turn: Callable[[str, Completion], None],
    ) -> None:
        """Take the prompt.

        Args:
            target: What it is held with.
            prompt: What is asked.
            sample: Which of the plan's n_samples it is.
            order: Its place in the queue for slots.
            attempt: What its turns are recorded under, unless it goes on from an older attempt.
            keep_turn: Journals a turn that another one follows, before it counts.
        """
        self._target = target
        self._prompt = prompt
        self._sample = sample
        self._order = order
        self._attempt = attempt
        self._keep_turn = keep_turn
        n_tools = len(msgspec.json.decode(prompt.tools)) if prompt.tools else 0
        self._reserve = n_tools * _RESERVE_TOKENS_A_TOOL

    async def hold(self, older: HalfDone | None = None) -> Outcome:
        """Generate every turn, or those that an interrupted attempt does not hold yet.

        Raises:
            NoEndpoint: no server was admitted for too long.
            SpoolFailed: a turn could not be journalled.
        """
        attempt, turns = (older.attempt, older.turns) if older else (self._attempt, [])
        n_restarts = 0
        while True:
            try:
                return await self._hold_from(attempt, list(turns))
            except RouteGone:
                # All turns come from one attempt: the new one must not be taken for the old.
                n_restarts += 1
                attempt, turns = f"{self._attempt}.{n_restarts}", []

    async def _hold_from(self, attempt: str, completions: list[Completion]) -> Outcome:
        def end(status: Status, failure: Failure | None = None) -> Outcome:
            return Outcome(self._prompt.id, self._sample, status, completions, failure, attempt)

        def fail(failure: Failure) -> Outcome:
            return end("partial" if completions else "failed", failure)

        script = Script(self._prompt.messages)
        following: Next = "generate"
        for completion in completions:
            following = _accept(script, completion)
        route: Capability | None = _find_route(completions)
        while following == "generate":
            generation = len(completions)
            history = script.history
            try:
                ids = await self._render(history) if generation else self._prompt.prompt_token_ids
            except NotRenderable as error:
                return fail(_make_failure("bad_request", f"not renderable: {error.reason}"))
            request = self._prepare(history, ids)
            if request is None:
                what = f"{len(ids)} prompt tokens leave no room"
                return fail(_make_failure("context_exceeded", what))
            try:
                reply = await self._ask(request, route)
            except GaveUp as error:
                return fail(_describe(error))
            completion = self._record(history, generation, reply)
            completions.append(completion)
            route = _find_route(completions)
            following = _accept(script, completion)
            if following == "generate":
                self._keep_turn(attempt, completion)
        if following == "tool_mismatch":
            return fail(_make_failure("tool_mismatch", "a recorded tool result does not fit"))
        return end(following)

    async def _render(self, history: list[Message]) -> list[int]:
        """Render a later turn's history, off the loop: a long one takes tens of milliseconds."""
        target = self._target
        return await asyncio.to_thread(
            target.template.render, history, self._prompt.tools, thinking=target.params.thinking
        )

    def _prepare(self, history: list[Message], ids: list[int]) -> TurnRequest | None:
        """See how long the answer may be; None: there is no room for one."""
        room = self._target.context_length - len(ids) - 1
        if room < _LEAST_ROOM_TOKENS:
            return None
        return TurnRequest(
            messages=history,
            tools=self._prompt.tools,
            prompt_token_ids=msgspec.Raw(msgspec.json.encode(ids)),
            n_prompt_tokens=len(ids),
            max_tokens=min(self._target.max_tokens, room),
            chat_max_tokens=min(self._target.max_tokens, max(room - self._reserve, room // 2)),
        )

    def _ask(self, request: TurnRequest, route: Capability | None) -> Awaitable[Reply]:
        target = self._target
        asker = Asker(
            target.dispatcher,
            target.params,
            request,
            target.config,
            order=self._order,
            route=route,
        )
        return asker.ask()

    def _record(self, history: list[Message], generation: int, reply: Reply) -> Completion:
        answer = reply.answer
        return Completion(
            prompt_id=self._prompt.id,
            sample=self._sample,
            generation=generation,
            messages=history,
            content=answer.content,
            reasoning=answer.reasoning,
            tool_calls=answer.tool_calls,
            text=answer.text,
            prompt_token_ids=answer.prompt_token_ids,
            output_token_ids=answer.output_token_ids,
            token_source=answer.token_source,
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            endpoint=reply.endpoint,
            attempts=reply.attempts,
            latency_seconds=round(reply.latency_seconds, 4),
            ended_at=round(time.time(), 3),
            retried=reply.retried,
        )


def _accept(script: Script, completion: Completion) -> Next:
    return script.accept(
        completion.content, completion.reasoning, completion.tool_calls, completion.finish_reason
    )


def _find_route(completions: Sequence[Completion]) -> Capability | None:
    return cast("Capability", completions[0].token_source) if completions else None


def _make_failure(kind: FailureKind, message: str) -> Failure:
    return Failure(kind, message, retryable=False, attempts=0, endpoints=[])


def _describe(error: GaveUp) -> Failure:
    return Failure(error.kind, error.message, error.retryable, error.attempts, error.urls)
