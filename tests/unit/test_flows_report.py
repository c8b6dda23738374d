"""The report is rebuilt from the store alone, flagged samples first, and written over nothing."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from rich.console import Console

from flows.pages.pick import pick_plain, pick_samples
from flows.pages.report import describe_report, gather_report, write_report
from tasks.completions.config import GatesConfig
from tasks.errors import UserError
from tasks.report.page import render_report
from tasks.report.record import ReportFigures
from tasks.storage.manifest import write_manifest
from tasks.storage.record import Manifest
from tasks.tokens.record import SamplesReceipt, name_conversation
from tests.support.finished import FinishedRun, finish_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return finish_run(tmp_path_factory.mktemp("run"))


def alter(manifest: Manifest, **footer: object) -> Manifest:
    """Let the first part's footer say something else."""
    part = manifest.parts[0]
    changed = part.model_copy(update={"footer": part.footer.model_copy(update=footer)})
    return manifest.model_copy(update={"parts": (changed,)})


def gather(finished: FinishedRun, manifest: Manifest) -> ReportFigures:
    return gather_report(finished.run.store, manifest, finished.run.template)


def test_the_store_alone_gives_every_figure(finished: FinishedRun) -> None:
    figures = gather(finished, finished.manifest)
    n_answers = sum(len(outcome.completions) for outcome in finished.outcomes)
    assert figures.generation is not None
    assert figures.generation.n_answers == n_answers
    assert sum(figures.finish_reasons.values()) == n_answers
    assert figures.after.total.n_rows == finished.manifest.counts["n_samples"]
    assert figures.lineage["source invented"].startswith("someone/invented @ 000")
    assert figures.n_asked == len(finished.outcomes)
    assert len(figures.samples) == n_answers


def test_what_a_gate_flags_is_shown_first_and_once(finished: FinishedRun) -> None:
    manifest = alter(finished.manifest, gates={"truncation": 1})
    figures = gather(finished, manifest)
    cut = next(o.prompt_id for o in finished.outcomes if o.status == "truncated")
    ids = [sample.id for sample in figures.samples]
    assert ids[0] == f"{cut}#s0#g0"
    assert figures.samples[0].flags == ("truncation",)
    assert {sample.flags for sample in figures.samples[1:]} == {()}
    assert len(ids) == len(set(ids))
    text = render_report(figures)
    assert text.index("Flagged: truncation") < text.index(ids[1])


def test_parts_whose_footers_hold_no_flag_are_not_searched(finished: FinishedRun) -> None:
    shown = pick_samples(
        finished.run.store, finished.manifest, [], GatesConfig(), finished.run.template
    )
    assert {sample.flags for sample in shown} == {()}


@pytest.mark.parametrize(("told", "shown"), [(1500.0, "1.5 kWh"), (None, "not measured")])
def test_energy_is_told_where_the_gpus_counted_it(
    finished: FinishedRun, told: float | None, shown: str
) -> None:
    figures = gather(finished, alter(finished.manifest, watt_hours=told))
    assert figures.cost.watt_hours == told
    assert f"<dt>energy</dt><dd>{shown}</dd>" in render_report(figures)


def test_settings_are_shown_exactly_and_name_the_run(finished: FinishedRun) -> None:
    settings = {"name": "autumn", "gates": {"truncation": 0.123}}
    figures = gather(finished, finished.manifest.model_copy(update={"settings": settings}))
    assert figures.name == "autumn"
    [gate] = [gate for gate in figures.gates if gate.name == "truncation"]
    assert gate.threshold == 0.123
    assert "&#34;truncation&#34;: 0.123" in render_report(figures)


def test_the_page_is_written_with_a_verdict_and_never_over_a_file(tmp_path: Path) -> None:
    finished = finish_run(tmp_path)
    whole = write_report(finished.prefix, tmp_path / "whole.html", "100%")
    assert whole["verification"]["ok"]
    shard = finished.manifest.shards[0].key
    Path(finished.prefix.removeprefix("file://"), shard).unlink()
    page = tmp_path / "report.html"
    found = write_report(finished.prefix, page, "100%")
    assert found["report"] == str(page)
    assert page.stat().st_size == found["n_bytes"]
    text = page.read_text(encoding="utf-8")
    # A shard is gone: verification says so, and the page.
    assert not found["verification"]["ok"]
    assert found["verification"]["problems"][0].startswith(shard)
    assert found["verification"]["problems"][0].split("'")[0].split("`")[0] in text
    assert "conversations/CPU s" in str(describe_report(found).renderables)  # type: ignore[union-attr]
    with pytest.raises(UserError, match="nothing is written over"):
        write_report(finished.prefix, page, "0%")
    with pytest.raises(UserError, match="no such folder"):
        write_report(finished.prefix, tmp_path / "none" / "x.html", "0%")


def test_of_a_page_that_does_not_fit_on_the_disk_nothing_stays(
    finished: FinishedRun, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_report(finished.prefix, path, "100%")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not path.exists()


def test_a_name_chooses_no_folder_and_acts_on_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = finish_run(tmp_path)
    settings = {"name": "../[/red] x"}
    write_manifest(
        finished.run.store,
        finished.manifest.model_copy(update={"revision": 1, "settings": settings}),
    )
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    found = write_report(finished.prefix, None, "0%")
    assert [path.name for path in here.iterdir()] == ["red] x-r0001.html"]
    console = Console(width=200)
    with console.capture() as shown:
        console.print(describe_report({**found, "report": "[/red] x.html"}))
    assert "[/red] x.html" in shown.get()


def test_what_a_retry_answered_is_shown_though_it_bears_the_name_of_what_it_replaced(
    finished: FinishedRun,
) -> None:
    [made] = [SamplesReceipt.model_validate(made) for made in finished.manifest.samples]
    again = made.model_copy(update={"data_key": "data/retry-01/part-000000.jsonl.zst"})

    def pick(*receipts: SamplesReceipt, gone: dict[str, set[str]]) -> list[str]:
        store, template = finished.run.store, finished.run.template
        shown = pick_plain(store, receipts, template, most_a_source=99, passing_over=gone)
        return [sample.id for sample in shown]

    ids = pick(made, gone={})
    gone = {made.data_key: {name_conversation(each) for each in ids}}
    assert ids
    assert pick(made, gone=gone) == []
    assert pick(made, again, gone=gone) == ids
