"""A TCP proxy before an HTTP server that loses, cuts or replaces chosen replies.

with start_proxy(8333) as proxy:
    proxy.lose_reply("PUT")            # the next PUT is carried out, its reply never arrives
    proxy.cut_reply("GET", 100_000)    # the next GET's connection breaks after 100,000 bytes
    proxy.corrupt_reply("GET", 5000)   # the next GET's reply has a bit flipped, 5,000 bytes in
    proxy.stall("GET", 3)              # the next GET's reply comes three seconds late
    proxy.refuse("PUT", 400, "ExpiredToken")   # the next PUT is answered so, and not passed on
    proxy.misbehave(7, 0.03, 0.03)     # from now on 3% of requests get 503, 3% of PUTs no reply
"""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

V = TypeVar("V")


class FaultyProxy:
    """Passes bytes on, but for the replies to break."""

    def __init__(self, listener: socket.socket, upstream_port: int) -> None:
        self._listener = listener
        self._upstream_port = upstream_port
        self._faults: list[tuple[str, int]] = []
        self._corruptions: list[tuple[str, int]] = []
        self._stalls: list[tuple[str, float]] = []
        self._refusals: list[tuple[str, bytes]] = []
        self._lock = threading.Lock()
        self._luck = random.Random(0)
        self._refused_share = self._lost_share = 0.0
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

    def corrupt_reply(self, method: str, offset: int) -> None:
        """Flip a bit of the reply to the next such request, so many bytes in."""
        with self._lock:
            self._corruptions.append((method, offset))

    def stall(self, method: str, seconds: float) -> None:
        """Hold back the reply to the next such request."""
        with self._lock:
            self._stalls.append((method, seconds))

    def refuse(self, method: str, status: int, code: str = "", date: str = "") -> None:
        """Answer the next such request with a status and S3's code, without passing it on."""
        with self._lock:
            self._refusals.append((method, make_refusal(method, status, code, date)))

    def misbehave(self, seed: int, refused_share: float, lost_share: float) -> None:
        """Refuse a share of all requests with 503, and lose the replies to a share of the PUTs."""
        with self._lock:
            self._luck.seed(seed)
            self._refused_share, self._lost_share = refused_share, lost_share

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
            flip: int | None = None
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if client in ready:
                    data = client.recv(1 << 16)
                    if not data:
                        return
                    self._draw(data)
                    refusal = self._take(self._refusals, data)
                    if refusal is not None:
                        self.n_broken += 1
                        client.sendall(refusal)
                        return
                    left = self._take(self._faults, data) if left is None else left
                    flip = self._take(self._corruptions, data) if flip is None else flip
                    pause = self._take(self._stalls, data)
                    server.sendall(data)
                    if pause is not None:
                        self.n_broken += 1
                        time.sleep(pause)
                if server in ready:
                    data = server.recv(1 << 16)
                    if not data:
                        return
                    if flip is not None and not data.startswith(b"HTTP/1.1 100"):
                        if flip < len(data):
                            self.n_broken += 1
                            data = data[:flip] + bytes([data[flip] ^ 1]) + data[flip + 1 :]
                            flip = None
                        else:
                            flip -= len(data)
                    if left is not None and not data.startswith(b"HTTP/1.1 100"):
                        client.sendall(data[:left])
                        left -= len(data)
                        if left <= 0:
                            self.n_broken += 1
                            return
                    else:
                        client.sendall(data)

    def _draw(self, request: bytes) -> None:
        """Let chance plan what becomes of a request."""
        method = request.partition(b" ")[0].decode(errors="replace")
        if method not in ("GET", "HEAD", "PUT", "POST"):
            return
        with self._lock:
            if self._luck.random() < self._refused_share:
                self._refusals.append((method, make_refusal(method, 503)))
            elif method == "PUT" and self._luck.random() < self._lost_share:
                self._faults.append((method, 0))

    def _take(self, planned: list[tuple[str, V]], request: bytes) -> V | None:
        with self._lock:
            for method, value in planned:
                if request.startswith(f"{method} ".encode()):
                    planned.remove((method, value))
                    return value
        return None


def make_refusal(method: str, status: int, code: str = "", date: str = "") -> bytes:
    """Write an answer as S3 refuses: a code in XML, but for HEAD."""
    body = f"<Error><Code>{code}</Code></Error>" if code and method != "HEAD" else ""
    head = f"HTTP/1.1 {status} Refused\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    if date:
        head += f"Date: {date}\r\n"
    return f"{head}\r\n{body}".encode()


@contextmanager
def start_proxy(upstream_port: int) -> Iterator[FaultyProxy]:
    """Run a proxy in a thread for the time of a with block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = FaultyProxy(listener, upstream_port)
        threading.Thread(target=proxy.serve, daemon=True).start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
