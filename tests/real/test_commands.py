"""Every command that README and docs tell of is run as they write it, in the order of the road.

A folder as a user has it: a configuration, rows, a bucket, a home, a Hub. What stands in capitals
is filled in. tests/unit/test_documented.py holds that no command of a page is left out.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.cli import Cli
from tests.support.command_forks import Call, start_forks
from tests.support.commands import list_commands
from tests.support.documented_runs import ANSWERS, CODES, STEPS
from tests.support.hub_uploads import TOKEN, serve_upload_hub
from tests.support.s3 import S3Server, start_seaweedfs
from tests.support.simulator import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

BIN = Path(sys.executable).parent
RUN = "expansion_v1/run1"
CONFIG = """
extends: demo
store:
  uri: s3://my-bucket/expansion_v1/run1
  s3: {{endpoint_url: {endpoint}, region: us-east-1, addressing_style: path}}
sources:
  mine: {{path: rows.jsonl, mapping: {{prompt: question}}, quota: 60}}
extraction: {{chunk_size: 40, canary_size: 24}}
serving:
  n_servers: 1
  simulator: {{time_scale: 0.01, mean_tokens: 60}}
  outlook: {{mean_output_tokens: 60, server_tokens_per_second: 1000}}
"""


@dataclass(frozen=True)
class Box:
    """A user's folder and shell."""

    folder: Path
    environment: dict[str, str]
    server: S3Server
    ran: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)

    def call(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a line of shell; what two pages write alike is run once."""
        if command not in self.ran:
            self.ran[command] = self._call(command)
        return self.ran[command]

    def _call(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", self.fill_in(command)],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )

    def fill_in(self, command: str) -> str:
        """Put the id of a sample where one is asked for."""
        if "SAMPLE_ID" not in command:
            return command
        return command.replace("SAMPLE_ID", shlex.quote(self.find_sample()))

    def find_sample(self) -> str:
        """Find the id of a sample in the dataset."""
        client = self.server.client()
        key = f"{RUN}/dataset/r0000/part-000000.parquet"
        data = client.get_object(Bucket=self.server.bucket, Key=key)["Body"].read()
        return str(pq.read_table(io.BytesIO(data), columns=["id"]).column("id")[0].as_py())


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> Iterator[Box]:
    folder = tmp_path_factory.mktemp("box")
    rows = [{"question": f"Describe island number {n} in two sentences."} for n in range(60)]
    for name in ("rows.jsonl", "prompts.jsonl"):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "try.yaml").write_text(read_block("extends: demo"))
    (folder / "fleet.yaml").write_text("extends: demo\nserving: {n_servers: 1}\n")
    (folder / "s3").mkdir()
    with (
        start_seaweedfs(folder / "s3", bucket="my-bucket") as server,
        serve_upload_hub() as hub,
    ):
        (folder / "run.yaml").write_text(CONFIG.format(endpoint=server.endpoint_url))
        environment = {
            "PREFECT_API_URL": prefect_url,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(folder),
            "AWS_ENDPOINT_URL": server.endpoint_url,
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "HF_ENDPOINT": hub.url,
            "HF_HUB_DISABLE_XET": "1",
            "DRAFTMILL_HF_TOKEN": TOKEN,
        }
        yield Box(folder, Cli(folder / "home", environment).environment, server)


def read_block(first: str) -> str:
    """Read the README's block of YAML that begins with a line."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(rf"^    {first}\n(?:    .*\n|\n)+", readme, re.M)
    assert block
    return re.sub(r"^    ", "", block[0], flags=re.M)


@pytest.mark.parametrize(("told", "run"), STEPS.items(), ids=list(STEPS))
def test_a_documented_command_does_what_it_should(box: Box, told: str, run: str) -> None:
    assert all(shutil.which(word) for word in ("bash", "jq")), ".ci/run installs what is missing"
    ran = box.call(run or told)
    assert ran.returncode in CODES.get(told, (0,)), ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    if run.endswith(" --json"):
        assert_one_document(ran.stdout, told)
    # A command that answers says so, and where it names the next one that one exists.
    assert ran.stdout or ">" in (run or told)
    for words in re.findall(r"^next\s+draftmill (.+)$", ran.stderr, re.M):
        assert any(words.startswith(command.name) for command in list_commands()), words


@pytest.fixture(scope="module")
def call(box: Box) -> Iterator[Call]:
    with start_forks(box.environment, box.folder) as call:
        yield call


@pytest.mark.parametrize("name", ANSWERS)
def test_with_json_standard_output_is_one_object(box: Box, call: Call, name: str) -> None:
    words, code = ANSWERS[name]
    ran = call(*shlex.split(box.fill_in(f"{name} {words} --json")))
    assert ran.code == code, ran.out + ran.err
    assert "Traceback" not in ran.err
    assert_one_document(ran.out, f"draftmill {name}", failed=code != 0)


def assert_one_document(text: str, command: str, *, failed: bool = False) -> None:
    """Hold that standard output was one object of a kind that the command answers with."""
    document = json.loads(text)
    called = [
        each for each in list_commands() if f"{command} ".startswith(f"draftmill {each.name} ")
    ]
    kinds = ["error"] if failed else called[0].schemas
    assert document["schema"] in [f"draftmill/{kind}/1" for kind in kinds]
    assert text.isascii()
    assert "\x1b" not in text
