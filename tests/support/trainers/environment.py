"""SpecForge, speculators and trl in a virtual environment of their own, CPU-only.

They pin torch and transformers away from ours, and SpecForge pulls SGLang: so they come without
their dependencies, and the few that reading data needs come by name. A minute with uv's cache warm.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PINNED = ("specforge==0.2.0", "speculators==0.9.0", "hs-connectors==0.9.0", "trl==1.16.0")
TORCH = "torch==2.13.0"
NEEDED = (
    "transformers==5.8.1",
    "datasets==5.0.1",
    "safetensors",
    "sympy",
    "networkx",
    "openai",
    "loguru",
    "pydantic-settings",
    "aiohttp",
    "typer",
)


def make_environment(folder: Path) -> Path:
    """Make the environment, and give its Python."""
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    python = folder / "bin" / "python"
    install = ("pip", "install", "--quiet", "--python", str(python))
    _uv(*install, *NEEDED)
    # Where pip is told of a folder of wheels, a build of torch without CUDA may lie there.
    places = [f"--find-links={place}" for place in os.environ.get("PIP_FIND_LINKS", "").split()]
    _uv(*install, *places, "--no-deps", *PINNED, TORCH)
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode:
        _uv(*install, TORCH)  # the registry's build wants CUDA's libraries, even to run without
    return python


def find_template(python: Path, name: str) -> str:
    """Read a chat template out of trl."""
    (place,) = python.parent.parent.glob(f"lib/python*/site-packages/trl/chat_templates/{name}")
    return place.read_text(encoding="utf-8")


def _uv(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "uv", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"uv {' '.join(arguments)}:\n{done.stderr}"
