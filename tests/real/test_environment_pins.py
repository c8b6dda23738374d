"""The pins of the servers' environment, resolved by the real resolver against the real index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.environment import compat
from tests.support.cuda import UV, run
from tests.support.simulator import ROOT

pytestmark = pytest.mark.real


@pytest.mark.parametrize("version", compat.SUPPORTED_VERSIONS)
def test_the_pins_resolve_to_one_cuda_and_to_the_released_packages(
    version: str, tmp_path: Path
) -> None:
    lock = tmp_path / "lock.txt"
    target = ("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_34")
    pins = str(ROOT / "infra" / "sglang" / f"{version}.txt")
    run(*UV, "pip", "compile", "--quiet", "--no-header", *target, pins, "-o", str(lock))
    found = dict(
        line.split("==")
        for line in lock.read_text().splitlines()
        if "==" in line and line[0] != " "
    )
    assert compat.PINS[version].items() <= found.items()
    parts = {part: found[name] for part, name in compat.CUDA_DISTRIBUTIONS.items()}
    series = {part: held.rsplit(".", 1)[0] for part, held in parts.items()}
    assert set(series.values()) == {"13.0"}, parts
