"""What a run leaves by: one line, which says where it was cut off."""

from __future__ import annotations

import asyncio

from prefect.states import Completed, Failed

from flows.stages.attend import Farewell
from tasks.errors import NoEndpoint


def test_a_state_is_left_by_its_first_line_and_a_long_one_is_seen_to_be_cut() -> None:
    farewell = Farewell()
    farewell.say(Failed(name="StoppedByGate", message="bad answers\n  empty: 3 of 5\nand more"))
    assert (farewell.state, farewell.message) == ("StoppedByGate", "bad answers; empty: 3 of 5")
    farewell.say(Completed(message="x" * 1000))
    assert farewell.message == "x" * 1000
    farewell.say(Completed(message="x" * 1001))
    assert farewell.message == "x" * 1000 + "..."


def test_an_error_that_is_not_ours_is_left_by_its_name_alone() -> None:
    farewell = Farewell()
    farewell.blame(NoEndpoint("no server was admitted"))
    assert (farewell.state, farewell.message) == ("NoEndpoint", "no server was admitted")
    farewell.blame(ValueError("what a stranger wrote"))
    assert (farewell.state, farewell.message) == ("ValueError", "")
    farewell.blame(asyncio.CancelledError())
    assert (farewell.state, farewell.message) == ("Cancelled", "")
