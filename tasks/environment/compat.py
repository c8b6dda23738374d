"""What goes with what: versions by sglang release, kernels by GPU, rules of hybrid models.

Enters: a launch as it is about to be made (`LaunchChoice`). Leaves: the conflicts in it, each with
its remedy. It exists because most of these combinations fail minutes after the start, inside the
server, or not at all and then give wrong kernels; here they cost nothing. Pure: reads no machine.

Source: sglang's `server_args.py` and the release metadata of sglang 0.5.12 and 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

SglangVersion = Literal["0.5.12", "0.5.23"]
MambaStrategy = Literal["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"]
SUPPORTED_VERSIONS: tuple[str, ...] = get_args(SglangVersion)

PINS: dict[str, dict[str, str]] = {
    "0.5.12": {
        "sglang": "0.5.12",
        "torch": "2.11.0",
        "transformers": "5.6.0",
        "sglang-kernel": "0.4.2.post2",
        "flashinfer-python": "0.6.11.post1",
        "flashinfer-cubin": "0.6.11.post1",
    },
    "0.5.23": {
        "sglang": "0.5.23",
        "torch": "2.14.1",
        "transformers": "5.19.0",
        "sglang-kernel": "0.4.10",
        "flashinfer-python": "0.7.2",
    },
}
"""Distribution -> version that a server environment of that sglang release holds."""

CUDA_DISTRIBUTIONS = {
    "runtime": "nvidia-cuda-runtime",
    "nvcc": "nvidia-cuda-nvcc",
    "crt": "nvidia-cuda-crt",
    "nvvm": "nvidia-nvvm",
    "cccl": "nvidia-cuda-cccl",
}
"""Part of the CUDA toolkit -> the wheel that holds it. All but cccl must share major.minor."""

CUDA_PIN = "cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]"
"""Requirement that brings all parts at one version; each extra is named on purpose."""

TOOLKIT: dict[str, str] = {"0.5.12": "13.0.2", "0.5.23": "13.0.3"}
"""sglang version -> the cuda-toolkit release that its torch pins."""

MAMBA_FLAG: dict[str, str] = {
    "0.5.12": "--mamba-scheduler-strategy",
    "0.5.23": "--mamba-radix-cache-strategy",
}
MAMBA_STRATEGIES: dict[str, tuple[MambaStrategy, ...]] = {
    "0.5.12": ("auto", "no_buffer", "extra_buffer"),
    "0.5.23": ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
}
# What `auto` means to the server of that version.
_MAMBA_AUTO: dict[str, MambaStrategy] = {"0.5.12": "no_buffer", "0.5.23": "extra_buffer"}

HYBRID_ARCHITECTURES = ("Qwen3Next", "Qwen3_5", "Qwen3_6")
"""Prefixes of the `architectures` of models with gated delta (GDN) layers."""

# Major of the compute capability -> backend for attention with several heads.
_DEFAULT_ATTENTION: dict[int, str] = {9: "fa3", 10: "trtllm_mha"}

MTP_CONFIG_KEYS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers")
"""Keys of a model's config.json that count its multi-token prediction heads."""

# Major of the compute capability -> least nvcc (major, minor) that compiles for it.
_NVCC_MINIMUM: dict[int, tuple[int, int]] = {10: (12, 8), 12: (12, 9)}
# Major version of the CUDA runtime -> least driver.
_DRIVER_MINIMUM: dict[int, int] = {12: 525, 13: 580}
LEAST_CAPABILITY = (8, 0)
"""Oldest compute capability that sglang's kernel packages are built for."""
BLACKWELL_MAJORS = (10, 12)
"""Majors of the compute capability whose cards need the open kernel module."""


@dataclass(frozen=True, slots=True)
class LaunchChoice:
    """The settings of a launch that can conflict.

    Attributes:
        capability: Compute capability of the card as (major, minor); None: not known.
        hybrid: Whether the model has GDN layers; None: not known.
        n_draft_tokens: Tokens drafted at once; 0: no speculative decoding.
        tp_size: Cards that share one server by tensor parallelism.
        nvlink: Whether the cards of a server are joined by NVLink; None: not known.
    """

    sglang_version: str
    capability: tuple[int, int] | None = None
    hybrid: bool | None = None
    attention_backend: str | None = None
    mamba_strategy: MambaStrategy | None = None
    disable_radix_cache: bool = False
    n_draft_tokens: int = 0
    page_size: int | None = None
    linear_attn_decode_backend: str | None = None
    mamba_ssm_dtype: str | None = None
    tp_size: int = 1
    nvlink: bool | None = None

    def on_card(self, capability: tuple[int, int] | None) -> LaunchChoice:
        """Return the same choice for a card of this compute capability."""
        return replace(self, capability=capability)

    def of_model(self, hybrid: bool | None) -> LaunchChoice:
        """Return the same choice for a model that has GDN layers, or has none."""
        return replace(self, hybrid=hybrid)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that do not go together: `id` is stable, `what` and `remedy` are for people."""

    id: str
    what: str
    remedy: str


def driver_minimum(cuda_major: int) -> int | None:
    """Return the least driver (major number) for a CUDA runtime; None: not known."""
    return _DRIVER_MINIMUM.get(cuda_major)


def nvcc_minimum(capability: tuple[int, int]) -> tuple[int, int]:
    """Return the least nvcc that compiles for a card of this compute capability."""
    return _NVCC_MINIMUM.get(capability[0], (11, 8))


def needs_open_module(capability: tuple[int, int]) -> bool:
    """Whether a card of this compute capability runs only with the open kernel module."""
    return capability[0] in BLACKWELL_MAJORS


def is_hybrid(architectures: list[str]) -> bool:
    """Whether a model's `architectures` name one with GDN layers."""
    return any(name.startswith(HYBRID_ARCHITECTURES) for name in architectures)


def default_attention(capability: tuple[int, int]) -> str:
    """Return the attention backend that the server chooses for a card by itself."""
    return _DEFAULT_ATTENTION.get(capability[0], "flashinfer")


def find_conflicts(choice: LaunchChoice) -> tuple[Conflict, ...]:
    """Return what in a launch cannot work, as far as the facts in it are known.

    Raises:
        ValueError: for an sglang version without tables.
    """
    if choice.sglang_version not in PINS:
        raise ValueError(f"no tables for sglang {choice.sglang_version}")
    return (
        *_attention_conflicts(choice),
        *_mamba_conflicts(choice),
        *_linear_attention_conflicts(choice),
        *_parallel_conflicts(choice),
    )


def _attention_conflicts(choice: LaunchChoice) -> list[Conflict]:
    backend, capability = choice.attention_backend, choice.capability
    if backend is None or capability is None:
        return []
    major = capability[0]
    name = f"SM{capability[0]}{capability[1]}"
    if major == 12 and backend in ("fa3", "fa4"):
        return [
            Conflict(
                "attention_backend_sm120",
                f"attention_backend {backend} has no kernels for {name}",
                "Set attention_backend to flashinfer, or leave it empty.",
            )
        ]
    if major == 12 and backend == "trtllm_mha" and choice.sglang_version == "0.5.12":
        return [
            Conflict(
                "attention_backend_decode_only",
                f"attention_backend trtllm_mha only decodes on {name} in sglang 0.5.12",
                "Set attention_backend to flashinfer, or leave it empty.",
            )
        ]
    if major == 10 and backend == "fa3":
        return [
            Conflict(
                "attention_backend_sm100",
                f"attention_backend fa3 has no kernels for {name}",
                "Leave attention_backend empty: the default here is trtllm_mha.",
            )
        ]
    return []


def _linear_attention_conflicts(choice: LaunchChoice) -> list[Conflict]:
    if choice.linear_attn_decode_backend != "flashinfer" or choice.mamba_ssm_dtype == "bfloat16":
        return []
    if choice.capability is None or choice.capability[0] < 10:
        return []
    return [
        Conflict(
            "linear_attn_flashinfer_dtype",
            f"linear_attn_decode_backend flashinfer needs bfloat16 states on "
            f"SM{choice.capability[0]}{choice.capability[1]}",
            "Set mamba_ssm_dtype to bfloat16, or linear_attn_decode_backend to triton.",
        )
    ]


def _parallel_conflicts(choice: LaunchChoice) -> list[Conflict]:
    if choice.tp_size == 1 or choice.nvlink is not False:
        return []
    return [
        Conflict(
            "tensor_parallel_without_nvlink",
            f"tp_size {choice.tp_size} splits a server over cards that no NVLink joins",
            "Set tp_size to 1: one server a card (data parallel) needs no traffic between cards.",
        )
    ]


def _mamba_conflicts(choice: LaunchChoice) -> list[Conflict]:
    version, strategy = choice.sglang_version, choice.mamba_strategy
    if strategy is not None and strategy not in MAMBA_STRATEGIES[version]:
        return [
            Conflict(
                "mamba_strategy_version",
                f"mamba_strategy {strategy} is unknown to sglang {version}",
                f"Choose one of {', '.join(MAMBA_STRATEGIES[version])}.",
            )
        ]
    if strategy is not None and choice.hybrid is False:
        return [
            Conflict(
                "mamba_strategy_not_hybrid",
                f"mamba_strategy {strategy} is set, and the model has no mamba or GDN layers",
                "Leave mamba_strategy empty.",
            )
        ]
    if strategy is None and not choice.hybrid:
        return []
    effective = _MAMBA_AUTO[version] if strategy in (None, "auto") else strategy
    # A chosen strategy conflicts with the radix cache off; a defaulted one falls back by itself.
    buffered = effective.startswith("extra_buffer") and strategy not in (None, "auto")
    found = []
    if effective == "no_buffer" and choice.n_draft_tokens and not choice.disable_radix_cache:
        found.append(
            Conflict(
                "mamba_no_buffer_speculative",
                f"speculative decoding does not go with mamba_strategy {strategy or 'auto'} "
                f"(no_buffer in sglang {version}) while the radix cache is on",
                "Set mamba_strategy to extra_buffer, or disable_radix_cache, or drop speculative.",
            )
        )
    if effective == "no_buffer" and not choice.disable_radix_cache and (choice.page_size or 1) != 1:
        found.append(
            Conflict(
                "mamba_no_buffer_page_size",
                f"mamba_strategy no_buffer with the radix cache needs page size 1, "
                f"not {choice.page_size}",
                "Drop --page-size, or set mamba_strategy to extra_buffer.",
            )
        )
    if buffered and choice.disable_radix_cache:
        found.append(
            Conflict(
                "mamba_extra_buffer_radix",
                f"mamba_strategy {effective} lives in the radix cache, which is disabled",
                "Unset disable_radix_cache, or set mamba_strategy to no_buffer.",
            )
        )
    if buffered and choice.page_size is not None and not _pages_fit(choice):
        found.append(
            Conflict(
                "mamba_extra_buffer_page_size",
                f"page size {choice.page_size} does not go with mamba_strategy {effective}",
                "Choose a power of two up to 256 that is no smaller than the drafted tokens.",
            )
        )
    return found


def _pages_fit(choice: LaunchChoice) -> bool:
    page = choice.page_size or 1
    # 256 is the interval at which states are kept, 64 the chunk of the GDN kernels.
    return 256 % page == 0 and page >= choice.n_draft_tokens and (64 % page == 0 or page % 64 == 0)
