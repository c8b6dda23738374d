"""What a run was expected to take, beside what it took.

Enters: the serving settings, the plan, what generating took as the parts tell it. Leaves: the
report's figures of speed and cost. Only the store is asked, so that a run of many processes, or one
looked at a year later, has the same figures.
"""

from __future__ import annotations

from tasks.errors import ConfigError
from tasks.prompts.record import Plan
from tasks.report.glance import count_gpu_hours
from tasks.report.record import CostFigures, GenerationFigures, SpeedFigure
from tasks.serving.config import ServingConfig
from tasks.serving.estimate import Estimate, Workload, bound_server, estimate_run

_SECONDS_AN_HOUR = 3600.0


def compare_speed(
    serving: ServingConfig, plan: Plan, done: GenerationFigures, cost: CostFigures
) -> tuple[SpeedFigure, ...]:
    """Put each figure of `draftmill estimate` beside the run's own; None: not known."""
    expected = _estimate(serving, plan)
    n_tokens = done.n_output_tokens
    # Times of some answers alone would make hours of a part of the run.
    is_timed = done.n_timed == done.n_answers
    seconds, server_seconds = (done.seconds, done.server_seconds) if is_timed else (0.0, 0.0)
    measured: list[tuple[str, str, float | None]] = [
        ("mean answer", "tokens", n_tokens / done.n_answers if done.n_answers else 0),
        ("output", "tokens", n_tokens),
        ("one stream", "tokens/s", done.stream.p50 if done.stream else None),
        ("one full server, bound", "tokens/s", None),
        ("one server", "tokens/s", n_tokens / server_seconds if server_seconds else None),
        ("all servers", "tokens/s", n_tokens / seconds if seconds else None),
        ("generation", "hours", seconds / _SECONDS_AN_HOUR),
        ("generation", "GPU-hours", count_gpu_hours(done, cost)),
    ]
    estimated: list[float | None] = [None] * len(measured)
    if expected is not None:
        estimated = [
            serving.outlook.mean_output_tokens,
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
        SpeedFigure(name=name, unit=unit, estimated=before, measured=after or None)
        for (name, unit, after), before in rows
        if before is not None or after
    )


def find_cost(
    serving: ServingConfig | None,
    done: GenerationFigures,
    *,
    simulated: bool,
    watt_hours: float | None,
) -> CostFigures:
    """Say what is known of GPUs and of their bound.

    Args:
        serving: As the run was set; None where the store does not say it.
        done: What generating took: the bound is that of its mean lengths.
        simulated: Whether no GPU was at work.
        watt_hours: As the parts' writers measured them; None: nobody did.
    """
    if serving is None:
        return CostFigures(watt_hours=watt_hours)
    slots = [server.slots for server in done.endpoints if server.slots]
    bound = None
    if slots and done.n_answers:
        mean = Workload(
            n_conversations=done.n_answers,
            prompt_tokens=done.n_prompt_tokens / done.n_answers,
            output_tokens=done.n_output_tokens / done.n_answers,
        )
        bound = bound_server(serving, mean, round(sum(slots) / len(slots)))
    return CostFigures(
        gpus_a_server=None if simulated else serving.tp_size,
        bound_tokens_per_second=bound,
        watt_hours=watt_hours,
    )


def _estimate(serving: ServingConfig, plan: Plan) -> Estimate | None:
    outlook = serving.outlook
    if outlook.mean_output_tokens is None:
        return None
    work = Workload(
        n_conversations=plan.n_prompts * plan.n_samples,
        prompt_tokens=outlook.mean_prompt_tokens,
        output_tokens=outlook.mean_output_tokens,
    )
    try:
        return estimate_run(serving, work)
    except ConfigError:
        # The settings do not hold the figures: an estimate is for those who give them.
        return None
