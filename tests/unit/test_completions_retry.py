"""What each failure means, and how often a request is tried."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import pytest

from tasks.completions.client import (
    Client,
    ConnectionRefused,
    Disconnected,
    HttpFailure,
)
from tasks.completions.config import GenerationConfig
from tasks.completions.dispatch import Dispatcher
from tasks.completions.in_flight import DeadlineExceeded, Stalled
from tasks.completions.record import Usage
from tasks.completions.retry import (
    Asker,
    GaveUp,
    No,
    RateLimit,
    Reply,
    Transient,
    Verdict,
    classify,
    deadline_seconds,
)
from tasks.completions.wire import (
    Answer,
    AnswerAborted,
    GenerationParams,
    MalformedAnswer,
    RequestFailed,
    TurnRequest,
)
from tasks.serving.record import Endpoint
from tests.support.generation import make_endpoint

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"
REQUEST = TurnRequest([], None, msgspec.Raw(b"[1]"), 1, 100, 100)
PARAMS = GenerationParams({}, thinking=True, reasoning_parser=None, tool_call_parser=None)
ANSWER = Answer(
    "yes", "", [], None, msgspec.Raw(b"[1]"), msgspec.Raw(b"[2]"), "chat", "stop", Usage(1, 1, 0)
)
QUICK = GenerationConfig(attempts=3, backoff_seconds=0.001, return_after_seconds=0.01)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (HttpFailure(400, None), No("bad_request")),
        (HttpFailure(413, None), No("bad_request")),
        (HttpFailure(422, None), No("bad_request")),
        (HttpFailure(429, 7.0), RateLimit(7.0)),
        (HttpFailure(500, None), Transient("server_error")),
        (Stalled("generates nothing"), Transient("disconnected", ejects=True)),
        (HttpFailure(503, 2.0), Transient("server_error", 2.0)),
        # Not the row's fault: a wrong key, a wrong route, a redirect.
        (HttpFailure(401, None), Transient("server_error")),
        (HttpFailure(404, None), Transient("server_error")),
        (HttpFailure(302, None), Transient("server_error")),
        (ConnectionRefused(""), Transient("disconnected", sent=False)),
        (Disconnected(""), Transient("disconnected")),
        (DeadlineExceeded(""), Transient("deadline")),
        (AnswerAborted(""), Transient("aborted", blames_server=False)),
        (MalformedAnswer(""), Transient("malformed_answer")),
    ],
)
def test_a_failure_is_judged_by_type_and_status(error: RequestFailed, verdict: Verdict) -> None:
    assert classify(error) == verdict


def test_the_text_of_a_failure_decides_nothing() -> None:
    assert classify(Disconnected("400 Bad Request: context length")) == Transient("disconnected")


def test_a_deadline_grows_with_the_answer_and_allows_for_the_queue() -> None:
    config = GenerationConfig(floor_tokens_per_second=2, queue_seconds=60)
    assert deadline_seconds(6144, config) == 3072 + 60


class ScriptedClient(Client):
    """Answers by a script of failures for each url; an empty script answers."""

    def __init__(self, scripts: dict[str, list[RequestFailed]]) -> None:
        super().__init__()
        self.scripts = scripts
        self.sent: list[str] = []

    async def generate(
        self,
        endpoint: Endpoint,
        params: GenerationParams,
        request: TurnRequest,
        *,
        deadline_seconds: float,
    ) -> tuple[Answer, float]:
        self.sent.append(endpoint.base_url)
        script = self.scripts.get(endpoint.base_url)
        if script:
            raise script.pop(0)
        return ANSWER, 0.5

    async def is_healthy(self, endpoint: Endpoint) -> bool:
        return True


async def ask(
    scripts: dict[str, list[RequestFailed]],
    config: GenerationConfig = QUICK,
    urls: Sequence[str] = (A, B),
) -> tuple[Reply | GaveUp, list[str]]:
    client = ScriptedClient(scripts)
    endpoints = [make_endpoint(url, slots=4) for url in urls]
    async with Dispatcher(endpoints, config, client=client) as dispatcher:
        asker = Asker(dispatcher, PARAMS, REQUEST, config, order=(0, 0), route=None)
        try:
            return await asker.ask(), client.sent
        except GaveUp as error:
            return error, client.sent
        finally:
            assert dispatcher.n_in_flight == 0


async def test_a_first_success_is_one_attempt() -> None:
    reply, sent = await ask({})
    assert isinstance(reply, Reply)
    assert (reply.attempts, len(sent)) == (1, 1)


async def test_each_attempt_goes_to_another_server_where_there_is_one() -> None:
    reply, sent = await ask({A: [HttpFailure(500, None)]})
    assert isinstance(reply, Reply)
    assert sent == [A, B]
    assert reply.attempts == 2
    alone, sent = await ask({A: [HttpFailure(500, None)]}, urls=[A])
    assert isinstance(alone, Reply)
    assert sent == [A, A]


async def test_a_refused_row_is_given_up_at_once() -> None:
    gave_up, sent = await ask({A: [HttpFailure(400, None)]})
    assert isinstance(gave_up, GaveUp)
    assert (gave_up.kind, gave_up.retryable, gave_up.attempts) == ("bad_request", False, 1)
    assert len(sent) == 1


async def test_attempts_are_bounded_and_the_last_failure_is_told() -> None:
    failures: dict[str, list[RequestFailed]] = {
        A: [Disconnected("")] * 9,
        B: [HttpFailure(500, None)] * 9,
    }
    gave_up, sent = await ask(failures)
    assert isinstance(gave_up, GaveUp)
    assert gave_up.retryable
    assert gave_up.attempts == len(sent) == QUICK.attempts
    assert sorted(gave_up.urls) == [A, B]


async def test_a_refused_connection_uses_up_no_attempt() -> None:
    refusals: list[RequestFailed] = [ConnectionRefused("")] * 10
    reply, sent = await ask({A: refusals}, urls=[A])
    assert isinstance(reply, Reply)
    assert len(sent) == 11
    assert reply.attempts == 1


async def test_failing_with_an_ejected_server_is_free_but_not_for_ever() -> None:
    config = QUICK.model_copy(update={"eject_after": 1})
    gave_up, sent = await ask({A: [Disconnected("")] * 99}, config, urls=[A])
    assert isinstance(gave_up, GaveUp)
    assert gave_up.attempts == config.attempts
    assert len(sent) == 2 * config.attempts


async def test_the_server_says_how_long_to_wait() -> None:
    began = time.monotonic()
    reply, sent = await ask({A: [HttpFailure(429, 0.2)]}, urls=[A])
    assert isinstance(reply, Reply)
    assert len(sent) == 2
    assert time.monotonic() - began >= 0.2
