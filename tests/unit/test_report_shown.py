"""What is shown of samples and in Prefect: masks told apart, strangers' text kept in its place."""

from __future__ import annotations

import re

import pytest

from tasks.report.page import render_report
from tasks.report.spans import HEAD_TOKENS, TAIL_TOKENS, show_sample
from tasks.report.task import artifact_slug, write_summary
from tests.support.figures import PAYLOADS, make_report, poison
from tests.support.generation import load_template


def test_tokens_are_told_apart_by_their_mask() -> None:
    template = load_template()
    prompt, answer = template.encode("What is 2 + 3?"), template.encode("Five, 你好.<|im_end|>")
    sample = show_sample(
        template,
        row_id="a",
        source="s",
        domain="d",
        finish_reason="stop",
        input_ids=prompt + answer,
        loss_mask=[0] * len(prompt) + [1] * len(answer),
    )
    assert [(span.text, span.supervised) for span in sample.spans] == [
        ("What is 2 + 3?", False),
        ("Five, 你好.<|im_end|>", True),
    ]
    assert (sample.n_tokens, sample.n_supervised_tokens) == (len(prompt + answer), len(answer))
    html = render_report(make_report(samples=(sample,)))
    assert '<span class="zero">What is 2 + 3?</span>' in html
    assert '<mark class="one">Five, 你好.&lt;|im_end|&gt;</mark>' in html


def test_a_long_run_of_tokens_shows_head_and_tail_and_counts_the_rest() -> None:
    template = load_template()
    ids = template.encode("one two three four five six seven " * 100)
    sample = show_sample(
        template,
        row_id="a",
        source="s",
        domain="d",
        finish_reason="length",
        input_ids=ids,
        loss_mask=[1] * len(ids),
    )
    assert sample.spans[1].n_hidden == len(ids) - HEAD_TOKENS - TAIL_TOKENS
    assert f"{sample.spans[1].n_hidden:,} more tokens" in render_report(
        make_report(samples=(sample,))
    )


@pytest.mark.parametrize("payload", PAYLOADS)
def test_markdown_for_prefect_keeps_rows_inside_their_fence(payload: str) -> None:
    figures = poison(payload)
    markdown = write_summary(figures, "report/r0002/index.html")
    assert markdown.count("```") == 2
    assert markdown.endswith("```")
    outside = markdown.split("```")[0]
    assert "1,000" in outside
    assert "\x1b" not in markdown


@pytest.mark.parametrize("name", ["Autumn Mix/7B", "--", "秋", "a" * 200, "r0"])
def test_artifact_keys_are_lower_case_letters_digits_and_dashes(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?", f"report-{artifact_slug(name)}")
