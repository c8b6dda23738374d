"""What a client asks: request bodies checked as SGLang checks them.

Enters: decoded JSON of the three generating routes. Leaves: a GenerationRequest with its prompt
ids, or a Refusal. It exists so that a client meets each kind of refusal here first. Source: answers
recorded from sglang 0.5.12 and 0.5.23; where both say the same in other words, the words are
shortened.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError

from infra.simulator.answers import AnswerLimits
from infra.simulator.fields import (
    Refusal,
    read_float,
    read_int,
    read_stop,
    refuse,
    refuse_field,
    refuse_natively,
)
from infra.simulator.history import list_tools, prepare_messages
from infra.simulator.tokenizer import ChatTokenizer

_ROLES = ("system", "assistant", "tool", "function", "developer", "latest_reminder", "user")
_DEFAULT_NEW_TOKENS = 128


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A checked request. `tools` is what the prompt lists; `thinking` is whether it thinks."""

    rid: str
    model: str
    prompt_ids: list[int]
    limits: AnswerLimits
    n_samples: int
    thinking: bool
    separate_reasoning: bool
    tools: list[dict[str, Any]] | None
    return_token_ids: bool
    n_top_logprobs: int | None


class RequestReader:
    """Reads requests for one server: its version, context length and tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer, version: str, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._version = version
        self._context_length = context_length

    def read_chat(self, body: dict[str, Any], default_model: str) -> GenerationRequest:
        """Check and render a chat completion request.

        Raises:
            Refusal: 400, in the envelope of the OpenAI routes.
        """
        messages = self._read_messages(body)
        max_tokens = self._read_max_tokens(body)
        n_samples = self._check_sampling(body)
        response_format = body.get("response_format")
        if isinstance(response_format, dict) and response_format.get("type") != "text":
            raise refuse(
                "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not "
                "supported when the server is launched with --grammar-backend none"
            )
        if body.get("return_hidden_states"):
            raise refuse(
                "The server is not configured to return the hidden states. "
                "Please set `--enable-return-hidden-states` to enable this feature."
            )
        tools = body.get("tools") or None
        if body.get("tool_choice") == "none":
            tools = None
        template_kwargs = body.get("chat_template_kwargs") or {}
        try:
            prompt_ids = self._tokenizer.render(
                prepare_messages(messages), list_tools(tools, self._version), template_kwargs
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise refuse(str(error)) from error
        top_logprobs = (body.get("top_logprobs") or 0) if body.get("logprobs") else None
        return GenerationRequest(
            rid=body.get("rid") or uuid.uuid4().hex,
            model=body.get("model") or default_model,
            prompt_ids=prompt_ids,
            limits=AnswerLimits(
                self._fit(len(prompt_ids), max_tokens),
                read_stop(body.get("stop")),
                bool(body.get("ignore_eos")),
                tools is None and body.get("skip_special_tokens") is not False,
            ),
            n_samples=n_samples,
            thinking=template_kwargs.get("enable_thinking") is not False,
            separate_reasoning=body.get("separate_reasoning") is not False,
            tools=tools,
            return_token_ids=body.get("return_token_ids") is True and self._version != "0.5.12",
            n_top_logprobs=top_logprobs,
        )

    def read_completion(self, body: dict[str, Any], default_model: str) -> GenerationRequest:
        """Check a text completion request: `prompt` is a string or a list of ids.

        Raises:
            Refusal: 400, in the envelope of the OpenAI routes.
        """
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            prompt_ids = self._tokenizer.encode(prompt)
        elif self._are_ids(prompt):
            prompt_ids = prompt or []
        else:
            raise refuse_field("missing", ("prompt",), "Field required", prompt)
        max_tokens = self._read_max_tokens(body)
        n_samples = self._check_sampling(body)
        limit = self._fit(len(prompt_ids), 16 if max_tokens is None else max_tokens)
        request = self._without_chat(body, prompt_ids, body, max_tokens=limit, n=n_samples)
        return replace(request, model=body.get("model") or default_model)

    def read_native(self, body: dict[str, Any]) -> GenerationRequest:
        """Check a /generate request: one prompt, as `text` or as `input_ids` [n_tokens].

        Raises:
            Refusal: 400; what the schema refuses comes in the envelope of the OpenAI routes, and
                what the tokenizer manager refuses as `{"error": {"message": ...}}`.
        """
        input_ids, text = body.get("input_ids"), body.get("text")
        if isinstance(text, str) and input_ids is None:
            prompt_ids = self._tokenizer.encode(text)
        elif self._are_ids(input_ids) and text is None:
            prompt_ids = input_ids or []
        else:
            raise refuse_natively("Either text or input_ids of one prompt should be provided.")
        if prompt_ids and max(prompt_ids) >= self._tokenizer.vocab_size:
            raise refuse_natively(
                f"The input_ids contains values greater than the vocab size "
                f"({self._tokenizer.vocab_size})."
            )
        sampling = body.get("sampling_params") or {}
        max_tokens = read_int(sampling, "max_new_tokens")
        max_tokens = _DEFAULT_NEW_TOKENS if max_tokens is None else max_tokens
        try:
            n_samples = self._check_sampling(sampling)
            limit = self._fit(len(prompt_ids), max_tokens)
        except Refusal as refusal:
            raise refuse_natively(refusal.body["message"]) from refusal
        return self._without_chat(body, prompt_ids, sampling, max_tokens=limit, n=n_samples)

    def _without_chat(
        self,
        body: dict[str, Any],
        prompt_ids: list[int],
        sampling: dict[str, Any],
        *,
        max_tokens: int,
        n: int,
    ) -> GenerationRequest:
        logprobs = body.get("return_logprob") or body.get("logprobs")
        return GenerationRequest(
            rid=body.get("rid") or uuid.uuid4().hex,
            model="",
            prompt_ids=prompt_ids,
            limits=AnswerLimits(
                max_tokens,
                read_stop(sampling.get("stop")),
                bool(sampling.get("ignore_eos")),
                sampling.get("skip_special_tokens") is not False,
            ),
            n_samples=n,
            thinking=False,
            separate_reasoning=False,
            tools=None,
            return_token_ids=False,
            n_top_logprobs=(body.get("top_logprobs_num") or 0) if logprobs else None,
        )

    @staticmethod
    def _are_ids(value: Any) -> bool:
        return isinstance(value, list) and set(map(type, value)) == {int}

    def _read_messages(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        if "messages" not in body:
            raise refuse_field("missing", ("messages",), "Field required", body)
        messages = body["messages"]
        if not isinstance(messages, list):
            raise refuse_field("list_type", ("messages",), "Input should be a list", messages)
        if not messages:
            raise refuse("Messages cannot be empty.")
        for index, message in enumerate(messages):
            role = message.get("role") if isinstance(message, dict) else None
            if not (isinstance(role, str) and role.lower() in _ROLES):
                expected = ", ".join(repr(known) for known in _ROLES[:-1])
                text = f"Value error, 'role' must be one of {expected} (case-insensitive)."
                raise refuse_field("value_error", ("messages", index, "role"), text, role)
        return messages

    def _read_max_tokens(self, body: dict[str, Any]) -> int | None:
        max_tokens = read_int(body, "max_completion_tokens")
        if max_tokens is None:
            max_tokens = read_int(body, "max_tokens")
        if max_tokens is not None and max_tokens > self._context_length:
            raise refuse(
                f"max_completion_tokens is too large: {max_tokens}."
                f"This model supports at most {self._context_length} completion tokens."
            )
        return max_tokens

    def _check_sampling(self, sampling: dict[str, Any]) -> int:
        temperature = read_float(sampling, "temperature", 1.0)
        if temperature < 0 or not math.isfinite(temperature):
            wanted = "non-negative" if self._version == "0.5.12" else "a non-negative finite number"
            raise refuse(f"temperature must be {wanted}, got {temperature}.")
        top_p = read_float(sampling, "top_p", 1.0)
        if not 0 < top_p <= 1:
            raise refuse(f"top_p must be in (0, 1], got {top_p}.")
        n_samples = read_int(sampling, "n")
        if n_samples is not None and n_samples < 1:
            raise refuse("range() arg 3 must not be zero", "BadRequest")
        return n_samples or 1

    def _fit(self, n_prompt: int, max_tokens: int | None) -> int:
        if n_prompt >= self._context_length:
            raise refuse(
                f"The input ({n_prompt} tokens) is longer than the model's context length "
                f"({self._context_length} tokens)."
            )
        if max_tokens is None:
            return self._context_length - n_prompt - 1
        if max_tokens < 0:
            raise refuse(f"max_new_tokens must be at least 0, got {max_tokens}.")
        if n_prompt + max_tokens > self._context_length:
            raise refuse(
                f"Requested token count exceeds the model's maximum context length of "
                f"{self._context_length} tokens. You requested a total of "
                f"{n_prompt + max_tokens} tokens: {n_prompt} tokens from the input messages and "
                f"{max_tokens} tokens for the completion. Please reduce the number of tokens in "
                f"the input messages or the completion to fit within the limit."
            )
        return max_tokens
