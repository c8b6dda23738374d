"""What `make deploy` hands to Prefect: a default for every flow, and automations that it takes."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
from prefect.events.schemas.automations import AutomationCore
from prefect.settings import PREFECT_API_URL, temporary_settings
from ruamel.yaml import YAML

from deployments.deploy import HERE, choose_parameters, deploy, read_defaults
from flows.stages.ending import AWAITING_REVIEW, NOTHING_NEW, STOPPED_BY_GATE
from flows.watch_datasets import STILL_UNREACHABLE
from tasks.errors import UserError
from tests.support.simulator import find_free_port


def read_yaml(name: str) -> Any:
    return YAML(typ="safe", pure=True).load((HERE / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("deployment", read_yaml("prefect.yaml")["deployments"], ids=str)
def test_every_flow_is_there_and_takes_what_it_is_given(deployment: dict[str, Any]) -> None:
    path, _, name = deployment["entrypoint"].rpartition(":")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    parameters = inspect.signature(getattr(module, name).fn).parameters
    defaults = {"store": {"uri": "s3://bucket/run"}, "serving": {}, "model": {}}
    given = choose_parameters(name, defaults)
    assert set(given) <= set(parameters)
    # Whatever has no default of its own is filled in, so that a schedule can fire.
    needed = {key for key, value in parameters.items() if value.default is value.empty}
    assert needed <= set(given)
    assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}
    assert all(not schedule["active"] for schedule in deployment.get("schedules", []))


def test_a_profile_is_given_with_its_gaps() -> None:
    defaults = read_defaults("rtx-pro-6000-8x")
    assert defaults["serving"]["n_servers"] == 8
    assert "store" not in defaults
    assert choose_parameters("verify", defaults) == {"config": defaults}
    assert choose_parameters("servers_down", defaults) == {}


@pytest.mark.parametrize("entry", read_yaml("automations.yaml"), ids=lambda entry: entry["name"])
def test_every_automation_does_something(entry: dict[str, Any]) -> None:
    tells = {"subject", "body"} <= set(entry)
    assert tells or entry["actions"]
    wanted = {key: value for key, value in entry.items() if key not in ("subject", "body")}
    AutomationCore.model_validate({"actions": [], **wanted})


def test_a_run_that_ended_by_any_name_is_not_waited_for() -> None:
    entries = read_yaml("automations.yaml")
    (silence,) = (one for one in entries if one["name"] == "draftmill run without heartbeat")
    ended = {"Completed", "Failed", "Cancelled", "Crashed", "CompletedPartial"}
    ended |= {AWAITING_REVIEW, NOTHING_NEW, STOPPED_BY_GATE, STILL_UNREACHABLE}
    heard = {name.rpartition(".")[2] for name in silence["trigger"]["expect"]}
    assert heard == ended | {"heartbeat"}


async def test_a_server_that_goes_away_in_the_midst_is_told_in_one_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def was_there() -> None: ...

    monkeypatch.setattr("deployments.deploy.check_server", was_there)
    with (
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{find_free_port()}/api"}),
        pytest.raises(UserError, match="answers no more") as caught,
    ):
        await deploy("demo", None)
    assert "run again" in caught.value.remedy
