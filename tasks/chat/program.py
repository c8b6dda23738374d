"""The chat template as a compiled program, run on turns of plain text without the way around it.

Enters: a tokenizer with its chat template, turns whose values are all texts. Leaves: the text that
`apply_chat_template` gives. It exists because of a prompt's cost a third is the template's, and of
that a third is not the program but what transformers and Jinja do around it for other inputs:
copying every value, and asking of every look-up whether it is a safe one.

The program runs in transformers' own sandbox, whose answers to most look-ups are known
before it is asked: keys of a dict, methods of a text, and where a loop is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# transformers writes these under each other's names, which is not done here.
_REASONING_FIELDS = frozenset(("reasoning_content", "thinking", "reasoning"))
_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP_NUMBERS = frozenset(("index", "index0", "first", "last", "length"))
# A sandbox gives these two as they are to nobody.
_FORMATTING = frozenset(("format", "format_map"))


def is_plain(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether transformers would hand these turns to the template as they are."""
    return bool(messages) and all(
        type(value) is str and key not in _REASONING_FIELDS
        for turn in messages
        for key, value in turn.items()
    )


class TemplateProgram:
    """A chat template, compiled; `render` takes turns that are `is_plain`, and no tools."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Compile.

        Raises:
            jinja2.TemplateError: The template is no program.
        """
        # Imported late, with transformers itself. The environment has no public name there.
        from transformers.utils.chat_template_utils import (  # noqa: PLC0415
            _compile_jinja_template,
            _plain_template_data,
        )

        source = str(tokenizer.chat_template)
        environment = _compile_jinja_template(source).environment.overlay()
        environment.__class__ = _QuickSandbox
        self._template = environment.from_string(source)
        self._variables = {
            **self._template.globals,
            **cast("dict[str, Any]", _plain_template_data(tokenizer.special_tokens_map)),
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }

    def render(self, messages: Sequence[dict[str, Any]], *, thinking: bool) -> str:
        """Render turns up to and with the generation prompt.

        Raises:
            Exception: Whatever the template raises at them.
        """
        variables = self._variables | {"enable_thinking": thinking, "messages": list(messages)}
        # `shared` takes the variables as they are, with the globals already among them.
        context = self._template.new_context(variables, shared=True)
        return "".join(self._template.root_render_func(context))


class _QuickSandbox(ImmutableSandboxedEnvironment):
    """The sandbox, which is not asked where its answer is known."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up as the sandbox does."""
        kind = type(obj)
        if kind is dict:
            if attribute in obj and attribute not in _DICT_ATTRIBUTES:
                return obj[attribute]
        elif (kind is str and attribute in _TEXT_METHODS) or (
            kind is LoopContext and attribute in _LOOP_NUMBERS
        ):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


_SANDBOX = ImmutableSandboxedEnvironment()
_TEXT_METHODS = frozenset(
    name
    for name in dir(str)
    if name not in _FORMATTING and _SANDBOX.is_safe_attribute("", name, getattr("", name))
)
