"""Reads what the kernel says of the driver: the module's version, and the Xid lines of its log.

Enters: nothing but the machine. Leaves: plain facts; None where the log is not ours to read.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tasks.environment.box_facts import XidFacts

_MODULE_VERSION = Path("/proc/driver/nvidia/version")
_LOG_SECONDS = 8
_LOG_COMMANDS = (("dmesg",), ("journalctl", "-k", "-b", "--no-pager", "-g", "NVRM: Xid"))
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)[^\n]*")


def read_kernel_module() -> str:
    """Read the first line of the module's version file; empty: no module is loaded."""
    try:
        return _MODULE_VERSION.read_text().splitlines()[0]
    except (OSError, IndexError):
        return ""


def read_xids(commands: Sequence[Sequence[str]] = _LOG_COMMANDS) -> tuple[XidFacts, ...] | None:
    """Read the Xid errors since the boot; None: the kernel's log cannot be read."""
    for command in commands:
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=_LOG_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        # journalctl -g ends with 1 where nothing matches.
        if ended.returncode == 0 or (command[0] == "journalctl" and not ended.stderr.strip()):
            return parse_xids(ended.stdout)
    return None


def parse_xids(log: str) -> tuple[XidFacts, ...]:
    """Find the Xid lines in a kernel log."""
    return tuple(
        XidFacts(bus_id=found[1], code=int(found[2]), line=found[0].strip()[:300])
        for found in _XID.finditer(log)
    )
