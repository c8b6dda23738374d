"""The model folder at work: messages to prompt ids, ids to text.

Enters: a folder with tokenizer.json and chat_template.jinja, and chat messages. Leaves: token ids
and text. It exists because transformers takes seconds to import; the rendering here is the same
(a test compares both on the same messages).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

# One prompt at a time gains nothing from threads, and eight servers may share two cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

MODEL_DIR = Path(__file__).parent / "model"


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


class ChatTokenizer:
    """A tokenizer, its chat template, and the ids that structure an answer."""

    def __init__(self, folder: Path = MODEL_DIR) -> None:
        """Load the folder.

        Raises:
            ValueError: if one of the tokens that an answer needs is not in its vocabulary.
        """
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        self._template = environment.from_string(
            (folder / "chat_template.jinja").read_text(encoding="utf-8")
        )
        self.end_of_turn = self._id("<|im_end|>")
        self.think = self._id("<think>")
        self.think_end = self._id("</think>")
        self.tool_call = self._id("<tool_call>")
        self.tool_response_end = self._id("</tool_response>")
        self.vocab_size = self._tokenizer.get_vocab_size()

    def _id(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise ValueError(f"the tokenizer has no token {token!r}, which simulated answers need")
        return int(token_id)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        template_kwargs: dict[str, Any],
    ) -> list[int]:
        """Render messages up to the generation prompt and encode them.

        Raises:
            TemplateError: if the template refuses the messages.
        """
        variables = {"add_generation_prompt": True, **template_kwargs}
        return self.encode(self._template.render(messages=messages, tools=tools, **variables))

    def encode(self, text: str) -> list[int]:
        """Encode text as it is; the names of special tokens in it become those tokens."""
        # The batch call is the only one that skips offsets; they are half of the cost.
        return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Decode ids; bytes that end inside a character come out as U+FFFD."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))
