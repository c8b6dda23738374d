"""What the user can set about the fleet of inference servers."""

from __future__ import annotations

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class SimulatorConfig(BaseModel):
    """Behaviour of simulated servers; read only where `engine` is simulator."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time_scale: float = Field(
        default=1.0, gt=0, le=10, description="Seconds slept for each simulated second."
    )
    mean_tokens: int = Field(default=300, ge=1, le=100_000, description="Mean answer, in tokens.")
    sigma: float = Field(default=0.8, ge=0, le=3, description="Spread of the answers' lengths.")
    faults: dict[str, float] = Field(
        default_factory=dict, description="Faults to show, as rates and factors."
    )
    request_log: str | None = Field(default=None, description="File that logs every request.")


class SpeculativeConfig(BaseModel):
    """Multi-token prediction or a drafter on the server: a choice of speed, not of answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: Literal["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH"] = Field(
        description="The server's algorithm."
    )
    num_steps: int = Field(default=3, ge=1, le=16, description="Draft steps.")
    eagle_topk: int = Field(default=1, ge=1, le=64, description="Branches a step.")
    num_draft_tokens: int = Field(default=4, ge=1, le=64, description="Tokens drafted at once.")


class OutlookConfig(BaseModel):
    """What is known of a server's speed, for `draftmill estimate`; nothing is launched by it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bandwidth_gb_s: float | None = Field(
        default=None, gt=0, description="Memory bandwidth of one card, in GB/s."
    )
    weights_gb: float | None = Field(
        default=None, gt=0, description="Weights read for each step, in GB."
    )
    kv_bytes_per_token: int = Field(
        default=0, ge=0, description="KV cache read for each token of context, in bytes."
    )
    mean_prompt_tokens: float = Field(default=300, ge=0, description="Mean prompt, in tokens.")
    mean_output_tokens: float | None = Field(
        default=None, gt=0, description="Mean answer, in tokens."
    )
    server_tokens_per_second: float | None = Field(
        default=None, gt=0, description="Measured speed of one full server; `tune` writes it."
    )


class ServingConfig(BaseModel):
    """The servers: launched by us, one a GPU, or attached where others run them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["launch", "attach"] = Field(
        default="launch", description="Launch servers on this host, or use ones that run."
    )
    urls: tuple[str, ...] = Field(
        default=(), description="Base urls of the servers to attach, http or https."
    )
    slots: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Requests at once a server, where the server does not say it itself.",
    )
    engine: Literal["sglang", "simulator"] = Field(
        default="sglang", description="What is launched; simulator answers with invented text."
    )
    python: str | None = Field(
        default=None,
        description="Python of the servers' own environment; empty: this one (simulator only).",
    )
    sglang_version: Literal["0.5.12", "0.5.23"] = Field(
        default="0.5.12", description="Version launched (or simulated): it decides the flags."
    )
    n_servers: int = Field(
        default=8, ge=1, le=64, description="Servers, one a GPU or a group of tp_size GPUs."
    )
    tp_size: int = Field(
        default=1,
        ge=1,
        le=16,
        description="GPUs a server, by tensor parallelism; above 1 they must be joined by NVLink.",
    )
    gpus: tuple[int, ...] = Field(
        default=(), description="GPU indices, tp_size a server; empty: 0, 1, 2, ..."
    )
    host: str = Field(default="127.0.0.1", description="Address that the servers listen on.")
    base_port: int = Field(
        default=30000, ge=0, le=65_000, description="Port of the first server; 0: free ports."
    )
    mem_fraction_static: float = Field(
        default=0.85, gt=0.1, lt=1, description="Share of GPU memory for weights and KV cache."
    )
    chunked_prefill_size: int = Field(default=4096, ge=256, description="Tokens a prefill step.")
    attention_backend: str | None = Field(
        default=None, description="Attention kernels; empty: the server's default for the card."
    )
    mamba_strategy: Literal["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"] | None = (
        Field(default=None, description="Scheduler strategy of hybrid (GDN) models.")
    )
    mamba_ssm_dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        default=None, description="Precision of GDN states; empty: the model's own."
    )
    linear_attn_decode_backend: Literal["triton", "flashinfer", "cutedsl"] | None = Field(
        default=None, description="GDN kernels for decoding; empty: the server's default."
    )
    disable_radix_cache: bool = Field(default=False, description="Serve without prefix cache.")
    max_running_requests: int | None = Field(
        default=None, ge=1, le=4096, description="Requests at once; empty: the server decides."
    )
    speculative: SpeculativeConfig | None = Field(
        default=None,
        title="Speculative",
        description="Speculative decoding on the servers; empty: off.",
    )
    extra_flags: tuple[str, ...] = Field(
        default=(), description="Further flags of the server's command line, as they are."
    )
    ready_timeout_seconds: float = Field(
        default=1800, gt=0, le=7200, description="How long a server may take to become healthy."
    )
    max_restarts: int = Field(default=5, ge=0, le=1000, description="Restarts of one server.")
    stall_seconds: float = Field(
        default=180,
        ge=1,
        le=7200,
        description="How long a server may hold requests without a token before it is restarted.",
    )
    lease_seconds: float = Field(
        default=900,
        ge=5,
        le=86_400,
        description="How long the fleet outlives a flow that fell silent.",
    )
    keep: bool = Field(default=False, description="Keep the fleet when the flow ends.")
    simulator: SimulatorConfig = Field(
        default_factory=SimulatorConfig, description="Settings of simulated servers."
    )
    outlook: OutlookConfig = Field(
        default_factory=OutlookConfig, description="Figures for estimates; changes no server."
    )

    @field_validator("urls")
    @classmethod
    def _urls_are_servers(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        seen: set[str] = set()
        for number, url in enumerate(urls, 1):
            fault = _fault_of_url(url)
            if url.rstrip("/") in seen:
                fault = "stands there twice: its slots would be counted twice"
            if fault:
                raise ValueError(f"url {number} {fault}")
            seen.add(url.rstrip("/"))
        return urls

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.mode == "attach" and not self.urls:
            raise ValueError("mode attach needs urls: the base urls of the servers")
        if self.mode == "launch" and self.urls:
            raise ValueError("urls are for mode attach; mode launch makes its own servers")
        if self.gpus and len(self.gpus) != self.n_servers * self.tp_size:
            raise ValueError("gpus must name tp_size GPUs a server (n_servers x tp_size), or none")
        if len(set(self.gpus)) != len(self.gpus):
            raise ValueError("gpus names a GPU twice: two servers cannot share its memory")
        if self.engine == "sglang" and self.mode == "launch" and self.python is None:
            raise ValueError("engine sglang needs python: the servers' own environment")
        return self


def _fault_of_url(url: str) -> str:
    """Say what is wrong with a base url; never repeats it, for it may hold a password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is no url"
    if parts.scheme not in ("http", "https") or not host or port == 0 or not url.isprintable():
        return "must be http://HOST:PORT or https://HOST:PORT"
    if " " in url or parts.query or parts.fragment:
        return "must be http://HOST:PORT or https://HOST:PORT, and nothing behind"
    if "@" in parts.netloc:
        return "holds a password: set DRAFTMILL_SERVER_API_KEY instead"
    if parts.path.rstrip("/").endswith("/v1"):
        return "ends in /v1: give the server's own address, without it"
    return ""
