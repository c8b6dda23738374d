"""The roofline and the hours: the field's own fleet, and what is told where figures are missing."""

from __future__ import annotations

from typing import Any

import pytest

from flows.command_line.estimate import estimate
from tasks.errors import ConfigError
from tasks.serving.config import ServingConfig
from tasks.serving.estimate import Workload, bound_server, estimate_run

WORK = Workload(n_conversations=193_010, prompt_tokens=300, output_tokens=2712)


def serving(outlook: dict[str, Any], **changes: Any) -> ServingConfig:
    fields = {"engine": "simulator", "max_running_requests": 72, "outlook": outlook}
    return ServingConfig.model_validate(fields | changes)


def test_the_fields_fleet_is_estimated_as_it_was_measured() -> None:
    found = estimate("rtx-pro-6000-8x")
    assert found["stream_tokens_per_second"] == pytest.approx(33, abs=0.5)
    assert found["fleet_tokens_per_second"] == 9400
    assert found["n_conversations"] == 193_010
    assert found["n_output_tokens"] == pytest.approx(523e6, rel=0.005)
    assert found["hours"] == pytest.approx(15.5, abs=0.05)
    assert found["gpu_hours"] == pytest.approx(8 * 15.5, abs=0.5)
    assert found["server_bound_tokens_per_second"] > found["server_tokens_per_second"]


def test_a_batch_reads_the_weights_once_and_every_requests_cache() -> None:
    config = serving({"bandwidth_gb_s": 1000, "weights_gb": 50, "kv_bytes_per_token": 100_000})
    work = Workload(n_conversations=1, prompt_tokens=0, output_tokens=2000)
    assert bound_server(config, work, 1) == pytest.approx(1000 / 50.1)
    # 100 requests, half way through their answers: 50 GB and 10 GB.
    assert bound_server(config, work, 100) == pytest.approx(100 * 1000 / 60)
    split = config.model_copy(update={"tp_size": 2, "n_servers": 1})
    assert bound_server(split, work, 100) == pytest.approx(200 * 1000 / 60)


def test_without_a_measurement_the_hours_rest_on_the_bound_and_say_so() -> None:
    found = estimate_run(serving({"bandwidth_gb_s": 1800, "weights_gb": 54}), WORK)
    assert found.basis == "roofline"
    assert found.server_tokens_per_second is None
    assert any("is a bound" in note for note in found.notes)
    assert any("kv_bytes_per_token" in note for note in found.notes)


def test_a_measurement_above_the_bound_is_doubted() -> None:
    figures = {"bandwidth_gb_s": 1800, "weights_gb": 54, "kv_bytes_per_token": 65_536}
    found = estimate_run(serving(figures | {"server_tokens_per_second": 9999}), WORK)
    assert any("above the bound" in note for note in found.notes)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError) as refused:
        estimate_run(serving({}, max_running_requests=None), WORK)
    assert [issue.path for issue in refused.value.issues] == [
        "serving.outlook.bandwidth_gb_s",
        "serving.outlook.weights_gb",
        "serving.max_running_requests",
    ]
    with pytest.raises(ConfigError, match="mean_output_tokens"):
        estimate("rtx-pro-6000-8x", ["serving.outlook.mean_output_tokens=null"])
    with pytest.raises(ConfigError, match=r"sources\.metamathqa\.quota"):
        estimate("rtx-pro-6000-8x", ["sources.metamathqa.quota=null"])
