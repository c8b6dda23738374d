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
_REFUSALS = {
    "someone/gated": (403, "GatedRepo"),
    "someone/missing": (404, "RepoNotFound"),
    "someone/private": (401, "RepoNotFound"),
}


@contextmanager
def serve_hub(files: dict[str, dict[str, bytes]]) -> Iterator[str]:
    """Serve datasets by name, each with its files by path; gives the base url."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def send(self, code: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.send_header("x-repo-commit", COMMIT)
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
            if owner_name in _REFUSALS:
                code, reason = _REFUSALS[owner_name]
                self.send(code, x_error_code=reason)
            elif owner_name not in files:
                self.send(404, x_error_code="RepoNotFound")
            elif is_api and rest[:1] == ["tree"]:
                inner = "/".join(rest[2:])
                listed = [
                    {"type": "file", "oid": "b" * 40, "size": len(data), "path": path}
                    for path, data in files[owner_name].items()
                ]
                self.send_json([] if inner else listed)
            elif is_api and rest[:1] == ["revision"] and rest[1] not in (COMMIT, "main", "v1"):
                self.send(404, x_error_code="RevisionNotFound")
            elif is_api:
                siblings = [{"rfilename": path} for path in files[owner_name]]
                self.send_json({"id": owner_name, "sha": COMMIT, "siblings": siblings})
            elif not is_api and rest and "/".join(rest[1:]) in files[owner_name]:
                self.send(200, files[owner_name]["/".join(rest[1:])], etag='"x"')
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
