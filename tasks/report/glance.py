"""The first screen of a report in figures: is it whole, what did it cost; and the accounts in full.

Enters: counts and ReportFigures. Leaves: labelled figures, in the order they are read. Pure.
"""

from __future__ import annotations

from typing import Any

from tasks.report.composition import share
from tasks.report.record import CostFigures, GenerationFigures, ReportFigures
from tasks.report.wording import (
    write_amount,
    write_count,
    write_duration,
    write_figure,
    write_share,
)

_ACCOUNTING = (
    ("n_source_rows", "Rows read from the sources", False),
    ("n_rejected", "rejected, each with a reason", True),
    ("n_not_sampled", "left out by a source's quota", True),
    ("n_duplicates", "duplicates across sources", True),
    ("n_prompts", "Prompts", False),
    ("n_conversations", "Conversations", False),
    ("n_completed", "completed", True),
    ("n_truncated", "truncated at the longest answer", True),
    ("n_partial", "partial: some turns, then a failure", True),
    ("n_failed", "failed: no turn at all", True),
    ("n_retried", "of them asked anew by retries, the newest counts", True),
    ("n_generations", "Generations (answers by the target)", False),
    ("n_dropped", "left out of the samples", True),
    ("n_samples", "Training samples", False),
    ("n_retokenized", "of them with ids made of text", True),
    ("n_prompts_cut", "of them with a prompt cut at its head", True),
    ("n_dropped_prompts", "of them left out: the base has their prompts", True),
    ("n_base_rows", "Rows of the base dataset", False),
    ("n_dataset_rows", "Rows of the merged dataset", False),
)
_OUTCOMES = (
    ("n_completed", "completed", "whole"),
    ("n_truncated", "truncated", "cut"),
    ("n_partial", "partial", "broken"),
    ("n_failed", "failed", "lost"),
)
_NOT_MEASURED = "not measured"


def list_accounting(counts: dict[str, int]) -> list[tuple[str, int, bool]]:
    """List every count that is there: its label, and whether it is a part of the one above."""
    return [(label, counts[key], inner) for key, label, inner in _ACCOUNTING if key in counts]


def list_outcomes(counts: dict[str, int]) -> list[dict[str, Any]]:
    """List how conversations ended, as pieces of a bar."""
    n_all = sum(counts.get(key, 0) for key, _, _ in _OUTCOMES)
    pieces, left = [], 0.0
    for key, label, colour in _OUTCOMES:
        number = counts.get(key, 0)
        width = 100 * share(number, n_all)
        piece = {"label": label, "colour": colour, "number": number, "x": left, "width": width}
        pieces.append({**piece, "share": share(number, n_all)})
        left += width
    return pieces


def glance_at_cost(figures: ReportFigures) -> dict[str, Any]:
    """Say what generating cost: the headline, and the figures below it."""
    done, cost = figures.generation, figures.cost
    if done is None or not done.n_answers:
        return {"value": "–", "unit": "nothing was generated", "rows": []}
    n_servers = len([server for server in done.endpoints if server.n_requests])
    is_timed = done.n_timed == done.n_answers
    gpu_hours = count_gpu_hours(done, cost)
    speed = done.n_output_tokens / done.seconds if done.seconds and is_timed else None
    if gpu_hours is not None:
        value, unit = write_figure(gpu_hours), "GPU-hours"
    elif is_timed:
        no_gpu = ", no GPU" if figures.simulated else ""
        servers = f"{write_count(n_servers)} server{'' if n_servers == 1 else 's'}"
        value, unit = write_duration(done.seconds), f"on {servers}{no_gpu}"
    else:
        value, unit = write_amount(done.n_output_tokens), "output tokens; times were not recorded"
    rows = [("output tokens", write_amount(done.n_output_tokens))]
    if done.n_reasoning_tokens:
        thought = share(done.n_reasoning_tokens, done.n_output_tokens)
        rows.append(("of them thinking", write_share(thought)))
    if gpu_hours:
        per_hour = write_amount(done.n_output_tokens / gpu_hours)
        rows += [
            ("tokens per GPU-hour", per_hour),
            ("time at work", write_duration(done.seconds)),
        ]
    rows.append(("tokens/s, all servers", write_figure(speed)))
    bound = cost.bound_tokens_per_second
    if bound and speed and n_servers:
        rows.append(("of the roofline", write_share(speed / (bound * n_servers))))
    rows.append(("slots in use", "–" if done.occupancy is None else write_share(done.occupancy)))
    energy = None if cost.watt_hours is None else f"{write_amount(cost.watt_hours / 1000)} kWh"
    rows.append(("energy", energy or ("no GPU" if figures.simulated else _NOT_MEASURED)))
    if cost.watt_hours:
        rows.append(("tokens per watt-hour", write_amount(done.n_output_tokens / cost.watt_hours)))
    return {"value": value, "unit": unit, "rows": rows}


def count_gpu_hours(done: GenerationFigures, cost: CostFigures) -> float | None:
    """Give the GPU-hours at work, short pauses included; None: not known, or of some answers."""
    gpus = cost.gpus_a_server
    if gpus is None or done.n_timed < done.n_answers or not done.server_seconds:
        return None
    return done.server_seconds * gpus / 3600
