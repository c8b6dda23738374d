"""Says what must hold on this box for a configuration: ExpansionConfig in, BoxProfile out.

It also knows what is our own already: ports and processes of a living fleet are no findings.
"""

from __future__ import annotations

import re
from pathlib import Path

from flows.config import ExpansionConfig
from flows.stages.remote import is_remote
from tasks.environment.record import BoxProfile
from tasks.serving.command import share_gpus
from tasks.serving.launchable import launch_choice
from tasks.serving.process import is_alive
from tasks.serving.supervisor import fleet_status
from tasks.settings import Settings

_DRIVER = (Path("/proc/driver/nvidia"), Path("/dev/nvidiactl"))
_GB, _GIB = 1e9, 2**30
_SPOOL_GIB = 1.0
_DRAFTS = re.compile(r"(?<!no )\bMTP\b")
# What follows the speed in a line of the tuner's table.
_SPEED = re.compile(r" · (±|running) .*$")


def profile_of(
    config: ExpansionConfig, settings: Settings, repair_argv: tuple[str, ...] = ()
) -> BoxProfile:
    """Say what must hold on this box for a run.

    Args:
        config: The run's configuration.
        settings: This machine's settings.
        repair_argv: Command that repairs the box for it, without `--apply`.
    """
    serving = config.serving
    launches = serving.mode == "launch"
    on_gpu = launches and serving.engine == "sglang"
    wanted = range(serving.base_port, serving.base_port + serving.n_servers)
    reason = (
        "the servers are simulated" if launches else "others run the servers (serving.mode attach)"
    )
    paths = [source.path for source in config.sources.values()]
    if config.base is not None:
        paths.append(config.base.path)
    ports, pids = read_own_fleet(settings)
    return BoxProfile(
        host=serving.host,
        ports=tuple(wanted) if launches and serving.base_port else (),
        own_ports=ports,
        own_pids=pids,
        needs_gpu=on_gpu,
        no_gpu_reason=reason,
        gpus=tuple(gpu for group in share_gpus(serving) for gpu in group) if on_gpu else (),
        capability=_parse_capability(config.environment.capability),
        weights_gib=_to_gib(serving.outlook.weights_gb),
        kv_gib=_estimate_kv_gib(config),
        spool_dir=settings.spool_dir,
        spool_gib=config.environment.spool_gib,
        # What lies on the store's endpoint is for the check of its source.
        files=tuple(Path(path) for path in paths if path is not None and not is_remote(path)),
        model_path=config.model.path if on_gpu else None,
        model_revision=config.model.revision,
        server_python=serving.python if on_gpu else None,
        sglang_version=serving.sglang_version if on_gpu else None,
        cuda_dir=settings.cuda_dir if on_gpu else None,
        repair_argv=repair_argv,
        launch=launch_choice(serving) if on_gpu else None,
        mtp_measured=read_mtp_measured(settings.home / "tuned" / f"{config.name}.yaml"),
    )


def profile_of_box(settings: Settings, repair_argv: tuple[str, ...] = ()) -> BoxProfile:
    """Say what can be judged without a configuration: the machine, and its GPUs if it has any."""
    ports, pids = read_own_fleet(settings)
    has_driver = any(path.exists() for path in _DRIVER)
    return BoxProfile(
        own_ports=ports,
        own_pids=pids,
        needs_gpu=has_driver,
        no_gpu_reason="no configuration is given, and no NVIDIA driver is loaded here",
        gpus=_count_gpus() if has_driver else (),
        spool_dir=settings.spool_dir,
        spool_gib=_SPOOL_GIB,
        cuda_dir=settings.cuda_dir,
        repair_argv=repair_argv,
    )


def read_own_fleet(settings: Settings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tell the ports and the processes of a living fleet of our own, by pid and start time."""
    state = fleet_status(settings.fleet_dir)
    if state is None or state.status != "running":
        return (), ()
    ports, pids = [], [state.supervisor_pid]
    for server in state.servers:
        if server.pid is None or not is_alive(server.pid, server.started_at or 0.0):
            continue
        ports.append(int(server.base_url.rsplit(":", 1)[-1]))
        family = [pid for pid, started_at in server.family if is_alive(pid, started_at)]
        pids += [server.pid, *family]
    return tuple(ports), tuple(pids)


def read_mtp_measured(profile: Path) -> str:
    """Read what the tuner measured of multi-token prediction from its profile's comments.

    Returns:
        The best line with it and the best without, as the tuner wrote them; empty: it has none.
    """
    try:
        text = profile.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    rows = [line for line in text.splitlines() if re.match(r"# rank \d+ ", line)]
    drafting = next((row for row in rows if _DRAFTS.search(row)), None)
    plain = next((row for row in rows if not _DRAFTS.search(row)), None)
    if drafting is None or plain is None:
        return ""
    return "; ".join(_SPEED.sub("", row.removeprefix("# ")) for row in (plain, drafting))


def _count_gpus() -> tuple[int, ...]:
    from tasks.environment.gpu_facts import read_nvml  # noqa: PLC0415  (only where there is a card)

    return tuple(gpu.index for gpu in read_nvml().gpus)


def _estimate_kv_gib(config: ExpansionConfig) -> float:
    """Estimate a full server's KV cache on each of its cards, which share it evenly.

    0 where the configuration does not tell enough.
    """
    outlook, n_requests = config.serving.outlook, config.serving.max_running_requests
    if n_requests is None or outlook.mean_output_tokens is None:
        return 0.0
    n_tokens = outlook.mean_prompt_tokens + outlook.mean_output_tokens
    whole = outlook.kv_bytes_per_token * n_tokens * n_requests / _GIB
    return whole / config.serving.tp_size


def _to_gib(gigabytes: float | None) -> float | None:
    return None if gigabytes is None else gigabytes * _GB / _GIB


def _parse_capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)
