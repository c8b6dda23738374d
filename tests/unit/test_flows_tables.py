"""Tables of a run's page in Prefect: figures that add up, and strangers' text that stays inert."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from flows.pages.tables import (
    code,
    tabulate_failures,
    tabulate_gates,
    tabulate_mix,
    write_places,
)
from tasks.completions.config import Gate, GatesConfig
from tasks.report.composition import Composition, Tally
from tests.support.figures import PAYLOADS, poison


def test_a_gate_stands_beside_its_threshold_and_says_whether_it_is_past_it() -> None:
    gates = GatesConfig(empty_answer=0.05, truncation=0.1, accept=("truncation",))
    flagged = {"empty_answer": 5, "truncation": 90, "repetition": 40}
    rows = {row["gate"]: row for row in tabulate_gates(gates, flagged, 100)}
    assert set(rows) == set(get_args(Gate))
    assert rows["empty_answer"] == {
        "gate": "empty_answer",
        "flagged": "5 of 100",
        "share": "5.00%",
        "threshold": "5.00%",
        "verdict": "within",
    }
    assert rows["truncation"]["verdict"] == "accepted"
    assert rows["repetition"]["verdict"] == "past it"
    assert tabulate_gates(gates, {}, 0)[0]["share"] == "0.00%", "before anything is judged"


def test_failures_are_told_by_kind_the_most_frequent_first() -> None:
    rows = tabulate_failures({"deadline": 3, "bad_request": 5}, 1000)
    assert [row["kind"] for row in rows] == ["bad_request", "deadline"]
    assert [row["share"] for row in rows] == ["0.50%", "0.30%"]
    assert tabulate_failures({}, 10)[0]["kind"] == "none"


def test_the_mix_is_told_before_and_after_by_rows_and_by_tokens() -> None:
    def compose(**domains: tuple[int, int]) -> Composition:
        tallies = {
            name: Tally(n_rows=rows, n_tokens=tokens, n_supervised_tokens=tokens)
            for name, (rows, tokens) in domains.items()
        }
        return Composition(by_domain=tallies, by_source={"mine": sum(tallies.values(), Tally())})

    rows = tabulate_mix(compose(prose=(10, 100)), compose(prose=(10, 100), code=(10, 300)))
    assert [(row["of"], row["name"]) for row in rows] == [
        ("domain", "`code`"),
        ("domain", "`prose`"),
        ("source", "`mine`"),
    ]
    assert rows[0]["share of rows after"] == "50.0%"
    assert rows[0]["share of tokens after"] == "75.0%"
    assert rows[0]["share of tokens before"] == "0.0%"
    assert (rows[1]["rows before"], rows[1]["share of tokens after"]) == ("10", "25.0%")
    nothing = tabulate_mix(Composition(), compose(code=(1, 1)))
    assert nothing[0]["share of rows before"] == "-"
    assert len({tuple(row) for row in rows}) == 1, "one table has one set of columns"


@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_strangers_named_stands_in_code(payload: str) -> None:
    figures = poison(payload)
    for row in tabulate_mix(figures.before, figures.after):
        assert row["name"].count("`") == 2
        assert row["name"].startswith("`")
        assert row["name"].endswith("`")
        assert "\n" not in row["name"]
    assert re.fullmatch(r"`[^`\n\x00-\x1f]+`", code(payload))


def test_a_link_leads_to_the_console_on_aws_and_no_uri_ends_it_early() -> None:
    places = {"report": "s3://bucket/a b)/report/r0000/index.html", "store": "s3://bucket/a b)/"}
    report, store = write_places(places, on_aws=True).splitlines()[2:]
    assert report == (
        "- [report](https://console.aws.amazon.com/s3/object/bucket"
        "?prefix=a%20b%29/report/r0000/index.html) `s3://bucket/a b)/report/r0000/index.html`"
    )
    assert "buckets/bucket?prefix=a%20b%29/)" in store
    elsewhere = write_places({"store": "file:///tmp/x (1)/"}, on_aws=False)
    assert "(file:///tmp/x%20%281%29/) `file:///tmp/x (1)/`" in elsewhere
