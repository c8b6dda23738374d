"""How a real sglang is configured to run on a CPU, for the supervisor to start."""

from __future__ import annotations

from pathlib import Path

from tasks.chat.config import ModelConfig
from tasks.serving.config import ServingConfig

CPU_FLAGS = (
    *("--device", "cpu", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
    *("--max-total-tokens", "16384", "--skip-server-warmup", "--sleep-on-idle"),
)


def configure_model(folder: Path) -> ModelConfig:
    """Describe the tiny model."""
    return ModelConfig(
        path=str(folder), served_name="tiny-random", dtype="bfloat16", context_length=2048
    )


def configure_servers(python: Path, **changes: object) -> ServingConfig:
    """Describe one server on a CPU."""
    fields = {
        "engine": "sglang",
        "sglang_version": "0.5.12",
        "python": str(python),
        "n_servers": 1,
        "base_port": 0,
        "attention_backend": "torch_native",
        "mem_fraction_static": 0.5,
        "chunked_prefill_size": 2048,
        "max_running_requests": 16,
        "ready_timeout_seconds": 420,
        "extra_flags": CPU_FLAGS,
    }
    return ServingConfig.model_validate(fields | changes)
