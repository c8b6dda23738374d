"""A signal ends a command once what it holds is let go; a second one does not wait."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.simulator import ROOT

PROGRAM = """
import asyncio, sys, time
from flows.process.signals import run_until_signal
from flows.process.speak import answer

async def hold():
    print("holding", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.2)
        print("let go", flush=True)
        {last}

answer("run", lambda: {work}, str, json=False)
"""
IN_FLOW = "run_until_signal(hold)"
BEFORE_FLOW = "(print('holding', flush=True), time.sleep(60))"


def start(work: str, last: str = "pass") -> subprocess.Popen[str]:
    return start_program(PROGRAM.format(work=work, last=last))


# A shell gives what it starts in the background a SIGINT that is ignored; a terminal does not.
AT_A_TERMINAL = """
import signal, typer
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def start_program(program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", f"{AT_A_TERMINAL}typer.run(lambda: exec({program!r}, {{}}))"],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("work", [IN_FLOW, BEFORE_FLOW])
def test_a_signal_ends_the_command_with_its_code_and_one_line(
    number: signal.Signals, code: int, work: str
) -> None:
    with start(work) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert out == ("let go\n" if work == IN_FLOW else "")
    assert err == "stopped; what is finished is kept: run the same command to go on\n"


def test_a_second_signal_does_not_wait_for_what_hangs() -> None:
    with start(IN_FLOW, "await asyncio.sleep(60)") as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "let go\n"
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
    assert process.returncode != 0


DRAINED = """
import asyncio, time
from flows.process.signals import before_stopping, run_until_signal
from flows.process.speak import answer

async def drain():
    print("draining", flush=True)
    await asyncio.sleep({drain})
    print("drained", flush=True)

async def hold():
    with before_stopping(drain):
        print("holding", flush=True)
        try:
            await asyncio.sleep(60)
        finally:
            print("let go", flush=True)

answer("run", lambda: run_until_signal(hold), str, json=False)
"""


def test_the_first_signal_lets_what_is_in_flight_end() -> None:
    with start_program(DRAINED.format(drain=0.2)) as process:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert out == "draining\ndrained\nlet go\n"


def test_the_second_signal_cuts_the_draining_short_and_still_lets_go() -> None:
    with start_program(DRAINED.format(drain=60)) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "draining\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "let go\n"
    assert "what is finished is kept" in err
