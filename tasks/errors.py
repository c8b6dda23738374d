"""The taxonomy of what can go wrong, one type for each thing a caller decides by.

DraftmillError                   says what, where, the remedy; the command line prints no traceback
├── UserError                    exit 2: the user's to fix
│   ├── ConfigError              every fault of a configuration at once (`issues`)
│   ├── SourceError              a dataset or file that is missing, unreadable or of another shape
│   ├── ModelError               a tokenizer or chat template that cannot be loaded
│   ├── StoreError               the store as a whole
│   │   ├── BucketMissing
│   │   ├── CredentialsRefused
│   │   ├── StoreUnreachable
│   │   ├── ProtectedPrefix      the run's prefix equals or overlaps a protected one
│   │   └── OverwritePossible    the store ignores the create-only condition
│   ├── DiskUnusable             the local disk is full, read-only or not ours
│   ├── RequestMismatch          another request lives at this prefix (`differences`)
│   └── EnvironmentFailed        the doctor found a failure (`checks`)
├── RunError                     exit 1: the run ended; what it has is kept
│   ├── KeyTaken                 another object stands at a create-only key
│   ├── CorruptPart              a part whose bytes are not what its receipt says
│   ├── FleetFailed              a server never became healthy (`log_tail`)
│   ├── NoEndpoint               no admitted endpoint for too long
│   ├── SpoolFailed              a journal cannot be written: disk full, or a fault of the disk
│   ├── FailureBudgetExceeded    too many failed conversations in a chunk
│   │   └── RunBudgetExceeded    too many failed conversations in the run
│   ├── StoppedByGate            answers are bad (`verdicts`)
│   ├── AccountingError          records in are not records out
│   ├── MaskError                a loss mask that is empty or tiny, a share too often
│   ├── TokenMismatch            ids and text of a sample disagree
│   ├── ResultNotKept            a task is done, and Prefect could not keep its result
│   ├── BaseDatasetError         the base dataset cannot be merged
│   └── DatasetInvalid           verification found faults (`problems`)
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import ClassVar

_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})


class DraftmillError(Exception):
    """Base of every error that Draftmill raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        """Describe the failure.

        Args:
            what: One sentence: what is wrong.
            where: The file, key, endpoint or field it was found at.
            remedy: What the user can do about it.
        """
        # Only `what` goes to Exception, so that copy and pickle rebuild the error: the rest
        # travels in __dict__.
        super().__init__(what)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        cure = f" Remedy: {self.remedy}" if self.remedy else ""
        return f"{place}{self.what}{cure}"


class UserError(DraftmillError):
    """The user's to fix; nothing was written over."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ConfigIssue:
    """One fault of a configuration: `place` is `file:line:column`, `path` the dotted key."""

    place: str
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.place}: {self.path}: {self.message}{hint}"


class ConfigError(UserError):
    """A configuration with one or more faults, all of them listed."""

    def __init__(self, what: str, *, issues: tuple[ConfigIssue, ...] = (), where: str = "") -> None:
        super().__init__(what, where=where, remedy="Correct the lines named and run again.")
        self.issues = issues

    def __str__(self) -> str:
        return "\n".join([self.what, *(f"  {issue}" for issue in self.issues)])


class SourceError(UserError):
    """A prompt source that is missing, unreadable, gated, or not of the shape its mapping says."""


class ModelError(UserError):
    """The target's tokenizer or chat template cannot be loaded or does not render."""


class StoreError(UserError):
    """The store cannot be used as configured."""


class BucketMissing(StoreError):
    """The bucket, or the folder's file system, does not exist."""


class CredentialsRefused(StoreError):
    """The store refused the credentials, or grants them too little."""


class StoreUnreachable(StoreError):
    """No answer from the store."""


class ProtectedPrefix(StoreError):
    """The prefix asked for equals, contains or lies within a protected one."""


class OverwritePossible(StoreError):
    """The store ignores the create-only condition: it could overwrite."""


class DiskUnusable(UserError):
    """The local disk cannot be written or read: full, read-only, or without permission."""

    @classmethod
    def from_os(cls, error: OSError) -> DiskUnusable | None:
        """Explain an error of the operating system; None: it is none that the user can mend."""
        if error.errno not in _DISK_ERRNOS:
            return None
        return cls(
            f"the local disk cannot be used: {os.strerror(error.errno)}.",
            where=str(error.filename or ""),
            remedy="Free space (or give permission) there, or point DRAFTMILL_HOME and TMPDIR at "
            "another disk, and run again: what is finished is kept.",
        )


class RequestMismatch(UserError):
    """Another request was frozen at this prefix."""

    def __init__(
        self, what: str, *, differences: tuple[str, ...] = (), where: str = "", remedy: str = ""
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.differences = differences

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {line}" for line in self.differences)])


class EnvironmentFailed(UserError):
    """The doctor found at least one failure; `checks` holds the ids."""

    def __init__(
        self, what: str, *, checks: tuple[str, ...] = (), where: str = "", remedy: str = ""
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.checks = checks


class RunError(DraftmillError):
    """The run ended; everything finished so far is kept and a rerun resumes."""


class KeyTaken(RunError):
    """A create-only key holds other bytes."""


class CorruptPart(RunError):
    """A stored object is not what its header, footer or receipt says."""


class FleetFailed(RunError):
    """A server did not become or stay healthy within its budget."""

    def __init__(self, what: str, *, log_tail: str = "", where: str = "", remedy: str = "") -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.log_tail = log_tail

    def __str__(self) -> str:
        tail = f"\n--- end of the server's log ---\n{self.log_tail}" if self.log_tail else ""
        return super().__str__() + tail


class NoEndpoint(RunError):
    """No endpoint was admitted for longer than the run waits."""


class SpoolFailed(RunError):
    """A journal cannot be written; what it holds already is whole."""


class FailureBudgetExceeded(RunError):
    """More conversations of a chunk failed than its budget allows."""


class RunBudgetExceeded(FailureBudgetExceeded):
    """More conversations of the run failed than its budget allows: no chunk goes on."""


class StoppedByGate(RunError):
    """A quality gate stopped the run; `verdicts` says which, with figures and sample ids."""

    def __init__(
        self, what: str, *, verdicts: tuple[str, ...] = (), where: str = "", remedy: str = ""
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.verdicts = verdicts

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {line}" for line in self.verdicts)])


class AccountingError(RunError):
    """Records in are not records out: something was lost or doubled."""


class MaskError(RunError):
    """Loss masks are empty, tiny or misaligned in a larger share than allowed."""


class TokenMismatch(RunError):
    """Ids and text of a sample disagree, or ids lie outside the vocabulary."""


class ResultNotKept(RunError):
    """A task completed, and its result is not where a rerun would look for it."""


class BaseDatasetError(RunError):
    """The base dataset cannot be read, mapped or merged."""


class DatasetInvalid(RunError):
    """Verification found faults, each named in `problems`."""

    def __init__(
        self, what: str, *, problems: tuple[str, ...] = (), where: str = "", remedy: str = ""
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {line}" for line in self.problems)])
