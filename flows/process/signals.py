"""How a command ends at SIGINT and SIGTERM: what it holds is let go, then it says so.

Enters: a coroutine, or a block of a command. Leaves: its result, or KeyboardInterrupt (Terminated
for SIGTERM) once it has ended. Work that would be lost may ask for a moment (`before_stopping`):
the first signal grants it, the second does not. It exists because Prefect, on the main thread,
takes SIGTERM for itself and ends the process where it stands, the fleet still claimed; other
threads it leaves alone.
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


Farewell = Callable[[], Coroutine[Any, Any, object]]
_farewells: contextvars.ContextVar[list[Farewell] | None] = contextvars.ContextVar(
    "farewells", default=None
)


@contextmanager
def before_stopping(farewell: Farewell) -> Iterator[None]:
    """Have `farewell` run to its end before a signal cancels what runs inside the block.

    Without a command line around it, as in a worker of Prefect's, it is never called.
    """
    farewells = _farewells.get()
    if farewells is None:
        yield
        return
    farewells.append(farewell)
    try:
        yield
    finally:
        farewells.remove(farewell)


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


class _Stop:
    """What signals do to the coroutine that runs on the flow's thread."""

    def __init__(self) -> None:
        self.caught: list[int] = []
        self._farewells: list[Farewell] = []
        self._before: dict[signal.Signals, _Handler] = {}
        self._hear: Callable[[], object] | None = None
        self._parting: asyncio.Task[None] | None = None

    def take_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.getsignal(number)
            signal.signal(number, self._on_signal)

    def give_back_signals(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.caught.append(number)
        if not self._farewells or len(self.caught) > 1:
            # What is being cancelled now can only be killed.
            self.give_back_signals()
        # Where the coroutine has not begun yet, it finds what was caught when it does.
        if self._hear is not None:
            self._hear()

    async def supervise(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101  # narrows for mypy

        def cancel_once() -> None:
            # A second cancellation would cut the clean-up short.
            if not task.cancelling():
                task.cancel()

        async def part() -> None:
            farewells = [farewell() for farewell in self._farewells]
            await asyncio.gather(*farewells, return_exceptions=True)
            cancel_once()

        def hear() -> None:
            if self._farewells and len(self.caught) == 1:
                self._parting = loop.create_task(part())
            else:
                cancel_once()

        _farewells.set(self._farewells)
        self._hear = lambda: loop.call_soon_threadsafe(hear)
        if self.caught:
            hear()
        return await main()


def run_until_signal(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a thread of its own; a signal cancels it, another one kills.

    Where something asked to run `before_stopping`, the first signal lets it, the second one cancels
    at once, and the third one kills.

    Must be called on the main thread. Context variables are those of the caller.

    Raises:
        KeyboardInterrupt: SIGINT came, and the coroutine has ended.
        Terminated: SIGTERM came, and the coroutine has ended.
    """
    stop = _Stop()
    ended: Future[T] = Future()

    def work() -> None:
        try:
            ended.set_result(asyncio.run(stop.supervise(main)))
        except BaseException as error:  # noqa: BLE001  # handed over to the main thread
            ended.set_exception(error)

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(work,), name="flow", daemon=True
    )
    stop.take_signals()
    thread.start()
    try:
        return ended.result()
    except asyncio.CancelledError:
        if not stop.caught:
            raise
        kind = Terminated if stop.caught[0] == signal.SIGTERM else KeyboardInterrupt
        raise kind from None
    finally:
        stop.give_back_signals()
        if ended.done():
            thread.join()
