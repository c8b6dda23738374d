"""Settings of a fleet to the command line of each server.

Enters: ServingConfig, ModelConfig and one port a server. Leaves: a ServerCommand a server (argv,
added environment, base url), or one ConfigError with every fault. It exists so that all that is
version-dependent or dangerous about a launch is decided in one pure place, before a process starts.

The API key never stands on a command line, which every user of the machine can read: sglang is
given `--config FILE`, a file of mode 0600 that holds the key.
"""

from __future__ import annotations

import hashlib
import ipaddress
import sys
from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from tasks.chat.config import ModelConfig
from tasks.environment import compat
from tasks.errors import ConfigError, ConfigIssue
from tasks.serving.config import ServingConfig

# Flags that have a setting of their own, or that would undo a safeguard. argparse takes every
# unambiguous abbreviation, so a prefix of one of these counts as well.
_OWN_FLAGS = (
    "--api-key", "--admin-api-key", "--attention-backend", "--chunked-prefill-size", "--config",
    "--context-length", "--disable-radix-cache", "--dtype", "--enable-metrics", "--host",
    "--mamba-radix-cache-strategy", "--mamba-scheduler-strategy", "--max-running-requests",
    "--mem-fraction-static", "--model-path", "--port", "--quantization", "--reasoning-parser",
    "--revision", "--served-model-name", "--speculative-algorithm", "--speculative-eagle-topk",
    "--speculative-num-draft-tokens", "--speculative-num-steps", "--tokenizer-path",
    "--tool-call-parser", "--trust-remote-code",
)  # fmt: skip

# Settings that say how a fleet is watched and used, not what it is: another value adopts it.
_NOT_IDENTITY = frozenset(
    {"mode", "urls", "slots", "ready_timeout_seconds", "max_restarts", "lease_seconds", "keep"}
)


class ServerCommand(BaseModel):
    """How one server is started: `env` is added to the supervisor's own environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    argv: tuple[str, ...] = Field(min_length=1)
    env: dict[str, str]
    base_url: str


class FleetSpec(BaseModel):
    """What a fleet is: two equal ones can stand for each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    serving: ServingConfig
    model: ModelConfig
    with_api_key: bool

    def identity(self) -> dict[str, Any]:
        """Return dotted setting -> value, without what does not change the servers."""
        serving = self.serving.model_dump(mode="json", exclude=set(_NOT_IDENTITY))
        if self.serving.engine == "sglang":
            serving.pop("simulator")
        fields = {"serving": serving, "model": self.model.model_dump(mode="json")}
        return {"with_api_key": self.with_api_key} | _flatten(fields)

    def sha256(self) -> str:
        """Hash the identity."""
        return hashlib.sha256(
            orjson.dumps(self.identity(), option=orjson.OPT_SORT_KEYS)
        ).hexdigest()

    def differences(self, other: FleetSpec) -> tuple[str, ...]:
        """List the settings that differ: `setting: mine -> the other's`."""
        mine, theirs = self.identity(), other.identity()
        return tuple(
            f"{key}: {mine.get(key)!r} -> {theirs.get(key)!r}"
            for key in sorted(mine.keys() | theirs.keys())
            if mine.get(key) != theirs.get(key)
        )


def build_commands(
    config: ServingConfig,
    model: ModelConfig,
    ports: Sequence[int],
    *,
    api_key_file: str | None = None,
    capability: tuple[int, int] | None = None,
    hybrid: bool | None = None,
) -> list[ServerCommand]:
    """Build the command line of every server of a fleet.

    Args:
        config: The fleet.
        model: The target model.
        ports: One a server. Shape [n_servers].
        api_key_file: YAML file that gives sglang its API key; None: servers without a key.
        capability: Compute capability of the cards, where it is known.
        hybrid: Whether the model has GDN layers, where it is known.

    Raises:
        ConfigError: with every setting that cannot be launched.
    """
    if len(ports) != config.n_servers:
        raise ValueError(f"{config.n_servers} servers need as many ports, not {len(ports)}")
    issues = (
        *_find_unsafe(config, model, with_key=api_key_file is not None),
        *_find_conflicts(config, capability, hybrid),
    )
    if issues:
        raise ConfigError("The servers cannot be launched as configured.", issues=issues)
    flags = (
        _simulator_flags(config) if config.engine == "simulator" else _sglang_flags(config, model)
    )
    if config.engine == "sglang" and api_key_file is not None:
        flags += ["--config", api_key_file]
    module = "infra.simulator" if config.engine == "simulator" else "sglang.launch_server"
    gpus = config.gpus or tuple(range(config.n_servers))
    host = f"[{config.host}]" if ":" in config.host else config.host
    return [
        ServerCommand(
            argv=(
                config.python or sys.executable,
                *("-m", module),
                *_shared_flags(config, model),
                *("--port", str(port)),
                *flags,
                *config.extra_flags,
            ),
            env={"CUDA_VISIBLE_DEVICES": str(gpu)},
            base_url=f"http://{host}:{port}",
        )
        for port, gpu in zip(ports, gpus, strict=True)
    ]


def _shared_flags(config: ServingConfig, model: ModelConfig) -> list[str]:
    """Return the flags that sglang and the simulator have in common, the port left out."""
    flags = ["--model-path", model.path, "--served-model-name", model.name, "--host", config.host]
    flags += ["--context-length", str(model.context_length), "--enable-metrics"]
    if model.reasoning_parser:
        flags += ["--reasoning-parser", model.reasoning_parser]
    if model.tool_call_parser:
        flags += ["--tool-call-parser", model.tool_call_parser]
    if config.max_running_requests is not None:
        flags += ["--max-running-requests", str(config.max_running_requests)]
    return flags


def _sglang_flags(config: ServingConfig, model: ModelConfig) -> list[str]:
    flags = ["--chunked-prefill-size", str(config.chunked_prefill_size)]
    flags += ["--mem-fraction-static", str(config.mem_fraction_static), "--dtype", model.dtype]
    optional = {
        "--tokenizer-path": model.tokenizer,
        "--revision": model.revision,
        "--quantization": model.quantization,
        "--attention-backend": config.attention_backend,
        compat.MAMBA_FLAG[config.sglang_version]: config.mamba_strategy,
    }
    for flag, value in optional.items():
        if value is not None:
            flags += [flag, value]
    if config.disable_radix_cache:
        flags.append("--disable-radix-cache")
    if config.speculative is not None:
        flags += ["--speculative-algorithm", config.speculative.algorithm]
        flags += ["--speculative-num-steps", str(config.speculative.num_steps)]
        flags += ["--speculative-eagle-topk", str(config.speculative.eagle_topk)]
        flags += ["--speculative-num-draft-tokens", str(config.speculative.num_draft_tokens)]
    return flags


def _simulator_flags(config: ServingConfig) -> list[str]:
    simulator = config.simulator
    flags = ["--sim-version", config.sglang_version]
    flags += ["--sim-time-scale", str(simulator.time_scale)]
    flags += ["--sim-mean-tokens", str(simulator.mean_tokens), "--sim-sigma", str(simulator.sigma)]
    if simulator.faults:
        flags += ["--sim-faults", orjson.dumps(simulator.faults).decode()]
    if simulator.request_log is not None:
        flags += ["--sim-request-log", simulator.request_log]
    return flags


def _find_unsafe(config: ServingConfig, model: ModelConfig, *, with_key: bool) -> list[ConfigIssue]:
    values = {
        "model.path": model.path,
        "model.tokenizer": model.tokenizer,
        "model.revision": model.revision,
        "model.served_name": model.served_name,
        "model.quantization": model.quantization,
        "serving.python": config.python,
        "serving.host": config.host,
        "serving.attention_backend": config.attention_backend,
        "serving.simulator.request_log": config.simulator.request_log,
    }
    issues = [
        _issue(path, f"{value!r} would be read as a flag", "a value must not begin with '-'")
        for path, value in values.items()
        if value is not None and value.startswith("-")
    ]
    if not is_loopback(config.host) and (not with_key or config.engine == "simulator"):
        message = f"{config.host} would open the servers to the network without a key"
        hint = (
            "the simulator has no key: use 127.0.0.1"
            if config.engine == "simulator"
            else "set DRAFTMILL_SERVER_API_KEY, or use 127.0.0.1"
        )
        issues.append(_issue("serving.host", message, hint))
    for flag in config.extra_flags:
        name = flag.split("=", 1)[0]
        clash = next((own for own in _OWN_FLAGS if len(name) > 2 and own.startswith(name)), None)
        if clash is not None:
            message = f"{name} stands for {clash}, which is not an extra flag"
            issues.append(_issue("serving.extra_flags", message, "use its own setting, if any"))
    return issues


def _find_conflicts(
    config: ServingConfig, capability: tuple[int, int] | None, hybrid: bool | None
) -> list[ConfigIssue]:
    if config.engine == "simulator":
        return []
    choice = launch_choice(config, capability=capability, hybrid=hybrid)
    return [
        _issue("serving", conflict.what, conflict.remedy)
        for conflict in compat.find_conflicts(choice)
    ]


def launch_choice(
    config: ServingConfig,
    *,
    capability: tuple[int, int] | None = None,
    hybrid: bool | None = None,
) -> compat.LaunchChoice:
    """Return the settings of a launch that can conflict with each other or with the card."""
    return compat.LaunchChoice(
        sglang_version=config.sglang_version,
        capability=capability,
        hybrid=hybrid,
        attention_backend=config.attention_backend,
        mamba_strategy=config.mamba_strategy,
        disable_radix_cache=config.disable_radix_cache,
        n_draft_tokens=config.speculative.num_draft_tokens if config.speculative else 0,
        page_size=_page_size(config.extra_flags),
    )


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _page_size(extra_flags: Sequence[str]) -> int | None:
    for index, flag in enumerate(extra_flags):
        name, _, value = flag.partition("=")
        if name == "--page-size":
            text = value or "".join(extra_flags[index + 1 : index + 2])
            return int(text) if text.isdecimal() else None
    return None


def _issue(path: str, message: str, hint: str) -> ConfigIssue:
    return ConfigIssue(place="configuration", path=path, message=message, hint=hint)


def _flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= _flatten(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat
