"""Outcomes without servers: invented answers with exact ids, published as a data part.

run = build_run(tmp_path, template, [prompts])
receipt = publish_outcomes(run, 0, [answer(run, prompt, "Let me see.", "Five.") ...])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from tasks.completions.record import Completion, Outcome, Status, TokenSource, Usage
from tasks.prompts.record import Message, Prompt
from tasks.storage.layout import data_key
from tasks.storage.part import publish_part
from tasks.storage.record import PartHeader, PartReceipt
from tasks.storage.writer import PartWriter
from tests.support.generation import GenerationRun

END = "<|im_end|>"


def complete(
    run: GenerationRun,
    prompt: Prompt,
    reasoning: str,
    content: str,
    *,
    finish_reason: str = "stop",
    token_source: TokenSource = "chat",  # noqa: S107
    **changes: Any,
) -> Completion:
    """Make one generation whose ids are those of its text; `changes` replace fields."""
    text = f"{reasoning}</think>{content}" if run.plan.thinking else content
    output_ids = run.template.encode(text + (END if finish_reason != "length" else ""))
    fields: dict[str, Any] = {
        "prompt_id": prompt.id,
        "sample": 0,
        "generation": 0,
        "messages": prompt.messages,
        "content": content,
        "reasoning": reasoning,
        "tool_calls": [],
        "text": text if token_source == "native" else None,
        "prompt_token_ids": to_raw(
            run.template.render(prompt.messages, prompt.tools, thinking=run.plan.thinking)
        ),
        "output_token_ids": to_raw(output_ids),
        "token_source": token_source,
        "finish_reason": finish_reason,
        "usage": Usage(len(prompt.prompt_token_ids), len(output_ids), 0),
        "endpoint": "http://127.0.0.1:1",
        "attempts": 1,
        "latency_seconds": 0.5,
    }
    return Completion(**{**fields, **changes})


def to_raw(ids: Sequence[int]) -> msgspec.Raw:
    """Write ids as a server does."""
    return msgspec.Raw(orjson.dumps(list(ids)))


def to_ids(raw: msgspec.Raw) -> list[int]:
    """Read ids back."""
    return list(orjson.loads(bytes(raw)))


def conclude(*completions: Completion, status: Status = "completed") -> Outcome:
    """Make the outcome of one conversation."""
    first = completions[0]
    return Outcome(first.prompt_id, first.sample, status, list(completions), None, "a1")


def publish_outcomes(
    run: GenerationRun, chunk_id: int, outcomes: Sequence[Outcome], revision: int = 0
) -> PartReceipt:
    """Write outcomes as the data part of a chunk."""
    path = run.spool_dir / f"{chunk_id}.{revision}.part"
    path.parent.mkdir(parents=True, exist_ok=True)
    header = PartHeader(
        plan_sha=run.plan.sha,
        chunk_id=chunk_id,
        input_sha256=run.plan.chunks[chunk_id].input_sha256,
    )
    writer = PartWriter(path, header)
    for outcome in outcomes:
        writer.append(msgspec.json.encode(outcome))
    ends = Counter(outcome.status for outcome in outcomes)
    completions = [completion for outcome in outcomes for completion in outcome.completions]
    writer.finish(
        {
            **{f"n_{s}": ends[s] for s in ("completed", "truncated", "partial", "failed")},
            "n_generations": len(completions),
            "n_prompt_tokens": sum(c.usage.prompt_tokens for c in completions),
            "n_output_tokens": sum(c.usage.completion_tokens for c in completions),
            "failures": {},
            "gates": {},
            "server_versions": {"http://127.0.0.1:1": "0.5.23"},
        }
    )
    conversations = [(outcome.prompt_id, outcome.sample) for outcome in outcomes]
    return publish_part(run.store, data_key(chunk_id, revision), path, conversations)


def ask(question: str) -> list[Message]:
    """Make a conversation of one question."""
    return [{"role": "user", "content": question}]
