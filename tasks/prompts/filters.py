"""Which normalised rows become prompts; pure, but for rendering with the target's template.

Enters: rows and the user's filters, languages and limits. Leaves: a Rejection or None, a domain,
the ids of first turns. It exists so that a row which the model cannot answer in full, or which the
user did not ask for, costs no GPU time and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.chat.template import ChatTemplate, NotRenderable
from tasks.prompts.config import ExtractionConfig, SourceConfig
from tasks.prompts.record import Message, NormalizedRow, Rejection, SourceRef
from tasks.prompts.row_paths import MISSING, lookup


def filter_row(row: object, ref: SourceRef, config: SourceConfig) -> Rejection | None:
    """Refuse a row whose value at a path of `mapping.filter` is none of those kept."""
    if config.mapping is None or not isinstance(row, dict):
        return None
    for path, kept in config.mapping.filter.items():
        value = lookup(row, path)
        values = value if isinstance(value, list) else [value]
        if value is MISSING or not any(_show(one) in kept for one in values):
            return Rejection("filtered", f"{path} is not among those kept", ref)
    return None


def filter_normalized(
    row: NormalizedRow, ref: SourceRef, config: SourceConfig, extraction: ExtractionConfig
) -> Rejection | None:
    """Refuse a conversation by language label, length of the last user turn, or size."""
    if config.languages and row.language not in config.languages:
        return Rejection("language", f"language {_show_code(row.language)}", ref)
    last = next(turn["content"] for turn in reversed(row.messages) if turn["role"] == "user")
    if len(last.strip()) < extraction.min_chars:
        return Rejection("too_short", f"{len(last.strip())} characters", ref)
    n_chars = len(row.tools or "") + sum(len(turn["content"]) for turn in row.messages)
    if n_chars > extraction.max_row_bytes:
        return Rejection("row_too_large", f"{n_chars} characters", ref)
    return None


def choose_domain(row: NormalizedRow, config: SourceConfig) -> tuple[str, str]:
    """Give a row's domain and the rule that chose it: its label, else its source's default."""
    for label in row.labels:
        domain = config.domain_labels.get(label)
        if domain is not None:
            return domain, "label"
    return config.domain, "source"


def take_first_turn(messages: Sequence[Message]) -> list[Message]:
    """Give what the first answer is generated from: all up to the first user turn.

    Later turns are rendered when their history has been generated: it is not known yet.
    """
    first = next(index for index, turn in enumerate(messages) if turn["role"] == "user")
    return list(messages[: first + 1])


def render_first_turns(
    rows: Sequence[tuple[list[Message], str | None, SourceRef]],
    template: ChatTemplate,
    *,
    thinking: bool,
    max_prompt_tokens: int,
) -> list[list[int] | Rejection]:
    """Render the first turns of conversations, in order.

    Returns:
        For each its prompt ids, shape [n_prompt_tokens], or why it has none: `not_renderable`, or
        `too_long` with more than `max_prompt_tokens`.
    """
    rendered = template.render_batch(
        [(take_first_turn(messages), tools) for messages, tools, _ in rows], thinking=thinking
    )
    return [
        _judge(ids, ref, max_prompt_tokens) for ids, (_, _, ref) in zip(rendered, rows, strict=True)
    ]


def _judge(
    ids: list[int] | NotRenderable, ref: SourceRef, max_prompt_tokens: int
) -> list[int] | Rejection:
    if isinstance(ids, NotRenderable):
        # The template's reason may quote the row.
        return Rejection("not_renderable", "the chat template refuses the conversation", ref)
    if len(ids) > max_prompt_tokens:
        return Rejection("too_long", f"{len(ids)} tokens, {max_prompt_tokens} allowed", ref)
    return ids


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else ""


def _show_code(language: str | None) -> str:
    if language is None:
        return "not labelled"
    return language if language.isascii() and language.isalpha() else "(not a code)"
