"""Who holds a TCP port. Enters: an address and a port. Leaves: a name for its holder, or None."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

import psutil


def find_port_holder(host: str, port: int) -> str | None:
    """Say who holds a port (`pid 41 (python)`, or `another process`); None: it is free.

    Raises:
        OSError: if nobody can listen there: no address of this machine, or a port of root's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections of an ended server that linger in TIME_WAIT do not hold its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return None
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if (
                connection.laddr
                and connection.laddr.port == port
                and connection.status == psutil.CONN_LISTEN
                and connection.pid
            ):
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "another process"
