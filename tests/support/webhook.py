"""A webhook on 127.0.0.1 that remembers what it was told.

with listen() as hook:
    ...  # something posts JSON to hook.url
    hook.heard
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where to post, and the bodies that came, in order."""

    url: str
    heard: list[dict[str, Any]] = field(default_factory=list)

    def count(self, **fields: str) -> int:
        """Count the bodies whose fields hold these texts."""
        return sum(all(text in body[name] for name, text in fields.items()) for body in self.heard)


@contextmanager
def listen() -> Iterator[Webhook]:
    """Listen for the time of a with block."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            hook.heard.append(json.loads(body))
            self.send_response(204)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook = Webhook(f"http://127.0.0.1:{server.server_port}/")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
