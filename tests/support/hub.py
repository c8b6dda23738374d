"""A stand-in for the Hub on 127.0.0.1: one dataset of JSON lines, and the Hub's ways to refuse."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

COMMIT = "a" * 40
NEWER_COMMIT = "c" * 40
_REFUSALS = {
    "someone/gated": (403, "GatedRepo"),
    "someone/missing": (404, "RepoNotFound"),
    "someone/private": (401, "RepoNotFound"),
}


@contextmanager
def serve_hub(
    files: dict[str, dict[str, bytes]], newer: dict[str, dict[str, bytes]] | None = None
) -> Iterator[str]:
    """Serve datasets by name, each with its files by path; gives the base url.

    A dataset that is in `newer` too has a `main` that has moved on to those files, at
    NEWER_COMMIT; its COMMIT still has the others. It may be put there while the Hub serves.
    """
    moved = {} if newer is None else newer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        commit = COMMIT

        def log_message(self, *args: object) -> None:
            pass

        def send(self, code: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.send_header("x-repo-commit", self.commit)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def send_json(self, value: Any) -> None:
            self.send(200, json.dumps(value).encode(), content_type="application/json")

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            parts = urlsplit(self.path).path.strip("/").split("/")
            is_api = parts[0] == "api"
            owner_name, rest = "/".join(parts[2:4] if is_api else parts[1:3]), parts[4:]
            revision = "main"
            if is_api:
                revision = rest[1] if rest[:1] in (["tree"], ["revision"]) else "main"
            elif rest:
                revision = rest[0]
            is_moved = owner_name in moved and revision in ("main", NEWER_COMMIT)
            self.commit = NEWER_COMMIT if is_moved else COMMIT
            there = (moved if is_moved else files).get(owner_name, {})
            if owner_name in _REFUSALS:
                code, reason = _REFUSALS[owner_name]
                self.send(code, x_error_code=reason)
            elif owner_name not in files:
                self.send(404, x_error_code="RepoNotFound")
            elif is_api and rest[:1] == ["tree"]:
                inner = "/".join(rest[2:])
                listed = [
                    {"type": "file", "oid": "b" * 40, "size": len(data), "path": path}
                    for path, data in there.items()
                ]
                self.send_json([] if inner else listed)
            elif (
                is_api
                and rest[:1] == ["revision"]
                and rest[1]
                not in (
                    COMMIT,
                    NEWER_COMMIT,
                    "main",
                    "v1",
                )
            ):
                self.send(404, x_error_code="RevisionNotFound")
            elif is_api:
                siblings = [{"rfilename": path} for path in there]
                self.send_json({"id": owner_name, "sha": self.commit, "siblings": siblings})
            elif not is_api and rest and "/".join(rest[1:]) in there:
                self.send(200, there["/".join(rest[1:])], etag=f'"{self.commit}"')
            else:
                self.send(404, x_error_code="EntryNotFound")

        do_GET = do_HEAD = do_POST = answer  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
