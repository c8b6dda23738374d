"""How the checks write their verdicts down: one short call a finding. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.environment.record import BoxProfile, Evidence, Fix, Severity, Status, Verdict

COMPOSE = "compose_cuda_home"
"""Id of the one repair that `--apply` makes: the private CUDA home and its environment."""


def verdict(
    check: str,
    status: Status,
    summary: str,
    *,
    fix: Fix | None = None,
    values: dict[str, str] | None = None,
    command: Sequence[str] = (),
    returncode: int | None = None,
    severity: Severity = "error",
) -> Verdict:
    """Write a verdict."""
    evidence = Evidence(command=tuple(command), returncode=returncode, values=values or {})
    return Verdict(
        id=check, status=status, severity=severity, summary=summary, evidence=evidence, fix=fix
    )


def manual(fix_id: str, what: str) -> Fix:
    """What only a person can do."""
    return Fix(id=fix_id, kind="manual", what=what)


def compose(profile: BoxProfile, what: str, kind: str = "compose") -> Fix:
    """What `validate --apply` does, reversibly: compose the private CUDA home."""
    argv = profile.repair_argv
    return Fix(
        id=COMPOSE,
        kind="env" if kind == "env" else "compose",
        what=what,
        argv=(*argv, "--apply") if argv else (),
        reversible=True,
        undo=(*argv, "--undo") if argv else (),
    )
