"""Facts to verdicts: what stops a run, what may hurt it, and what mends it. Pure.

Enters: BoxFacts and the BoxProfile they were read for. Leaves: one Verdict a check, always the same
checks in the same order, `skip` where one does not apply. It exists so that each judgement can be
tested on boxes that nobody has at hand. GPU checks are in gpu_checks.py.
"""

from __future__ import annotations

from tasks.environment import compat
from tasks.environment.gpu_checks import judge_gpus
from tasks.environment.record import BoxFacts, BoxProfile, Evidence, Fix, PythonFacts, Verdict

# Locks and rename are not to be trusted there, and the journals depend on both.
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "lustre")
_VOLATILE_FILE_SYSTEMS = ("tmpfs", "ramfs")


def judge(facts: BoxFacts, profile: BoxProfile) -> tuple[Verdict, ...]:
    """Judge a box for a profile."""
    return (
        _judge_ports(facts, profile),
        _judge_disk(facts, profile),
        _judge_file_system(facts),
        _judge_open_files(facts, profile),
        _judge_files(facts),
        *_judge_server_python(facts, profile),
        *judge_gpus(facts, profile),
    )


def describe(verdict: Verdict) -> str:
    """Return a verdict as one line, its fix included."""
    line = f"{verdict.id}: {verdict.summary}"
    if verdict.fix is None:
        return line
    command = f" `{' '.join(verdict.fix.argv)}`" if verdict.fix.argv else ""
    return f"{line} Fix: {verdict.fix.what}{command}"


def _judge_ports(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    taken = {
        port: holder for port, holder in facts.taken_ports.items() if port not in profile.own_ports
    }
    if not profile.ports:
        return Verdict(
            id="ports", status="skip", severity="error", summary="no fixed port is asked for"
        )
    if not taken:
        return Verdict(
            id="ports",
            status="ok",
            severity="error",
            summary=f"{len(profile.ports)} ports of {profile.host} are free or our own",
        )
    listed = ", ".join(f"{port} ({holder})" for port, holder in sorted(taken.items()))
    return Verdict(
        id="ports",
        status="fail",
        severity="error",
        summary=f"taken on {profile.host}: {listed}",
        evidence=Evidence(values={str(port): holder for port, holder in taken.items()}),
        fix=Fix(
            id="free_ports",
            kind="manual",
            what="End those processes, or set another serving.base_port (0: free ports).",
        ),
    )


def _judge_disk(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    disk = facts.spool
    evidence = Evidence(values={"path": disk.path, "free_gib": f"{disk.free_gib:.1f}"})
    fix = Fix(
        id="spool_room",
        kind="manual",
        what="Free some room, or point DRAFTMILL_HOME at a larger disk.",
    )
    if not disk.writable:
        summary = f"{disk.path} cannot be written to"
    elif disk.free_gib < profile.spool_gib:
        summary = (
            f"{disk.free_gib:.1f} GiB are free for the journals at {disk.path}, "
            f"{profile.spool_gib:.1f} are needed"
        )
    else:
        return Verdict(
            id="spool_disk",
            status="ok",
            severity="error",
            summary=f"{disk.free_gib:.1f} GiB are free for the journals",
            evidence=evidence,
        )
    return Verdict(
        id="spool_disk",
        status="fail",
        severity="error",
        summary=summary,
        evidence=evidence,
        fix=fix,
    )


def _judge_file_system(facts: BoxFacts) -> Verdict:
    disk = facts.spool
    evidence = Evidence(values={"fs_type": disk.fs_type, "mountpoint": disk.mountpoint})
    fix = Fix(
        id="spool_local_disk",
        kind="manual",
        what="Point DRAFTMILL_HOME at a folder on a local disk.",
    )
    if disk.fs_type in _NETWORK_FILE_SYSTEMS:
        return Verdict(
            id="spool_file_system",
            status="fail",
            severity="error",
            summary=f"the journals would lie on {disk.fs_type}, whose locks cannot be relied on",
            evidence=evidence,
            fix=fix,
        )
    if disk.fs_type in _VOLATILE_FILE_SYSTEMS:
        return Verdict(
            id="spool_file_system",
            status="warn",
            severity="error",
            summary=f"the journals would lie on {disk.fs_type}: a reboot loses the open chunks",
            evidence=evidence,
            fix=fix,
        )
    return Verdict(
        id="spool_file_system",
        status="unknown" if disk.fs_type == "unknown" else "ok",
        severity="error",
        summary=f"the journals lie on {disk.fs_type}",
        evidence=evidence,
    )


def _judge_open_files(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    soft, hard = facts.n_open_files_soft, facts.n_open_files_hard
    values = {"soft": str(soft), "hard": str(hard), "needed": str(profile.n_open_files)}
    if soft >= profile.n_open_files:
        return Verdict(
            id="open_files",
            status="ok",
            severity="error",
            summary=f"{soft} files may be open",
            evidence=Evidence(values=values),
        )
    return Verdict(
        id="open_files",
        status="fail",
        severity="error",
        summary=f"{soft} files may be open, {profile.n_open_files} are needed",
        evidence=Evidence(command=("ulimit", "-n"), values=values),
        fix=Fix(
            id="raise_open_files",
            kind="env" if hard >= profile.n_open_files else "manual",
            what=(
                f"Run `ulimit -n {profile.n_open_files}` in the shell or unit that starts the run."
                if hard >= profile.n_open_files
                else "Raise the hard limit (LimitNOFILE of the unit, or limits.conf)."
            ),
        ),
    )


def _judge_files(facts: BoxFacts) -> Verdict:
    if not facts.missing_files:
        return Verdict(
            id="files", status="ok", severity="error", summary="every file named is there"
        )
    return Verdict(
        id="files",
        status="fail",
        severity="error",
        summary=f"missing: {', '.join(facts.missing_files)}",
        fix=Fix(id="correct_paths", kind="manual", what="Correct the paths in the configuration."),
    )


def _judge_server_python(facts: BoxFacts, profile: BoxProfile) -> tuple[Verdict, ...]:
    found, version = facts.server_python, profile.sglang_version
    if found is None or version is None:
        reason = "no servers' environment is needed: " + profile.no_gpu_reason
        return (
            Verdict(id="server_python", status="skip", severity="error", summary=reason),
            Verdict(id="server_packages", status="skip", severity="error", summary=reason),
        )
    install = Fix(
        id="install_servers",
        kind="pip",
        what="Install the pinned servers' environment:",
        argv=(found.python, "-m", "pip", "install", "-r", f"infra/sglang/{version}.txt"),
    )
    if found.returncode != 0:
        return (
            Verdict(
                id="server_python",
                status="fail",
                severity="error",
                summary=f"{found.python} does not run: {found.error}",
                evidence=Evidence(command=(found.python, "-c", "..."), returncode=found.returncode),
                fix=Fix(
                    id="correct_server_python",
                    kind="manual",
                    what="Set serving.python to the Python of the servers' environment.",
                ),
            ),
            Verdict(
                id="server_packages",
                status="unknown",
                severity="error",
                summary="not looked at: the servers' Python does not run",
            ),
        )
    runs = Verdict(
        id="server_python", status="ok", severity="error", summary=f"{found.python} runs"
    )
    return runs, _judge_packages(found, version, install)


def _judge_packages(found: PythonFacts, version: str, install: Fix) -> Verdict:
    pins = compat.PINS[version]
    differing = {
        name: found.versions.get(name, "missing")
        for name, pin in pins.items()
        if found.versions.get(name) is None or not _is_version(found.versions[name], pin)
    }
    if not differing:
        return Verdict(
            id="server_packages",
            status="ok",
            severity="error",
            summary=f"sglang {version} with the packages it was released with",
            evidence=Evidence(values=found.versions),
        )
    # The flags are keyed by sglang's version: only that one stops a run.
    listed = ", ".join(f"{name} {has} (not {pins[name]})" for name, has in differing.items())
    return Verdict(
        id="server_packages",
        status="fail" if "sglang" in differing else "warn",
        severity="error",
        summary=listed,
        evidence=Evidence(values=found.versions),
        fix=install,
    )


def _is_version(found: str, pin: str) -> bool:
    """Whether a version is the pinned one; a local suffix (+cu130) does not count."""
    return found.split("+", 1)[0] == pin
