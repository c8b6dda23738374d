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
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect.automations import Automation
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from ruamel.yaml import YAML

from flows.launch import check_server
from flows.load import PROFILES, load_config, read_values
from tasks.errors import DraftmillError, UserError

HERE = Path(__file__).parent
POOL = "gpu-box"
_SERVER_SECONDS = 300


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
    async with get_client() as client:
        await _ensure_pool(client)
        block_id = None if notify is None else await _find_block(client, notify)
        document = _read_flows(defaults)
        for deployment in document["deployments"]:
            await _keep_switches(client, deployment)
        names = await asyncio.to_thread(_deploy_flows, document)
        return names + await _put_automations(client, block_id)


def read_defaults(config: str) -> dict[str, Any]:
    """Read what the deployments' `config` parameter begins with."""
    if (PROFILES / f"{config}.yaml").is_file() and not Path(config).is_file():
        return read_values(config)[0]
    return load_config(config).config.model_dump(mode="json")


def choose_parameters(function: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """Give a flow what its parameters begin with; a gap of a profile stays a gap."""
    match function:
        case "verify":
            chosen = {"prefix": (defaults.get("store") or {}).get("uri")}
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


def _read_flows(defaults: dict[str, Any]) -> dict[str, Any]:
    """Read prefect.yaml and fill the defaults in."""
    document: dict[str, Any] = _read_yaml("prefect.yaml")
    document.pop("definitions")
    for deployment in document["deployments"]:
        function = deployment["entrypoint"].rpartition(":")[2]
        deployment["parameters"] = choose_parameters(function, defaults)
    return document


def name_deployment(deployment: dict[str, Any]) -> str:
    """Give a deployment's full name, FLOW/NAME."""
    function = deployment["entrypoint"].rpartition(":")[2]
    return f"{function.replace('_', '-')}/{deployment['name']}"


async def _keep_switches(client: PrefectClient, deployment: dict[str, Any]) -> None:
    """Leave the schedules of a deployment that is there as they are, and its triggers on or off.

    Prefect's own command makes both anew, as its file has them.
    """
    try:
        there = await client.read_deployment_by_name(name_deployment(deployment))
    except ObjectNotFound:
        return
    deployment.pop("schedules", None)
    owner = f"prefect.deployment.{there.id}"
    for automation in await client.read_resource_related_automations(owner):
        for trigger in deployment.get("triggers", ()):
            if trigger["name"] == automation.name:
                trigger["enabled"] = automation.enabled


def _deploy_flows(document: dict[str, Any]) -> list[str]:
    """Hand the deployments to Prefect's own command."""
    with tempfile.TemporaryDirectory(prefix="draftmill-deploy-") as folder:
        file = Path(folder) / "prefect.yaml"
        with file.open("w", encoding="utf-8") as out:
            YAML(typ="safe", pure=True).dump(document, out)
        prefect = str(Path(sys.executable).with_name("prefect"))
        told = subprocess.run(
            [prefect, "--no-prompt", "deploy", "--prefect-file", str(file), "--all"],
            cwd=HERE.parent,
            check=False,
            text=True,
            capture_output=True,
            timeout=_SERVER_SECONDS,
        )
    if told.returncode != 0:
        raise UserError(
            f"`prefect deploy` failed: {(told.stdout + told.stderr).strip()[-2000:]}",
            where="deployments/prefect.yaml",
            remedy="Mend what it names and run again; what was deployed already is updated.",
        )
    return [name_deployment(deployment) for deployment in document["deployments"]]


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
        wanted = AutomationCore.model_validate(entry)
        there = await client.read_automations_by_name(wanted.name)
        if not there:
            await client.create_automation(wanted)
        else:
            kept = wanted.model_copy(update={"enabled": there[0].enabled}).model_dump()
            # One that is written anew forgets the silences that it has been counting.
            if there[0].model_dump(exclude={"id"}) != kept:
                await Automation(id=there[0].id, **kept).aupdate()
        names.append(f"automation: {wanted.name}")
    return names


def _read_yaml(name: str) -> Any:
    return YAML(typ="safe", pure=True).load((HERE / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
