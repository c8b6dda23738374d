"""A stand-in for STS that issues short-lived keys, and for an S3 that honours only living ones.

with start_sts(lifetime_seconds=2) as aws:
    ...AWS_ENDPOINT_URL_STS=aws.url, S3 at aws.url...
    aws.n_assumed      # how often the role was assumed
"""

from __future__ import annotations

import http.server
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

ACCOUNT_KEY = "AKIAINVENTEDSOURCE00"
ROLE = "arn:aws:iam::123456789012:role/draftmill"
_CREDENTIAL = re.compile(r"Credential=([^/]+)/")


class ShortLivedAws:
    """Issues keys that live for a while, and keeps objects for those who hold such keys."""

    def __init__(self, lifetime_seconds: float) -> None:
        self.lifetime_seconds = lifetime_seconds
        self.expires: dict[str, float] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[dict[str, list[str]]] = []
        self.url = ""

    @property
    def n_assumed(self) -> int:
        """How often the role was assumed."""
        return len(self.asked)

    def issue(self, body: str) -> bytes:
        """Answer AssumeRole."""
        self.asked.append(parse_qs(body))
        key = f"ASIAINVENTED{len(self.asked):08d}"
        expires = time.time() + self.lifetime_seconds
        self.expires[key] = expires
        until = datetime.fromtimestamp(expires, UTC).isoformat()
        return (
            "<AssumeRoleResponse><AssumeRoleResult><Credentials>"
            f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>invented</SecretAccessKey>"
            f"<SessionToken>token-of-{key}</SessionToken><Expiration>{until}</Expiration>"
            f"</Credentials><AssumedRoleUser><Arn>{ROLE}/x</Arn><AssumedRoleId>A:x</AssumedRoleId>"
            "</AssumedRoleUser></AssumeRoleResult></AssumeRoleResponse>"
        ).encode()

    def judge(self, authorization: str, token: str) -> str:
        """Say S3's code for what is wrong with the keys; empty where they live."""
        match = _CREDENTIAL.search(authorization)
        key = match[1] if match else ""
        if key not in self.expires or token != f"token-of-{key}":
            return "InvalidAccessKeyId"
        return "ExpiredToken" if time.time() > self.expires[key] else ""


@contextmanager
def start_sts(lifetime_seconds: float) -> Iterator[ShortLivedAws]:
    """Run both for the time of a with block."""
    aws = ShortLivedAws(lifetime_seconds)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self._reply(200, aws.issue(self._read().decode()))

        def do_PUT(self) -> None:
            data = self._read()
            if self._is_admitted():
                path = urlsplit(self.path).path
                taken = path in aws.objects and self.headers.get("If-None-Match") == "*"
                if not taken:
                    aws.objects[path] = data
                self._reply(412 if taken else 200, b"")

        def do_GET(self) -> None:
            if self._is_admitted():
                parts = urlsplit(self.path)
                if "list-type" in parts.query:
                    self._reply(200, b"<ListBucketResult></ListBucketResult>")
                elif parts.path in aws.objects:
                    self._reply(200, aws.objects[parts.path])
                else:
                    self._reply(404, b"<Error><Code>NoSuchKey</Code></Error>")

        def _is_admitted(self) -> bool:
            headers = self.headers
            code = aws.judge(
                headers.get("Authorization", ""), headers.get("X-Amz-Security-Token", "")
            )
            if code:
                self._reply(400, f"<Error><Code>{code}</Code></Error>".encode())
            return not code

        def _read(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        aws.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield aws
        finally:
            server.shutdown()
            thread.join(timeout=10)
