"""What the server says of itself: model, settings, load, metrics.

Enters: the launch settings, the engine and the counters. Leaves: JSON bodies and Prometheus text in
the shapes of sglang 0.5.12 and 0.5.23 (the fields that a client can use; a real server lists some
400 settings). Source: recorded answers of real servers.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.simulator.engine import Engine


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """The command line, checked."""

    model_path: str
    served_model_name: str
    host: str
    port: int
    context_length: int
    max_running_requests: int | None
    random_seed: int
    reasoning_parser: str | None
    tool_call_parser: str | None
    enable_metrics: bool
    api_key: str | None
    version: str
    time_scale: float
    step_base_seconds: float
    step_slope_seconds: float
    mean_tokens: float
    sigma: float
    luck: int
    request_log: Path | None
    start_delay_seconds: float

    @property
    def slots(self) -> int:
        """Requests that run at once; without the flag, the field's 72 a card."""
        return 72 if self.max_running_requests is None else self.max_running_requests

    @property
    def max_total_num_tokens(self) -> int:
        """Size of the (imaginary) KV cache: every slot can hold a full context."""
        return self.slots * self.context_length


@dataclass(slots=True)
class Counters:
    """What has happened since the start."""

    started_at: float = field(default_factory=time.time)
    requests: Counter[str] = field(default_factory=Counter)
    active: Counter[tuple[str, str]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    n_prompt_tokens: int = 0
    n_output_tokens: int = 0


def model_info(settings: LaunchSettings) -> dict[str, Any]:
    """Answer /model_info and /get_model_info."""
    # The mark of invented answers stands here too: a router passes on no other word of a server.
    head: dict[str, Any] = {"model_path": settings.model_path, "simulated": True}
    middle: dict[str, Any] = {
        "tokenizer_path": settings.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
    }
    tail: dict[str, Any] = {
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
    }
    if settings.version == "0.5.12":
        return {**head, **middle, **tail}
    return {
        **head,
        "served_model_name": settings.served_model_name,
        **middle,
        "load_format": "auto",
        "reasoning_parser": settings.reasoning_parser,
        "tool_call_parser": settings.tool_call_parser,
        "disaggregation_mode": "null",
        **tail,
        "embedding": {"family": "none", "task": "none", "enabled": False},
    }


def server_info(settings: LaunchSettings, engine: Engine) -> dict[str, Any]:
    """Answer /server_info and /get_server_info."""
    arguments: dict[str, Any] = {
        "model_path": settings.model_path,
        "tokenizer_path": settings.model_path,
        "tokenizer_mode": "auto",
        "skip_tokenizer_init": False,
        "load_format": "auto",
        "trust_remote_code": False,
        "context_length": settings.context_length,
        "is_embedding": False,
        "host": settings.host,
        "port": settings.port,
        "dtype": "auto",
        "quantization": None,
        "kv_cache_dtype": "auto",
        "max_running_requests": settings.max_running_requests,
        "max_queued_requests": None,
        "schedule_policy": "fcfs",
        "device": "cpu",
        "tp_size": 1,
        "dp_size": 1,
        "random_seed": settings.random_seed,
        "enable_metrics": settings.enable_metrics,
        "api_key": settings.api_key and "<redacted>",
        "served_model_name": settings.served_model_name,
        "chat_template": None,
        "reasoning_parser": settings.reasoning_parser,
        "tool_call_parser": settings.tool_call_parser,
        "weight_version": "default",
    }
    return {
        **arguments,
        "status": "ready",
        "max_total_num_tokens": settings.max_total_num_tokens,
        "max_req_input_len": settings.context_length - 6,
        "internal_states": [
            {
                **arguments,
                "last_gen_throughput": engine.tokens_per_second,
                "memory_usage": {"token_capacity": settings.max_total_num_tokens},
                "effective_max_running_requests_per_dp": settings.slots,
            }
        ],
        "version": settings.version,
        # No real server says this: it keeps invented answers from passing for a model's.
        "simulated": True,
    }


def models(settings: LaunchSettings, counters: Counters) -> dict[str, Any]:
    """Answer /v1/models."""
    model = {
        "id": settings.served_model_name,
        "object": "model",
        "created": int(counters.started_at),
        "owned_by": "sglang",
        "root": settings.served_model_name,
        "parent": None,
        "max_model_len": settings.context_length,
    }
    return {"object": "list", "data": [model]}


def old_load(engine: Engine) -> list[dict[str, Any]]:
    """Answer /get_load of 0.5.12."""
    return [
        {
            "dp_rank": None,
            "num_reqs": engine.n_in_flight,
            "num_waiting_reqs": engine.n_queued,
            "num_tokens": 0,
            "num_pending_tokens": 0,
            "ts_tic": time.monotonic(),
        }
    ]


def loads(settings: LaunchSettings, engine: Engine) -> dict[str, Any]:
    """Answer /v1/loads of 0.5.23."""
    load = {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": engine.n_running,
        "num_waiting_reqs": engine.n_queued,
        "num_waiting_uncached_tokens": 0,
        "num_used_tokens": 0,
        "num_total_tokens": 0,
        "num_active_tokens": 0,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": settings.max_total_num_tokens,
        "max_running_requests": settings.slots,
        "token_usage": 0.0,
        "gen_throughput": engine.tokens_per_second,
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": 0,
        "total_prefill_busy_us": 0,
        "decode_moments": None,
        "memory": {
            "weight_gb": 0.0,
            "kv_cache_gb": 0.0,
            "graph_gb": 0.0,
            "token_capacity": settings.max_total_num_tokens,
        },
        "disaggregation": {
            "mode": "null",
            "prefill_bootstrap_queue_reqs": 0,
            "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": 0,
            "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        },
        "queues": {
            "waiting": engine.n_queued,
            "grammar": 0,
            "paused": 0,
            "retracted": 0,
            "prealloc_ready": 0,
        },
    }
    return {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": settings.version,
        "accelerator": None,
        "num_accelerators": 1,
        "loads": [load],
    }


def metrics(settings: LaunchSettings, engine: Engine, counters: Counters) -> str:
    """Answer /metrics in the Prometheus text format, under sglang's names."""
    labels = (
        f'engine_type="unified",model_name="{settings.served_model_name}",'
        'moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    )
    engine.settle()
    n_requests = sum(counters.outcomes.values())
    usage = engine.n_held_tokens / settings.max_total_num_tokens
    rows = (
        ("max_total_num_tokens", "gauge", settings.max_total_num_tokens),
        ("context_len", "gauge", settings.context_length),
        ("num_running_reqs", "gauge", engine.n_running),
        ("num_queue_reqs", "gauge", engine.n_queued),
        ("gen_throughput", "gauge", engine.tokens_per_second),
        ("token_usage", "gauge", usage),
        ("cache_hit_rate", "gauge", 0),
        ("prompt_tokens_total", "counter", counters.n_prompt_tokens),
        ("generation_tokens_total", "counter", counters.n_output_tokens),
        ("num_requests_total", "counter", n_requests),
        ("num_aborted_requests_total", "counter", counters.outcomes["aborted"]),
        ("num_retracted_requests_total", "counter", 0),
    )
    lines = []
    for name, kind, value in rows:
        lines.append(f"# HELP sglang:{name} {name.replace('_', ' ')} (simulated)")
        lines.append(f"# TYPE sglang:{name} {kind}")
        lines.append(f"sglang:{name}{{{labels}}} {float(value)}")
    lines.append("# TYPE sglang:realtime_tokens_total counter")
    lines.append(f'sglang:realtime_tokens_total{{{labels},mode="decode"}} {engine.n_decoded}')
    lines.append("# TYPE sglang:http_requests_active gauge")
    for (path, method), n_active in counters.active.items():
        place = f'endpoint="{path}",method="{method}"'
        lines.append(f"sglang:http_requests_active{{{place}}} {float(n_active)}")
    return "\n".join(lines) + "\n"


def stats(engine: Engine, counters: Counters) -> dict[str, Any]:
    """Answer /simulator/stats: what tests and benchmarks read."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    engine.settle()
    return {
        "requests": dict(counters.requests),
        "outcomes": dict(counters.outcomes),
        "prompt_tokens": counters.n_prompt_tokens,
        "output_tokens": counters.n_output_tokens,
        "running": engine.n_running,
        "queued": engine.n_queued,
        "max_running_seen": engine.max_running_seen,
        "max_in_flight_seen": engine.max_in_flight_seen,
        "busy_slot_seconds": engine.busy_slot_seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "uptime_seconds": time.time() - counters.started_at,
        "max_rss_bytes": usage.ru_maxrss * 1024,
    }
