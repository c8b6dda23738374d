"""How a flow ends: its state's name, its last words, and what to do where a person is asked.

Enters: what stands in the store. Leaves: a state of Prefect whose data is the summary. Names:
Completed, CompletedPartial (rows failed within the budget), NothingNew (earlier runs met every
row), AwaitingReview (the canary is to be looked at), StoppedByGate (answers are bad).
"""

from __future__ import annotations

import shlex
from typing import Any

import orjson
from prefect.client.schemas.objects import State
from prefect.runtime import deployment, flow_run
from prefect.states import Completed, Failed

from flows.pages.run_page import show_end, show_places, show_stop
from flows.process.command import called
from flows.stages.assemble import assemble_all
from flows.stages.finish import finish_run
from flows.stages.opened import Run
from tasks.errors import StoppedByGate
from tasks.prompts.record import Plan
from tasks.storage.layout import canary_key
from tasks.storage.retry import Standing

AWAITING_REVIEW = "AwaitingReview"
NOTHING_NEW = "NothingNew"
STOPPED_BY_GATE = "StoppedByGate"
_PAUSE = "pause_after_canary"


async def conclude(run: Run, plan: Plan, standing: Standing) -> State[Any]:
    """Assemble, merge, report, and write the manifest; say how whole it is."""
    run.narrator.stage("assemble", f"{len(standing.all_parts)} parts")
    samples = await assemble_all(run, plan, standing)
    summary = await finish_run(run, plan, standing, samples)
    await show_end(run.config, run.store, plan, standing, summary)
    return describe_end(run, summary)


def describe_end(run: Run, summary: dict[str, Any]) -> State[Any]:
    """Name the state of a run that has its manifest."""
    n_lost = summary["counts"]["n_failed"] + summary["counts"]["n_partial"]
    if n_lost:
        n_all = summary["counts"]["n_conversations"]
        message = f"{n_all - n_lost:,} of {n_all:,} conversations are whole"
        partial = {"state": "CompletedPartial", **summary}
        return run.farewell.say(Completed(name="CompletedPartial", message=message, data=partial))
    whole = {"state": "Completed", **summary}
    return run.farewell.say(Completed(message="every conversation is whole", data=whole))


def nothing_new(run: Run) -> State[Any]:
    """Name the state of a run whose sources hold no prompt that earlier runs did not meet."""
    uris = [earlier.uri for earlier in run.past.runs]
    summary = {
        "state": NOTHING_NEW,
        "name": run.config.name,
        "uri": run.store.uri,
        "earlier": uris,
    }
    message = f"every row was met by an earlier run: {', '.join(uris)}"
    return run.farewell.say(Completed(name=NOTHING_NEW, message=message, data=summary))


async def stop_by_gate(run: Run, stopped: StoppedByGate) -> State[Any]:
    """Name the state of a run whose answers are bad; what it has is kept."""
    await show_stop(run.config, run.store.uri, stopped)
    return run.farewell.say(Failed(name=STOPPED_BY_GATE, message=str(stopped), data=stopped))


async def await_review(run: Run) -> State[Any]:
    """Name the state of a run whose canary waits for a person, with the command to go on."""
    page = f"{run.store.uri}/{canary_key()}"
    command = _write_command()
    summary = {
        "state": AWAITING_REVIEW,
        "name": run.config.name,
        "uri": run.store.uri,
        "canary": page,
        "command": command,
    }
    await show_places(run.config, run.store.uri, summary)
    message = f"look at {page}, then go on with: {command}"
    return run.farewell.say(Completed(name=AWAITING_REVIEW, message=message, data=summary))


def _write_command() -> str:
    """Write the command that goes on, as a shell takes it.

    A run of a deployment was not called by a command; its own parameters say all.
    """
    if deployment.name is None:
        return shlex.join((*called.get(), "--set", f"gates.{_PAUSE}=false"))
    parameters = dict(flow_run.parameters)
    config = parameters["config"]
    config = config if isinstance(config, dict) else config.model_dump(mode="json")
    parameters["config"] = {**config, "gates": {**config.get("gates", {}), _PAUSE: False}}
    name = f"{flow_run.flow_name}/{deployment.name}"
    text = orjson.dumps(parameters, default=str).decode()
    return shlex.join(("prefect", "deployment", "run", name, "--params", text))
