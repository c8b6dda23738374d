"""Flows that bring this box's fleet up and leave it up, and that end it.

Enters: the servers' and the model's settings. Leaves: base urls, for runs that attach to them. The
fleet belongs to its supervisor: neither flow's end, nor its death, touches it.
"""

from __future__ import annotations

import asyncio

from prefect import flow, get_run_logger

from flows.configuration.complete import locate_model
from flows.stages.host_fleet import FleetPart, bring_up
from tasks.chat.config import ModelConfig
from tasks.serving.config import ServingConfig
from tasks.serving.supervisor import fleet_down
from tasks.settings import read_settings


@flow(name="servers-up", persist_result=False)
async def servers_up(serving: ServingConfig, model: ModelConfig) -> list[str]:
    """Bring the fleet up, or adopt an equal one; it holds no lease and stays until servers-down."""
    part = FleetPart(model=locate_model(model), serving=serving)
    urls = await asyncio.to_thread(bring_up, part, get_run_logger().info)
    get_run_logger().info("%d servers are ready: %s", len(urls), ", ".join(urls))
    return urls


@flow(name="servers-down", persist_result=False)
async def servers_down() -> bool:
    """End the fleet of this box and all its processes; whether there was one."""
    ended = await asyncio.to_thread(fleet_down, read_settings().fleet_dir)
    get_run_logger().info("the fleet was ended" if ended else "no fleet ran on this box")
    return ended
