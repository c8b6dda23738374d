"""A run with everything against it: faulty servers, a faulty store, and kill -9 again and again.

Enters: simulated servers, a real S3 server behind the faulty proxy, the forking process. Leaves: a
run that a test kills, starves and robs as it likes, and what the judge needs in the end: the times
of the kills, what was on the disk and in the store at each, and the servers' request log.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.audit import Audit, audit_run, copy_prefix
from tests.support.audit_requests import Kill, count_twice, judge_kills, read_kept, read_log
from tests.support.cli import Cli
from tests.support.flow_forks import ForkedRun, Forks
from tests.support.proxy import FaultyProxy
from tests.support.s3 import S3Server
from tests.support.simulator import SimulatedServer, build_flags

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# Of patience: on a busy box a run takes a minute to start.
SECONDS = 300.0
SLOTS = 8
# What any server does to any request, all the time.
ALWAYS = {"error_rate": 0.02, "drop_rate": 0.01}
SLOW = {"slow": 4.0}
# Once no more kills come, answers may come as fast as the run takes them.
HASTE = 0.15


def name_prefix(folder: Path) -> str:
    """Give a run in this folder a prefix that no other test's run has."""
    return f"besieged/{folder.name}"


@dataclass(slots=True)
class FaultedRun:
    """One run and all that is done to it; only one process of it lives at a time."""

    cli: Cli
    config: Path
    servers: list[SimulatedServer]
    s3: S3Server
    client: S3Client
    proxy: FaultyProxy
    forks: Forks
    folder: Path
    luck: random.Random
    kills: list[Kill] = field(default_factory=list)
    peaks: Counter[str] = field(default_factory=Counter)
    _process: ForkedRun | None = None
    _n_looks: int = 0
    _n_read: int = 0
    _ends: Counter[str] = field(default_factory=Counter)

    @property
    def log(self) -> Path:
        """The request log of the servers that serve the right model."""
        return self.folder / "requests.jsonl"

    @property
    def strangers_log(self) -> Path:
        """The request log of a server that came back with another model."""
        return self.folder / "strangers.jsonl"

    @property
    def spool(self) -> Path:
        """Where the journals lie."""
        return self.cli.home / "spool"

    @property
    def n_in_flight(self) -> int:
        """Requests in flight when every slot and every place in a queue is taken."""
        return len(self.servers) * (SLOTS + math.ceil(SLOTS * 0.1))

    def start(self) -> ForkedRun:
        """Start the run, or take it up."""
        self.peaks.clear()
        self._process = self.forks.start(self.config, self.folder / "flow.log")
        return self._process

    def finish(self) -> dict[str, Any]:
        """Wait for the process that runs now to end well; give its summary."""
        assert self._process is not None
        assert self._process.wait() == 0, self.tell()
        return self._process.read_summary()

    @property
    def prefix(self) -> str:
        """Where it lies in the bucket, which tests of one process share."""
        return name_prefix(self.folder)

    def tell(self) -> str:
        """Give the end of what the processes said."""
        path = self.folder / "flow.log"
        return path.read_text()[-3000:] if path.exists() else ""

    def kill(self, *, rob: Callable[[], int] | None = None) -> Kill:
        """Kill -9 the process that runs now; `rob` takes things away and says how many answers."""
        process = self._process
        assert process is not None
        assert process.is_alive(), f"it ended before it could be killed\n{self.tell()}"
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        return self.note_kill(rob)

    def note_kill(self, rob: Callable[[], int] | None = None) -> Kill:
        """Write down what is kept now that the process is dead."""
        # What was in flight ends at the servers, as completed or as disconnected.
        self._process = None
        self.await_true(lambda: not any(map(self._read_running, self.servers)), "idle servers")
        n_robbed = rob() if rob else 0
        kept = read_kept(self.spool, self._copy_parts())
        self.kills.append(Kill(time.time(), kept, self.n_in_flight + n_robbed))
        return self.kills[-1]

    def await_true(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition while the process lives, and note how full each server gets."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            self._note_peaks()
            assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}\n{self.tell()}"
            if self._process is not None:
                assert self._process.is_alive(), f"it ended before: {what}\n{self.tell()}"
            time.sleep(0.1)

    def await_seconds(self, seconds: float) -> None:
        """Let the process live on for so long."""
        began = time.monotonic()
        self.await_true(lambda: time.monotonic() - began > seconds, "the time is over")

    def await_answers(self, n_more: int) -> None:
        """Wait until the servers have given so many more answers."""
        self.await_ends(n_more, "completed")

    def await_ends(self, n_more: int, *outcomes: str) -> None:
        """Wait until so many more requests have ended in one of these ways."""
        wanted = self._count(outcomes) + n_more
        what = f"{n_more} more requests {' or '.join(outcomes)}"
        self.await_true(lambda: self._count(outcomes) >= wanted, what)

    def await_full(self, away: Collection[SimulatedServer] = ()) -> None:
        """Wait until every slot of every server, but for those that are away, was taken at once."""
        wanted = [server.base_url for server in self.servers if server not in away]
        self.await_true(
            lambda: all(self.peaks[url] == SLOTS for url in wanted),
            f"every slot taken, {dict(self.peaks)}",
        )

    def _count(self, outcomes: Collection[str]) -> int:
        """Count the requests that ended so, reading only what is new of the servers' log."""
        if self.log.exists():
            with self.log.open("rb") as file:
                file.seek(self._n_read)
                new, newline, _ = file.read().rpartition(b"\n")
            self._n_read += len(new + newline)
            self._ends.update(json.loads(line)["outcome"] for line in new.splitlines())
        return sum(self._ends[outcome] for outcome in outcomes)

    def _note_peaks(self) -> None:
        # A look costs both sides a millisecond: until requests come, one server is looked at.
        waiting = [server for server in self.servers if self.peaks[server.base_url] < SLOTS]
        if waiting and not any(self.peaks.values()):
            self._n_looks += 1
            waiting = [waiting[self._n_looks % len(waiting)]]
        for server in waiting:
            url = server.base_url
            self.peaks[url] = max(self.peaks[url], self._read_running(server))

    def _read_running(self, server: SimulatedServer) -> int:
        try:
            return int(server.stats()["running"])
        except (OSError, AssertionError, ValueError):
            return 0  # it is away

    def harm(self, server: SimulatedServer, **faults: Any) -> None:
        """Set a server's faults, on top of those that every one has always."""
        server.set_faults(**ALWAYS, **faults)

    def hurry(self) -> None:
        """Let every server answer several times faster, and fail as before."""
        for server in self.servers:
            pace = SLOW["slow"] if server is self.servers[0] else 1.0
            self.harm(server, slow=pace * HASTE)

    def bring_back(self, servers: Sequence[SimulatedServer]) -> None:
        """Start servers that are away, as they were."""
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(lambda server: server.restart(), servers))
        for server in servers:
            self.harm(server, **(SLOW if server is self.servers[0] else {}))

    def bring_back_as_a_stranger(self, server: SimulatedServer) -> None:
        """Start a server on its old port with another model, and a log of its own."""
        own = server.command
        names = {"served_model_name": "another", "sim_request_log": self.strangers_log}
        # The last of two equal flags counts.
        server.command = [*own, *build_flags({"model_path": "another/model", **names})]
        server.restart()
        server.command = own

    def was_probed(self, server: SimulatedServer) -> bool:
        """Whether the run asked a server that came back what it is."""
        return "/server_info" in server.stats()["requests"]

    def take_all_away(self, seconds: float) -> None:
        """Kill every server under the run, wait, and bring them back as they were."""
        for server in self.servers:
            server.kill()
        self.await_seconds(seconds)
        self.bring_back(self.servers)

    def rob_journals(self) -> int:
        """Delete the local journals; give the answers that the open chunks may lose."""
        folders = [path for path in self.spool.glob("*/chunk-*") if any(path.iterdir())]
        n_lost = len(read_kept(self.spool, []))
        shutil.rmtree(self.spool)
        assert folders, "no chunk was open: nothing was taken"
        return n_lost

    def rob_a_part(self) -> int:
        """Delete a published part out of band; give the answers in it."""
        path = self.luck.choice(self._copy_parts())
        key = f"{self.prefix}/data/{path.name}"
        self.client.delete_object(Bucket=self.s3.bucket, Key=key)
        return len(read_kept(self.folder / "nothing", [path]))

    def list_keys(self, folder: str) -> list[str]:
        """List the store's keys below a folder of the run, past the proxy."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.s3.bucket, Prefix=f"{self.prefix}/{folder}"
        )
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def _copy_parts(self) -> list[Path]:
        """Copy the parts that the store holds now."""
        local = self.folder / "parts"
        local.mkdir(exist_ok=True)
        names = {key.rpartition("/")[2]: key for key in self.list_keys("data/")}
        for path in local.iterdir():
            if path.name not in names:
                path.unlink()
        for name, key in names.items():
            if not (local / name).exists():
                self.client.download_file(self.s3.bucket, key, str(local / name))
        return [local / name for name in sorted(names)]

    def judge(self, n_conversations: int) -> tuple[Audit, list[int]]:
        """Hold the finished run against everything: the audit, and answers lost at each kill."""
        audit = audit_run(
            copy_prefix(self.client, self.s3.bucket, self.prefix, self.folder / "copy")
        )
        assert len(audit.outcomes) == n_conversations
        assert audit.statuses["failed"] == audit.statuses["partial"] == 0
        log = read_log(self.log)
        lost = judge_kills(log, self.kills)
        n_twice = count_twice(log, self.kills)
        assert n_twice <= sum(kill.n_allowed for kill in self.kills)
        n_turns = sum(len(outcome["completions"]) for outcome in audit.outcomes)
        answers = {line["prompt_hash"] for line in log if line["outcome"] == "completed"}
        assert len(answers) == n_turns, "each turn was asked for, and nothing else"
        assert read_log(self.strangers_log) == [], "another model was asked"
        assert self.proxy.n_broken > 0
        return audit, lost
