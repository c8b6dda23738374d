"""Asks the servers' own Python what it holds, importing none of it.

Enters: the path of an interpreter. Leaves: PythonFacts; an interpreter that does not run is a fact.
"""

from __future__ import annotations

import json
import subprocess

from tasks.environment import compat
from tasks.environment.box_facts import PythonFacts

_SECONDS = 60
_READ = """
import importlib.metadata, json, sys, sysconfig
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"versions": found, "site_packages": sysconfig.get_path("purelib")}))
"""


def read_python(python: str) -> PythonFacts:
    """Ask a Python environment for the versions of what serving needs."""
    names = {name for pins in compat.PINS.values() for name in pins}
    names |= set(compat.CUDA_DISTRIBUTIONS.values())
    # -I: neither the working directory nor PYTHONPATH may answer for that environment.
    argv = [python, "-I", "-c", _READ, *sorted(names)]
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return PythonFacts(python=python, returncode=None, error=f"timed out after {_SECONDS} s")
    except OSError as error:
        return PythonFacts(python=python, returncode=None, error=str(error))
    try:
        told = json.loads(ended.stdout)
        return PythonFacts(python=python, returncode=ended.returncode, **told)
    except (ValueError, TypeError):
        error_line = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        return PythonFacts(python=python, returncode=ended.returncode or 1, error=error_line[:200])
