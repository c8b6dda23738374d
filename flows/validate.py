"""Judges box, sources and store before anything costs GPU time.

Enters: a Run. Leaves: nothing, or EnvironmentFailed with every check that failed and its remedy.
"""

from __future__ import annotations

from pathlib import Path

from flows.opened import Run
from tasks.environment.record import BoxProfile, Verdict
from tasks.environment.task import validate_environment
from tasks.serving.command import launch_choice
from tasks.serving.supervisor import fleet_status


async def judge_environment(run: Run) -> None:
    """Validate the environment; a failure ends the run.

    Raises:
        EnvironmentFailed: At least one check failed.
    """
    verdicts = await validate_environment(profile_of(run), _judge_elsewhere(run))
    n_ok = sum(verdict.status == "ok" for verdict in verdicts)
    n_skipped = sum(verdict.status == "skip" for verdict in verdicts)
    run.narrator.stage("validate", f"{n_ok} checks passed, {n_skipped} do not apply here")
    for verdict in verdicts:
        if verdict.status in ("warn", "unknown"):
            run.narrator.note(f"{verdict.id}: {verdict.summary}")


def profile_of(run: Run) -> BoxProfile:
    """Say what must hold on this box for this run."""
    serving = run.config.serving
    launches = serving.mode == "launch"
    on_gpu = launches and serving.engine == "sglang"
    wanted = range(serving.base_port, serving.base_port + serving.n_servers)
    reason = (
        "the servers are simulated" if launches else "others run the servers (serving.mode attach)"
    )
    paths = [source.path for source in run.config.sources.values()]
    if run.config.base is not None:
        paths.append(run.config.base.path)
    return BoxProfile(
        host=serving.host,
        ports=tuple(wanted) if launches and serving.base_port else (),
        own_ports=_own_ports(run),
        needs_gpu=on_gpu,
        no_gpu_reason=reason,
        gpus=serving.gpus or tuple(range(serving.n_servers)) if on_gpu else (),
        spool_dir=run.settings.spool_dir,
        spool_gib=run.config.environment.spool_gib,
        files=tuple(Path(path) for path in paths if path is not None),
        server_python=serving.python if on_gpu else None,
        sglang_version=serving.sglang_version if on_gpu else None,
        launch=launch_choice(serving) if on_gpu else None,
    )


def _own_ports(run: Run) -> tuple[int, ...]:
    state = fleet_status(run.settings.fleet_dir)
    if state is None or state.status != "running":
        return ()
    return tuple(int(server.base_url.rsplit(":", 1)[-1]) for server in state.servers)


def _judge_elsewhere(run: Run) -> list[Verdict]:
    """Tell what opening the run has proved already."""
    store = Verdict(
        id="store.create_only",
        status="ok",
        severity="error",
        summary=f"{run.store.uri} refused a second write to one key",
    )
    sources = [
        Verdict(
            id=f"source.{source.key}",
            status="ok",
            severity="error",
            summary=f"{source.dataset} at {source.revision[:12]}",
        )
        for source in run.sources
    ]
    return [store, *sources]
