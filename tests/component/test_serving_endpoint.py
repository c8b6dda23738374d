"""Probes against servers of both versions, and against servers that must not be admitted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from aiohttp import web

from tasks.chat.config import ModelConfig
from tasks.serving.endpoint import probe_endpoint, probe_fleet
from tasks.serving.record import Endpoint, Refusal, RenderingProbe
from tests.support.fleet import MODEL, render_probe
from tests.support.simulator import SimulatedServer, find_free_port, start_simulator


@pytest.fixture(scope="module")
def probe() -> RenderingProbe:
    return render_probe()


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, SimulatedServer]]:
    fast = {"sim_time_scale": 0.01, "context_length": 4096, "max_running_requests": 12}
    with (
        start_simulator(1, sim_version="0.5.12", **fast) as old,
        start_simulator(1, sim_version="0.5.23", **fast) as new,
    ):
        yield {"0.5.12": old[0], "0.5.23": new[0]}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False) as opened:
        yield opened


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve(routes: dict[str, Any]) -> AsyncIterator[str]:
    """Serve fixed JSON answers (or handlers) by path; anything else is 404."""
    app = web.Application()

    def answer(content: Any) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return web.json_response(content)

        return handle

    for path, content in routes.items():
        app.router.add_route("*", path, content if callable(content) else answer(content))
    runner = web.AppRunner(app)
    await runner.setup()
    port = find_free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def sglang(**changes: Any) -> dict[str, Any]:
    """Routes of a server that is admitted with the native route unless `changes` spoil it."""
    info = {
        "version": "0.5.12",
        "model_path": "somewhere",
        "served_model_name": "simulated",
        "internal_states": [{"effective_max_running_requests_per_dp": 7}],
    }
    return {
        "/server_info": info,
        "/v1/models": {"data": [{"id": "simulated", "max_model_len": 4096}]},
    } | changes


async def test_the_new_version_gives_ids_with_chat_completions(
    servers: dict[str, SimulatedServer], client: httpx.AsyncClient, probe: RenderingProbe
) -> None:
    url = servers["0.5.23"].base_url
    found = await probe_endpoint(client, url + "/", model=MODEL, slots=None, probe=probe)
    assert found == Endpoint(
        base_url=url,
        slots=12,
        server_version="0.5.23+simulated",
        model="simulated",
        context_length=4096,
        capability="chat",
    )


async def test_the_old_version_gives_ids_natively(
    servers: dict[str, SimulatedServer], client: httpx.AsyncClient, probe: RenderingProbe
) -> None:
    url = servers["0.5.12"].base_url
    # What the server says of its slots counts more than the setting.
    found = await probe_endpoint(client, url, model=MODEL, slots=3, probe=probe)
    assert isinstance(found, Endpoint)
    assert (found.server_version, found.capability, found.slots) == (
        "0.5.12+simulated",
        "native",
        12,
    )


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
async def test_another_model_or_a_shorter_context_is_refused(
    version: str,
    servers: dict[str, SimulatedServer],
    client: httpx.AsyncClient,
    probe: RenderingProbe,
) -> None:
    url = servers[version].base_url
    other = ModelConfig(path="org/other", context_length=4096)
    found = await probe_endpoint(client, url, model=other, slots=None, probe=probe)
    assert isinstance(found, Refusal)
    assert "not org/other" in found.reason
    assert "simulated" in found.reason
    longer = MODEL.model_copy(update={"context_length": 8192})
    found = await probe_endpoint(client, url, model=longer, slots=None, probe=probe)
    assert isinstance(found, Refusal)
    assert "4096 tokens is shorter than the 8192" in found.reason
    assert not found.retryable


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
async def test_another_rendering_is_refused(
    version: str,
    servers: dict[str, SimulatedServer],
    client: httpx.AsyncClient,
    probe: RenderingProbe,
) -> None:
    url = servers[version].base_url
    other = probe.model_copy(update={"prompt_token_ids": [*probe.prompt_token_ids, 5]})
    found = await probe_endpoint(client, url, model=MODEL, slots=None, probe=other)
    assert isinstance(found, Refusal)
    assert "renders the probe conversation otherwise" in found.reason


async def test_ids_of_equal_length_are_compared_one_by_one(
    servers: dict[str, SimulatedServer], client: httpx.AsyncClient, probe: RenderingProbe
) -> None:
    ids = list(probe.prompt_token_ids)
    ids[4] += 1
    other = probe.model_copy(update={"prompt_token_ids": ids})
    url = servers["0.5.23"].base_url
    found = await probe_endpoint(client, url, model=MODEL, slots=None, probe=other)
    assert isinstance(found, Refusal)
    assert "the first difference at 4" in found.reason


async def test_a_server_that_is_not_sglang_is_refused(
    client: httpx.AsyncClient, probe: RenderingProbe
) -> None:
    async with serve({"/v1/models": {"data": [{"id": "simulated"}]}}) as url:
        found = await probe_endpoint(client, url, model=MODEL, slots=4, probe=probe)
    assert isinstance(found, Refusal)
    assert "no SGLang server" in found.reason


async def test_a_server_without_any_exact_ids_is_refused(
    client: httpx.AsyncClient, probe: RenderingProbe
) -> None:
    n_ids = len(probe.prompt_token_ids)
    chat = {"choices": [{"message": {}}], "usage": {"prompt_tokens": n_ids}}
    routes = sglang(**{"/v1/chat/completions": chat, "/generate": {"text": "no ids"}})
    async with serve(routes) as url:
        found = await probe_endpoint(client, url, model=MODEL, slots=None, probe=probe)
    assert isinstance(found, Refusal)
    assert "token ids neither" in found.reason


async def test_slots_come_from_the_setting_where_the_server_is_silent(
    client: httpx.AsyncClient, probe: RenderingProbe
) -> None:
    n_ids = len(probe.prompt_token_ids)
    silent = {"version": "0.5.12", "model_path": "simulated", "max_running_requests": None}
    routes = sglang(
        **{
            "/server_info": silent,
            "/v1/chat/completions": {"choices": [{}], "usage": {"prompt_tokens": n_ids}},
            "/generate": {"output_ids": [5], "meta_info": {"prompt_tokens": n_ids}},
        }
    )
    async with serve(routes) as url:
        found = await probe_endpoint(client, url, model=MODEL, slots=9, probe=probe)
        assert isinstance(found, Endpoint)
        assert found.slots == 9
        refused = await probe_endpoint(client, url, model=MODEL, slots=None, probe=probe)
    assert isinstance(refused, Refusal)
    assert "set serving.slots" in refused.reason


async def test_a_redirect_is_not_followed_and_no_other_scheme_is_spoken(
    servers: dict[str, SimulatedServer], client: httpx.AsyncClient, probe: RenderingProbe
) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(servers["0.5.23"].base_url + request.path)

    async with serve({"/server_info": redirect}) as url:
        found = await probe_endpoint(client, url, model=MODEL, slots=None, probe=probe)
    assert isinstance(found, Refusal)
    assert "redirects" in found.reason
    found = await probe_endpoint(client, "file:///etc", model=MODEL, slots=None, probe=probe)
    assert isinstance(found, Refusal)
    assert "neither http nor https" in found.reason


async def test_a_key_is_asked_for_and_sent(probe: RenderingProbe) -> None:
    with start_simulator(1, sim_version="0.5.23", api_key="a-key") as [server]:
        url = server.base_url
        async with httpx.AsyncClient() as bare:
            found = await probe_endpoint(bare, url, model=MODEL, slots=None, probe=probe)
        assert isinstance(found, Refusal)
        assert "DRAFTMILL_SERVER_API_KEY" in found.reason
        async with httpx.AsyncClient(headers={"Authorization": "Bearer a-key"}) as keyed:
            found = await probe_endpoint(keyed, url, model=MODEL, slots=None, probe=probe)
        assert isinstance(found, Endpoint)


async def test_a_server_that_is_still_starting_is_waited_for(
    client: httpx.AsyncClient, probe: RenderingProbe
) -> None:
    n_asked = 0
    n_ids = len(probe.prompt_token_ids)
    ready = sglang()["/server_info"]

    async def start_slowly(request: web.Request) -> web.StreamResponse:
        nonlocal n_asked
        n_asked += 1
        return web.json_response(ready, status=503 if n_asked < 2 else 200)

    routes = sglang(
        **{
            "/server_info": start_slowly,
            "/v1/chat/completions": {"choices": [{}], "usage": {"prompt_tokens": n_ids}},
            "/generate": {"output_ids": [5], "meta_info": {"prompt_tokens": n_ids}},
        }
    )
    probe_one = partial(probe_endpoint, client, model=MODEL, slots=None, probe=probe)
    closed = f"http://127.0.0.1:{find_free_port()}"
    async with serve(routes) as url:
        endpoints, refusals = await probe_fleet(probe_one, [url, closed], wait_seconds=60)
    assert [each.base_url for each in endpoints] == [url]
    assert [each.base_url for each in refusals] == [closed]
    assert refusals[0].retryable


async def test_a_server_that_fails_by_chance_is_not_missed_for_the_run(
    servers: dict[str, SimulatedServer], client: httpx.AsyncClient, probe: RenderingProbe
) -> None:
    n_ids, statuses = len(probe.prompt_token_ids), [500, 200]

    async def fail_once(request: web.Request) -> web.StreamResponse:
        answer = {"choices": [{}], "usage": {"prompt_tokens": n_ids}}
        return web.json_response(answer, status=statuses.pop(0))

    ids = {"output_ids": [5], "meta_info": {"prompt_tokens": n_ids}}
    routes = sglang(**{"/v1/chat/completions": fail_once, "/generate": ids})
    probe_one = partial(probe_endpoint, client, model=MODEL, slots=None, probe=probe)
    async with serve(routes) as url:
        urls = [url, servers["0.5.12"].base_url]
        endpoints, refusals = await probe_fleet(probe_one, urls, wait_seconds=60)
    assert [each.base_url for each in endpoints] == urls
    assert (refusals, statuses) == ([], [])


@pytest.mark.timeout(30)
async def test_a_hopeless_fleet_is_not_waited_for(
    servers: dict[str, SimulatedServer], client: httpx.AsyncClient, probe: RenderingProbe
) -> None:
    other = ModelConfig(path="org/other")
    probe_one = partial(probe_endpoint, client, model=other, slots=None, probe=probe)
    urls = [server.base_url for server in servers.values()]
    endpoints, refusals = await probe_fleet(probe_one, urls, wait_seconds=3600)
    assert (len(endpoints), len(refusals)) == (0, 2)


async def test_answers_of_the_wrong_types_are_refusals(
    client: httpx.AsyncClient, probe: RenderingProbe
) -> None:
    wrong: list[Any] = [None, 7, "text", [7], {"a": [7]}]
    for value in wrong:
        info = {"model_path": "simulated", "internal_states": value, "context_length": value}
        routes = sglang(
            **{
                "/server_info": info,
                "/v1/models": {"data": value},
                "/v1/chat/completions": {"choices": value, "usage": value},
            }
        )
        async with serve(routes) as url:
            found = await probe_endpoint(client, url, model=MODEL, slots=4, probe=probe)
        assert isinstance(found, Refusal), value
