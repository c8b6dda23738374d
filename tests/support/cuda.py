"""Real CUDA wheels for a test: an environment of exactly these packages, and its judgement.

The wheels come from the package index through its ordinary client, whose cache lies outside the
clone and makes a second run fast.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.environment.box_facts import BoxFacts
from tasks.environment.checks import judge
from tasks.environment.facts import read_facts
from tasks.environment.mend import repair_box
from tasks.environment.record import AppliedFix, BoxProfile, Fix, Verdict

SECONDS = 240
ARCH = "-arch=sm_120"
TRIVIAL = """
#include <cuda_runtime.h>
__global__ void twice(float *x) { x[threadIdx.x] *= 2.f; }
int main() { twice<<<1, 1>>>(nullptr); return 0; }
"""
FP16 = """
#include <cuda_fp16.h>
__global__ void twice(__half *x) { x[0] = __hadd(x[0], x[0]); }
"""
STD = """
#include <cooperative_groups.h>
#include <cuda/std/type_traits>
#include <cuda/barrier>
__global__ void one(int *x) { cooperative_groups::this_thread_block().sync(); x[0] = 1; }
"""
CUB = "#include <cub/cub.cuh>\n__global__ void none() {}\n"
DRIVER = """
#include <cuda.h>
extern "C" int ask() { CUdevice device; return (int)cuDeviceGet(&device, 0); }
"""
HOST = "#include <cuda/std/type_traits>\nint main() { return 0; }\n"
UV = (sys.executable, "-m", "uv")
WHEELS_13_0 = {
    "nvidia-cuda-nvcc": "13.0.88",
    "nvidia-cuda-crt": "13.0.88",
    "nvidia-nvvm": "13.0.88",
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-cuda-cccl": "13.0.85",
}
WHEELS_13_2 = dict.fromkeys(WHEELS_13_0, "13.2.86")


@dataclass(frozen=True)
class Servers:
    """An environment of servers as the doctor is told of it."""

    folder: Path
    cuda_dir: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def site_packages(self) -> Path:
        """Where its packages lie."""
        return next((self.folder / "lib").glob("python3*")) / "site-packages"

    @property
    def home(self) -> Path:
        """The toolkit in its wheels."""
        return self.site_packages / "nvidia" / "cu13"

    @property
    def profile(self) -> BoxProfile:
        """A box for SM120 whose card is not here."""
        return BoxProfile(
            needs_gpu=True,
            gpus=(0,),
            capability=(12, 0),
            spool_dir=self.folder / "spool",
            spool_gib=0.0,
            server_python=self.python,
            sglang_version="0.5.12",
            cuda_dir=self.cuda_dir,
            repair_argv=("draftmill", "validate", "run.yaml"),
        )

    def examine(self) -> tuple[BoxFacts, dict[str, Verdict]]:
        """Read and judge."""
        facts = read_facts(self.profile)
        return facts, {each.id: each for each in judge(facts, self.profile)}

    def repair(self, facts: BoxFacts | None = None) -> tuple[AppliedFix, dict[str, Verdict]]:
        """Read (if that was not done yet), judge, repair, judge again."""
        facts = facts or read_facts(self.profile)
        applied, _, verdicts = repair_box(self.profile, facts, judge(facts, self.profile))
        return applied, {each.id: each for each in verdicts}


def make_servers(folder: Path, wheels: dict[str, str], *, with_pip: bool = False) -> Servers:
    """Make an environment that holds these wheels and nothing that they might ask for."""
    seed = ("--seed",) if with_pip else ()
    run(*UV, "venv", "--quiet", *seed, str(folder))
    servers = Servers(folder, folder.parent / f"{folder.name}-home" / "cuda")
    add_wheels(servers, wheels)
    return servers


def add_wheels(servers: Servers, wheels: dict[str, str]) -> None:
    pins = [f"{name}=={version}" for name, version in wheels.items()]
    install = ("pip", "install", "--quiet", "--no-deps", "--python", servers.python)
    run(*UV, *install, *pins)


def forget_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """See to it that no toolkit of the machine helps, and that there is a g++."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in ("CUDA_HOME", "CUDA_PATH", "CPATH", "LIBRARY_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert shutil.which("g++"), "g++ is needed (Debian: apt-get install g++)"


def write_sources(folder: Path) -> Path:
    """Write the sources that tell one fault from another."""
    folder.mkdir()
    texts = {"trivial": TRIVIAL, "fp16": FP16, "std": STD, "cub": CUB}
    for name, text in texts.items():
        (folder / f"{name}.cu").write_text(text)
    (folder / "driver.cpp").write_text(DRIVER)
    (folder / "host.cpp").write_text(HOST)
    return folder


def compiles(home: Path, source: Path, *flags: str, step: str = "-c", **variables: str) -> str:
    """Compile a source; returns the message, empty where it compiled."""
    output = str(source.with_suffix(".out"))
    argv = (str(home / "bin" / "nvcc"), step, ARCH, *flags, "-o", output, str(source))
    ended = attempt(*argv, **variables)
    return "" if ended.returncode == 0 else ended.stderr or "failed"


def assert_mended(servers: Servers, facts: BoxFacts | None = None) -> dict[str, Verdict]:
    """Repair, and compile and link the probe for SM120."""
    applied, verdicts = servers.repair(facts)
    assert applied.status == "applied", applied
    probe = verdicts["cuda_probe"]
    assert probe.status == "ok", probe
    assert probe.summary == "a kernel for sm_120: preprocess, compile, host headers, link"
    failing = {each.id for each in verdicts.values() if each.status == "fail"}
    assert failing == {"nvml", "server_packages"}, failing
    return verdicts


def follow(fix: Fix | None) -> None:
    """Do what a fix says, to the letter."""
    assert fix is not None
    assert fix.kind == "pip"
    run(*fix.argv, "--quiet", "--disable-pip-version-check")


def run(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that must end well."""
    ended = attempt(*argv, **variables)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended


def attempt(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever it is."""
    return subprocess.run(
        argv,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
        check=False,
    )
