"""Reports say the losses first, add up, and hold whatever strangers wrote inert."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.report.composition import Composition, Tally
from tasks.report.generation import GenerationCounter
from tasks.report.inert import strip_controls
from tasks.report.page import render_canary, render_report
from tasks.report.record import CostFigures, GateFigure, ReportFigures, VerificationFigure
from tasks.report.wording import write_short
from tests.support.figures import (
    PAYLOADS,
    make_canary,
    make_generation,
    make_report,
    make_sample,
    poison,
)

VOID = {"meta", "rect", "line", "polygon", "br"}
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "nav", "div", "h1", "h2",
    "h3", "p", "ul", "li", "a", "small", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th",
    "td", "svg", "rect", "line", "polygon", "text", "section", "figure", "figcaption", "span",
    "mark", "details", "summary", "code", "pre", "footer", "br",
}  # fmt: skip


class Page(HTMLParser):
    """A page as a browser would take it apart: its elements, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data


@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_strings_are_shown_and_do_nothing(payload: str) -> None:
    hostile = poison(payload)
    canary = make_canary(name=payload, samples=hostile.samples, gates=hostile.gates)
    for html in (render_report(hostile), render_canary(canary)):
        page = Page(html)
        assert set(page.tags) <= ALLOWED
        for name, value in page.attributes:
            assert not name.startswith("on")
            assert name not in {"src", "action", "style", "srcdoc", "xlink:href"}
            assert name != "href" or re.fullmatch("#[a-z]+[0-9]*", value)
            assert name != "id" or re.fullmatch("[a-z]+[0-9]*(-h)?", value)
            assert "javascript:" not in value
        assert strip_controls(payload).split("\n")[0] in page.text
        html.encode()


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=40))
def test_no_string_changes_the_structure_of_a_page(text: str) -> None:
    def shape(html: str) -> list[str]:
        return Page(html).tags

    assert shape(render_report(poison(text))) == shape(render_report(poison("plain")))


def test_a_page_forbids_scripts_and_requests() -> None:
    for html in (render_report(make_report()), render_canary(make_canary())):
        assert "default-src &#39;none&#39;" in html or "default-src 'none'" in html
        assert "<script" not in html
        assert not re.search(r"url\(|@import|<link|<img|<iframe", html)


@given(st.text())
def test_what_is_stripped_reorders_or_controls_and_nothing_else_goes(text: str) -> None:
    stripped = strip_controls(text)
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", stripped
    )
    kept = [c for c in text if c.isprintable() or c in "\n\t"]
    assert [c for c in stripped if c.isprintable() or c in "\n\t"] == kept


def test_failures_come_first() -> None:
    text = Page(render_report(make_report())).text
    first = text.index("15 of 1,000 conversations failed or broke off (1.5%)")
    why = text.index("Why: deadline 15.")
    assert first < why < text.index("Is it whole?")
    none_failed = make_report(counts={"n_conversations": 7, "n_failed": 0})
    assert (
        "All 7 conversations were answered; none failed." in Page(render_report(none_failed)).text
    )


def test_simulated_answers_are_called_so_and_others_are_not() -> None:
    assert "Simulated answers" in render_report(make_report(simulated=True))
    assert "Simulated answers" in render_canary(make_canary(simulated=True))
    assert "imulated" not in Page(render_report(make_report())).text


def test_the_composition_is_told_before_and_after() -> None:
    text = Page(render_report(make_report())).text
    code, maths = text.index("code"), text.index("maths")
    assert code < maths, "the domain with more supervised tokens comes first"
    assert "100.0%" in text
    before, after = make_report().before, make_report().after
    expected = before.total.n_supervised_tokens / after.total.n_supervised_tokens
    assert f"{expected:.1%}" in text


def test_without_a_base_dataset_there_is_no_before() -> None:
    html = render_report(make_report(before=Composition()))
    assert not re.search(
        "before|base dataset alone", re.split("Accounting|Samples", Page(html).text)[0]
    )
    assert "of rows,<br>before" not in html
    assert "of rows,<br>before" in render_report(make_report())


def test_a_gate_past_its_limit_is_marked_and_an_accepted_one_told_apart() -> None:
    gates = (
        GateFigure(name="truncation", n_flagged=1, n_judged=100, threshold=0.3),
        GateFigure(name="repetition", n_flagged=5, n_judged=100, threshold=0.02),
        GateFigure(name="duplicate", n_flagged=9, n_judged=100, threshold=0.05, accepted=True),
        GateFigure(name="tiny_mask", n_flagged=0, n_judged=0, threshold=0.0),
    )
    text = Page(render_report(make_report(gates=gates))).text
    rows = re.findall(
        r"(truncation|repetition|duplicate|tiny mask).*?(within|over|accepted)", text, re.S
    )
    assert rows == [
        ("truncation", "within"),
        ("repetition", "over"),
        ("duplicate", "accepted"),
        ("tiny mask", "within"),
    ]


def test_a_canary_shows_twenty_conversations_of_each_source() -> None:
    samples = [
        make_sample(id=f"{source}-{i:02d}", source=source)
        for i in range(25)
        for source in ("alpha", "beta")
    ]
    text = Page(render_canary(make_canary(samples=tuple(samples)))).text
    shown = re.findall(r"(?:alpha|beta)-\d\d", text)
    assert len(shown) == 40
    assert shown[0] == "alpha-00"
    assert "alpha-20" not in shown


def test_an_empty_run_still_has_a_page() -> None:
    figures = ReportFigures(
        name="empty",
        uri="file:///x",
        revision=0,
        created_at="now",
        simulated=False,
        counts={},
        before=Composition(),
        after=Composition(),
    )
    assert "empty" in Page(render_report(figures)).text


def test_the_first_screen_says_whether_it_is_whole_what_it_cost_and_what_the_mix_is() -> None:
    cost = CostFigures(gpus_a_server=2, bound_tokens_per_second=1000.0, watt_hours=2_500.0)
    text = Page(render_report(make_report(cost=cost))).text
    glance = text[text.index("Is it whole?") : text.index("Every row read")]
    assert "98.5%" in glance
    generation = make_generation()
    hours = generation.server_seconds * 2 / 3600
    assert f"{hours:.3g} GPU-hours" in glance
    assert "2.5 kWh" in glance
    assert "% of all" in " ".join(glance.split())
    for label in ("tokens per GPU-hour", "of the roofline", "slots in use", "sums that balance"):
        assert label in glance


def test_without_a_gpu_the_cost_is_the_time_that_the_servers_took() -> None:
    text = Page(render_report(make_report(simulated=True))).text
    assert "on 1 server, no GPU" in text


def test_every_anchor_leads_to_one_place_and_every_section_is_named_by_its_heading() -> None:
    for html in (render_report(poison("x")), render_canary(make_canary())):
        ids = re.findall(r' id="([^"]+)"', html)
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'href="#([^"]+)"', html)) <= set(ids)
        assert set(re.findall(r'aria-labelledby="([^"]+)"', html)) <= set(ids)
        assert html.count("<section") == html.count("aria-labelledby")
        assert re.findall("<h1", html) == ["<h1"]


def test_the_verdict_of_verification_is_told_with_each_fault() -> None:
    def tell(**fields: Any) -> str:
        plain = {"ok": True, "n_objects": 9, "share_read": 1.0, "verified_at": "today"}
        verdict = VerificationFigure(**{**plain, **fields})
        return Page(render_report(make_report(verification=verdict))).text

    assert "Whole: all 9 objects are what the manifest says." in tell()
    faulty = tell(ok=False, problems=("data/part-000003 is damaged: run again",))
    assert "1 fault among 9 objects" in faulty
    assert "data/part-000003 is damaged: run again" in faulty
    assert "to verify" in Page(render_report(make_report())).text


def test_throughput_is_drawn_for_each_server_below_the_roofline() -> None:
    cost = CostFigures(bound_tokens_per_second=150.0)
    html = render_report(make_report(cost=cost))
    mean = make_generation()
    speed = mean.n_output_tokens / mean.seconds
    assert "roofline 150 tokens/s" in html
    assert f"{speed / 150:.1%} of the roofline" in Page(html).text
    assert html.count("<polygon") == 3, "the server's area, requests in flight, its row"
    untimed = make_generation().model_copy(update={"endpoints": (), "stretches": ()})
    text = Page(render_report(make_report(generation=untimed))).text
    assert "do not say when each answer came" in text


def test_the_mean_is_that_of_the_answers_that_say_when_they_came() -> None:
    counter = GenerationCounter()
    for i in range(40):
        counter.add_answer(
            "a",
            prompt_tokens=10,
            output_tokens=100,
            reasoning_tokens=0,
            latency_seconds=1.0,
            ended_at=1_900_000_000.0 + i if i < 20 else 0.0,
            retried=(),
        )
    text = Page(render_report(make_report(generation=counter.freeze({}, {})))).text
    assert "100 tokens/s on average" in text
    # Nor is it said of parts of old, which tell no retries, that there were none.
    assert "None was, of those that were answered." not in text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (0.5, "0.5"), (7.5, "7.5"), (950, "950"), (12_300, "12.3k")]
)
def test_a_tick_says_what_it_stands_for(number: float, text: str) -> None:
    assert write_short(number) == text


def test_a_page_of_many_large_samples_stays_below_five_megabytes() -> None:
    large = make_sample("<&\U0001f30a" * 3000)
    samples = tuple(large.model_copy(update={"id": f"{i}"}) for i in range(400))
    domains = {
        f"domain {i}": Tally(n_rows=1, n_tokens=2, n_supervised_tokens=1) for i in range(9999)
    }
    after = Composition(by_domain=domains, by_source=domains)
    html = render_report(make_report(samples=samples, after=after))
    assert len(html.encode()) < 5_000_000
    n_left_out = 400 - html.count('<div class="tokens">')
    assert 0 < n_left_out < 400
    assert f"{n_left_out} more were left out" in html
    assert "9,960 others" in html


def test_flagged_samples_stand_before_others_under_the_rarest_of_their_flags() -> None:
    samples = (
        make_sample(id="one", flags=("truncation",)),
        make_sample(id="two", flags=("repetition", "truncation")),
        make_sample(id="three", source="alpha"),
    )
    text = Page(render_report(make_report(samples=samples))).text
    places = [text.index(word) for word in ("Flagged: repetition", "two", "Flagged: truncation")]
    assert places == sorted(places)
    assert text.index("one") < text.index("three")
