"""An SGLang server under contract: what the suite asks of it, whichever it is."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from tests.support.simulator import request_json

MESSAGES = [{"role": "user", "content": "What is the answer?"}]


@dataclass(frozen=True, slots=True)
class Target:
    """A server under test, and what it says of itself."""

    url: str
    version: str
    context_length: int

    @property
    def is_old(self) -> bool:
        return self.version == "0.5.12"

    def get(self, path: str) -> tuple[int, Any]:
        return request_json(self.url, "GET", path)

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        return request_json(self.url, "POST", path, body)

    def chat(self, **fields: Any) -> tuple[int, Any]:
        body = {"model": "any-name", "messages": MESSAGES, "temperature": 0.8, **fields}
        return self.post("/v1/chat/completions", body)

    def never(self, token: str) -> dict[str, float]:
        """Give the logit bias that keeps one token from being sampled."""
        _, body = self.post("/tokenize", {"model": "m", "prompt": token})
        [token_id] = body["tokens"]
        return {str(token_id): -1000.0}


def inspect_server(url: str) -> Target:
    """Ask a server for its version and context length."""
    status, info = request_json(url, "GET", "/server_info")
    assert status == 200
    _, models = request_json(url, "GET", "/v1/models")
    return Target(url, info["version"], models["data"][0]["max_model_len"])


def start_generation(target: Target, rid: str, answers: list[Any]) -> threading.Thread:
    """Start a long generation in a thread, and return when it runs."""
    thread = threading.Thread(
        target=lambda: answers.append(target.chat(max_tokens=900, ignore_eos=True, rid=rid))
    )
    thread.start()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        _, text = target.get("/metrics")
        rows = [row for row in text.splitlines() if row.startswith("sglang:num_running_reqs")]
        if rows and float(rows[0].rpartition(" ")[2]) >= 1:
            return thread
        time.sleep(0.02)
    raise AssertionError("the generation did not start")
