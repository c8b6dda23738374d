"""Object storage at length, on a real server: races, twins, a policy, a lost disk, large parts."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tasks.errors import KeyTaken
from tasks.storage.store import ArtifactStore, open_store
from tests.support.audit import audit_run, copy_prefix
from tests.support.cli import Cli
from tests.support.large_part import write_large_run
from tests.support.s3 import RUNNER, S3Server
from tests.support.simulator import ROOT

pytestmark = pytest.mark.real

N_WRITERS = 16
N_KEYS = 100
N_PROMPTS = 120
CONFIG = """
extends: demo
name: on-s3
store:
  uri: s3://{bucket}/{prefix}
  s3: {{endpoint_url: "{endpoint}", region: us-east-1, addressing_style: path}}
sources:
  mine: {{path: rows.jsonl, mapping: {{prompt: question}}}}
extraction: {{chunk_size: 30, canary_size: 20}}
serving: {{n_servers: 1, simulator: {{time_scale: {scale}, mean_tokens: 60}}}}
"""


def write_run(folder: Path, server: S3Server, prefix: str, scale: float = 0.01) -> Path:
    rows = [{"question": f"What is known of comet {n}?"} for n in range(N_PROMPTS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.yaml").write_text(
        CONFIG.format(
            bucket=server.bucket, prefix=prefix, endpoint=server.endpoint_url, scale=scale
        )
    )
    return folder / "run.yaml"


def with_keys(cli: Cli, server: S3Server, home: Path | None = None) -> Cli:
    keys = {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_ENDPOINT_URL_S3": server.endpoint_url,
        "AWS_REGION": "us-east-1",
    }
    return Cli(home or cli.home, {**cli.env, **keys})


def hash_dataset(folder: Path, revision: str = "r0000") -> str:
    shards = sorted((folder / "dataset" / revision).iterdir())
    return hashlib.sha256(b"".join(shard.read_bytes() for shard in shards)).hexdigest()


def test_of_sixteen_writers_exactly_one_wins_each_of_a_hundred_keys(seaweedfs: S3Server) -> None:
    stores = [
        open_store(seaweedfs.config("hundred-races"), seaweedfs.credentials) for _ in range(4)
    ]
    barrier = threading.Barrier(N_WRITERS)
    keys = [f"race/{number:03d}" for number in range(N_KEYS)]

    def write(writer: int) -> list[str]:
        store: ArtifactStore = stores[writer % len(stores)]
        won = []
        for number, key in enumerate(keys):
            if number % 10 == 0:  # between them nobody gets far ahead
                barrier.wait(timeout=120)
            try:
                store.create(key, f"writer {writer} ".encode() * 500)
            except KeyTaken:
                continue
            won.append(key)
        return won

    with ThreadPoolExecutor(N_WRITERS) as pool:
        wins = list(pool.map(write, range(N_WRITERS)))
    assert sorted(key for won in wins for key in won) == keys
    for writer, won in enumerate(wins):
        for key in won:
            assert stores[0].get(key) == f"writer {writer} ".encode() * 500
    for store in stores:
        store.close()


def test_two_runs_at_once_end_in_one_dataset_and_the_second_says_so(
    cli: Cli, seaweedfs: S3Server, tmp_path: Path
) -> None:
    prefix = "expansion_v1/two-at-once"
    config = write_run(tmp_path, seaweedfs, prefix, scale=1.0)
    homes = [with_keys(cli, seaweedfs, tmp_path / name) for name in ("one", "two")]
    with (
        homes[0].start("run", str(config), "--json") as one,
        homes[1].start("run", str(config), "--json") as two,
    ):
        told = [process.communicate(timeout=400) for process in (one, two)]
        assert [one.returncode, two.returncode] == [0, 0], told
    # Whichever came second to the prefix.
    assert sum("another run is at work at this prefix" in err for _, err in told) >= 1
    assert len({json.loads(out)["manifest"] for out, _ in told}) == 1
    audit_run(copy_prefix(seaweedfs.client(), seaweedfs.bucket, prefix, tmp_path / "copy"))
    assert homes[1]("verify", f"s3://{seaweedfs.bucket}/{prefix}").code == 0


def test_the_dataset_is_rebuilt_from_the_store_alone_to_the_same_hash(
    cli: Cli, seaweedfs: S3Server, tmp_path: Path
) -> None:
    prefix = "expansion_v1/disk-lost"
    config = write_run(tmp_path, seaweedfs, prefix)
    cli = with_keys(cli, seaweedfs)
    assert cli("run", str(config)).code == 0
    client = seaweedfs.client()
    folder = copy_prefix(client, seaweedfs.bucket, prefix, tmp_path / "before")
    shutil.rmtree(cli.home)  # journals, Prefect's database, servers' state
    for page in client.get_paginator("list_objects_v2").paginate(
        Bucket=seaweedfs.bucket, Prefix=f"{prefix}/"
    ):
        for entry in page["Contents"]:
            kept = ("_run/request.json", "_run/plan.json", "prompts/", "data/", "extracted/")
            if not entry["Key"].removeprefix(f"{prefix}/").startswith(kept):
                client.delete_object(Bucket=seaweedfs.bucket, Key=entry["Key"])
    told = cli("run", str(config), "--json")
    assert told.code == 0, told.err
    again = copy_prefix(client, seaweedfs.bucket, prefix, tmp_path / "after")
    assert hash_dataset(again) == hash_dataset(folder)
    audit_run(again)


def test_the_whole_flow_runs_under_the_policy_and_what_it_denies_is_denied(
    cli: Cli, seaweedfs: S3Server, tmp_path: Path
) -> None:
    prefix = "expansion_v1/by-policy"
    config = write_run(tmp_path, seaweedfs, prefix)
    arn = "arn:aws:iam::000000000000:user/runner"
    policy = cli("policy", str(config), "--principal", arn, "--json").json["policy"]
    admin = seaweedfs.client()
    admin.put_bucket_policy(Bucket=seaweedfs.bucket, Policy=json.dumps(policy))
    try:
        runner = seaweedfs.as_user(*RUNNER)
        told = with_keys(cli, runner)("run", str(config), "--json")
        assert told.code == 0, told.err
        verified = with_keys(cli, runner)("verify", str(config))
        assert verified.code == 0, verified.out + verified.err
        client = runner.client()
        request = f"{prefix}/_run/request.json"
        denied: dict[str, Callable[[], object]] = {
            "list protected": lambda: client.list_objects_v2(
                Bucket=runner.bucket, Prefix="completions/"
            ),
            "delete": lambda: client.delete_object(Bucket=runner.bucket, Key=request),
            "read protected": lambda: client.get_object(
                Bucket=runner.bucket, Key="completions/part-000000.jsonl.zst"
            ),
            "write protected": lambda: client.put_object(
                Bucket=runner.bucket, Key="completions/new", Body=b""
            ),
            "write elsewhere": lambda: client.put_object(
                Bucket=runner.bucket, Key="elsewhere", Body=b""
            ),
        }
        for what, call in denied.items():
            with pytest.raises(ClientError) as refused:
                call()
            assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403, what
    finally:
        admin.delete_bucket_policy(Bucket=seaweedfs.bucket)


_MEASURE = """
import resource, sys
from tasks.storage.config import StoreConfig
from tasks.storage.store import open_store
from tasks.storage.verify import verify_dataset
store = open_store(StoreConfig(uri=sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
verdict = verify_dataset(store)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(after - before, verdict.ok)
"""


def test_a_part_larger_than_the_memory_it_may_take_is_verified(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_large_run(run, n_rows=6000)
    told = subprocess.run(
        [sys.executable, "-c", _MEASURE, run.as_uri()],
        cwd=ROOT,
        check=True,
        text=True,
        capture_output=True,
    )
    grown_kib, ok = told.stdout.split()
    n_bytes = sum(path.stat().st_size for path in (run / "data").iterdir())
    assert ok == "True"
    assert n_bytes > 150 << 20
    assert int(grown_kib) < 40 << 10, f"{int(grown_kib) >> 10} MiB for {n_bytes >> 20} MiB"
