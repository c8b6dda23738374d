"""What goes with what: each rule refuses its case and lets its neighbours pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.environment import compat
from tasks.environment.compat import LaunchChoice, find_conflicts

SM120 = (12, 0)
PIN_FILES = Path(__file__).parents[2] / "infra" / "sglang"


def conflicts(version: str = "0.5.12", **choice: Any) -> list[str]:
    found = find_conflicts(LaunchChoice(sglang_version=version, **choice))
    assert all(conflict.remedy for conflict in found)
    return [conflict.id for conflict in found]


@pytest.mark.parametrize(
    ("backend", "capability", "version", "expected"),
    [
        ("fa3", SM120, "0.5.12", ["attention_backend_sm120"]),
        ("fa4", SM120, "0.5.12", ["attention_backend_sm120"]),
        ("fa4", (12, 1), "0.5.23", ["attention_backend_sm120"]),
        ("flashinfer", SM120, "0.5.12", []),
        ("trtllm_mha", SM120, "0.5.12", ["attention_backend_decode_only"]),
        ("trtllm_mha", SM120, "0.5.23", []),
        ("trtllm_mha", (10, 0), "0.5.12", []),
        ("fa3", (10, 0), "0.5.12", ["attention_backend_sm100"]),
        ("fa3", (9, 0), "0.5.12", []),
        ("fa3", None, "0.5.12", []),
        (None, SM120, "0.5.12", []),
    ],
)
def test_attention_kernels_follow_the_card(
    backend: str | None, capability: Any, version: str, expected: list[str]
) -> None:
    found = conflicts(version, attention_backend=backend, capability=capability)
    assert found == expected


@pytest.mark.parametrize(
    ("version", "choice", "expected"),
    [
        ("0.5.12", {"mamba_strategy": "no_buffer"}, ["mamba_no_buffer_speculative"]),
        ("0.5.12", {"mamba_strategy": "auto"}, ["mamba_no_buffer_speculative"]),
        ("0.5.12", {"hybrid": True}, ["mamba_no_buffer_speculative"]),
        ("0.5.12", {"hybrid": True, "disable_radix_cache": True}, []),
        ("0.5.12", {"mamba_strategy": "extra_buffer"}, []),
        # The newer server chooses extra_buffer by itself.
        ("0.5.23", {"hybrid": True}, []),
        ("0.5.23", {"mamba_strategy": "no_buffer"}, ["mamba_no_buffer_speculative"]),
        ("0.5.12", {"hybrid": False}, []),
        ("0.5.12", {}, []),
    ],
)
def test_hybrid_models_draft_only_with_extra_buffer(
    version: str, choice: dict[str, Any], expected: list[str]
) -> None:
    assert conflicts(version, n_draft_tokens=4, **choice) == expected


def test_no_buffer_without_drafting_is_fine_and_has_pages_of_one() -> None:
    assert conflicts(mamba_strategy="no_buffer") == []
    assert conflicts(mamba_strategy="no_buffer", page_size=64) == ["mamba_no_buffer_page_size"]


@pytest.mark.parametrize("strategy", ["extra_buffer", "extra_buffer_lazy"])
def test_extra_buffer_needs_the_radix_cache(strategy: Any) -> None:
    found = conflicts("0.5.23", mamba_strategy=strategy, disable_radix_cache=True)
    assert found == ["mamba_extra_buffer_radix"]


@pytest.mark.parametrize(
    ("page", "drafted", "fits"),
    [(1, 0, True), (64, 4, True), (256, 4, True), (48, 0, False), (512, 0, False), (2, 4, False)],
)
def test_extra_buffer_wants_pages_that_divide(page: int, drafted: int, fits: bool) -> None:
    found = conflicts(mamba_strategy="extra_buffer", page_size=page, n_draft_tokens=drafted)
    assert found == ([] if fits else ["mamba_extra_buffer_page_size"])


def test_strategies_are_keyed_by_version_and_by_model() -> None:
    assert conflicts("0.5.12", mamba_strategy="extra_buffer_lazy") == ["mamba_strategy_version"]
    assert conflicts("0.5.23", mamba_strategy="extra_buffer_lazy") == []
    assert conflicts(mamba_strategy="auto", hybrid=False) == ["mamba_strategy_not_hybrid"]


def test_a_version_without_tables_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"0\.4\.0"):
        conflicts("0.4.0")


def test_hybrid_models_are_known_by_their_architecture() -> None:
    assert compat.is_hybrid(["Qwen3NextForCausalLM"])
    assert compat.is_hybrid(["Qwen3_5MoeForConditionalGeneration"])
    assert not compat.is_hybrid(["Qwen3ForCausalLM"])


def test_drivers_and_modules_follow_cuda_and_card() -> None:
    assert compat.driver_minimum(13) == 580
    assert compat.driver_minimum(12) == 525
    assert compat.driver_minimum(99) is None
    assert compat.needs_open_module(SM120)
    assert not compat.needs_open_module((9, 0))


@pytest.mark.parametrize("version", compat.SUPPORTED_VERSIONS)
def test_the_pin_files_hold_the_versions_of_the_tables(version: str) -> None:
    lines = (PIN_FILES / f"{version}.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert pinned.pop(compat.CUDA_PIN) == compat.TOOLKIT[version]
    assert pinned == compat.PINS[version]
