"""What the server says: response bodies in the shapes of sglang 0.5.12 and 0.5.23.

Enters: a request and its answers. Leaves: bytes of JSON. It exists to keep every difference between
the two versions in one place. Source: recorded answers of real servers; reasoning is split as
sglang's qwen3 parser does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import orjson

from infra.simulator.answers import Answer
from infra.simulator.engine import Job
from infra.simulator.parsing import split_reasoning
from infra.simulator.protocol import GenerationRequest
from infra.simulator.tokenizer import ChatTokenizer
from infra.simulator.tool_calls import parse_tool_calls


@dataclass(frozen=True, slots=True)
class Shapes:
    """Builds responses for one server."""

    tokenizer: ChatTokenizer
    version: str
    parses_reasoning: bool
    parses_tool_calls: bool

    def chat(self, request: GenerationRequest, answers: list[Answer]) -> bytes:
        """Build a chat completion with one choice for each answer."""
        choices = [self._chat_choice(request, i, answer) for i, answer in enumerate(answers)]
        return self._completion("chat.completion", request, answers, choices)

    def completion(self, request: GenerationRequest, answers: list[Answer]) -> bytes:
        """Build a text completion with one choice for each answer."""
        choices = [
            {
                "index": index,
                "text": answer.text,
                "logprobs": None,
                "finish_reason": answer.finish_reason,
                "matched_stop": answer.matched,
            }
            for index, answer in enumerate(answers)
        ]
        return self._completion("text_completion", request, answers, choices)

    def native(self, request: GenerationRequest, answers: list[Answer], jobs: list[Job]) -> bytes:
        """Build a /generate response: an object, or a list where n > 1."""
        bodies = [
            self._native_body(request, answer, job)
            for answer, job in zip(answers, jobs, strict=True)
        ]
        return orjson.dumps(bodies[0] if request.n_samples == 1 else bodies)

    def _completion(
        self,
        kind: str,
        request: GenerationRequest,
        answers: list[Answer],
        choices: list[dict[str, Any]],
    ) -> bytes:
        n_prompt = len(request.prompt_ids)
        n_output = sum(len(answer.ids) for answer in answers)
        n_reasoning = sum(self._count_reasoning(request, answer) for answer in answers)
        usage: dict[str, Any] = {
            "prompt_tokens": n_prompt,
            "total_tokens": n_prompt + n_output,
            "completion_tokens": n_output,
            "prompt_tokens_details": None,
            "reasoning_tokens": n_reasoning,
        }
        metadata: dict[str, Any] = {"weight_version": "default"}
        if self.version == "0.5.12":
            if request.n_samples > 1:
                usage["reasoning_tokens"] = 0
        else:
            details = {"reasoning_tokens": n_reasoning} if n_reasoning else None
            usage["completion_tokens_details"] = details
            metadata["weight_versions"] = _weight_versions(answers[0])
        return orjson.dumps(
            {
                "id": request.rid,
                "object": kind,
                "created": int(time.time()),
                "model": request.model,
                "choices": choices,
                "usage": usage,
                "metadata": metadata,
            }
        )

    def _count_reasoning(self, request: GenerationRequest, answer: Answer) -> int:
        if not (request.thinking and self.parses_reasoning):
            return 0
        try:
            return answer.ids.index(self.tokenizer.think_end) + 1
        except ValueError:
            return max(1, len(answer.ids))

    def _chat_choice(
        self, request: GenerationRequest, index: int, answer: Answer
    ) -> dict[str, Any]:
        reasoning, content = self._split_reasoning(request, answer.text)
        calls: list[dict[str, Any]] = []
        if request.tools and self.parses_tool_calls:
            content, calls = parse_tool_calls(content, request.tools)
        finish, matched = answer.finish_reason, answer.matched
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content or (None if self.version == "0.5.12" else ""),
            "reasoning_content": reasoning or None,
        }
        if self.version == "0.5.12" or calls:
            message["tool_calls"] = calls or None
        choice: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": self._openai_logprobs(request, answer),
            "finish_reason": "tool_calls" if calls and finish == "stop" else finish,
            "matched_stop": None if calls else matched,
        }
        if request.return_token_ids:
            choice["prompt_token_ids"] = request.prompt_ids
            choice["response_token_ids"] = _ids_of(answer)
        return choice

    def _split_reasoning(self, request: GenerationRequest, text: str) -> tuple[str, str]:
        in_reasoning = request.thinking or "<think>" in text
        if not (self.parses_reasoning and request.separate_reasoning and in_reasoning):
            return "", text
        return split_reasoning(text, self.version)

    def _openai_logprobs(self, request: GenerationRequest, answer: Answer) -> Any:
        if request.n_top_logprobs is None:
            return None
        content = []
        for token_id in answer.ids:
            text = self.tokenizer.decode([token_id], skip_special_tokens=False)
            entry = {"token": text, "bytes": list(text.encode()), "logprob": _logprob(token_id)}
            tops = [dict(entry)] * request.n_top_logprobs
            content.append({**entry, "top_logprobs": tops})
        return {"content": content}

    def _native_body(self, request: GenerationRequest, answer: Answer, job: Job) -> dict[str, Any]:
        now = time.time()
        n_output = len(answer.ids)
        started_at = job.started_at or now
        queue_seconds = started_at - job.submitted_at
        is_old = self.version == "0.5.12"
        meta: dict[str, Any] = {
            "id": job.rid,
            "finish_reason": _native_finish(answer),
            "prompt_tokens": len(request.prompt_ids),
            "weight_version": "default",
            "num_retractions": 0,
        }
        if not is_old:
            meta["storage_prefetch_wait"] = 0.0
            meta["storage_staging_wait"] = 0.0
            meta["forward_entry_time"] = started_at
            meta["prefill_finished_time"] = started_at
        meta["queue_time"] = queue_seconds
        if request.n_top_logprobs is not None:
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = [[_logprob(i), i, None] for i in answer.ids]
            meta["output_token_logprobs_length"] = n_output
        meta["reasoning_tokens"] = 0
        meta["completion_tokens"] = n_output
        meta["cached_tokens"] = 0
        if not is_old:
            meta["weight_versions"] = _weight_versions(answer)
        meta["cached_tokens_details"] = None
        meta["dp_rank"] = None
        meta["e2e_latency"] = now - job.submitted_at
        meta["request_received_ts"] = job.submitted_at
        if not is_old:
            meta["first_token_latency"] = queue_seconds
        meta["api_server_dispatch_finish_ts"] = job.submitted_at
        meta["request_finished_ts"] = now
        meta["decode_throughput"] = n_output / max(now - started_at, 1e-9)
        meta["response_sent_to_client_ts"] = now
        return {"text": answer.text, "output_ids": _ids_of(answer), "meta_info": meta}


def _native_finish(answer: Answer) -> dict[str, Any]:
    match answer.finish_reason:
        case "length":
            return {"type": "length", "length": len(answer.ids)}
        case "stop":
            return {"type": "stop", "matched": answer.matched}
        case _:
            message = "Abort in waiting queue" if not answer.ids else "Aborted"
            return {"type": "abort", "message": message, "status_code": None, "err_type": None}


def _ids_of(answer: Answer) -> Any:
    return answer.ids if answer.ids_json is None else orjson.Fragment(answer.ids_json)


def _weight_versions(answer: Answer) -> list[dict[str, Any]]:
    return [{"version": "default", "start": 0, "end": len(answer.ids)}]


def _logprob(token_id: int) -> float:
    # No model stands behind it: any fixed negative number serves.
    return -1.0 - token_id / 4096
