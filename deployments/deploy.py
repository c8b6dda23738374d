"""Puts every flow on a running Prefect server: `make deploy CONFIG=run.yaml [NOTIFY=BLOCK]`.

Enters: a configuration or the name of a profile. Leaves: the work pool, the deployments of
prefect.yaml with that configuration as their default, and the automations of automations.yaml.
It may be repeated at will: everything is found by its name and updated, but for what people switch
in the UI: schedules are made once and are theirs from then on, and an automation that is off stays
off.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
from prefect import Flow
from prefect.automations import Automation
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import (
    DeploymentScheduleCreate,
    DeploymentUpdate,
    WorkPoolCreate,
)
from prefect.client.schemas.schedules import CronSchedule
from prefect.events import DeploymentEventTrigger
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.utilities.callables import parameter_schema
from ruamel.yaml import YAML

from flows.command_line.launch import check_server
from flows.configuration.load import PROFILES, load_config, read_values
from tasks.errors import DraftmillError, UserError

HERE = Path(__file__).parent
POOL = "gpu-box"
_SET_FOLDER = "prefect.deployments.steps.set_working_directory"


def main(arguments: Sequence[str] | None = None) -> int:
    """Deploy, and say what is there now; one line an error."""
    parser = argparse.ArgumentParser(prog="python -m deployments.deploy", description=__doc__)
    parser.add_argument("config", help="configuration file, or the name of a profile")
    parser.add_argument("--notify", help="notification block, as TYPE-SLUG/NAME")
    options = parser.parse_args(arguments)
    try:
        if not os.environ.get("PREFECT_API_URL"):
            raise UserError(
                "no Prefect server is named",
                where="PREFECT_API_URL",
                remedy="Start one (`prefect server start`) and set PREFECT_API_URL to its /api.",
            )
        names = asyncio.run(deploy(options.config, options.notify))
    except DraftmillError as error:
        print(f"error {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    for name in names:
        print(name)  # noqa: T201
    return 0


async def deploy(config: str, notify: str | None) -> list[str]:
    """Deploy all flows with a configuration as their default.

    Args:
        config: A file, which must be whole, or a shipped profile, whose gaps the form then shows.
        notify: The block that notifications go through; None: no notifications.

    Returns:
        The names of deployments and automations, for people.

    Raises:
        ConfigError: The configuration is not valid.
        UserError: The server does not answer, refuses, or has no such block.
    """
    defaults = read_defaults(config)
    await check_server()
    try:
        return await _deploy_all(defaults, notify)
    except httpx.HTTPError as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"the Prefect server answers no more, or refuses: {said}",
            where=os.environ.get("PREFECT_API_URL", "PREFECT_API_URL"),
            remedy="See that it runs, and run again; what was deployed is then updated.",
        ) from error


async def _deploy_all(defaults: dict[str, Any], notify: str | None) -> list[str]:
    async with get_client() as client:
        await _ensure_pool(client)
        block_id = None if notify is None else await _find_block(client, notify)
        names = []
        for entry in _read_yaml("prefect.yaml")["deployments"]:
            try:
                names.append(await _deploy_flow(client, entry, defaults))
            except PrefectHTTPStatusError as error:
                raise UserError(
                    f"the Prefect server refuses {entry['entrypoint']}: {error.response.text}",
                    where="deployments/prefect.yaml",
                    remedy="Mend what it names and run again; what was deployed is then updated.",
                ) from error
        return names + await _put_automations(client, block_id)


def read_defaults(config: str) -> dict[str, Any]:
    """Read what the deployments' `config` parameter begins with."""
    if (PROFILES / f"{config}.yaml").is_file() and not Path(config).is_file():
        return read_values(config)[0]
    return load_config(config).config.model_dump(mode="json")


def choose_parameters(function: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """Give a flow what its parameters begin with; a gap of a profile stays a gap."""
    match function:
        case "servers_up":
            chosen = {"serving": defaults.get("serving"), "model": defaults.get("model")}
        case "servers_down":
            chosen = {}
        case _:
            chosen = {"config": defaults}
    return {name: value for name, value in chosen.items() if value is not None}


async def _ensure_pool(client: PrefectClient) -> None:
    try:
        await client.read_work_pool(POOL)
    except ObjectNotFound:
        await client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))


async def _find_block(client: PrefectClient, slug: str) -> str:
    kind, _, name = slug.partition("/")
    try:
        block = await client.read_block_document_by_name(name, kind)
    except ObjectNotFound:
        raise UserError(
            "no such notification block",
            where=slug,
            remedy="Make one in the UI under Blocks (Slack Webhook, Email, ...) and give it as "
            "NOTIFY=TYPE-SLUG/NAME, such as slack-webhook/ops.",
        ) from None
    return str(block.id)


async def _deploy_flow(
    client: PrefectClient, entry: dict[str, Any], defaults: dict[str, Any]
) -> str:
    """Make a deployment as prefect.yaml has it, or bring the one that is there up to date.

    Prefect's own command would do the same in a process of its own that imports all anew, and
    would make schedules and triggers anew as well: those are a person's to switch.

    Returns:
        Its full name, FLOW/NAME.

    Raises:
        PrefectHTTPStatusError: The server refuses it.
    """
    path, _, function = entry["entrypoint"].rpartition(":")
    flow: Flow[..., Any] = getattr(
        import_module(path.removesuffix(".py").replace("/", ".")), function
    )
    limit = entry["concurrency_limit"]
    wanted = {
        "version": flow.version,
        "description": entry["description"],
        "tags": entry["tags"],
        "entrypoint": entry["entrypoint"],
        "parameters": choose_parameters(function, defaults),
        "enforce_parameter_schema": True,
        "concurrency_limit": limit["limit"],
        "concurrency_options": {"collision_strategy": limit["collision_strategy"]},
        "work_pool_name": entry["work_pool"]["name"],
        "pull_steps": [{_SET_FOLDER: {"directory": str(HERE.parent)}}],
        "parameter_openapi_schema": parameter_schema(flow).model_dump(exclude_unset=True),
    }
    name = f"{flow.name}/{entry['name']}"
    try:
        deployment_id = (await client.read_deployment_by_name(name)).id
    except ObjectNotFound:
        deployment_id = await client.create_deployment(
            await client.create_flow(flow),
            entry["name"],
            schedules=[_read_schedule(one) for one in entry.get("schedules", ())],
            **wanted,
        )
    else:
        await client.update_deployment(deployment_id, DeploymentUpdate(**wanted))
    for one in entry.get("triggers", ()):
        trigger = DeploymentEventTrigger.model_validate(one)
        trigger.set_deployment_id(deployment_id)
        await _put_automation(client, trigger.as_automation())
    return name


def _read_schedule(entry: dict[str, Any]) -> DeploymentScheduleCreate:
    cron = CronSchedule(cron=entry["cron"], timezone=entry["timezone"])
    return DeploymentScheduleCreate(schedule=cron, active=entry["active"])


async def _put_automations(client: PrefectClient, block_id: str | None) -> list[str]:
    names = []
    for entry in _read_yaml("automations.yaml"):
        subject, body = entry.pop("subject", None), entry.pop("body", None)
        if "actions" not in entry:
            if block_id is None:
                continue
            entry["actions"] = [
                {
                    "type": "send-notification",
                    "block_document_id": block_id,
                    "subject": subject,
                    "body": body,
                }
            ]
        await _put_automation(client, AutomationCore.model_validate(entry))
        names.append(f"automation: {entry['name']}")
    return names


async def _put_automation(client: PrefectClient, wanted: AutomationCore) -> None:
    """Make an automation, or bring it up to date where it differs; on or off it stays."""
    there = await client.read_automations_by_name(wanted.name)
    if not there:
        await client.create_automation(wanted)
        return
    kept = wanted.model_copy(update={"enabled": there[0].enabled}).model_dump()
    # One that is written anew forgets the silences that it has been counting.
    if there[0].model_dump(exclude={"id"}) != kept:
        await Automation(id=there[0].id, **kept).aupdate()


def _read_yaml(name: str) -> Any:
    return YAML(typ="safe", pure=True).load((HERE / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
