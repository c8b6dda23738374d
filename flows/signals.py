"""How a command ends at SIGINT and SIGTERM: what it holds is let go, then it says so.

Enters: a coroutine, or a block of a command. Leaves: its result, or KeyboardInterrupt (Terminated
for SIGTERM) once it has ended. It exists because Prefect, on the main thread, takes SIGTERM for
itself and ends the process where it stands, the fleet still claimed; other threads it leaves alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
_Handler = Callable[[int, FrameType | None], Any] | int | None


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def heed_sigterm() -> Iterator[None]:
    """Raise Terminated at SIGTERM inside the block, as Python does KeyboardInterrupt at SIGINT."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_until_signal(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a thread of its own; a signal cancels it, a second one kills.

    Must be called on the main thread. Context variables are those of the caller.

    Raises:
        KeyboardInterrupt: SIGINT came, and the coroutine has ended.
        Terminated: SIGTERM came, and the coroutine has ended.
    """
    caught: list[int] = []
    cancel: Future[Callable[[], Any]] = Future()
    ended: Future[T] = Future()

    async def supervise() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101  # narrows for mypy

        def cancel_once() -> None:
            # A second cancellation would cut the clean-up short.
            if not task.cancelling():
                task.cancel()

        cancel.set_result(lambda: loop.call_soon_threadsafe(cancel_once))
        if caught:
            cancel_once()
        return await main()

    def work() -> None:
        try:
            ended.set_result(asyncio.run(supervise()))
        except BaseException as error:  # noqa: BLE001  # handed over to the main thread
            ended.set_exception(error)

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        caught.append(number)
        _restore(before)
        # Where the coroutine has not begun yet, it finds what was caught when it does.
        if cancel.done():
            cancel.result()()

    before: dict[signal.Signals, _Handler] = {}
    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(work,), name="flow", daemon=True
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.getsignal(number)
        signal.signal(number, stop)
    thread.start()
    try:
        return ended.result()
    except asyncio.CancelledError:
        if not caught:
            raise
        raise (Terminated if caught[0] == signal.SIGTERM else KeyboardInterrupt) from None
    finally:
        _restore(before)
        if ended.done():
            thread.join()


def _restore(handlers: dict[signal.Signals, _Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
