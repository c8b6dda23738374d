"""The checks of the servers' Python environment: it runs, and holds what sglang was released with.

Enters: what that Python told of itself. Leaves: verdicts. Pure.
"""

from __future__ import annotations

from tasks.environment import compat
from tasks.environment.box_facts import BoxFacts, PythonFacts
from tasks.environment.record import BoxProfile, Fix, Status, Verdict
from tasks.environment.verdicts import manual, verdict


def judge_server_python(facts: BoxFacts, profile: BoxProfile) -> tuple[Verdict, ...]:
    """Judge the servers' Python and its packages."""
    found, version = facts.server_python, profile.sglang_version
    if found is None or version is None:
        reason = "no servers' environment is named"
        if not profile.needs_gpu:
            reason = f"no servers' environment is needed: {profile.no_gpu_reason}"
        return tuple(
            verdict(check, "skip", reason) for check in ("server_python", "server_packages")
        )
    command = (found.python, "-I", "-c", "import importlib.metadata; ...")
    if found.returncode is None and "timed out" in found.error:
        hangs = verdict("server_python", "unknown", f"{found.python} {found.error}")
        return hangs, verdict("server_packages", "unknown", "not looked at: no answer in time")
    if found.returncode != 0:
        fix = manual(
            "correct_server_python",
            "Set serving.python to the Python of the servers' environment; "
            f"`draftmill servers install --sglang {version}` makes one.",
        )
        broken = verdict(
            "server_python",
            "fail",
            f"{found.python} does not run: {found.error}",
            command=command,
            returncode=found.returncode,
            fix=fix,
        )
        unseen = "not looked at: the servers' Python does not run"
        return broken, verdict("server_packages", "unknown", unseen)
    runs = verdict(
        "server_python", "ok", f"{found.python} runs", command=command, returncode=found.returncode
    )
    return runs, _judge_packages(found, version)


def _judge_packages(found: PythonFacts, version: str) -> Verdict:
    pins = compat.PINS[version]
    differing = {
        name: found.versions.get(name, "missing")
        for name, pin in pins.items()
        if found.versions.get(name) is None or not _is_version(found.versions[name], pin)
    }
    if not differing:
        summary = f"sglang {version} with the packages it was released with"
        return verdict("server_packages", "ok", summary, values=found.versions)
    install = Fix(
        id="install_servers",
        kind="pip",
        what="Install the pinned servers' environment:",
        argv=("draftmill", "servers", "install", "--sglang", version),
    )
    listed = ", ".join(f"{name} {has} (not {pins[name]})" for name, has in differing.items())
    # The flags are keyed by sglang's version: only that one stops a run.
    status: Status = "fail" if "sglang" in differing else "warn"
    return verdict("server_packages", status, listed, values=found.versions, fix=install)


def _is_version(found: str, pin: str) -> bool:
    """Whether a version is the pinned one; a local suffix (+cu130) does not count."""
    return found.split("+", 1)[0] == pin
