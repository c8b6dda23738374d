"""A retry whose parts were damaged in between: it is gone on with, from what stands there now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tasks.completions.record import Failure
from tasks.completions.survey import freeze_failures
from tasks.storage.layout import data_key
from tests.component.test_completions_retries import FAST, build, generate_all, retry_all, stand
from tests.support.generation import load_template
from tests.support.outcomes import complete, conclude, publish_outcomes
from tests.support.simulator import SimulatedServer, start_simulator


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    with start_simulator(1, **FAST) as servers:
        yield servers[0]


async def test_a_retry_goes_on_though_the_part_that_it_mends_was_damaged_and_made_anew(
    tmp_path: Path, server: SimulatedServer
) -> None:
    run = build(tmp_path, load_template())
    failure = Failure("deadline", "too slow", retryable=True, attempts=3, endpoints=[])
    for chunk in run.plan.chunks:
        whole = [
            conclude(complete(run, prompt, "Hm.\n", f"\n\nAnswer {prompt.source.row}."))
            for prompt in run.prompts[chunk.id]
        ]
        publish_outcomes(
            run, chunk.id, [replace(one, status="partial", failure=failure) for one in whole]
        )
    assert freeze_failures(run.store, run.plan, stand(run), run.gates) is not None
    (tmp_path / "store" / data_key(0)).write_bytes(b"damaged")
    run = build(tmp_path, load_template())
    async with run.dispatch([server]) as dispatcher:
        await generate_all(run.context(dispatcher))
        # Now nothing is answered: what stands in for the damaged part has more.
        server.set_faults(error_rate=1.0)
        await retry_all(run, run.context(dispatcher))
    (part,) = stand(run).retries
    assert part.footer.n_failed == 0
