"""A sample's tokens to short pieces of text, told apart by their mask.

Enters: ids and mask of one sample, the target's template. Leaves: a ShownSample. It exists so that
a mask can be judged at a glance, by someone who has never seen the tokens. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tasks.chat.template import ChatTemplate
from tasks.report.record import ShownSample, Span

HEAD_TOKENS = 240
TAIL_TOKENS = 60


def show_sample(
    template: ChatTemplate,
    *,
    row_id: str,
    source: str,
    domain: str,
    finish_reason: str,
    input_ids: Sequence[int],
    loss_mask: Sequence[int],
) -> ShownSample:
    """Decode a sample; of each long run of one mask only head and tail are shown.

    Args:
        template: Decodes the ids.
        row_id: The sample's id.
        source: Where its prompt comes from.
        domain: Domain of its prompt.
        finish_reason: Why its answer ended.
        input_ids: Shape [seq_len].
        loss_mask: 0 or 1. Shape [seq_len].
    """
    ids, spans, start = list(input_ids), list[Span](), 0
    for supervised, group in groupby(loss_mask):
        end = start + sum(1 for _ in group)
        run = [int(token) for token in ids[start:end]]
        spans += _show_run(template, run, supervised=bool(supervised))
        start = end
    return ShownSample(
        id=row_id,
        source=source,
        domain=domain,
        finish_reason=finish_reason,
        n_tokens=len(ids),
        n_supervised_tokens=int(sum(loss_mask)),
        spans=tuple(spans),
    )


def _show_run(template: ChatTemplate, run: list[int], *, supervised: bool) -> list[Span]:
    n_hidden = len(run) - HEAD_TOKENS - TAIL_TOKENS
    if n_hidden <= 0:
        return [Span(text=template.decode(run), supervised=supervised)]
    head, tail = run[:HEAD_TOKENS], run[-TAIL_TOKENS:]
    return [
        Span(text=template.decode(head), supervised=supervised),
        Span(text=template.decode(tail), supervised=supervised, n_hidden=n_hidden),
    ]
