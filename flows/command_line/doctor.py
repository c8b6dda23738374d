"""The doctor on the command line: judge a box, repair it, take the repair back. Without Prefect.

Enters: a configuration, or none. Leaves: verdicts as a table or JSON, and an exit code: 0 all well,
1 failures, 2 warnings, 3 the doctor itself failed (a configuration that cannot be read included).
"""

from __future__ import annotations

import json as json_text
import shlex
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from flows.config import ExpansionConfig
from flows.configuration.load import load_config, read_values
from flows.process.command import write_next
from flows.process.speak import ERR, answer
from flows.stages.box import profile_of, profile_of_box
from flows.stages.surroundings import probe_source, probe_store, read_cache
from tasks.environment.box_facts import BoxFacts
from tasks.environment.checks import exit_code, judge
from tasks.environment.facts import read_facts
from tasks.environment.mend import repair_box
from tasks.environment.record import AppliedFix, BoxProfile, Verdict
from tasks.environment.repair import undo_home
from tasks.environment.surroundings_checks import judge_store, judge_surroundings
from tasks.environment.verdicts import COMPOSE
from tasks.settings import Settings, read_settings

DOCTOR_FAILED = 3
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim", "unknown": "cyan"}
_N_PROBES = 8


def run_doctor(
    source: str | None, sets: Sequence[str], *, apply: bool, undo: bool, json: bool
) -> int:
    """Judge (and with `apply` or `undo` change) the box, show it, and give the exit code."""
    find = take_back if undo else (lambda: examine(source, sets, apply=apply))
    plan = () if source is None or undo else write_next("plan", source, sets)

    def suggest(found: dict[str, Any]) -> Sequence[str]:
        return () if any(check["status"] == "fail" for check in found["checks"]) else plan

    try:
        found = answer("validate", find, describe_findings, json=json, then=suggest)
    except typer.Exit as ended:
        # Signals keep their codes; every other end is the doctor's own failure.
        return ended.exit_code if ended.exit_code > DOCTOR_FAILED else DOCTOR_FAILED
    except Exception:  # noqa: BLE001 - any fault of ours must not be read as a judgement
        traceback.print_exc()
        return DOCTOR_FAILED
    return exit_code({check["status"] for check in found["checks"]})


def examine(source: str | None, sets: Sequence[str] = (), *, apply: bool = False) -> dict[str, Any]:
    """Probe and judge the box, its store and its sources, side by side.

    Raises:
        DraftmillError: The configuration or the settings cannot be used.
        OSError: A repair failed for want of disk or compiler.
    """
    settings = read_settings()
    command = ("draftmill", "validate", *((source,) if source else ()))
    command += tuple(word for text in sets for word in ("--set", text))
    if source is None:
        profile = profile_of_box(settings, command)
        facts, beyond = _probe(profile, None, settings, has_store=False)
    else:
        config, has_store = _load(source, sets, settings)
        profile = profile_of(config, settings, command)
        facts, beyond = _probe(profile, config, settings, has_store=has_store)
    verdicts = judge(facts, profile)
    if not apply:
        return lay_out((*verdicts, *beyond))
    applied, _, verdicts = repair_box(profile, facts, verdicts, _show_progress)
    return lay_out((*verdicts, *beyond), applied)


def take_back() -> dict[str, Any]:
    """Undo the newest repair."""
    undone = undo_home(read_settings().cuda_dir)
    what = "the CUDA home of before is in use again" if undone else "no repair to take back"
    return lay_out((), AppliedFix(fix=COMPOSE, status="undone" if undone else "nothing", what=what))


def lay_out(verdicts: tuple[Verdict, ...], applied: AppliedFix | None = None) -> dict[str, Any]:
    """Lay verdicts out as JSON does; the words for people lie in the evidence's values."""
    found: dict[str, Any] = {"checks": [_lay_out_check(each) for each in verdicts]}
    if applied is not None:
        found["repairs"] = [applied.model_dump(mode="json")]
    return found


def describe_findings(found: dict[str, Any]) -> RenderableType:
    """Lay the checks out as a table, what mends them below, and what was repaired."""
    grid = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
    for title in ("check", "", "what was found"):
        grid.add_column(title, overflow="fold")
    fixes = []
    for check in found["checks"]:
        status, values = check["status"], check["evidence"]["values"]
        styled = f"[{_STYLES[status]}]{status}[/]"
        grid.add_row(escape(check["id"]), styled, escape(values["summary"]))
        if check["fix"] is not None and status in ("warn", "fail", "unknown"):
            argv = shlex.join(check["fix"]["argv"])
            line = f"  {check['id']}: {values['remedy']}" + (f"\n      {argv}" if argv else "")
            fixes.append(escape(line))
    counts = dict.fromkeys(_STYLES, 0)
    for check in found["checks"]:
        counts[check["status"]] += 1
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    repairs = [
        escape(f"{each['fix']} {each['status']}: {each['what']}")
        for each in found.get("repairs", ())
    ]
    shown: list[RenderableType] = [grid, "", told] if found["checks"] else []
    if fixes:
        shown += ["", "What mends them:", *fixes]
    return Group(*shown, *(["", *repairs] if repairs and shown else repairs))


def _load(source: str, sets: Sequence[str], settings: Settings) -> tuple[ExpansionConfig, bool]:
    """Read the configuration; a shipped profile names no store, and can be judged without one."""
    values, _ = read_values(source, sets)
    if "store" in values:
        return load_config(source, sets).config, True
    unnamed = json_text.dumps((settings.home / "no-store").as_uri())
    return load_config(source, [*sets, f"store.uri={unnamed}"]).config, False


def _probe(
    profile: BoxProfile, config: ExpansionConfig | None, settings: Settings, *, has_store: bool
) -> tuple[BoxFacts, tuple[Verdict, ...]]:
    """Read the box, and what lies beyond it, at the same time."""
    with ThreadPoolExecutor(_N_PROBES, thread_name_prefix="probe") as pool:
        box = pool.submit(read_facts, profile, _show_progress)
        if config is None:
            return box.result(), judge_store(None)
        store = pool.submit(_told("store", probe_store), config.store, settings)
        sources = [
            pool.submit(_told(f"source {key}", probe_source), key, config, settings)
            for key in config.sources
        ]
        cache = pool.submit(read_cache, config)
        beyond = judge_surroundings(
            store.result() if has_store else None,
            [each.result() for each in sources],
            *cache.result(),
        )
        return box.result(), beyond


def _told(name: str, probe: Callable[..., Any]) -> Callable[..., Any]:
    """Give a probe that says when it has ended."""

    def call(*arguments: Any) -> Any:
        found = probe(*arguments)
        _say(f"{name} asked")
        return found

    return call


def _show_progress(name: str, n_done: int, n_all: int) -> None:
    _say(f"{n_done}/{n_all} {name} read")


def _say(line: str) -> None:
    ERR.print(f"  {line}", style="dim", markup=False)


def _lay_out_check(verdict: Verdict) -> dict[str, Any]:
    document = verdict.model_dump(mode="json", exclude={"summary": True, "fix": {"what"}})
    document["evidence"]["values"] |= {"summary": verdict.summary}
    if verdict.fix is not None:
        document["evidence"]["values"] |= {"remedy": verdict.fix.what}
    return document
