"""The checks of the machine itself: ports, disk, open files, shared memory, named files. Pure."""

from __future__ import annotations

from tasks.environment.box_facts import BoxFacts
from tasks.environment.record import BoxProfile, Evidence, Fix, Verdict
from tasks.environment.verdicts import manual, verdict

# Locks and rename are not to be trusted there, and the journals depend on both.
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "lustre")
_VOLATILE_FILE_SYSTEMS = ("tmpfs", "ramfs")
_SHM_GIB_A_GPU = 1.0


def judge_host(facts: BoxFacts, profile: BoxProfile) -> tuple[Verdict, ...]:
    """Judge what every run needs, with or without a GPU."""
    return (
        _judge_ports(facts, profile),
        _judge_disk(facts, profile),
        _judge_file_system(facts),
        _judge_open_files(facts, profile),
        _judge_files(facts),
    )


def judge_shared_memory(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge /dev/shm against the number of GPUs: NCCL and the schedulers meet there."""
    needed = _SHM_GIB_A_GPU * len(profile.gpus)
    if facts.shm_gib is None:
        return verdict("shared_memory", "unknown", "the shared memory cannot be read")
    values = {"gib": f"{facts.shm_gib:.2f}", "advised_gib": f"{needed:g}"}
    if facts.shm_gib < needed:
        fix = manual(
            "larger_shm", f"Start the container with --shm-size={needed:g}g or --ipc=host."
        )
        summary = f"{facts.shm_gib:.2f} GiB of shared memory, {needed:g} are advised"
        return verdict("shared_memory", "warn", summary, fix=fix, values=values)
    summary = f"{facts.shm_gib:.1f} GiB of shared memory"
    return verdict("shared_memory", "ok", summary, values=values)


def _judge_ports(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    if not profile.ports:
        return verdict("ports", "skip", "no fixed port is asked for")
    taken = {
        port: holder for port, holder in facts.taken_ports.items() if port not in profile.own_ports
    }
    if taken:
        listed = ", ".join(f"{port} ({holder})" for port, holder in sorted(taken.items()))
        fix = manual(
            "free_ports", "End those processes, or set another serving.base_port (0: free ports)."
        )
        values = {str(port): holder for port, holder in taken.items()}
        return verdict(
            "ports", "fail", f"taken on {profile.host}: {listed}", fix=fix, values=values
        )
    if facts.unread_ports:
        listed = ", ".join(map(str, facts.unread_ports))
        return verdict("ports", "unknown", f"{profile.host} cannot be tried at {listed}")
    summary = f"{len(profile.ports)} ports of {profile.host} are free or our own"
    return verdict("ports", "ok", summary)


def _judge_disk(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    disk = facts.spool
    values = {"path": disk.path, "free_gib": f"{disk.free_gib:.1f}"}
    fix = manual("spool_room", "Free some room, or point DRAFTMILL_HOME at a larger disk.")
    if disk.fs_type == "unreadable":
        summary = f"the disk of {disk.path} cannot be read"
        return verdict("spool_disk", "unknown", summary, values=values)
    if not disk.writable:
        summary = f"{disk.path} cannot be written to"
        return verdict("spool_disk", "fail", summary, values=values, fix=fix)
    if disk.free_gib < profile.spool_gib:
        summary = (
            f"{disk.free_gib:.1f} GiB are free for the journals at {disk.path}, "
            f"{profile.spool_gib:.1f} are needed"
        )
        return verdict("spool_disk", "fail", summary, values=values, fix=fix)
    summary = f"{disk.free_gib:.1f} GiB are free for the journals"
    return verdict("spool_disk", "ok", summary, values=values)


def _judge_file_system(facts: BoxFacts) -> Verdict:
    disk, check = facts.spool, "spool_file_system"
    values = {"fs_type": disk.fs_type, "mountpoint": disk.mountpoint}
    fix = manual("spool_local_disk", "Point DRAFTMILL_HOME at a folder on a local disk.")
    if disk.fs_type in _NETWORK_FILE_SYSTEMS:
        summary = f"the journals would lie on {disk.fs_type}, whose locks cannot be relied on"
        return verdict(check, "fail", summary, values=values, fix=fix)
    if disk.fs_type in _VOLATILE_FILE_SYSTEMS:
        summary = f"the journals would lie on {disk.fs_type}: a reboot loses the open chunks"
        return verdict(check, "warn", summary, values=values, fix=fix)
    known = disk.fs_type not in ("unknown", "unreadable")
    summary = f"the journals lie on {disk.fs_type}"
    return verdict(check, "ok" if known else "unknown", summary, values=values)


def _judge_open_files(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    soft, hard, needed = facts.n_open_files_soft, facts.n_open_files_hard, profile.n_open_files
    if soft is None or hard is None:
        return verdict("open_files", "unknown", "the limit of open files cannot be read")
    values = {"soft": str(soft), "hard": str(hard), "needed": str(needed)}
    if soft >= needed:
        return verdict("open_files", "ok", f"{soft} files may be open", values=values)
    can_raise = hard >= needed
    fix = Fix(
        id="raise_open_files",
        kind="env" if can_raise else "manual",
        what=(
            f"Run `ulimit -n {needed}` in the shell or unit that starts the run."
            if can_raise
            else "Raise the hard limit (LimitNOFILE of the unit, or limits.conf)."
        ),
    )
    return Verdict(
        id="open_files",
        status="fail",
        severity="error",
        summary=f"{soft} files may be open, {needed} are needed",
        evidence=Evidence(command=("ulimit", "-n"), values=values),
        fix=fix,
    )


def _judge_files(facts: BoxFacts) -> Verdict:
    if facts.missing_files:
        fix = manual("correct_paths", "Correct the paths in the configuration.")
        return verdict("files", "fail", f"missing: {', '.join(facts.missing_files)}", fix=fix)
    if facts.unread_files:
        listed = ", ".join(facts.unread_files)
        return verdict("files", "unknown", f"no permission to look at {listed}")
    return verdict("files", "ok", "every file named is there")
