"""A run of generation without extraction: invented prompts, a folder as store, a plan.

prompts = invent_prompts(template, 40)
run = build_run(tmp_path, template, [prompts[:20], prompts[20:]])
async with run.dispatch(servers) as dispatcher:
    receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import orjson

from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.completions.config import GatesConfig, GenerationConfig, SamplingConfig
from tasks.completions.context import GenerationContext
from tasks.completions.dispatch import Dispatcher
from tasks.completions.progress import Progress
from tasks.completions.record import Outcome
from tasks.completions.rolling import RunWatch
from tasks.prompts.prompt_file import PROMPT_SCHEMA, Columns, RecordWriter, encode_record
from tasks.prompts.record import Chunk, Message, Plan, Prompt, SourceRef, hash_prompt
from tasks.serving.record import Capability, Endpoint
from tasks.storage.config import StoreConfig
from tasks.storage.layout import prompts_key
from tasks.storage.part import iter_rows
from tasks.storage.store import ArtifactStore, open_store
from tests.support.simulator import MODEL_DIR, SimulatedServer

CONTEXT_LENGTH = 4096
_TOPICS = ("primes", "rivers", "tea", "a lighthouse", "sorting", "fractions", "maps", "bread")


@cache
def load_template() -> ChatTemplate:
    """Load the simulator's tokenizer and template, once a process."""
    return ChatTemplate.load(ModelConfig(path=str(MODEL_DIR)))


def make_prompt(
    template: ChatTemplate,
    messages: list[Message],
    tools: str | None = None,
    *,
    row: int = 0,
    thinking: bool = True,
) -> Prompt:
    """Make a Prompt as extraction would."""
    first = next(i for i, message in enumerate(messages) if message["role"] == "user")
    return Prompt(
        id=hash_prompt(messages, tools),
        messages=messages,
        tools=tools,
        domain="general",
        domain_rule="source",
        source=SourceRef("invented", "invented", None, "train", "0" * 40, row),
        prompt_token_ids=template.render(messages[: first + 1], tools, thinking=thinking),
    )


def invent_prompts(template: ChatTemplate, n: int, *, thinking: bool = True) -> list[Prompt]:
    """Invent `n` different questions of one turn."""
    return [
        make_prompt(
            template,
            [{"role": "user", "content": f"Question {row}: tell me about {_TOPICS[row % 8]}."}],
            row=row,
            thinking=thinking,
        )
        for row in range(n)
    ]


def make_endpoint(
    base_url: str, *, slots: int = 8, capability: Capability = "native", version: str = "0.5.12"
) -> Endpoint:
    """Make an Endpoint as probing would."""
    return Endpoint(
        base_url=base_url,
        slots=slots,
        server_version=version,
        model="simulated",
        context_length=CONTEXT_LENGTH,
        capability=capability,
    )


@dataclass(slots=True)
class GenerationRun:
    """A plan in a store, with the settings to generate it."""

    store: ArtifactStore
    spool_dir: Path
    plan: Plan
    prompts: list[list[Prompt]]
    template: ChatTemplate
    generation: GenerationConfig
    gates: GatesConfig = field(default_factory=GatesConfig)

    def dispatch(
        self, servers: Sequence[SimulatedServer], *, slots: int = 8, version: str = "0.5.12"
    ) -> Dispatcher:
        """Make a dispatcher over simulated servers of one version."""
        capability: Capability = "native" if version == "0.5.12" else "chat"
        endpoints = [
            make_endpoint(server.base_url, slots=slots, capability=capability, version=version)
            for server in servers
        ]
        return Dispatcher(endpoints, self.generation)

    def context(
        self,
        dispatcher: Dispatcher,
        on_progress: Callable[[Progress], None] | None = None,
        *,
        watch: RunWatch | None = None,
        inspect: Callable[[Path], Awaitable[None]] | None = None,
    ) -> GenerationContext:
        """Make the context of the run."""
        return GenerationContext(
            plan=self.plan,
            template=self.template,
            store=self.store,
            dispatcher=dispatcher,
            spool_dir=self.spool_dir,
            generation=self.generation,
            gates=self.gates,
            on_progress=on_progress,
            watch=watch,
            inspect_canary=inspect,
        )

    def read_outcomes(self, key: str) -> list[Outcome]:
        """Read the rows of a part."""
        return [msgspec.json.decode(row, type=Outcome) for row in iter_rows(self.store, key)]

    def expect_ids(self, chunk_id: int) -> list[tuple[str, int]]:
        """List the conversations that a chunk's part must hold, in order."""
        return [
            (prompt.id, sample)
            for prompt in self.prompts[chunk_id]
            for sample in range(self.plan.n_samples)
        ]


def build_run(
    folder: Path,
    template: ChatTemplate,
    chunks: Sequence[Sequence[Prompt]],
    *,
    generation: GenerationConfig | None = None,
    gates: GatesConfig | None = None,
    n_samples: int = 1,
    max_tokens: int = 2000,
    thinking: bool = True,
    context_length: int = CONTEXT_LENGTH,
    store: ArtifactStore | None = None,
) -> GenerationRun:
    """Write chunks of prompts into `store`, or into one below `folder`, and plan them.

    Building the same run again in the same folder gives the same plan over the same store.
    """
    store = store or open_store(StoreConfig(uri=f"file://{folder}/store", protected=()))
    written = [_write_chunk(store, folder, index, prompts) for index, prompts in enumerate(chunks)]
    sampling = SamplingConfig(max_tokens=max_tokens, n_samples=n_samples).model_dump()
    plan = Plan(
        request_sha="0" * 64,
        model="simulated",
        model_revision=None,
        dtype="auto",
        quantization=None,
        tokenizer_sha256=template.tokenizer_sha256,
        chat_template_sha256=template.chat_template_sha256,
        context_length=context_length,
        max_tokens=max_tokens,
        thinking=thinking,
        reasoning_parser="qwen3",
        tool_call_parser="qwen3_coder",
        sampling=sampling,
        n_samples=n_samples,
        extracted=(),
        n_duplicates=0,
        chunks=tuple(written),
    )
    # Simulated paragraphs come from a small stock: two short answers may be the same.
    quiet = GatesConfig(accept=("duplicate",))
    return GenerationRun(
        store=store,
        spool_dir=folder / "spool",
        plan=plan,
        prompts=[list(prompts) for prompts in chunks],
        template=template,
        generation=generation or GenerationConfig(),
        gates=gates or quiet,
    )


def _write_chunk(
    store: ArtifactStore, folder: Path, index: int, prompts: Sequence[Prompt]
) -> Chunk:
    path = folder / f"chunk-{index}.parquet"
    digest = hashlib.sha256()
    with RecordWriter(path, PROMPT_SCHEMA) as writer:
        for prompt in prompts:
            record = _to_record(prompt)
            digest.update(encode_record(record))
            writer.append(record)
    key = prompts_key(index)
    store.create_file(key, path)
    return Chunk(id=index, n_prompts=len(prompts), prompts_key=key, input_sha256=digest.hexdigest())


def _to_record(prompt: Prompt) -> Columns:
    return {
        "id": prompt.id,
        "messages": orjson.dumps(prompt.messages).decode(),
        "tools": prompt.tools,
        "domain": prompt.domain,
        "domain_rule": prompt.domain_rule,
        "source_key": prompt.source.key,
        "dataset": prompt.source.dataset,
        "config": prompt.source.config,
        "split": prompt.source.split,
        "revision": prompt.source.revision,
        "row": prompt.source.row,
        "prompt_token_ids": prompt.prompt_token_ids,
    }


def read_request_log(path: Path) -> list[dict[str, Any]]:
    """Read a simulator's request log; a line being written when it was killed is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def count_sent(path: Path, outcome: str = "completed") -> Counter[str]:
    """Count the generations of each prompt (by its hash) that ended in `outcome`."""
    return Counter(
        line["prompt_hash"] for line in read_request_log(path) if line["outcome"] == outcome
    )
