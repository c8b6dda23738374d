"""Settings of a fleet to the command line of each server.

Enters: ServingConfig, ModelConfig and one port a server. Leaves: a ServerCommand a server (argv,
added environment, base url), or one ConfigError with every fault. It exists so that all that is
version-dependent or dangerous about a launch is decided in one pure place, before a process starts.

The API key never stands on a command line, which every user of the machine can read: sglang is
given `--config FILE`, a file of mode 0600 that holds the key.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from tasks.chat.config import ModelConfig
from tasks.environment import compat
from tasks.errors import ConfigError
from tasks.serving.config import ServingConfig
from tasks.serving.launchable import UNKNOWN, LaunchFacts, find_faults

# Settings that say how a fleet is watched and used, not what it is: another value adopts it.
_NOT_IDENTITY = frozenset(
    {
        *("mode", "urls", "slots", "ready_timeout_seconds", "max_restarts", "stall_seconds"),
        *("lease_seconds", "keep", "outlook"),
    }
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
    facts: LaunchFacts = UNKNOWN,
    toolkit_env: Mapping[str, str] | None = None,
) -> list[ServerCommand]:
    """Build the command line of every server of a fleet.

    Args:
        config: The fleet.
        model: The target model.
        ports: One a server. Shape [n_servers].
        api_key_file: YAML file that gives sglang its API key; None: servers without a key.
        facts: What is known of the cards and the model.
        toolkit_env: Variables by which sglang's compilers find the composed CUDA home.

    Raises:
        ConfigError: with every setting that cannot be launched.
    """
    if len(ports) != config.n_servers:
        raise ValueError(f"{config.n_servers} servers need as many ports, not {len(ports)}")
    issues = find_faults(config, model, facts, with_key=api_key_file is not None)
    if issues:
        raise ConfigError("The servers cannot be launched as configured.", issues=issues)
    flags = (
        _simulator_flags(config) if config.engine == "simulator" else _sglang_flags(config, model)
    )
    if config.engine == "sglang" and api_key_file is not None:
        flags += ["--config", api_key_file]
    module = "infra.simulator" if config.engine == "simulator" else "sglang.launch_server"
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
            env={
                **(toolkit_env or {} if config.engine == "sglang" else {}),
                # The driver's order, which NVML counts in as well, and not the fastest first.
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
            },
            base_url=f"http://{host}:{port}",
        )
        for port, gpus in zip(ports, share_gpus(config), strict=True)
    ]


def share_gpus(config: ServingConfig) -> list[tuple[int, ...]]:
    """Give each server its GPUs, tp_size of them. Shape [n_servers, tp_size]."""
    size = config.tp_size
    gpus = config.gpus or tuple(range(config.n_servers * size))
    return [gpus[first : first + size] for first in range(0, len(gpus), size)]


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
        "--mamba-ssm-dtype": config.mamba_ssm_dtype,
        "--linear-attn-decode-backend": config.linear_attn_decode_backend,
        compat.MAMBA_FLAG[config.sglang_version]: config.mamba_strategy,
    }
    for flag, value in optional.items():
        if value is not None:
            flags += [flag, value]
    if config.tp_size > 1:
        flags += ["--tp-size", str(config.tp_size)]
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


def _flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= _flatten(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat
