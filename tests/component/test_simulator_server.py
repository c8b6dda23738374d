"""The simulated server as a process: command line, chat content, faults, log, death, SIGTERM."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.simulator.answers import hash_prompt
from infra.simulator.tokenizer import ChatTokenizer
from tests.support.simulator import ROOT, SimulatedServer, find_free_port, start_simulator

TOKENIZER = ChatTokenizer()
MESSAGES = [{"role": "user", "content": "Name two primes."}]
PROMPT_IDS = TOKENIZER.render(MESSAGES, None, {})


@pytest.fixture(scope="module")
def shared() -> Iterator[SimulatedServer]:
    flags = {"sim_version": "0.5.23", "sim_time_scale": 0.001, "sim_mean_tokens": 100}
    with start_simulator(1, **flags) as [server]:
        yield server


@pytest.fixture
def server(shared: SimulatedServer) -> Iterator[SimulatedServer]:
    yield shared
    shared.set_faults()


def _chat(server: SimulatedServer, **fields: Any) -> tuple[int, Any]:
    body = {"model": "m", "messages": MESSAGES, **fields}
    return server.request("POST", "/v1/chat/completions", body)


def _generate(server: SimulatedServer, **sampling: Any) -> tuple[int, Any]:
    body = {"input_ids": PROMPT_IDS, "sampling_params": {"max_new_tokens": 4000, **sampling}}
    return server.request("POST", "/generate", body)


def _wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)


def test_both_routes_generate_the_same_ids_for_the_same_prompt(server: SimulatedServer) -> None:
    _, chat = _chat(server, return_token_ids=True)
    _, native = _generate(server)
    [choice] = chat["choices"]
    assert choice["prompt_token_ids"] == PROMPT_IDS
    assert choice["response_token_ids"] == native["output_ids"]
    assert TOKENIZER.decode(native["output_ids"]) == native["text"]
    assert native["output_ids"][-1] == TOKENIZER.end_of_turn
    assert native["meta_info"]["finish_reason"]["matched"] == TOKENIZER.end_of_turn


def test_the_chat_route_splits_what_the_native_route_gives_raw(server: SimulatedServer) -> None:
    _, chat = _chat(server)
    _, native = _generate(server)
    message = chat["choices"][0]["message"]
    assert message["reasoning_content"] + "</think>" + message["content"] == native["text"]


def test_tool_calls_come_parsed_and_history_arguments_may_be_json_text(
    server: SimulatedServer,
) -> None:
    function = {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
        },
    }
    tools = [{"type": "function", "function": function}]
    for number in range(20):
        messages = [{"role": "user", "content": f"Add {number}."}]
        _, body = _chat(server, messages=messages, tools=tools)
        [choice] = body["choices"]
        if choice["finish_reason"] == "tool_calls":
            break
    [call] = choice["message"]["tool_calls"]
    assert isinstance(json.loads(call["function"]["arguments"])["a"], int)
    messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "7"}]
    status, body = _chat(server, messages=messages, tools=tools)
    assert status == 200
    assert body["choices"][0]["finish_reason"] == "stop"
    assert "tool_calls" not in body["choices"][0]["message"]


def test_streaming_is_refused_in_plain_words(server: SimulatedServer) -> None:
    status, body = _chat(server, stream=True)
    assert status == 400
    assert "stream=false" in body["message"]


def test_generate_refuses_an_overlong_request_as_the_tokenizer_manager_does(
    server: SimulatedServer,
) -> None:
    status, body = _generate(server, max_new_tokens=8192)
    assert status == 400
    assert "exceeds the model's maximum context length" in body["error"]["message"]


def test_servers_started_together_fail_at_different_requests() -> None:
    with start_simulator(2, sim_time_scale=0.001, sim_faults={"error_rate": 0.5}) as servers:
        first, second = ([_chat(server)[0] for _ in range(24)] for server in servers)
    assert {*first} == {*second} == {200, 500}
    assert first != second


def test_the_error_rate_answers_500(server: SimulatedServer) -> None:
    server.set_faults(error_rate=1.0)
    status, body = _chat(server)
    assert (status, body["object"], body["code"]) == (500, "error", 500)


def test_a_dropped_connection_gives_no_answer_though_the_work_was_done(
    server: SimulatedServer,
) -> None:
    n_before = server.stats()["output_tokens"]
    server.set_faults(drop_rate=1.0)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        _chat(server)
    assert server.stats()["output_tokens"] > n_before


def test_unknown_faults_are_refused(server: SimulatedServer) -> None:
    status, body = server.request("POST", "/simulator/faults", {"sloow": 2})
    assert status == 400
    assert "sloow" in body["message"]


def test_a_hang_leaves_health_at_200_and_lifts(server: SimulatedServer) -> None:
    server.set_faults(hang=True)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(_chat(server)))
    thread.start()
    _wait_for(lambda: server.stats()["running"] == 1)
    time.sleep(0.3)
    assert not answers
    assert server.request("GET", "/health")[0] == 200
    server.set_faults()
    thread.join(timeout=30)
    assert answers[0][0] == 200


def test_a_client_that_leaves_frees_its_slot(server: SimulatedServer) -> None:
    server.set_faults(hang=True)
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES}))
    _wait_for(lambda: server.stats()["running"] == 1)
    connection.close()
    _wait_for(lambda: server.stats()["running"] == 0)
    assert server.stats()["outcomes"]["disconnected"] >= 1


def test_death_ends_the_process_and_a_restart_revives_it() -> None:
    with start_simulator(1, sim_time_scale=0.001) as [server]:
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            server.request("POST", "/simulator/faults", {"death": True})
        assert server.process.wait(timeout=30) != 0
        with pytest.raises(urllib.error.URLError):
            server.request("GET", "/health")
        server.restart()
        assert _chat(server)[0] == 200


def test_death_can_wait_for_a_number_of_requests() -> None:
    faults = {"death_after_requests": 2}
    with start_simulator(1, sim_time_scale=0.001, sim_faults=faults) as [server]:
        assert _chat(server)[0] == 200
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            _chat(server)
        assert server.process.wait(timeout=30) != 0


def test_the_request_log_names_each_generation_by_its_prompt(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    with start_simulator(1, sim_time_scale=0.001, sim_request_log=log) as [server]:
        _chat(server, rid="first")
        _generate(server)
        server.set_faults(error_rate=1.0)
        _chat(server)
        rows = [json.loads(line) for line in log.read_text().splitlines()]
    chat = "/v1/chat/completions"
    assert [row["route"] for row in rows] == [chat, "/generate", chat]
    assert {row["prompt_hash"] for row in rows} == {hash_prompt(PROMPT_IDS)}
    assert [row["outcome"] for row in rows] == ["completed", "completed", "error_500"]
    assert rows[0]["rid"] == "first"
    assert rows[0]["n_tokens"] == rows[1]["n_tokens"] > 0


def test_many_requests_at_once_are_queued_and_counted() -> None:
    flags = {"sim_time_scale": 0.001, "sim_mean_tokens": 50, "max_running_requests": 4}
    with start_simulator(2, **flags) as servers:
        statuses: list[int] = []

        def ask(number: int) -> None:
            message = [{"role": "user", "content": f"Question {number}"}]
            statuses.append(_chat(servers[number % 2], messages=message)[0])

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert statuses == [200] * 40
        for server in servers:
            stats = server.stats()
            assert stats["outcomes"] == {"completed": 20}
            assert stats["max_running_seen"] <= 4
            assert stats["busy_slot_seconds"] > 0


def test_an_api_key_guards_everything_but_health() -> None:
    with start_simulator(1, api_key="swordfish") as [server]:
        assert server.request("GET", "/health")[0] == 200
        assert server.request("GET", "/v1/models") == (401, {"error": "Unauthorized"})


def test_sigterm_drains_what_is_in_flight_and_exits_0() -> None:
    with start_simulator(1, sim_step_base_ms=2.0, sim_step_slope_ms=0.0) as [server]:
        answers: list[Any] = []
        fields = {"max_tokens": 500, "ignore_eos": True}
        thread = threading.Thread(target=lambda: answers.append(_chat(server, **fields)))
        thread.start()
        _wait_for(lambda: server.stats()["running"] == 1)
        server.process.terminate()
        thread.join(timeout=30)
        assert server.process.wait(timeout=30) == 0
        assert answers[0][1]["choices"][0]["finish_reason"] == "length"


def test_an_unknown_flag_exits_with_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "infra.simulator", "--port", str(find_free_port())]
    for flag in ("--no-such-flag", "--enable-metric"):  # no abbreviations either
        ended = subprocess.run([*command, flag], cwd=ROOT, capture_output=True, check=False)
        assert ended.returncode == 2


def test_it_starts_from_any_directory(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[1:] = ['--help'];"
        "import infra.simulator.__main__ as m; m.main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False
    )
    assert ended.returncode == 0
    assert b"--sim-faults" in ended.stdout


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, infra.simulator.__main__; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True
    )
    heavy = {"transformers", "torch", "numpy", "prefect", "pydantic", "tasks", "flows"}
    assert not heavy & set(ended.stdout.split())


def test_a_port_in_use_is_told_without_a_traceback(shared: SimulatedServer) -> None:
    command = [sys.executable, "-m", "infra.simulator", "--port", str(shared.port)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    assert ended.returncode == 1
    assert "choose another --port" in ended.stderr
    assert "Traceback" not in ended.stderr
