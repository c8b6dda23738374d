"""What a failed request means, and when it is tried again.

Enters: a TurnRequest, and the failures that the client names by type. Leaves: a Reply, or GaveUp.
It exists so that the decision is a value (No, Transient, RateLimit), made from status and type and
never from message text; tenacity executes it. It is entered only after a first failure, because
wrapping every call in it would cost a quarter of the client's CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from tasks.completions.client import (
    ConnectionRefused,
    Disconnected,
    HttpFailure,
)
from tasks.completions.config import GenerationConfig
from tasks.completions.dispatch import Dispatcher
from tasks.completions.in_flight import DeadlineExceeded, Stalled
from tasks.completions.record import FailureKind
from tasks.completions.slot import Order
from tasks.completions.wire import (
    Answer,
    AnswerAborted,
    GenerationParams,
    RequestFailed,
    TurnRequest,
)
from tasks.serving.record import Capability

_LONGEST_WAIT_SECONDS = 30.0
# The row's own fault: no server would answer otherwise. Every other 4xx (a wrong key, a wrong
# route, a proxy) is the server's, and must not write a row off.
_ROW_STATUSES = frozenset({400, 413, 422})
_RATE_LIMITED = 429


@dataclass(frozen=True, slots=True)
class No:
    """Trying again cannot help."""

    kind: FailureKind


@dataclass(frozen=True, slots=True)
class Transient:
    """Another try may succeed, best at another server.

    Attributes:
        retry_after: Seconds that the server asked for, or None.
        blames_server: Whether it speaks against the server.
        sent: Whether the request reached a server at all.
        ejects: Whether the server must not be asked again before it is well.
    """

    kind: FailureKind
    retry_after: float | None = None
    blames_server: bool = True
    sent: bool = True
    ejects: bool = False


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The server has too much to do; wait as long as it says."""

    retry_after: float | None
    kind: FailureKind = "rate_limited"


Verdict = No | Transient | RateLimit


def classify(error: RequestFailed) -> Verdict:
    """Judge a failure by its type and status."""
    match error:
        case HttpFailure(status=status) if status in _ROW_STATUSES:
            return No("bad_request")
        case HttpFailure(status=status, retry_after=retry_after) if status == _RATE_LIMITED:
            return RateLimit(retry_after)
        case HttpFailure(retry_after=retry_after):
            return Transient("server_error", retry_after)
        case ConnectionRefused():
            return Transient("disconnected", sent=False)
        case Disconnected():
            return Transient("disconnected")
        case Stalled():
            return Transient("disconnected", ejects=True)
        case DeadlineExceeded():
            return Transient("deadline")
        case AnswerAborted():
            # Somebody aborted it, or the server drains: its next requests will tell.
            return Transient("aborted", blames_server=False)
        case _:
            return Transient("malformed_answer")


class Reply(msgspec.Struct, frozen=True):
    """An answer and what it took: `attempts` counts the successful one too.

    Attributes:
        retried: Why each earlier request failed, those that counted for nothing too.
    """

    answer: Answer
    endpoint: str
    attempts: int
    latency_seconds: float
    retried: list[FailureKind]


class GaveUp(Exception):
    """A turn has no answer; `retryable` says whether a later run may try it again."""

    def __init__(
        self, kind: FailureKind, message: str, *, retryable: bool, attempts: int, urls: list[str]
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retryable = retryable
        self.attempts = attempts
        self.urls = urls


def deadline_seconds(max_tokens: int, config: GenerationConfig) -> float:
    """Say how long an answer may take: the slowest stream believed alive, and the queue."""
    return max_tokens / config.floor_tokens_per_second + config.queue_seconds


class Asker:
    """Asks for one turn until it is answered or given up."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        params: GenerationParams,
        request: TurnRequest,
        config: GenerationConfig,
        *,
        order: Order,
        route: Capability | None,
    ) -> None:
        """Take the turn; `route` binds it to the way of ids that its conversation began on."""
        self._dispatcher = dispatcher
        self._params = params
        self._request = request
        self._config = config
        self._order = order
        self._route = route
        self._deadline = deadline_seconds(request.max_tokens, config)
        self._n_used = 0
        self._n_free = 0
        self._tried: list[str] = []
        self._retried: list[FailureKind] = []
        self._was_free = False

    async def ask(self) -> Reply:
        """Have the turn answered.

        Raises:
            GaveUp: the attempts are used up, or trying again cannot help.
            NoEndpoint: no server was admitted for too long.
            RouteGone: no server has the conversation's route.
        """
        try:
            return await self._try_once()
        except RequestFailed as error:
            # Its frames hold the request's body, and would hold it until the next look for garbage.
            first = error.with_traceback(None)
        try:
            return await self._go_on(first)
        except RequestFailed as error:
            verdict = classify(error)
            raise GaveUp(
                verdict.kind,
                f"{type(error).__name__}: {error}",
                retryable=not isinstance(verdict, No),
                attempts=self._n_used,
                urls=list(self._tried),
            ) from error

    async def _go_on(self, first: RequestFailed) -> Reply:
        failures = [first]

        async def try_again() -> Reply:
            if failures:
                # Hands the first failure to tenacity, so that one policy judges them all.
                raise failures.pop()
            return await self._try_once()

        retrying = AsyncRetrying(
            retry=retry_if_exception(_is_worth_retrying),
            stop=self._is_used_up,
            wait=self._choose_wait,
            reraise=True,
        )
        return await retrying(try_again)

    async def _try_once(self) -> Reply:
        async with self._dispatcher.slot(self._order, avoid=self._tried, route=self._route) as slot:
            endpoint = slot.endpoint
            try:
                answer, seconds = await self._dispatcher.client.generate(
                    endpoint, self._params, self._request, deadline_seconds=self._deadline
                )
            except RequestFailed as error:
                verdict = classify(error)
                self._retried.append(verdict.kind)
                blamed = isinstance(verdict, Transient) and verdict.blames_server
                sent = not isinstance(verdict, Transient) or verdict.sent
                ejects = isinstance(verdict, Transient) and (verdict.ejects or not verdict.sent)
                ejected = blamed and slot.failed(refused=ejects)
                self._count(endpoint.base_url, sent=sent, ejected=ejected)
                raise
            slot.succeeded()
        return Reply(answer, endpoint.base_url, self._n_used + 1, seconds, self._retried)

    def _count(self, url: str, *, sent: bool, ejected: bool) -> None:
        """Count an attempt, unless it was the server's end and not the request's.

        A request that ends with its server is free only so often: it may be what ends them.
        """
        if url not in self._tried:
            self._tried.append(url)
        self._was_free = not sent
        if sent and ejected and self._n_free < self._config.attempts:
            self._n_free += 1
            self._was_free = True
        if not self._was_free:
            self._n_used += 1

    def _is_used_up(self, state: RetryCallState) -> bool:
        del state
        return self._n_used >= self._config.attempts

    def _choose_wait(self, state: RetryCallState) -> float:
        if self._was_free:
            return 0.0
        error = state.outcome.exception() if state.outcome else None
        verdict = classify(error) if isinstance(error, RequestFailed) else None
        if isinstance(verdict, Transient | RateLimit) and verdict.retry_after is not None:
            return verdict.retry_after
        backoff = wait_random_exponential(
            multiplier=self._config.backoff_seconds, max=_LONGEST_WAIT_SECONDS
        )
        return backoff(state)


def _is_worth_retrying(error: BaseException) -> bool:
    return isinstance(error, RequestFailed) and not isinstance(classify(error), No)
