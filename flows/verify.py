"""Verification as a flow, for a schedule: a run that is whole completes, another fails by name.

Enters: a prefix. Leaves: the verdict, or DatasetInvalid with each fault. It repairs nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger

from flows.verdict import parse_share, verify_prefix
from tasks.errors import DatasetInvalid


@flow(name="verify", persist_result=False)
async def verify(prefix: str, read_data: str = "100%") -> dict[str, Any]:
    """Hold every object that the newest manifest names against it.

    Args:
        prefix: The run's prefix (s3://..., file://...).
        read_data: Share of the objects that are read in full, such as 5%.

    Raises:
        DatasetInvalid: Faults were found, each with what to do.
    """
    found = await asyncio.to_thread(verify_prefix, prefix, parse_share(read_data))
    for problem in found["problems"]:
        get_run_logger().error(problem)
    if not found["ok"]:
        raise DatasetInvalid(
            f"{len(found['problems'])} faults were found",
            problems=tuple(found["problems"]),
            where=found["uri"],
            remedy="`draftmill repair` with the run's configuration makes revisions of what is "
            "damaged, and the next manifest.",
        )
    return found
