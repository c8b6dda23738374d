"""Holds exact ids against the text they stand for, on the samples chosen for it.

Enters: a completion with its parsed ids, its prompt's tools, the plan, the target's template.
Leaves: nothing, or a TokenMismatch that shows the first difference. It exists because ids and text
reach us by two ways: a server with another template, another tokenizer or another model would
otherwise give samples that look right and teach the drafter something else. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import orjson

from tasks.chat.parse import split_reasoning
from tasks.chat.template import ChatTemplate, NotRenderable
from tasks.completions.record import Completion
from tasks.errors import TokenMismatch
from tasks.prompts.record import Plan
from tasks.tokens.record import sample_id

_AROUND = 3  # tokens shown before and after a difference
_PLACEHOLDER_TOOL = "[{}]"
_UNDECODABLE = "\ufffd"


def is_chosen(plan_sha: str, row_id: str, check_share: float) -> bool:
    """Choose `check_share` of all samples, the same ones in every run of a plan."""
    digest = blake2b(f"{plan_sha}/{row_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < check_share * 2**64


def check_sample(
    completion: Completion,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    *,
    tools: str | None,
    plan: Plan,
    template: ChatTemplate,
) -> None:
    """Hold one completion's ids against its messages and its recorded text.

    Raises:
        TokenMismatch: if the template renders the messages to other ids, or the output ids decode
            to another text than the recorded one.
    """
    name = sample_id(completion.prompt_id, completion.sample, completion.generation)
    _check_prompt(completion, prompt_ids, name, tools=tools, plan=plan, template=template)
    _check_answer(completion, output_ids, name, plan, template)


def _check_prompt(
    completion: Completion,
    prompt_ids: Sequence[int],
    name: str,
    *,
    tools: str | None,
    plan: Plan,
    template: ChatTemplate,
) -> None:
    try:
        rendered = template.render(completion.messages, tools, thinking=plan.thinking)
    except NotRenderable as error:
        raise _mismatch(
            f"the chat template refuses the recorded messages ({error.reason})", name
        ) from error
    recorded = list(prompt_ids)
    if recorded == rendered:
        return
    renders_itself = completion.token_source == "chat"  # noqa: S105
    if renders_itself and _differs_in_tools_only(completion, recorded, tools, plan, template):
        return
    raise _mismatch(
        "the prompt ids are not what the chat template renders: "
        + _describe_difference(recorded, rendered, template),
        name,
    )


def _differs_in_tools_only(
    completion: Completion,
    recorded: list[int],
    tools: str | None,
    plan: Plan,
    template: ChatTemplate,
) -> bool:
    """Whether the prompt is the rendered one but for how the server writes the tools.

    SGLang parses tools into its own types and renders those: keys in its order, defaults added.
    Where the listing lies is found by rendering a placeholder tool instead.
    """
    if tools is None:
        return False
    ours = template.render_text(completion.messages, tools, thinking=plan.thinking)
    try:
        placeholder = template.render_text(
            completion.messages, _PLACEHOLDER_TOOL, thinking=plan.thinking
        )
    except NotRenderable:
        return False
    theirs = template.decode(recorded)
    n_head = _count_equal(ours, placeholder)
    n_tail = _count_equal(ours[n_head:][::-1], placeholder[n_head:][::-1])
    listing = theirs[n_head : len(theirs) - n_tail]
    return (
        len(theirs) >= n_head + n_tail
        and theirs.startswith(ours[:n_head])
        and theirs.endswith(ours[len(ours) - n_tail :])
        and all(f'"{tool}"' in listing for tool in _name_tools(tools))
    )


def _name_tools(tools: str) -> list[str]:
    functions = (tool.get("function", tool) for tool in orjson.loads(tools))
    return [str(function["name"]) for function in functions if "name" in function]


def _check_answer(
    completion: Completion,
    output_ids: Sequence[int],
    name: str,
    plan: Plan,
    template: ChatTemplate,
) -> None:
    ids = list(output_ids)
    if ids and ids[-1] in template.end_token_ids:
        ids.pop()
    # Servers leave special tokens out of the text, except where tools are to be parsed.
    decoded = template.decode(ids)
    if not _agrees(completion, decoded, plan) and not _agrees(
        completion, template.decode(ids, skip_special=True), plan
    ):
        shown = _first_difference(_recorded_text(completion, plan), decoded)
        raise _mismatch(f"the output ids do not decode to the recorded text: {shown}", name)


def _agrees(completion: Completion, text: str, plan: Plan) -> bool:
    if completion.text is not None:
        return _normalise(completion.text) == _normalise(text)
    if plan.reasoning_parser is None:
        reasoning, content = "", text
    else:
        reasoning, content = split_reasoning(text, thinking=plan.thinking)
    if _normalise(reasoning) != _normalise(completion.reasoning):
        return False
    if completion.tool_calls:
        # The server took the calls out of the content; their text is only in the ids.
        return _normalise(content).startswith(_normalise(completion.content))
    return _normalise(content) == _normalise(completion.content)


def _recorded_text(completion: Completion, plan: Plan) -> str:
    if completion.text is not None:
        return completion.text
    between = "</think>" if plan.thinking and completion.content else ""
    return f"{completion.reasoning}{between}{completion.content}"


def _normalise(text: str) -> str:
    """Drop what servers treat differently: edges, and bytes that are no text."""
    return text.replace(_UNDECODABLE, "").strip()


def _describe_difference(recorded: list[int], rendered: list[int], template: ChatTemplate) -> str:
    place = _count_equal(recorded, rendered)

    def show(ids: list[int]) -> str:
        around = ids[max(0, place - _AROUND) : place + _AROUND + 1]
        return f"{template.decode(around)!r} (id {ids[place] if place < len(ids) else 'none'})"

    return (
        f"at token {place} of {len(recorded)} recorded {show(recorded)}, rendered {show(rendered)}"
    )


def _first_difference(recorded: str, decoded: str) -> str:
    place = _count_equal(recorded, decoded)
    around = slice(max(0, place - 12), place + 12)
    return f"at character {place} recorded {recorded[around]!r}, decoded {decoded[around]!r}"


def _count_equal(a: Sequence[object], b: Sequence[object]) -> int:
    """Count the items that both sequences begin with."""
    n_shared = min(len(a), len(b))
    return next((i for i in range(n_shared) if a[i] != b[i]), n_shared)


def _mismatch(what: str, name: str) -> TokenMismatch:
    return TokenMismatch(
        what,
        where=f"sample {name}",
        remedy="Serve the model with the tokenizer and chat template that the plan names "
        "(model.tokenizer), then generate this chunk again.",
    )
