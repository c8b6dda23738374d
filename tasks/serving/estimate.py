"""How fast a fleet can be, and how long a run will take: the roofline of memory bandwidth.

Enters: ServingConfig (with its `outlook`) and a Workload. Leaves: an Estimate. It exists because
half a day and a week look alike in a configuration. Pure.

Decoding is bound by memory: each step reads the weights once and the KV cache of every running
request, whatever the arithmetic. A stream alone thus runs at bandwidth / weights, and a batch at
n / (weights + cache of n) x bandwidth, which no scheduler can pass; a measured speed lies below.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from tasks.errors import ConfigError, ConfigIssue
from tasks.serving.config import ServingConfig

_GB = 1e9
_SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be generated; lengths are means in tokens."""

    n_conversations: int
    prompt_tokens: float
    output_tokens: float


class Estimate(BaseModel):
    """What is expected of a run. None: not known from the configuration.

    The bound is the roofline's; `hours` rest on the measured speed where there is one (`basis`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_conversations: int
    n_output_tokens: int
    n_servers: int
    n_gpus: int
    slots: int | None = Field(description="Requests at once a server.")
    stream_tokens_per_second: float | None = Field(description="Bound of one stream alone.")
    server_bound_tokens_per_second: float | None = Field(description="Bound of one full server.")
    server_tokens_per_second: float | None = Field(description="Measured on one full server.")
    fleet_tokens_per_second: float
    basis: str = Field(description="measured or roofline: what the hours rest on.")
    hours: float
    gpu_hours: float
    notes: tuple[str, ...] = ()


def estimate_run(serving: ServingConfig, workload: Workload) -> Estimate:
    """Estimate a run.

    Raises:
        ConfigError: The configuration holds neither a measured speed nor what the roofline needs.
    """
    outlook = serving.outlook
    n_servers = len(serving.urls) if serving.mode == "attach" else serving.n_servers
    slots = serving.max_running_requests or serving.slots
    stream = bound_server(serving, workload, 1)
    bound = bound_server(serving, workload, slots) if slots else None
    measured = outlook.server_tokens_per_second
    speed = measured or bound
    if speed is None:
        raise ConfigError("the fleet's speed cannot be estimated:", issues=_name_missing(serving))
    fleet = n_servers * speed
    n_output_tokens = round(workload.n_conversations * workload.output_tokens)
    hours = n_output_tokens / fleet / _SECONDS_AN_HOUR
    n_gpus = n_servers * serving.tp_size
    return Estimate(
        n_conversations=workload.n_conversations,
        n_output_tokens=n_output_tokens,
        n_servers=n_servers,
        n_gpus=n_gpus,
        slots=slots,
        stream_tokens_per_second=stream,
        server_bound_tokens_per_second=bound,
        server_tokens_per_second=measured,
        fleet_tokens_per_second=fleet,
        basis="measured" if measured else "roofline",
        hours=hours,
        gpu_hours=hours * n_gpus,
        notes=_take_notes(serving, measured, bound),
    )


def bound_server(serving: ServingConfig, workload: Workload, n_running: int) -> float | None:
    """Bound the tokens a second of one server with `n_running` requests; None: not known."""
    outlook = serving.outlook
    if outlook.bandwidth_gb_s is None or outlook.weights_gb is None:
        return None
    # In a steady batch a request is on average half way through its answer.
    context = workload.prompt_tokens + workload.output_tokens / 2
    read = outlook.weights_gb * _GB + n_running * context * outlook.kv_bytes_per_token
    return n_running * outlook.bandwidth_gb_s * serving.tp_size * _GB / read


def _name_missing(serving: ServingConfig) -> tuple[ConfigIssue, ...]:
    outlook = serving.outlook
    needed = {
        "serving.outlook.bandwidth_gb_s": outlook.bandwidth_gb_s,
        "serving.outlook.weights_gb": outlook.weights_gb,
        "serving.max_running_requests": serving.max_running_requests or serving.slots,
    }
    hint = "or set serving.outlook.server_tokens_per_second, which `draftmill tune` measures"
    return tuple(
        ConfigIssue("configuration", path, "is not set", hint)
        for path, value in needed.items()
        if value is None
    )


def _take_notes(
    serving: ServingConfig, measured: float | None, bound: float | None
) -> tuple[str, ...]:
    notes = []
    if measured is None:
        notes.append("the roofline is a bound: a fleet measured in the field reached half of it")
    if serving.speculative is not None:
        notes.append("the bound counts one token a step; speculative decoding may pass it")
    elif measured and bound and measured > bound:
        notes.append("the measured speed is above the bound: one of the figures is wrong")
    if serving.outlook.kv_bytes_per_token == 0 and bound:
        notes.append("the bound leaves out the KV cache: set serving.outlook.kv_bytes_per_token")
    return tuple(notes)
