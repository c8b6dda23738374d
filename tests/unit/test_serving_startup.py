"""Ports are chosen before anything starts, and what is in the way is called by its name."""

from __future__ import annotations

import pytest

from tasks.environment.ports import find_port_holder
from tasks.errors import FleetFailed
from tasks.serving.config import ServingConfig
from tasks.serving.startup import _choose_ports

# Reserved for documentation: no address of any machine.
ELSEWHERE = "192.0.2.1"


@pytest.mark.parametrize("base_port", [0, 30000])
def test_a_host_that_is_not_this_machine_is_not_a_taken_port(base_port: int) -> None:
    serving = ServingConfig(engine="simulator", host=ELSEWHERE, base_port=base_port, n_servers=2)
    with pytest.raises(FleetFailed, match=f"can listen at {ELSEWHERE}") as failed:
        _choose_ports(serving)
    assert failed.value.where == "serving.host"


def test_an_address_that_cannot_be_tried_has_no_holder() -> None:
    with pytest.raises(OSError, match="assign"):
        find_port_holder(ELSEWHERE, 30000)
