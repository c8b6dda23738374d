"""A TCP proxy before an HTTP server that loses, cuts or replaces chosen replies.

with start_proxy(8333) as proxy:
    proxy.lose_reply("PUT")            # the next PUT is carried out, its reply never arrives
    proxy.cut_reply("GET", 100_000)    # the next GET's connection breaks after 100,000 bytes
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class FaultyProxy:
    """Passes bytes on, but for the replies to break."""

    def __init__(self, listener: socket.socket, upstream_port: int) -> None:
        self._listener = listener
        self._upstream_port = upstream_port
        self._faults: list[tuple[str, int]] = []
        self._refusals: list[tuple[str, int]] = []
        self._lock = threading.Lock()
        self.n_broken = 0

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def lose_reply(self, method: str) -> None:
        """Close the connection once the reply to the next such request comes."""
        self.cut_reply(method, 0)

    def cut_reply(self, method: str, n_bytes: int) -> None:
        """Close the connection after so many bytes of the reply to the next such request."""
        with self._lock:
            self._faults.append((method, n_bytes))

    def refuse(self, method: str, status: int) -> None:
        """Answer the next such request with a status, without passing it on."""
        with self._lock:
            self._refusals.append((method, status))

    def serve(self) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with (
            client,
            socket.create_connection(("127.0.0.1", self._upstream_port)) as server,
            suppress(OSError),
        ):
            left: int | None = None
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if client in ready:
                    data = client.recv(1 << 16)
                    if not data:
                        return
                    status = self._take(self._refusals, data)
                    if status is not None:
                        self.n_broken += 1
                        reply = f"HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\n"
                        client.sendall(f"{reply}Connection: close\r\n\r\n".encode())
                        return
                    left = self._take(self._faults, data) if left is None else left
                    server.sendall(data)
                if server in ready:
                    data = server.recv(1 << 16)
                    if not data:
                        return
                    if left is not None and not data.startswith(b"HTTP/1.1 100"):
                        client.sendall(data[:left])
                        left -= len(data)
                        if left <= 0:
                            self.n_broken += 1
                            return
                    else:
                        client.sendall(data)

    def _take(self, planned: list[tuple[str, int]], request: bytes) -> int | None:
        with self._lock:
            for method, value in planned:
                if request.startswith(f"{method} ".encode()):
                    planned.remove((method, value))
                    return value
        return None


@contextmanager
def start_proxy(upstream_port: int) -> Iterator[FaultyProxy]:
    """Run a proxy in a thread for the time of a with block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = FaultyProxy(listener, upstream_port)
        threading.Thread(target=proxy.serve, daemon=True).start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
