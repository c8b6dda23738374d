"""Tries settings of the servers side by side, one a card, and keeps the fastest.

Enters: an ExpansionConfig. Leaves: ranked results, as a table and a plot, and a profile. Each
candidate is a fleet of one server with a folder and a lease of its own: one that runs out of memory
fails alone, and a tuner that is killed leaves no card busy.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import acreate_markdown_artifact, acreate_table_artifact
from prefect.runtime import flow_run

from flows.config import ExpansionConfig
from flows.configuration.complete import locate_model
from flows.pages.narrate import Narrator, narrator
from flows.stages.tune_evidence import draw_bars, plot_svg, tabulate, write_profile
from flows.stages.tune_prompts import sample_prompts
from tasks.chat.config import ModelConfig
from tasks.errors import DraftmillError, FleetFailed, UserError
from tasks.report.task import artifact_slug
from tasks.serving.command import share_gpus
from tasks.serving.config import ServingConfig
from tasks.serving.startup import read_launch_facts
from tasks.serving.supervisor import Lease, ensure_fleet_up, fleet_down, fleet_status
from tasks.serving.trial import TrialResult, Workbench, run_trial
from tasks.serving.tuner import (
    Candidate,
    describe_changes,
    propose_candidates,
    rank_results,
    refine_candidate,
)
from tasks.settings import Settings, read_settings

_SLICE_SECONDS = 5.0


@flow(name="tune", persist_result=False)
async def tune(
    config: ExpansionConfig, seconds: float = 300, out: str | None = None
) -> dict[str, Any]:
    """Measure candidates on the run's own prompts, rank them, and write the winner as a profile.

    Args:
        config: The run that shall be faster; its answers are not touched.
        seconds: Longest measurement of a candidate, after its batch has turned over once.
        out: Profile to write; empty: DRAFTMILL_HOME/tuned/NAME.yaml.
    """
    settings = read_settings()
    path = Path(out) if out else settings.home / "tuned" / f"{config.name}.yaml"
    _check_can_tune(config.serving, settings, path)
    voice = narrator.get()
    prompts, origin = await asyncio.to_thread(sample_prompts, config, settings)
    voice.stage("prompts", f"{len(prompts):,} from {origin}")
    model = locate_model(config.model)
    facts = await asyncio.to_thread(read_launch_facts, config.serving, model)
    trials = Trials(config, model, settings, _set_bench(config, prompts, seconds), voice)
    first = propose_candidates(config.serving, facts)
    await trials.run(first)
    winner = trials.winner()
    await trials.run(refine_candidate(winner, facts))
    winner, ranked = trials.winner(), rank_results(trials.results)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    how = (
        f"{at}, draftmill {version('draftmill')}, sglang {winner.serving.sglang_version}, "
        f"{len(prompts)} prompts from {origin}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_profile(config, winner.serving, ranked, how=how, path=path)
    plot = path.with_suffix(".svg")
    plot.write_text(plot_svg(ranked, f"{config.name}: tokens/s of one server"), encoding="utf-8")
    await _publish(config.name, ranked, path, how)
    return {
        "profile": str(path),
        "plot": str(plot),
        "winner": winner.name,
        "changes": {k: _plain(v) for k, v in winner.changes.items()},
        "how": how,
        "results": [result.model_dump(mode="json") for result in ranked],
    }


class Trials:
    """Runs candidates in waves, as many at once as there are cards for a server each."""

    def __init__(
        self,
        config: ExpansionConfig,
        model: ModelConfig,
        settings: Settings,
        bench: Workbench,
        voice: Narrator,
    ) -> None:
        self._serving = config.serving
        self._model = model
        self._settings = settings
        self._bench = bench
        self._voice = voice
        self._tried: dict[str, Candidate] = {}
        self.results: list[TrialResult] = []

    async def run(self, candidates: Sequence[Candidate]) -> None:
        """Try candidates; whatever becomes of one, the others are tried."""
        places = share_gpus(self._serving)
        for first in range(0, len(candidates), len(places)):
            wave = candidates[first : first + len(places)]
            names = "; ".join(candidate.name for candidate in wave)
            self._voice.stage("trial", f"{len(wave)} side by side: {names}")
            results = await asyncio.gather(
                *(self._try(each, gpus) for each, gpus in zip(wave, places, strict=False))
            )
            for candidate, result in zip(wave, results, strict=True):
                self._tried[candidate.name] = candidate
                self.results.append(result)
                self._voice.note(_tell(result))

    def winner(self) -> Candidate:
        """Give the fastest so far.

        Raises:
            FleetFailed: No candidate served.
        """
        best = rank_results(self.results)[0]
        if best.error:
            raise FleetFailed(
                f"No candidate served; the first failed with: {self.results[0].error}",
                where=str(self._settings.home),
                remedy="Bring one server up with `draftmill servers up`, then tune again.",
            )
        return self._tried[best.name]

    async def _try(self, candidate: Candidate, gpus: tuple[int, ...]) -> TrialResult:
        # Beside the fleet's own folder: a launch finds the composed CUDA home from there.
        folder = self._settings.home / f"tune-gpu-{'-'.join(map(str, gpus))}"
        changes = {"n_servers": 1, "gpus": gpus, "base_port": 0, "max_restarts": 0}
        serving = candidate.serving.model_copy(update=changes)
        key = self._settings.server_api_key
        headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else None
        holder = f"{flow_run.id or id(self)}-{folder.name}"
        given_up = threading.Event()
        try:
            with Lease(folder, holder, serving.lease_seconds):
                [url] = await asyncio.to_thread(
                    partial(
                        ensure_fleet_up,
                        *(folder, serving, self._model, _silent),
                        api_key=key,
                        given_up=given_up,
                    )
                )
                slots = serving.max_running_requests or 1
                return await run_trial(
                    candidate.name, url, self._bench, slots=slots, headers=headers
                )
        except DraftmillError as error:
            return TrialResult(name=candidate.name, error=_shorten(error))
        finally:
            # A cancelled task cannot end its thread, which would wait for the server.
            given_up.set()
            await asyncio.to_thread(fleet_down, folder)


def _check_can_tune(serving: ServingConfig, settings: Settings, path: Path) -> None:
    if serving.mode == "attach":
        raise UserError(
            "Servers that others run cannot be tuned from here (serving.mode attach).",
            where="serving.mode",
            remedy="Tune on the box that has the cards, with serving.mode launch.",
        )
    if path.exists():
        raise UserError(
            "the profile is there already", where=str(path), remedy="Give another --out."
        )
    state = fleet_status(settings.fleet_dir)
    if state is not None and state.status == "running":
        raise UserError(
            "A fleet runs on this host: its cards are not free to be measured.",
            where=str(settings.fleet_dir),
            remedy="Wait for its runs to end, or end it with `draftmill servers down`.",
        )


def _set_bench(
    config: ExpansionConfig, prompts: Sequence[Sequence[int]], seconds: float
) -> Workbench:
    room = config.model.context_length - max(map(len, prompts)) - 1
    sampling = config.sampling.model_dump(exclude={"max_tokens", "n_samples"})
    sampling["max_new_tokens"] = min(config.sampling.max_tokens, room)
    pace = min(_SLICE_SECONDS, seconds / 10)
    return Workbench(
        prompts, sampling, slice_seconds=pace, warm_seconds=max(seconds, 10), most_seconds=seconds
    )


async def _publish(name: str, ranked: Sequence[TrialResult], path: Path, how: str) -> None:
    slug = artifact_slug(name)
    await acreate_table_artifact(
        key=f"tuning-{slug}", table=tabulate(ranked), description="Candidates, the fastest first"
    )
    await acreate_markdown_artifact(
        key=f"tuning-plot-{slug}",
        markdown=f"```text\n{draw_bars(ranked)}\n\n{path}\n{how}\n```",
        description="Tokens a second of one server",
    )


def _tell(result: TrialResult) -> str:
    if result.error:
        return f"{result.name}: failed: {result.error.splitlines()[0]}"
    return (
        f"{result.name}: {result.tokens_per_second:,.0f} tokens/s ± {result.relative_error:.1%}, "
        f"{result.n_running:.0f} running, {result.n_retracted} retracted, "
        f"{result.token_usage:.0%} of the KV cache"
    )


def _shorten(error: DraftmillError) -> str:
    """Say why a candidate failed, with the last line of its log where there is one."""
    tail = error.log_tail.strip() if isinstance(error, FleetFailed) else ""
    return f"{error.what} {tail.splitlines()[-1] if tail else ''}".strip()[:300]


def _plain(value: Any) -> Any:
    return describe_changes({"speculative": value}) if hasattr(value, "model_dump") else value


def _silent(line: str) -> None:
    """Candidates come up side by side: what each of them says would run together."""
