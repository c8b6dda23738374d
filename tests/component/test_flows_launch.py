"""A Prefect server that cannot be used is told in one sentence, before anything is begun."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.command_line.launch import check_server
from tasks.errors import UserError
from tests.support.simulator import find_free_port


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/api", "no-url"])
def test_a_server_that_does_not_answer_is_the_users_to_start(url: str) -> None:
    place = url.format(port=find_free_port())
    with (
        temporary_settings({PREFECT_API_URL: place}),
        pytest.raises(UserError, match=r"cannot be used.*Remedy: Start it"),
    ):
        asyncio.run(check_server())


def test_a_server_that_hangs_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        raise httpx.ReadTimeout("")

    monkeypatch.setattr(PrefectClient, "raise_for_api_version_mismatch", hang)
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}),
        pytest.raises(UserError, match=r"cannot be used: ReadTimeout"),
    ):
        asyncio.run(check_server())
