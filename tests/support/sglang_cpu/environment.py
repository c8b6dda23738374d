"""Builds the environment of a real sglang on a CPU, once a lock and machine.

It lives in the user's cache folder, keyed by all that it is made of; where it is absent it is built
(20 s with uv's cache warm, a few minutes without), so that nothing depends on its being there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

_HERE = Path(__file__).resolve().parent
_REQUIREMENTS = _HERE / "requirements.txt"
_SITE = _HERE / "site"
_BUILD_SECONDS = 900


def build_environment() -> Path:
    """Give the interpreter of the environment, built if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftmill-tests"
    folder = cache / f"sglang-cpu-{_hash_sources()}"
    python = folder / "bin" / "python"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{folder.name}.lock", timeout=_BUILD_SECONDS):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _build(folder, python)
            (folder / "complete").touch()
    return python


def _build(folder: Path, python: Path) -> None:
    _run("uv", "venv", "--quiet", "--python", sys.executable, str(folder))
    links = os.environ.get("PIP_FIND_LINKS")
    _run(
        *("uv", "pip", "install", "--quiet", "--no-deps"),
        *("--python", str(python), "--requirements", str(_REQUIREMENTS)),
        *(("--find-links", links) if links else ()),
    )
    if not links:
        # The index's torch is built for CUDA, whose libraries it names as dependencies.
        _run("uv", "pip", "install", "--quiet", "--python", str(python), _pin_of("torch"))
    [packages] = folder.glob("lib/python3*/site-packages")
    shutil.copytree(_SITE, packages, dirs_exist_ok=True)


def _pin_of(name: str) -> str:
    lines = _REQUIREMENTS.read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


def _run(module: str, *arguments: str) -> None:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{module} {' '.join(arguments)}:\n{done.stderr}"


def _hash_sources() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted([_REQUIREMENTS, *_SITE.rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
