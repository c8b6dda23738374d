"""Which normalised rows become prompts; pure, but for rendering with the target's template.

Enters: rows and the user's filters, languages, patterns, benchmarks and limits. Leaves: a Refusal
or None, and the ids of first turns. It exists so that a row which the model cannot answer in full,
or which the user did not ask for, costs no GPU time and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import re2

from tasks.chat.template import ChatTemplate, NotRenderable
from tasks.prompts.benchmarks import BenchmarkIndex
from tasks.prompts.config import ExtractionConfig, SourceConfig
from tasks.prompts.record import Message, NormalizedRow, Refusal
from tasks.prompts.row_paths import MISSING, lookup


class RowFilter:
    """The filters of one source, compiled once."""

    def __init__(
        self,
        config: SourceConfig,
        extraction: ExtractionConfig,
        *,
        special_names: Sequence[str] = (),
        benchmarks: BenchmarkIndex | None = None,
    ) -> None:
        """Compile.

        Args:
            config: The source.
            extraction: What holds for all sources.
            special_names: Texts that the target's tokenizer turns into control tokens.
            benchmarks: Questions that prompts must not repeat.
        """
        self._kept = {} if config.mapping is None else config.mapping.filter
        self._languages = frozenset(config.languages)
        self._min_chars = extraction.min_chars
        self._max_chars = extraction.max_row_bytes
        self._benchmarks = benchmarks
        self._patterns = [
            (name, re2.compile(pattern)) for name, pattern in extraction.exclude.items()
        ]
        names = "|".join(re2.escape(name) for name in special_names)
        self._special = re2.compile(names) if names else None
        # A character that all names have: most texts lack it, and need no search.
        common = set.intersection(*map(set, special_names)) if special_names else set()
        self._mark = min(common, default="")

    def judge_row(self, row: object) -> Refusal | None:
        """Refuse a row whose value at a path of `mapping.filter` is none of those kept."""
        if not self._kept or not isinstance(row, dict):
            return None
        for path, kept in self._kept.items():
            value = lookup(row, path)
            values = value if isinstance(value, list) else [value]
            if value is MISSING or not any(_show(one) in kept for one in values):
                return Refusal("filtered", f"{path} is not among those kept")
        return None

    def needs_language(self, row: NormalizedRow) -> bool:
        """Whether the language of a row's last question decides: it has no label of its own."""
        return bool(self._languages) and not row.language

    def judge(self, row: NormalizedRow, told: str | None = None) -> Refusal | None:
        """Refuse a conversation by size, control tokens, language, patterns or benchmarks.

        Args:
            row: The conversation.
            told: The language that its last question was told to have, where it needs one.
        """
        messages = row.messages
        last = find_question(messages)
        if len(last) < self._min_chars or len(last.strip()) < self._min_chars:
            return Refusal("too_short", f"{len(last.strip())} characters")
        n_chars = len(row.tools or "")
        for turn in messages:
            n_chars += len(turn["content"])
        if n_chars > self._max_chars:
            return Refusal("row_too_large", f"{n_chars} characters")
        # A control token in a row could end its turn and open another one: the rendered prompt
        # would no longer be the conversation that was read.
        if self._has_special(row):
            return Refusal("special_token", "a text holds the name of a control token")
        if self._languages:
            language = row.language or told
            if language is not None and language not in self._languages:
                how = "labelled" if row.language else "by its text"
                return Refusal("language", f"language {_show_code(language)} ({how})")
        if self._patterns:
            for name, pattern in self._patterns:
                if any(pattern.search(turn["content"]) for turn in messages if _is_given(turn)):
                    return Refusal("pattern", f"pattern {name}")
        if self._benchmarks is not None:
            found = self._benchmarks.find(row)
            if found is not None:
                return Refusal("benchmark", f"benchmark {found[0]} ({found[1]})", found[0])
        return None

    def _has_special(self, row: NormalizedRow) -> bool:
        for turn in row.messages:
            # An assistant's turn is generated anew: its recorded text is not rendered.
            if turn["role"] != "assistant" and (
                self._holds_name(turn["content"])
                or ("name" in turn and self._holds_name(turn["name"]))
            ):
                return True
        return row.tools is not None and self._holds_name(row.tools)

    def _holds_name(self, text: str) -> bool:
        if self._special is None or self._mark not in text:
            return False
        return self._special.search(text) is not None


def find_question(messages: Sequence[Message]) -> str:
    """Give the text of the last user turn."""
    last: str = messages[-1]["content"]
    if messages[-1]["role"] != "user":
        last = next(turn["content"] for turn in reversed(messages) if turn["role"] == "user")
    return last


def _is_given(turn: Message) -> bool:
    return bool(turn["role"] != "assistant")


def take_first_turn(messages: Sequence[Message]) -> list[Message]:
    """Give what the first answer is generated from: all up to the first user turn.

    Later turns are rendered when their history has been generated: it is not known yet.
    """
    first = next(index for index, turn in enumerate(messages) if turn["role"] == "user")
    return list(messages[: first + 1])


def render_first_turns(
    rows: Sequence[tuple[list[Message], str | None]],
    template: ChatTemplate,
    *,
    thinking: bool,
    max_prompt_tokens: int,
) -> list[list[int] | Refusal]:
    """Render the first turns of conversations (messages, tools), in order.

    Returns:
        For each its prompt ids, shape [n_prompt_tokens], or why it has none: `not_renderable`, or
        `too_long` with more than `max_prompt_tokens`.
    """
    rendered = template.render_batch(
        [(take_first_turn(messages), tools) for messages, tools in rows], thinking=thinking
    )
    return [_judge_length(ids, max_prompt_tokens) for ids in rendered]


def _judge_length(ids: list[int] | NotRenderable, max_prompt_tokens: int) -> list[int] | Refusal:
    if isinstance(ids, NotRenderable):
        # The template's reason may quote the row.
        return Refusal("not_renderable", "the chat template refuses the conversation")
    if len(ids) > max_prompt_tokens:
        return Refusal("too_long", f"{len(ids)} tokens, {max_prompt_tokens} allowed")
    return ids


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else ""


def _show_code(language: str) -> str:
    return language if language.isascii() and language.isalpha() else "(not a code)"
