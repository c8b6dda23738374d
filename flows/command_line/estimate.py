"""`draftmill estimate`: hours and tokens of a run before it is begun, from the configuration.

Enters: a configuration. Leaves: an Estimate, with where its counts come from. Reads the plan of a
run that has one; else the quotas of the sources stand for their prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import humanize
from rich.console import Group, RenderableType

from flows.config import ExpansionConfig
from flows.configuration.load import load_config, read_values
from flows.dataset.inspect import read_credentials
from flows.process.speak import table
from tasks.errors import ConfigError, ConfigIssue, StoreError
from tasks.prompts.record import Plan
from tasks.serving.estimate import Estimate, Workload, estimate_run
from tasks.settings import read_settings

_NO_STORE = "store.uri=file:///nonexistent/draftmill-estimate"


def estimate(source: str, sets: Sequence[str] = ()) -> dict[str, Any]:
    """Estimate the run that a configuration asks for.

    Raises:
        ConfigError: Speed, number of prompts or length of answers are not known.
    """
    has_store = "store" in read_values(source, sets)[0]
    config = load_config(source, sets if has_store else (*sets, _NO_STORE)).config
    plan, counted_from = _find_plan(config) if has_store else (None, "quotas")
    found = estimate_run(config.serving, workload_of(config, plan))
    return {"name": config.name, "counted_from": counted_from, **found.model_dump(mode="json")}


def workload_of(config: ExpansionConfig, plan: Plan | None) -> Workload:
    """Say how much a run is to generate.

    Raises:
        ConfigError: A source has no quota and there is no plan, or the mean answer is not set.
    """
    outlook = config.serving.outlook
    issues = []
    quotas = {key: source.quota for key, source in config.sources.items()}
    if plan is None:
        hint = "set it, or let a run plan first: its plan is counted"
        issues = [
            ConfigIssue("configuration", f"sources.{key}.quota", "is not set", hint)
            for key, quota in quotas.items()
            if quota is None
        ]
    if outlook.mean_output_tokens is None:
        hint = "the mean answer in tokens; the canary's page tells it"
        issues.append(
            ConfigIssue("configuration", "serving.outlook.mean_output_tokens", "is not set", hint)
        )
    if issues or outlook.mean_output_tokens is None:
        raise ConfigError("the run's size cannot be estimated:", issues=tuple(issues))
    n_prompts = plan.n_prompts if plan else sum(quota or 0 for quota in quotas.values())
    return Workload(
        n_conversations=n_prompts * config.sampling.n_samples,
        prompt_tokens=outlook.mean_prompt_tokens,
        output_tokens=outlook.mean_output_tokens,
    )


def describe_estimate(found: dict[str, Any]) -> RenderableType:
    """Lay the estimate out."""
    figures = Estimate.model_validate(
        {name: found[name] for name in Estimate.model_fields if name in found}
    )
    rows = [
        ("conversations", f"{figures.n_conversations:,} (from {found['counted_from']})"),
        ("output tokens", humanize.intword(figures.n_output_tokens)),
        ("one stream, bound", _speed(figures.stream_tokens_per_second)),
        (
            f"one server, bound at {figures.slots} slots",
            _speed(figures.server_bound_tokens_per_second),
        ),
        ("one server, measured", _speed(figures.server_tokens_per_second)),
        (f"{figures.n_servers} servers, {figures.basis}", _speed(figures.fleet_tokens_per_second)),
        ("hours", f"{figures.hours:,.1f}"),
        ("GPU-hours", f"{figures.gpu_hours:,.0f}"),
    ]
    return Group(table(("", ""), rows), *(f"note: {note}" for note in figures.notes))


def _find_plan(config: ExpansionConfig) -> tuple[Plan | None, str]:
    from tasks.prompts.chunk import read_plan  # noqa: PLC0415
    from tasks.storage.store import open_store  # noqa: PLC0415

    try:
        credentials = read_credentials(config.store, read_settings())
        with closing(open_store(config.store, credentials)) as store:
            plan = read_plan(store)
    except StoreError as error:
        return None, f"quotas: the store was not read ({error.what})"
    return plan, "the run's plan" if plan else "quotas"


def _speed(tokens_per_second: float | None) -> str:
    return "not known" if tokens_per_second is None else f"{tokens_per_second:,.0f} tokens/s"
