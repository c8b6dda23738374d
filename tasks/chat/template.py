"""Messages to the target's own token ids, and ids back to text.

Enters: a model's tokenizer and chat template (a folder or a Hub repository), conversations in
OpenAI form, tools as a JSON string. Leaves: prompt ids, text, and the two hashes that pin both in
the plan. It exists so that every room counts, checks and decodes with the very tokenizer and
template that the servers use; no model code is run and no torch is needed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import orjson

from tasks.chat.config import ModelConfig
from tasks.chat.program import TemplateProgram, is_plain
from tasks.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

Message = dict[str, Any]

_LONGEST_REASON = 200
_PROBE = "What is the longest river?"


class NotRenderable(ValueError):
    """The chat template refuses a conversation; `reason` says why, without the row's text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ChatTemplate:
    """The target's tokenizer and chat template.

    Attributes:
        tokenizer_sha256: Hash of the serialised tokenizer.
        chat_template_sha256: Hash of the template's text.
        vocab_size: Ids are 0 to vocab_size - 1.
        end_token_ids: Ids that end an answer; the last of a finished one is among them.
        special_names: Texts that the tokenizer turns into control tokens, wherever they stand.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, more_end_ids: Sequence[int] = ()
    ) -> None:
        """Wrap a loaded tokenizer that has a chat template (see `load`)."""
        self._tokenizer = tokenizer
        backend: Tokenizer = tokenizer.backend_tokenizer
        self.tokenizer_sha256 = hashlib.sha256(backend.to_str().encode()).hexdigest()
        self.chat_template_sha256 = hashlib.sha256(
            str(tokenizer.chat_template).encode()
        ).hexdigest()
        # A tokenizer.json may carry a truncation of its own: a prompt cut in silence.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        added = backend.get_added_tokens_decoder().values()
        self.special_names = tuple(sorted(token.content for token in added if token.special))
        eos = tokenizer.eos_token_id
        self.end_token_ids = frozenset(more_end_ids) | ({eos} if isinstance(eos, int) else set())
        self.end_text = str(tokenizer.eos_token or "")

    @classmethod
    def load(cls, model: ModelConfig, hf_token: str | None = None) -> Self:
        """Load the tokenizer and chat template of a model, from a folder or from the Hub.

        Raises:
            ModelError: if they cannot be had, are no fast tokenizer, or lack a chat template.
        """
        # Says that torch is missing, which is as it should be here.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        # Imported late: it takes two seconds that commands without a model need not spend.
        from transformers import AutoTokenizer  # noqa: PLC0415

        path = model.tokenizer_path
        # With a tokenizer of its own place, the model's revision says nothing about it.
        revision = model.revision if model.tokenizer is None else None
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                path, revision=revision or "main", token=hf_token, trust_remote_code=False
            )
        except Exception as error:
            raise ModelError(
                f"the tokenizer cannot be loaded ({type(error).__name__}: {_first_line(error)})",
                where=path,
                remedy="Set model.tokenizer (or model.path) to a folder or Hub repository with "
                "tokenizer.json; for a gated one set DRAFTMILL_HF_TOKEN.",
            ) from error
        if not tokenizer.is_fast:
            raise ModelError(
                "the tokenizer has no tokenizer.json (a fast tokenizer)",
                where=path,
                remedy="Set model.tokenizer to a folder or Hub repository that holds one.",
            )
        if not isinstance(tokenizer.chat_template, str):
            raise ModelError(
                "the tokenizer has no single chat template",
                where=path,
                remedy="Add chat_template.jinja to the folder, or set model.tokenizer to an "
                "instruction-tuned model's repository.",
            )
        tokenizer = cast("PreTrainedTokenizerFast", tokenizer)
        template = cls(tokenizer, more_end_ids=_read_end_ids(path, revision, hf_token))
        template._check_rendering(path, thinking=model.thinking)
        return template

    def render(
        self, messages: Sequence[Message], tools: str | None, *, thinking: bool
    ) -> list[int]:
        """Render a conversation up to and with the generation prompt. Shape [n_prompt_tokens].

        Raises:
            NotRenderable: if the template refuses the messages or tools.
        """
        return self.encode(self.render_text(messages, tools, thinking=thinking))

    def render_text(self, messages: Sequence[Message], tools: str | None, *, thinking: bool) -> str:
        """Render a conversation up to and with the generation prompt, as text.

        Raises:
            NotRenderable: if the template refuses the messages or tools.
        """
        return self._apply(messages, tools, thinking=thinking, add_generation_prompt=True)

    def render_answered(
        self, messages: Sequence[Message], tools: str | None, answer: Message, *, thinking: bool
    ) -> str:
        """Render a conversation with its answer, as text; the template trims what it trims.

        Raises:
            NotRenderable: if the template refuses the messages, tools or answer.
        """
        return self._apply(
            [*messages, answer], tools, thinking=thinking, add_generation_prompt=False
        )

    def _apply(
        self,
        messages: Sequence[Message],
        tools: str | None,
        *,
        thinking: bool,
        add_generation_prompt: bool,
    ) -> str:
        parsed = parse_tools(tools)
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=parsed,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=thinking,
            )
        # A template is a program over untrusted rows: whatever it raises is about the row.
        except Exception as error:
            raise NotRenderable(f"{type(error).__name__}: {_first_line(error)}") from error
        return str(text)

    def _check_rendering(self, path: str, *, thinking: bool) -> None:
        """Render one plain turn: a template that fails there would refuse every row."""
        fault = "it leaves the user's text out"
        try:
            if _PROBE in self.render_text(
                [{"role": "user", "content": _PROBE}], None, thinking=thinking
            ):
                return
        except NotRenderable as error:
            fault = error.reason
        raise ModelError(
            f"the chat template does not render a plain user turn ({fault})",
            where=path,
            remedy="Mend chat_template.jinja, or set model.tokenizer to a folder or repository "
            "whose template does.",
        )

    def render_batch(
        self, conversations: Sequence[tuple[Sequence[Message], str | None]], *, thinking: bool
    ) -> list[list[int] | NotRenderable]:
        """Render many conversations at nearly the speed of the tokenizer, in order."""
        texts: list[str] = []
        refusals: dict[int, NotRenderable] = {}
        for index, (messages, tools) in enumerate(conversations):
            text = self._render_plain(messages, thinking=thinking) if tools is None else None
            try:
                texts.append(
                    self.render_text(messages, tools, thinking=thinking) if text is None else text
                )
            except NotRenderable as refusal:
                refusals[index] = refusal
        encoded: Iterator[Any] = iter(
            self._backend.encode_batch_fast(texts, add_special_tokens=False)
        )
        return [
            refusals[index] if index in refusals else next(encoded).ids
            for index in range(len(conversations))
        ]

    def _render_plain(self, messages: Sequence[Message], *, thinking: bool) -> str | None:
        """Render turns of plain text; None for others, and where the template refuses."""
        if not is_plain(messages):
            return None
        # Why it refuses comes out on the way by transformers.
        try:
            return self._program.render(messages, thinking=thinking)
        except Exception:  # noqa: BLE001
            return None

    @cached_property
    def _program(self) -> TemplateProgram:
        return TemplateProgram(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """Encode text as it is; names of special tokens in it become those tokens."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encode text, and give the characters [start, end) that each id stands for."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    def normalize(self, text: str) -> str:
        """Give text as the tokenizer sees it (NFC for most): what its ids decode to."""
        normalizer = self._backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Decode ids as the servers do; bytes that end inside a character become U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special))


def parse_tools(tools: str | None) -> list[Any] | None:
    """Parse tools from their JSON string; an empty list counts as none.

    Raises:
        NotRenderable: if the string is not a JSON list of objects.
    """
    if tools is None:
        return None
    try:
        parsed = orjson.loads(tools)
    except orjson.JSONDecodeError as error:
        raise NotRenderable("tools are not JSON") from error
    if not isinstance(parsed, list) or not all(isinstance(tool, dict) for tool in parsed):
        raise NotRenderable("tools are not a list of objects")
    return parsed or None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:_LONGEST_REASON]


def _read_end_ids(path: str, revision: str | None, hf_token: str | None) -> list[int]:
    """Read the further ids that end an answer: generation_config.json may list several."""
    from transformers.utils.hub import cached_file  # noqa: PLC0415

    try:
        file = cached_file(
            path,
            "generation_config.json",
            revision=revision or "main",
            token=hf_token,
            _raise_exceptions_for_missing_entries=False,
        )
    except OSError as error:
        raise ModelError(
            f"generation_config.json cannot be read ({_first_line(error)})", where=path
        ) from error
    if file is None:
        return []
    try:
        read = orjson.loads(Path(file).read_bytes())
    except orjson.JSONDecodeError:
        read = None
    listed = read.get("eos_token_id") if isinstance(read, dict) else "nothing"
    ids: list[Any] = [] if listed is None else listed if isinstance(listed, list) else [listed]
    if not all(type(one) is int for one in ids):
        raise ModelError(
            "generation_config.json is no JSON object with token ids as eos_token_id",
            where=path,
            remedy="Mend that file, or remove it where the tokenizer's own end token is enough.",
        )
    return ids
