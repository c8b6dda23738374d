"""What a run was expected to take, beside what it took.

Enters: a configuration, its plan, the run's counts, and how far generation came in this process.
Leaves: the report's figures of speed. What an earlier process generated has no time here.
"""

from __future__ import annotations

from contextvars import ContextVar

from flows.config import ExpansionConfig
from flows.estimate import workload_of
from flows.progress import RunProgress
from tasks.errors import ConfigError
from tasks.prompts.record import Plan
from tasks.report.record import SpeedFigure
from tasks.serving.estimate import Estimate, estimate_run

_SECONDS_AN_HOUR = 3600.0

generated: ContextVar[RunProgress | None] = ContextVar("generated", default=None)
"""How far generation came; set by the flow when it has ended, and None where it never began."""


def compare_speed(
    config: ExpansionConfig, plan: Plan, counts: dict[str, int], n_servers: int
) -> tuple[SpeedFigure, ...]:
    """Put each figure of `draftmill estimate` beside the run's own; None: not known."""
    expected = _estimate(config, plan)
    done = generated.get()
    n_tokens, n_answers = counts.get("n_output_tokens", 0), counts.get("n_generations", 0)
    speed = done.tokens_per_second if done and done.tokens_per_second else None
    # Where an earlier process made a part of it, this one's hours are not the run's.
    hours = done.seconds / _SECONDS_AN_HOUR if done and done.n_replayed == 0 else None
    n_gpus = n_servers * config.serving.tp_size
    measured: list[tuple[str, str, float | None]] = [
        ("mean answer", "tokens", n_tokens / n_answers if n_answers else None),
        ("output", "tokens", n_tokens),
        ("one stream alone, bound", "tokens/s", None),
        ("one full server, bound", "tokens/s", None),
        ("one server", "tokens/s", speed / n_servers if speed and n_servers else None),
        ("all servers", "tokens/s", speed),
        ("generation", "hours", hours),
        ("generation", "GPU-hours", None if hours is None else hours * n_gpus),
    ]
    estimated: list[float | None] = [None] * len(measured)
    if expected is not None:
        estimated = [
            config.serving.outlook.mean_output_tokens,
            expected.n_output_tokens,
            expected.stream_tokens_per_second,
            expected.server_bound_tokens_per_second,
            expected.fleet_tokens_per_second / expected.n_servers,
            expected.fleet_tokens_per_second,
            expected.hours,
            expected.gpu_hours,
        ]
    rows = zip(measured, estimated, strict=True)
    return tuple(
        SpeedFigure(name=name, unit=unit, estimated=before, measured=after)
        for (name, unit, after), before in rows
        if before is not None or after is not None
    )


def _estimate(config: ExpansionConfig, plan: Plan) -> Estimate | None:
    try:
        return estimate_run(config.serving, workload_of(config, plan))
    except ConfigError:
        # The configuration does not hold the figures: an estimate is for those who give them.
        return None
