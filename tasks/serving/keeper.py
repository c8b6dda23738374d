"""Keeps one server running: start, readiness, watch, end, and again within a budget.

Enters: a ServerCommand and its cards. Leaves: what happens to it, told as it happens. It exists
apart from the fleet's loop because a server has a story of its own: it may die, hang while it says
that it is healthy, or leave its memory behind. Every error ends in `last_error`, in words.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path

import httpx

from tasks.serving.cards import Card, await_memory, read_cards
from tasks.serving.command import ServerCommand
from tasks.serving.config import ServingConfig
from tasks.serving.log_file import rotate_log
from tasks.serving.metrics import StallWatch, read_load
from tasks.serving.process import ServerProcess, end_group, end_processes, list_family

_logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.2
_PROBE_SECONDS = 0.5
_TERM_GRACE_SECONDS = 10.0
_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0
# Ready for so long, a server has its budget of restarts back: a week has room for more than five.
_STEADY_SECONDS = 3600.0
_MEMORY_SECONDS = 60.0
_CHORES_SECONDS = 5.0
_READINGS_PER_STALL = 6
_LONGEST_READING_SECONDS = 15.0
# The server generates a token for /health_generate: seconds on a loaded one.
_HEALTH_TIMEOUT_SECONDS = 30.0


class ServerKeeper:
    """Owns one server until `stop` is set."""

    def __init__(
        self,
        command: ServerCommand,
        config: ServingConfig,
        *,
        gpus: tuple[int, ...],
        log: Path,
        client: httpx.AsyncClient,
        stop: asyncio.Event,
        tell: Callable[..., None],
    ) -> None:
        """Prepare.

        Args:
            command: What is run.
            config: How it is watched.
            gpus: The cards whose memory must be free before a restart.
            log: Its output; the fleet's folder is the log's.
            client: Carries the API key.
            stop: Set when the fleet ends.
            tell: Called with the fields of ServerState that change.
        """
        self._command = command
        self._config = config
        self._gpus = gpus if config.engine == "sglang" else ()
        self._log = log
        self._client = client
        self._stop = stop
        self._tell = tell
        self._n_restarts = 0
        self._family: tuple[tuple[int, float], ...] = ()

    async def keep(self) -> None:
        """Keep the server running within its budget of restarts."""
        before = await asyncio.to_thread(read_cards, self._gpus) if self._gpus else None
        backoff, n_recent = _FIRST_BACKOFF_SECONDS, 0
        while not self._stop.is_set():
            reason, worth_another, was_steady = await self._run_once()
            if self._stop.is_set():
                break
            if was_steady:
                backoff, n_recent = _FIRST_BACKOFF_SECONDS, 0
            while True:
                if n_recent >= self._config.max_restarts or not worth_another:
                    self._tell(status="failed", last_error=reason)
                    return
                n_recent += 1
                self._n_restarts += 1
                self._tell(status="backoff", n_restarts=self._n_restarts, last_error=reason)
                await wait(self._stop, backoff)
                backoff = min(2 * backoff, _LONGEST_BACKOFF_SECONDS)
                held = await self._await_memory(before)
                if not held or self._stop.is_set():
                    break
                reason = held
        self._tell(status="stopped")

    async def _await_memory(self, before: tuple[Card, ...] | None) -> str:
        if before is None or self._stop.is_set():
            return ""
        return await await_memory(before, _MEMORY_SECONDS, self._stop)

    async def _run_once(self) -> tuple[str, bool, bool]:
        """Run the server from start to end.

        Returns:
            Why it ended, whether to start it again, and whether it was ready for long.
        """
        try:
            process = ServerProcess.start(self._command, self._log, fleet_dir=self._log.parent)
        except OSError as error:
            return f"cannot run {self._command.argv[0]}: {error.strerror}", False, False
        self._tell(status="starting", pid=process.pid, started_at=process.started_at)
        loop = asyncio.get_running_loop()
        try:
            if await self._await_ready(process):
                ready_at = loop.time()
                await self._note_family(process)
                self._tell(status="ready")
                reason = await self._watch(process)
                return reason, True, loop.time() - ready_at > _STEADY_SECONDS
            status = process.poll()
            if status is None:
                # It had all its patience: another start would wait as long for nothing.
                limit = self._config.ready_timeout_seconds
                return f"not healthy within {limit:g} s", False, False
            return _describe_exit(status), True, False
        finally:
            # Also after an exit of the leader: its workers may live on and hold the GPU, in its
            # group or in a session of their own.
            await self._note_family(process)
            await asyncio.to_thread(end_group, process.pid, grace_seconds=_TERM_GRACE_SECONDS)
            process.popen.wait()
            await asyncio.to_thread(end_processes, self._family, grace_seconds=_TERM_GRACE_SECONDS)
            self._family = ()
            self._tell(pid=None, started_at=None, family=())

    async def _await_ready(self, process: ServerProcess) -> bool:
        """Wait until a server can generate; False: it ended, or took too long, or we stop."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.ready_timeout_seconds
        chores_at = loop.time() + _CHORES_SECONDS
        path = "/health_generate"
        while process.poll() is None and not self._stop.is_set() and loop.time() < deadline:
            try:
                url = self._command.base_url + path
                status = (await self._client.get(url, timeout=_HEALTH_TIMEOUT_SECONDS)).status_code
            except httpx.HTTPError:
                status = 0
            if status == httpx.codes.OK:
                return True
            if status == httpx.codes.NOT_FOUND:
                path = "/health"
            if loop.time() >= chores_at:
                chores_at = loop.time() + _CHORES_SECONDS
                await self._do_chores(process)
            await wait(self._stop, _PROBE_SECONDS)
        return False

    async def _watch(self, process: ServerProcess) -> str:
        """Stay with a ready server until it dies, hangs or shall stop; say which."""
        loop = asyncio.get_running_loop()
        stall = StallWatch(self._config.stall_seconds)
        every = min(self._config.stall_seconds / _READINGS_PER_STALL, _LONGEST_READING_SECONDS)
        answered_at = read_at = chores_at = loop.time()
        while process.poll() is None and not self._stop.is_set():
            now = loop.time()
            if now >= read_at:
                read_at = now + every
                text = await self._read_metrics(every)
                now = loop.time()
                if text is not None:
                    answered_at = now
                elif now - answered_at >= self._config.stall_seconds:
                    return f"it has not answered for {now - answered_at:.0f} s"
                load = read_load(text or "")
                if load is not None and stall.note(load, now):
                    seconds = self._config.stall_seconds
                    return f"no token for {seconds:.0f} s with {load.n_in_flight} in flight"
            if now >= chores_at:
                chores_at = now + _CHORES_SECONDS
                await self._do_chores(process)
            await wait(self._stop, _TICK_SECONDS)
        status = process.poll()
        return "" if status is None else _describe_exit(status)

    async def _read_metrics(self, timeout: float) -> str | None:  # noqa: ASYNC109
        try:
            url = f"{self._command.base_url}/metrics"
            return (await self._client.get(url, timeout=max(timeout, 1.0))).text
        except httpx.HTTPError:
            return None

    async def _do_chores(self, process: ServerProcess) -> None:
        """Write down who belongs to the server, and turn its log over."""
        await self._note_family(process)
        try:
            await asyncio.to_thread(rotate_log, self._log)
        except OSError as error:
            # A full disk is no reason to end a good server: the next chores try again.
            _logger.error("%s cannot be turned over: %s", self._log.name, error)

    async def _note_family(self, process: ServerProcess) -> None:
        """Write down the server's descendants; of a server that is gone the last list holds."""
        family = await asyncio.to_thread(list_family, process.pid)
        if process.poll() is None:
            self._family = family
            self._tell(family=family)


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Sleep, or wake at the event."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def _describe_exit(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
