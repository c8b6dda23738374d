"""Probes: what a server is, whether it may answer for the target, and how exact ids are had of it.

Enters: a base url, the model that is wanted, and one conversation with its prompt as this run
renders it. Leaves: an Endpoint, or a Refusal that says why not. It exists because a server with
another model, a shorter context or another chat template answers every request with HTTP 200, and
the samples would be wrong without a single error.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, TypeGuard

import httpx
import orjson
from pydantic import SecretStr

from tasks.chat.config import ModelConfig
from tasks.serving.record import SIMULATED, Capability, Endpoint, Refusal, RenderingProbe

# /health alone takes a second, and the first request to a new server compiles kernels.
PROBE_TIMEOUT_SECONDS = 120.0
_WAIT_SECONDS = 2.0
# A server that fails a probe by chance would be missed for the whole run.
_LEAST_ROUNDS = 3
_SHOWN_CHARS = 200


class _RefusedError(Exception):
    """Ends a probe; `retryable`: the server may be only starting."""

    def __init__(self, reason: str, *, retryable: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retryable = retryable


def connect_servers(api_key: SecretStr | None) -> httpx.AsyncClient:
    """Make a client for probes, which bears the key of the servers, if they have one."""
    headers = {"Authorization": f"Bearer {api_key.get_secret_value()}"} if api_key else {}
    return httpx.AsyncClient(headers=headers, verify=_read_certificates(), trust_env=False)


@cache
def _read_certificates() -> ssl.SSLContext:
    """Read whom to trust, once a process: it takes 60 ms."""
    return httpx.create_ssl_context(trust_env=False)


async def probe_endpoint(
    client: httpx.AsyncClient,
    base_url: str,
    *,
    model: ModelConfig,
    slots: int | None,
    probe: RenderingProbe,
) -> Endpoint | Refusal:
    """Probe one server; costs it two generated tokens at most.

    Args:
        client: Carries the API key, if there is one, in its headers.
        base_url: http or https, without a path.
        model: The target that the server must serve.
        slots: Requests at once, where the server does not say it itself.
        probe: A conversation and its prompt ids, with `model.thinking` as the run has it.
    """
    base_url = base_url.rstrip("/")
    try:
        if not base_url.startswith(("http://", "https://")):
            raise _RefusedError("its url is neither http nor https")
        server = _Server(client, base_url)
        info = await server.read_info()
        _check_model(info, model)
        context_length = _check_context(info, model)
        n_slots = _read_slots(info) or slots
        if n_slots is None:
            raise _RefusedError(
                "it does not say how many requests it runs at once: set serving.slots"
            )
        capability = await _probe_ids(server, model, probe)
    except _RefusedError as refused:
        return Refusal(base_url, refused.reason, refused.retryable)
    return Endpoint(
        base_url=base_url,
        slots=n_slots,
        server_version=_read_version(info),
        model=str(info.get("served_model_name") or info.get("model_path")),
        context_length=context_length,
        capability=capability,
    )


def _read_version(info: dict[str, Any]) -> str:
    version = str(info.get("version", "unknown"))
    return f"{version}{SIMULATED}" if info.get("simulated") is True else version


async def probe_fleet(
    probe_one: Callable[[str], Awaitable[Endpoint | Refusal]],
    urls: Sequence[str],
    *,
    wait_seconds: float,
) -> tuple[list[Endpoint], list[Refusal]]:
    """Probe all servers at once, and those again that may only be starting or failed by chance.

    A few times while others are admitted, and for `wait_seconds` while none is.

    Returns:
        The admitted and the refused ones, in the order of `urls`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    found: dict[str, Endpoint | Refusal] = {}
    again = list(urls)
    for n_rounds in itertools.count(1):
        found |= zip(again, await asyncio.gather(*map(probe_one, again)), strict=True)
        endpoints = [each for url in urls if isinstance(each := found[url], Endpoint)]
        refusals = [each for url in urls if isinstance(each := found[url], Refusal)]
        again = [url for url, each in found.items() if isinstance(each, Refusal) and each.retryable]
        late = loop.time() + _WAIT_SECONDS > deadline
        if not again or late or (endpoints and n_rounds >= _LEAST_ROUNDS):
            break
        await asyncio.sleep(_WAIT_SECONDS)
    return endpoints, refusals


class _Server:
    """The routes of one server, with every way of not answering turned into a refusal."""

    def __init__(self, client: httpx.AsyncClient, base_url: str) -> None:
        self._client = client
        self._base_url = base_url

    async def request(
        self, path: str, body: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Send a request; returns the status and the JSON object ({} if it is none)."""
        try:
            answer = await self._client.request(
                "GET" if body is None else "POST",
                self._base_url + path,
                content=None if body is None else orjson.dumps(body),
                headers={"Content-Type": "application/json"} if body is not None else None,
                timeout=PROBE_TIMEOUT_SECONDS,
                follow_redirects=False,
            )
        except httpx.HTTPError as error:
            name = type(error).__name__
            raise _RefusedError(f"no answer to {path} ({name})", retryable=True) from error
        except httpx.InvalidURL as error:
            raise _RefusedError("its url is malformed") from error
        status = answer.status_code
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise _RefusedError(f"HTTP {status}: it wants another key (DRAFTMILL_SERVER_API_KEY)")
        if answer.is_redirect:
            raise _RefusedError(f"HTTP {status}: it redirects, which is not followed")
        if status == httpx.codes.SERVICE_UNAVAILABLE:
            raise _RefusedError(f"HTTP {status} at {path}: it is starting", retryable=True)
        try:
            content = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            content = None
        return status, _object(content)

    async def read_info(self) -> dict[str, Any]:
        """Merge what the server says of itself, the effective context length included."""
        # A router passes on only the last of these, and lists the model's served name.
        for path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info"):
            status, info = await self.request(path)
            if status == httpx.codes.OK and info.get("model_path"):
                break
        else:
            raise _RefusedError("it is no SGLang server: /server_info and /model_info say nothing")
        _, models = await self.request("/v1/models")
        listed = [_object(each) for each in _items(models.get("data"))]
        # The launch flag is null where the model's own length holds; /v1/models says that one.
        lengths = [each.get("max_model_len") for each in listed] + [info.get("context_length")]
        return info | {
            "listed": [each.get("id") for each in listed],
            "lengths": [length for length in lengths if isinstance(length, int)],
        }


def _check_model(info: dict[str, Any], model: ModelConfig) -> None:
    names = (info.get("served_model_name"), info.get("model_path"), *info["listed"])
    says = {name for name in names if isinstance(name, str)}
    if not says & {model.name, model.path}:
        served = ", ".join(sorted(says))[:_SHOWN_CHARS]
        raise _RefusedError(f"it serves {served}, not {model.name}")


def _check_context(info: dict[str, Any], model: ModelConfig) -> int | None:
    if not info["lengths"]:
        return None
    length = int(min(info["lengths"]))
    if length < model.context_length:
        raise _RefusedError(
            f"its context of {length} tokens is shorter than the {model.context_length} asked for"
        )
    return length


def _read_slots(info: dict[str, Any]) -> int | None:
    """Sum over the data-parallel ranks; the effective number is the server's own admission cap."""
    total = 0
    for state in map(_object, _items(info.get("internal_states"))):
        effective = state.get("effective_max_running_requests_per_dp")
        n_slots = effective or state.get("max_running_requests")
        total += n_slots if isinstance(n_slots, int) else 0
    if total:
        return total
    n_slots = info.get("max_running_requests")
    return n_slots if isinstance(n_slots, int) and n_slots > 0 else None


async def _probe_ids(server: _Server, model: ModelConfig, probe: RenderingProbe) -> Capability:
    """Find the route that gives exact ids, and hold the server's rendering against ours."""
    status, answer = await server.request(
        "/v1/chat/completions",
        {
            "model": model.name,
            "messages": probe.messages,
            "max_tokens": 1,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": model.thinking},
            "return_token_ids": True,
        },
    )
    choices = _items(answer.get("choices"))
    if status != httpx.codes.OK or not choices:
        message = str(answer.get("message", ""))[:_SHOWN_CHARS]
        raise _RefusedError(
            f"HTTP {status} to a chat completion: {message}", retryable=_is_passing(status)
        )
    choice = _object(choices[0])
    theirs, sampled = choice.get("prompt_token_ids"), choice.get("response_token_ids")
    if _are_ids(theirs) and _are_ids(sampled):
        _compare_ids(theirs, probe.prompt_token_ids)
        return "chat"
    usage = _object(answer.get("usage"))
    _compare_length(usage.get("prompt_tokens"), len(probe.prompt_token_ids))
    status, answer = await server.request(
        "/generate",
        {
            "input_ids": probe.prompt_token_ids,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        },
    )
    if status != httpx.codes.OK or not _are_ids(answer.get("output_ids")):
        raise _RefusedError(
            "it gives token ids neither with chat completions nor with /generate",
            retryable=_is_passing(status),
        )
    meta = _object(answer.get("meta_info"))
    _compare_length(meta.get("prompt_tokens"), len(probe.prompt_token_ids))
    return "native"


def _is_passing(status: int) -> bool:
    return status >= httpx.codes.INTERNAL_SERVER_ERROR


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _are_ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def _compare_ids(theirs: list[int], ours: list[int]) -> None:
    if theirs == ours:
        return
    pairs = zip(theirs, ours, strict=False)
    shorter = min(len(theirs), len(ours))
    position = next((i for i, (their, our) in enumerate(pairs) if their != our), shorter)
    raise _RefusedError(
        f"it renders the probe conversation otherwise: {len(theirs)} ids against our {len(ours)}, "
        f"the first difference at {position} (another tokenizer or chat template)"
    )


def _compare_length(theirs: Any, ours: int) -> None:
    if theirs != ours:
        raise _RefusedError(
            f"it renders the probe conversation otherwise: {theirs} ids against our {ours} "
            "(another tokenizer or chat template)"
        )
