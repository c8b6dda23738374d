"""What in a launch cannot work, or would undo a safeguard: found before a process starts.

Enters: ServingConfig, ModelConfig, and the facts of the box that are known. Leaves: a ConfigIssue a
fault, all at once. It exists because most of these faults would show minutes later inside a server,
and some of them never. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.chat.config import ModelConfig
from tasks.environment import compat
from tasks.errors import ConfigIssue
from tasks.serving.config import ServingConfig

# Flags that have a setting of their own, or that would undo a safeguard. argparse takes every
# unambiguous abbreviation, so a prefix of one of these counts as well.
_OWN_FLAGS = (
    "--api-key", "--admin-api-key", "--attention-backend", "--chunked-prefill-size", "--config",
    "--context-length", "--disable-radix-cache", "--dtype", "--enable-metrics", "--host",
    "--linear-attn-decode-backend", "--mamba-radix-cache-strategy", "--mamba-scheduler-strategy",
    "--mamba-ssm-dtype", "--max-running-requests", "--mem-fraction-static", "--model-path",
    "--port", "--quantization", "--reasoning-parser", "--revision", "--served-model-name",
    "--speculative-algorithm", "--speculative-eagle-topk", "--speculative-num-draft-tokens",
    "--speculative-num-steps", "--tensor-parallel-size", "--tokenizer-path", "--tool-call-parser",
    "--tp-size", "--trust-remote-code",
)  # fmt: skip


HIGHEST_PORT = 55_535
"""sglang adds 10,000 to its port for a second one, and refuses to start where there is none."""


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """What is known of the cards and the model; None: not known, and then nothing is said of it.

    Attributes:
        capability: Compute capability of the cards as (major, minor).
        hybrid: Whether the model has GDN layers.
        nvlink: Whether the cards are joined by NVLink.
    """

    capability: tuple[int, int] | None = None
    hybrid: bool | None = None
    nvlink: bool | None = None


UNKNOWN = LaunchFacts()
"""Nothing is known of the cards and the model."""


def find_faults(
    config: ServingConfig, model: ModelConfig, facts: LaunchFacts, *, with_key: bool
) -> tuple[ConfigIssue, ...]:
    """List what cannot be launched: unsafe values, flags that undo a safeguard, conflicts."""
    return (
        *_find_flag_values(config, model),
        *_find_open_host(config, with_key=with_key),
        *_find_high_ports(config),
        *_find_clashes(config),
        *_find_conflicts(config, facts),
    )


def launch_choice(config: ServingConfig, facts: LaunchFacts = UNKNOWN) -> compat.LaunchChoice:
    """Return the settings of a launch that can conflict with each other or with the card."""
    return compat.LaunchChoice(
        sglang_version=config.sglang_version,
        capability=facts.capability,
        hybrid=facts.hybrid,
        attention_backend=config.attention_backend,
        mamba_strategy=config.mamba_strategy,
        disable_radix_cache=config.disable_radix_cache,
        n_draft_tokens=config.speculative.num_draft_tokens if config.speculative else 0,
        page_size=_page_size(config.extra_flags),
        linear_attn_decode_backend=config.linear_attn_decode_backend,
        mamba_ssm_dtype=config.mamba_ssm_dtype,
        tp_size=config.tp_size,
        nvlink=facts.nvlink,
    )


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _find_flag_values(config: ServingConfig, model: ModelConfig) -> list[ConfigIssue]:
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
    return [
        _issue(path, f"{value!r} would be read as a flag", "a value must not begin with '-'")
        for path, value in values.items()
        if value is not None and value.startswith("-")
    ]


def _find_open_host(config: ServingConfig, *, with_key: bool) -> list[ConfigIssue]:
    if is_loopback(config.host) or (with_key and config.engine == "sglang"):
        return []
    message = f"{config.host} would open the servers to the network without a key"
    hint = (
        "the simulator has no key: use 127.0.0.1"
        if config.engine == "simulator"
        else "set DRAFTMILL_SERVER_API_KEY, or use 127.0.0.1"
    )
    return [_issue("serving.host", message, hint)]


def _find_high_ports(config: ServingConfig) -> list[ConfigIssue]:
    last = config.base_port + config.n_servers - 1
    if config.engine == "simulator" or config.base_port == 0 or last <= HIGHEST_PORT:
        return []
    message = f"port {last} is above {HIGHEST_PORT}: sglang needs a second one 10,000 higher"
    return [_issue("serving.base_port", message, "set a lower one, or 0 for free ports")]


def _find_clashes(config: ServingConfig) -> list[ConfigIssue]:
    issues = []
    for flag in config.extra_flags:
        name = flag.split("=", 1)[0]
        clash = next((own for own in _OWN_FLAGS if len(name) > 2 and own.startswith(name)), None)
        if clash is not None:
            message = f"{name} stands for {clash}, which is not an extra flag"
            issues.append(_issue("serving.extra_flags", message, "use its own setting, if any"))
    return issues


def _find_conflicts(config: ServingConfig, facts: LaunchFacts) -> list[ConfigIssue]:
    if config.engine == "simulator":
        return []
    conflicts = compat.find_conflicts(launch_choice(config, facts))
    return [_issue("serving", conflict.what, conflict.remedy) for conflict in conflicts]


def _page_size(extra_flags: Sequence[str]) -> int | None:
    for index, flag in enumerate(extra_flags):
        name, _, value = flag.partition("=")
        if name == "--page-size":
            text = value or "".join(extra_flags[index + 1 : index + 2])
            return int(text) if text.isdecimal() else None
    return None


def _issue(path: str, message: str, hint: str) -> ConfigIssue:
    return ConfigIssue(place="configuration", path=path, message=message, hint=hint)
