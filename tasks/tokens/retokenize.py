"""Ids and mask made of text, for answers that came without ids: an older dataset, a foreign server.

Enters: a conversation, its answer as text, the target's template. Leaves: prompt ids and output
ids, or NotRetokenizable. It exists as the second-best way, taken only when asked for: text does not
tell how the target split it (about 1% of answers differ), so what is made here is marked. What can
be held is held: the ids of either side decode to that side's text, an answer that was cut gains no
end, and no token lies across the prompt's edge. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.chat.parse import THINK_END
from tasks.chat.template import ChatTemplate, Message, NotRenderable
from tasks.completions.record import Completion
from tasks.prompts.record import Plan

# How the target writes the end of its thinking, where a server gave both sides trimmed.
_TRIMMED_THINK_END = f"\n{THINK_END}\n\n"


class NotRetokenizable(ValueError):
    """The text cannot be turned into ids that stand for it; `reason` holds none of it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AnswerText:
    """An answer as text.

    Attributes:
        content: After the thinking.
        reasoning: The thinking; empty if there is none, or if it stands in the content.
        tool_calls: In OpenAI form, with `arguments` a dict.
        raw: All that was sampled but the end token, where it is known; else None.
        is_cut: Whether it ended at max_tokens: no end token then, and no end of thinking that the
            text does not have.
    """

    content: str
    reasoning: str = ""
    tool_calls: list[Message] = field(default_factory=list)
    raw: str | None = None
    is_cut: bool = False


def retokenize_completion(
    completion: Completion, tools: str | None, *, plan: Plan, template: ChatTemplate
) -> tuple[list[int], list[int]]:
    """Make the prompt ids and output ids of a generation from its text (see `retokenize`)."""
    answer = AnswerText(
        content=completion.content,
        reasoning=completion.reasoning,
        tool_calls=completion.tool_calls,
        raw=completion.text,
        is_cut=completion.finish_reason == "length",
    )
    return retokenize(completion.messages, tools, answer, thinking=plan.thinking, template=template)


def retokenize(
    messages: list[Message],
    tools: str | None,
    answer: AnswerText,
    *,
    thinking: bool,
    template: ChatTemplate,
) -> tuple[list[int], list[int]]:
    """Make the ids of a prompt, shape [n_prompt_tokens], and of its answer, [n_output_tokens].

    Where the target thinks and the answer has no thinking, the empty think block is the template's
    and so the prompt's: it was not sampled.

    Raises:
        NotRetokenizable: The template refuses the conversation, or ids do not decode to the text.
    """
    thinks = thinking and bool(answer.reasoning or (answer.raw and THINK_END in answer.raw))
    try:
        prompt = template.render_text(messages, tools, thinking=thinks)
        text = _write_answer(messages, tools, answer, prompt, thinks=thinks, template=template)
    except NotRenderable as refusal:
        raise NotRetokenizable(f"the chat template refuses it ({refusal.reason})") from refusal
    return encode_apart(prompt, text, template)


def encode_apart(prompt: str, answer: str, template: ChatTemplate) -> tuple[list[int], list[int]]:
    """Encode prompt and answer as one text, told apart by the tokens' offsets.

    A token that lies across the edge (a newline at the prompt's end merged with one at the
    answer's begin) was never sampled: both sides are then encoded each by itself.

    Raises:
        NotRetokenizable: The ids of a side do not decode to its text.
    """
    edge = len(prompt)
    ids, offsets = template.encode_with_offsets(prompt + answer)
    if any(start < edge < end for start, end in offsets):
        sides = template.encode(prompt), template.encode(answer)
    else:
        n_prompt = sum(start < edge for start, _ in offsets)
        sides = ids[:n_prompt], ids[n_prompt:]
    for side, text, name in zip(sides, (prompt, answer), ("prompt", "answer"), strict=True):
        if template.decode(side) != template.normalize(text):
            raise NotRetokenizable(f"the ids of the {name} do not decode to its text")
    return sides


def _write_answer(
    messages: list[Message],
    tools: str | None,
    answer: AnswerText,
    prompt: str,
    *,
    thinks: bool,
    template: ChatTemplate,
) -> str:
    end = "" if answer.is_cut else template.end_text
    if answer.raw is not None:
        return answer.raw + end
    if not answer.tool_calls:
        return _join(answer, thinks=thinks) + end
    # Only the template knows how a call is written. It also trims: nothing else is left to it.
    written = template.render_answered(
        messages, tools, _to_message(answer, thinks=thinks), thinking=thinks
    )
    if not written.startswith(prompt):
        raise NotRetokenizable("the template writes the answer after another prompt")
    text, closes, _ = written[len(prompt) :].rpartition(template.end_text)
    return (text if closes else written[len(prompt) :]) + end


def _to_message(answer: AnswerText, *, thinks: bool) -> Message:
    message: Message = {
        "role": "assistant",
        "content": answer.content,
        "tool_calls": answer.tool_calls,
    }
    return {**message, "reasoning_content": answer.reasoning} if thinks else message


def _join(answer: AnswerText, *, thinks: bool) -> str:
    """Put thinking and content together as they were sampled."""
    if not thinks:
        return answer.content
    if answer.is_cut and not answer.content:
        return answer.reasoning
    untrimmed = answer.reasoning.endswith("\n") or answer.content.startswith("\n")
    return answer.reasoning + (THINK_END if untrimmed else _TRIMMED_THINK_END) + answer.content
