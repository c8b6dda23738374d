"""What is set up around a run that has everything against it: servers, store, forks, configuration.

Enters: a folder, a real S3 server, a real Prefect server. Leaves: a FaultedRun, not started yet.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import certifi

from tests.support.cli import Cli
from tests.support.faulted_run import ALWAYS, SLOTS, SLOW, FaultedRun, name_prefix
from tests.support.flow_forks import start_forks
from tests.support.proxy import start_proxy
from tests.support.s3 import S3Server
from tests.support.simulator import start_simulator

CONFIG = """
name: besieged
store:
  uri: s3://{bucket}/{prefix}
  # Prefect's own results: saving its S3 block costs each start four seconds of CPU.
  results_uri: file://{results}
  s3: {{endpoint_url: "{endpoint}", region: us-east-1, addressing_style: path}}
model: {{path: "builtin:simulator", served_name: simulated, context_length: 4096}}
sampling: {{max_tokens: 1024}}
sources:
  mine: {{path: rows.jsonl, mapping: {{turns: turns}}}}
extraction: {{chunk_size: {chunk_size}, canary_size: 24}}
serving: {{mode: attach, urls: [{urls}], ready_timeout_seconds: 60}}
# Five would not outlast servers that are away, were attempts counted meanwhile; with fewer, some
# row of thousands would fail by luck.
generation:
  attempts: 5
  backoff_seconds: 0.05
  eject_after: 3
  return_after_seconds: 0.5
  floor_tokens_per_second: 400
  queue_seconds: 8
gates: {{accept: [duplicate]}}
"""


def write_rows(folder: Path, n_rows: int) -> None:
    """Invent rows of one turn, and every fifth of two."""
    rows = [
        {"turns": [f"Tell me {n + 2} facts about lake number {n}."] + ["Why?"] * (n % 5 == 0)}
        for n in range(n_rows)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_one_certificate(folder: Path) -> Path:
    """Write the first of the certificates that clients trust."""
    end = "-----END CERTIFICATE-----\n"
    path = folder / "certificate.pem"
    path.write_text(Path(certifi.where()).read_text().partition(end)[0] + end)
    return path


@contextmanager
def besiege(
    folder: Path,
    s3: S3Server,
    prefect_url: str,
    *,
    n_rows: int,
    n_servers: int,
    chunk_size: int,
    seed: int,
) -> Iterator[FaultedRun]:
    """Prepare a run over `n_servers`, the first of them slow, with a store that fails at random."""
    write_rows(folder, n_rows)
    flags = {
        "context_length": 4096,
        "max_running_requests": SLOTS,
        # 0.6 s an answer: slow enough for a server to be started again while others answer.
        "sim_time_scale": 0.3,
        "sim_mean_tokens": 60,
        "sim_sigma": 0.4,
        "sim_request_log": folder / "requests.jsonl",
        "sim_faults": ALWAYS,
    }
    environment = {
        "PREFECT_API_URL": prefect_url,
        # Each of a dozen clients reads all that it trusts, 60 ms of CPU, and no address is https.
        "PREFECT_API_SSL_CERT_FILE": str(write_one_certificate(folder)),
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret_key,
    }
    cli = Cli(folder / "home", environment)
    with (
        start_forks(cli.environment) as forks,
        start_simulator(n_servers, **flags) as servers,
        start_proxy(int(s3.endpoint_url.rpartition(":")[2])) as proxy,
    ):
        proxy.misbehave(seed, refused_share=0.03, lost_share=0.05)
        urls = ", ".join(f'"{server.base_url}"' for server in servers)
        config = folder / "run.yaml"
        config.write_text(
            CONFIG.format(
                bucket=s3.bucket,
                prefix=name_prefix(folder),
                results=folder / "results",
                endpoint=proxy.url,
                chunk_size=chunk_size,
                urls=urls,
            )
        )
        run = FaultedRun(
            cli=cli,
            config=config,
            servers=servers,
            s3=s3,
            client=s3.client(),
            proxy=proxy,
            forks=forks,
            folder=folder,
            luck=random.Random(seed),
        )
        run.harm(servers[0], **SLOW)
        yield run
