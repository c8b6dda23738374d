"""The task that makes sure of a fleet: uncached, because servers live and die outside of Prefect.

Enters: the serving and model settings and a rendering probe. Leaves: the admitted endpoints, and a
table of all that were probed among Prefect's artifacts. It exists to name, log and run what
supervisor.py and endpoint.py do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

from prefect import get_run_logger, task
from prefect.artifacts import acreate_table_artifact
from prefect.cache_policies import NO_CACHE

from tasks.chat.config import ModelConfig
from tasks.errors import NoEndpoint
from tasks.serving.config import ServingConfig
from tasks.serving.endpoint import connect_servers, probe_endpoint, probe_fleet
from tasks.serving.record import Endpoint, Refusal, RenderingProbe
from tasks.serving.supervisor import ensure_fleet_up
from tasks.settings import read_settings

ARTIFACT = "fleet"
_MOST_CHARS = 300


@task(
    name="ensure-fleet",
    task_run_name="ensure fleet",
    tags=["serving"],
    cache_policy=NO_CACHE,
    persist_result=False,
)
async def ensure_fleet(
    serving: ServingConfig, model: ModelConfig, probe: RenderingProbe
) -> list[Endpoint]:
    """Bring the fleet up (or attach to the servers named) and return the endpoints admitted.

    Raises:
        ConfigError: if the servers cannot be launched as configured.
        UserError: if another fleet runs on this machine.
        FleetFailed: if a server never became healthy.
        NoEndpoint: if every server was refused, with each reason.
    """
    logger = get_run_logger()
    key = read_settings().server_api_key
    urls = list(serving.urls)
    if serving.mode == "launch":
        urls = await _bring_up(serving, model, logger.info)
    async with connect_servers(key) as client:
        endpoints, refusals = await probe_fleet(
            partial(probe_endpoint, client, model=model, slots=serving.slots, probe=probe),
            urls,
            wait_seconds=serving.ready_timeout_seconds,
        )
    for endpoint in endpoints:
        logger.info(
            "admitted %s: sglang %s, %d slots, ids by %s",
            endpoint.base_url,
            endpoint.server_version,
            endpoint.slots,
            endpoint.capability,
        )
    for refusal in refusals:
        logger.warning("refused %s: %s", refusal.base_url, refusal.reason)
    await acreate_table_artifact(
        key=ARTIFACT,
        table=tabulate(endpoints, refusals),
        description="The servers that were probed: admitted, or why not",
    )
    if not endpoints:
        reasons = "\n".join(f"  {refusal.base_url}: {refusal.reason}" for refusal in refusals)
        raise NoEndpoint(
            f"No server was admitted:\n{reasons}",
            where="serving",
            remedy="Correct the servers or the model settings and run again.",
        )
    return endpoints


def tabulate(endpoints: Sequence[Endpoint], refusals: Sequence[Refusal]) -> list[dict[str, str]]:
    """Lay the servers out as rows of a table artifact; what servers say stands in code."""
    admitted = [
        {
            "verdict": "admitted",
            "endpoint": _code(endpoint.base_url),
            "slots": f"{endpoint.slots:,}",
            "version": _code(endpoint.server_version),
            "model": _code(endpoint.model),
            "context": "" if endpoint.context_length is None else f"{endpoint.context_length:,}",
            "exact ids by": endpoint.capability,
            "why": "",
        }
        for endpoint in endpoints
    ]
    unknown = dict.fromkeys(("slots", "version", "model", "context", "exact ids by"), "")
    return admitted + [
        {
            "verdict": "refused",
            "endpoint": _code(refusal.base_url),
            **unknown,
            "why": _code(refusal.reason),
        }
        for refusal in refusals
    ]


def _code(text: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in text).replace("`", "'")
    return f"`{plain[:_MOST_CHARS] or ' '}`"


async def _bring_up(
    serving: ServingConfig, model: ModelConfig, on_progress: Callable[[str], None]
) -> list[str]:
    settings = read_settings()
    given_up = threading.Event()
    try:
        return await asyncio.to_thread(
            ensure_fleet_up,
            settings.fleet_dir,
            serving,
            model,
            on_progress,
            api_key=settings.server_api_key,
            given_up=given_up,
        )
    finally:
        # A cancelled task cannot end its thread, which would hold up the end of the process.
        given_up.set()
