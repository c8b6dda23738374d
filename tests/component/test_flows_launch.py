"""A Prefect server that cannot be used is told in one sentence, before anything is begun."""

from __future__ import annotations

import asyncio

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.launch import check_server
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
