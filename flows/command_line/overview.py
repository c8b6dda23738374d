"""The runs over one source below a root: what became of each, and the command that takes it up.

Enters: a root prefix, or the configuration whose `store.uri` it is. Leaves: one record a run, as
the store alone tells it, told as it is found. It exists because a version of a dataset counts as
announced when its run has begun: where the run then failed, here is where that is seen, whatever
became of Prefect's database. Nothing is written.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Literal

import orjson
from rich.text import Text

from flows.command_line.standstill import Stage, judge_stage
from flows.command_line.summary import show_place
from flows.configuration.complete import complete_sources, pin
from flows.dataset.inspect import Place, iter_folders, locate
from flows.process.speak import OUT
from tasks.errors import CorruptPart, UserError
from tasks.storage.location import parse_uri
from tasks.storage.record import Request
from tasks.storage.request import list_differences, read_request
from tasks.storage.store import ArtifactStore, open_store

DEPLOYMENTS: dict[str, str] = {"run": "expand/box", "retry-failures": "retry-failures/box"}
"""The deployment that does what a command does."""
_MOST_NAMED = 5
_PAUSE = "pause_after_canary"


def survey_root(root: str, *, tell: bool) -> dict[str, Any]:
    """Look at every run below a root.

    Args:
        root: A uri, a folder, or a configuration.
        tell: Whether each run is printed as soon as it was looked at.

    Raises:
        UserError: No run over one source lies below the root.
    """
    place, runs = locate(root), []
    config_name = root if place.config is not None else "CONFIG"
    for found in _iter_runs(place, config_name):
        runs.append(found)
        if tell:
            OUT.print(describe_run(found), soft_wrap=True, markup=False)
    stages = Counter(found["stage"] for found in runs)
    return {"root": place.store.uri, "n_runs": len(runs), "stages": dict(stages), "runs": runs}


def describe_survey(found: dict[str, Any]) -> Text:
    """Sum the runs up in one line; each was told already."""
    stages = ", ".join(f"{n} {stage}" for stage, n in found["stages"].items())
    runs = "1 run" if found["n_runs"] == 1 else f"{found['n_runs']:,} runs"
    return Text(f"{runs} below {show_place(found['root'])}: {stages}")


def describe_run(found: dict[str, Any]) -> str:
    """Tell of one run in a few lines."""
    revision = found["revision"][:12] if found["revision"] else "unknown revision"
    lines = [f"{found['source'] or 'unknown source'}  {revision}  {found['stage']}"]
    lines[0] += f": {found['detail']}" if found["detail"] else ""
    lines.append(f"  {show_place(found['uri'])}")
    lines += [f"  its last words: {found['last_words']}"] if found["last_words"] else []
    lines += [f"  {command}" for command in found["commands"]]
    return "\n".join([*lines, ""])


def _iter_runs(place: Place, config_name: str) -> Iterator[dict[str, Any]]:
    others: list[str] = []
    n_runs = 0
    for name, config in iter_folders(place):
        if config is None:
            others.append(name)
            continue
        n_runs += 1
        with closing(open_store(config, place.credentials)) as store:
            yield _look(store, place, config_name)
    if not n_runs:
        raise _nothing_there(parse_uri(place.store.uri).uri, others)


def _look(store: ArtifactStore, place: Place, config_name: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "last_words": "",
        "source": None,
        "revision": None,
        "uri": store.uri,
        "commands": [],
    }
    try:
        request = read_request(store)
        if request is None:
            return {**found, "stage": "no run", "detail": "nothing was asked for here yet"}
        source = request.resolved["sources"][0]
        named = {"source": source["key"], "revision": source["revision"]}
        judged = judge_stage(store, request)
    except CorruptPart as error:
        return {**found, "stage": "damaged", "detail": str(error)}
    found |= {**named, "dataset": source["dataset"], "asked_sha": request.asked_sha}
    found |= {"stage": judged.stage, "detail": judged.detail, "last_words": judged.last_words}
    command = _choose_command(judged.stage, judged.n_lost)
    if command is None:
        return found
    if differences := _find_differences(place, request, **named):
        wrong = f"{config_name} asks for something else now: {'; '.join(differences)}"
        return {**found, "detail": f"{found['detail']}; {wrong}" if found["detail"] else wrong}
    is_reviewed = judged.stage == "awaiting review"
    commands = _write_commands(command, place, config_name, named, is_reviewed=is_reviewed)
    return {**found, "commands": commands}


def _write_commands(
    command: Literal["run", "retry-failures"],
    place: Place,
    config_name: str,
    named: dict[str, str],
    *,
    is_reviewed: bool,
) -> list[str]:
    """Write the command that takes a run up, here and by its deployment, as a shell takes them.

    A run whose canary waited goes on, as it does by the command that it named itself. Its
    deployment takes a configuration only as a whole: without one, the first command stands alone.
    """
    words = [word for name, value in named.items() for word in (f"--{name}", value)]
    words += ["--set", f"gates.{_PAUSE}=false"] if is_reviewed else []
    commands = [shlex.join(("draftmill", command, config_name, *words))]
    parameters: dict[str, Any] = dict(named)
    if is_reviewed:
        if place.config is None:
            return commands
        gates = place.config.gates.model_copy(update={_PAUSE: False})
        config = place.config.model_copy(update={"gates": gates})
        parameters["config"] = config.model_dump(mode="json")
    # As one JSON value: a revision of digits alone would else be taken for a number.
    text = orjson.dumps(parameters).decode()
    there = ("prefect", "deployment", "run", DEPLOYMENTS[command], "--params", text)
    return [*commands, shlex.join(there)]


def _choose_command(stage: Stage, n_lost: int) -> Literal["run", "retry-failures"] | None:
    if stage in ("nothing new", "at work"):
        return None
    if stage != "done":
        return "run"
    return "retry-failures" if n_lost else None


def _find_differences(place: Place, request: Request, source: str, revision: str) -> list[str]:
    """Say in what a configuration differs from the one that the run was started with."""
    if place.config is None:
        return []
    if source not in place.config.sources:
        return [f"it has no source {source!r}"]
    asked = complete_sources(pin(place.config, source, revision)).asked()
    return list(list_differences(request.asked, orjson.loads(orjson.dumps(asked))))


def _nothing_there(uri: str, others: list[str]) -> UserError:
    what = "there is nothing below this root"
    remedy = "Give the store.uri that the deployment's configuration names."
    if "_run" in others:
        what = "a run stands at this prefix itself, and no run over one source below it"
        remedy = f"Ask for it alone: draftmill status {shlex.quote(show_place(uri))}"
    elif others:
        named = ", ".join(others[:_MOST_NAMED]) + (", ..." if len(others) > _MOST_NAMED else "")
        what = f"none of the {len(others)} folders below this root is a run's: {named}"
    return UserError(f"{what}.", where=uri, remedy=remedy)
