"""A stand-in for the Hub's side of uploads, on 127.0.0.1: what the real client calls to push.

It keeps repositories in memory, takes large files by the LFS protocol, and can refuse uploads after
a number of them, as a connection that breaks would.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

TOKEN = "hf_may_write"


@dataclass
class UploadHub:
    """What was pushed: files by repository and path, and the messages of all commits."""

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    n_uploads: int = 0
    most_uploads: int | None = None


@contextmanager
def serve_upload_hub() -> Iterator[UploadHub]:
    """Serve an empty Hub."""
    hub = UploadHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def send(self, code: int, value: Any = None) -> None:
            body = b"" if value is None else json.dumps(value).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def read(self) -> bytes:
            if self.headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length") or 0))
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def do_PUT(self) -> None:
            data = self.read()
            if hub.most_uploads is not None and hub.n_uploads >= hub.most_uploads:
                self.send(403)
                return
            hub.n_uploads += 1
            hub.objects[hashlib.sha256(data).hexdigest()] = data
            self.send(200)

        def do_POST(self) -> None:
            body, path = self.read(), self.path.partition("?")[0]
            repo = "/".join(path.removeprefix("/api").split("/")[2:4]).removesuffix(".git")
            if self.headers.get("authorization") != f"Bearer {TOKEN}":
                self.send(401, {"error": "no token"})
            elif path == "/api/repos/create":
                self.create(json.loads(body))
            elif path == "/api/validate-yaml":
                self.send(200, {"errors": [], "warnings": []})
            elif path.endswith("/objects/batch"):
                self.offer(json.loads(body))
            elif "/paths-info/" in path:
                self.tell_paths(hub.files[repo], body)
            elif "/preupload/" in path:
                asked = json.loads(body)["files"]
                self.send(200, {"files": [self.choose(file["path"]) for file in asked]})
            elif "/commit/" in path:
                self.commit(repo, body)
            else:
                self.send(404)

        def do_GET(self) -> None:
            self.read()
            self.send(401, {"error": "no token"})

        def create(self, asked: dict[str, Any]) -> None:
            name = f"{asked.get('organization') or 'someone'}/{asked['name']}"
            known = name in hub.files
            hub.files.setdefault(name, {})
            self.send(409 if known else 200, {"url": f"{hub.url}/datasets/{name}", "name": name})

        def choose(self, path: str) -> dict[str, Any]:
            mode = "lfs" if path.endswith(".parquet") else "regular"
            return {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": None}

        def offer(self, asked: dict[str, Any]) -> None:
            objects = [
                {
                    "oid": item["oid"],
                    "size": item["size"],
                    "actions": {"upload": {"href": f"{hub.url}/put/{item['oid']}"}},
                }
                for item in asked["objects"]
            ]
            self.send(200, {"transfer": "basic", "objects": objects})

        def tell_paths(self, files: dict[str, bytes], body: bytes) -> None:
            asked = parse_qs(body.decode())["paths"]
            self.send(200, [self.describe(path, files[path]) for path in asked if path in files])

        def describe(self, path: str, data: bytes) -> dict[str, Any]:
            told: dict[str, Any] = {
                "type": "file",
                "path": path,
                "size": len(data),
                "oid": "b" * 40,
            }
            if path.endswith(".parquet"):
                oid = hashlib.sha256(data).hexdigest()
                told["lfs"] = {"oid": oid, "size": len(data), "pointerSize": 130}
            return told

        def commit(self, repo: str, body: bytes) -> None:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "header":
                    hub.commits.append(value["summary"])
                elif line["key"] == "lfsFile":
                    hub.files[repo][value["path"]] = hub.objects[value["oid"]]
                else:
                    hub.files[repo][value["path"]] = base64.b64decode(value["content"])
            url = f"{hub.url}/datasets/{repo}/commit/{'c' * 40}"
            self.send(200, {"commitUrl": url, "commitOid": "c" * 40, "hookOutput": ""})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
