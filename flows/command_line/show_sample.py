"""One sample, from its tokens back to the row that it was asked by, and the server that answered.

Enters: a sample's id, a prefix. Leaves: its lineage, its ids with their mask, and the text that was
recorded, side by side. Only the store and the target's tokenizer are needed.
"""

from __future__ import annotations

import re
from contextlib import closing
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flows.dataset.export import list_parts, load_template, read_finished
from flows.dataset.inspect import open_prefix
from flows.process.speak import table
from tasks.chat.template import ChatTemplate
from tasks.completions.record import Completion, Outcome
from tasks.errors import UserError
from tasks.prompts.record import Plan, Prompt
from tasks.storage.record import Manifest
from tasks.storage.store import ArtifactStore
from tasks.tokens.asked import AnsweredPart, iter_outcomes, read_asked
from tasks.tokens.assemble import iter_samples
from tasks.tokens.record import Sample, SamplesReceipt

_ID = re.compile(r"(?P<prompt>[0-9a-f]{32})(?:#s(?P<sample>\d+))?(?:#g(?P<generation>\d+))?")
_STYLES = {0: ("cyan", "cyan dim"), 1: ("green", "green dim")}


def find_sample(sample_id: str, prefix: str) -> dict[str, Any]:
    """Find all that is known of a sample.

    Args:
        sample_id: `{prompt_id}#s{sample}#g{generation}`; without the ends, the first of each.
        prefix: A uri, a folder, or a configuration that names the store.

    Raises:
        UserError: It is no sample's id, or no such sample is in the newest revision.
        ModelError: The target's tokenizer cannot be loaded.
    """
    match = _ID.fullmatch(sample_id)
    if match is None:
        raise _unknown(sample_id, "it is not of the form PROMPT#s0#g0")
    conversation = match["prompt"], int(match["sample"] or 0)
    generation = int(match["generation"] or 0)
    with closing(open_prefix(prefix)) as store:
        manifest = read_finished(store)
        part, prompt = _find_part(store, manifest, conversation, sample_id)
        outcome = _find_outcome(store, part, conversation)
        completion = next((c for c in outcome.completions if c.generation == generation), None)
        if completion is None:
            raise _unknown(
                sample_id,
                f"its conversation is {outcome.status} and has {len(outcome.completions)} "
                "generations",
            )
        name = f"{conversation[0]}#s{conversation[1]}#g{generation}"
        receipt, sample = _find_row(store, manifest, part, name)
        template = load_template(manifest)
        return {
            "id": name,
            "lineage": {
                **_describe_source(prompt),
                **_describe_answer(part, outcome, completion),
                **_describe_run(store, manifest, part, receipt),
            },
            "messages": completion.messages,
            "tools": prompt.tools,
            "reasoning": completion.reasoning,
            "content": completion.content,
            "tool_calls": completion.tool_calls,
            "in_samples": sample is not None,
            "sample": None if sample is None else _describe_sample(sample, template),
        }


def describe_sample(found: dict[str, Any]) -> RenderableType:
    """Lay the sample out: lineage, then tokens coloured by mask beside the recorded text."""
    rows = [(name, str(value)) for name, value in found["lineage"].items()]
    head = table((found["id"], ""), rows)
    if found["sample"] is None:
        left_out = "left out of the samples by the token settings: there are no ids to show"
        return Group(head, "", left_out, "", *_write_recorded(found))
    sides = Table(box=None, pad_edge=False, expand=False)
    sides.add_column("mask", style="dim")
    sides.add_column("tokens", overflow="fold", ratio=1)
    sides.add_column("recorded", overflow="fold", ratio=1)
    asked, answered = _write_recorded(found)
    for run in found["sample"]["runs"]:
        mask = run["mask"]
        tokens = Text()
        for index, piece in enumerate(run["tokens"]):
            tokens.append(piece, style=_STYLES[mask][index % 2])
        sides.add_row(f"{mask} x {len(run['tokens']):,}", tokens, answered if mask else asked)
        sides.add_row("", "", "")
    return Group(head, "", sides)


def _find_part(
    store: ArtifactStore, manifest: Manifest, conversation: tuple[str, int], sample_id: str
) -> tuple[AnsweredPart, Prompt]:
    """Find the part in which the conversation counts; a later retry wins."""
    plan = Plan.model_validate(manifest.plan)
    for part in reversed(list_parts(store, manifest)):
        if conversation in part.superseded:
            continue
        prompt = read_asked(store, plan, part.asked).get(conversation)
        if prompt is not None:
            return part, prompt
    raise _unknown(sample_id, "no such prompt, or no such sample of it, was asked in this run")


def _find_outcome(
    store: ArtifactStore, part: AnsweredPart, conversation: tuple[str, int]
) -> Outcome:
    return next(
        outcome
        for outcome in iter_outcomes(store, part)
        if (outcome.prompt_id, outcome.sample) == conversation
    )


def _find_row(
    store: ArtifactStore, manifest: Manifest, part: AnsweredPart, name: str
) -> tuple[SamplesReceipt, Sample | None]:
    receipt = next(
        SamplesReceipt.model_validate(made)
        for made in manifest.samples
        if made["data_key"] == part.receipt.key
    )
    return receipt, next((s for s in iter_samples(store, receipt) if s.id == name), None)


def _describe_source(prompt: Prompt) -> dict[str, Any]:
    source = prompt.source
    return {
        "source": f"{source.dataset} ({source.config or 'no config'}, {source.split})",
        "source revision": source.revision,
        "source row": source.row,
        "domain": f"{prompt.domain} (rule: {prompt.domain_rule})",
    }


def _describe_answer(
    part: AnsweredPart, outcome: Outcome, completion: Completion
) -> dict[str, Any]:
    usage = completion.usage
    versions = part.receipt.footer.server_versions
    return {
        "conversation": f"{outcome.status}, attempt {outcome.attempt}",
        "finish reason": completion.finish_reason,
        "endpoint": completion.endpoint,
        "server version": versions.get(completion.endpoint, "unknown"),
        "route of the ids": completion.token_source,
        "requests": completion.attempts,
        "latency": f"{completion.latency_seconds:.1f} s",
        "usage": f"{usage.prompt_tokens} prompt, {usage.completion_tokens} answer tokens",
    }


def _describe_run(
    store: ArtifactStore, manifest: Manifest, part: AnsweredPart, receipt: SamplesReceipt
) -> dict[str, Any]:
    plan = manifest.plan
    return {
        "model": f"{plan['model']} @ {plan['model_revision'] or 'newest at the time'}",
        "sampling": plan["sampling"],
        "plan": manifest.plan_sha,
        "data part": f"{store.uri}/{part.receipt.key}",
        "samples part": f"{store.uri}/{receipt.key}",
        "dataset": f"{store.uri}, revision r{manifest.revision:04d}",
    }


def _describe_sample(sample: Sample, template: ChatTemplate) -> dict[str, Any]:
    ids, mask = sample.input_ids.tolist(), sample.loss_mask.tolist()
    edges = [0, *(i for i in range(1, len(mask)) if mask[i] != mask[i - 1]), len(mask)]
    runs = [
        {
            "mask": mask[start],
            "ids": ids[start:end],
            # One by one, so that the edges show; a character split over tokens shows as U+FFFD.
            "tokens": [template.decode([token]) for token in ids[start:end]],
            "text": template.decode(ids[start:end]),
        }
        for start, end in pairwise(edges)
    ]
    return {
        "seq_len": sample.seq_len,
        "n_supervised_tokens": int(sample.loss_mask.sum()),
        "token_source": sample.token_source,
        "runs": runs,
    }


def _write_recorded(found: dict[str, Any]) -> tuple[Text, Text]:
    """Write what was asked and what was answered, as the part holds it."""
    asked, answered = Text(), Text()
    for message in found["messages"]:
        asked.append(f"{message['role']}: ", style="bold")
        asked.append(f"{message.get('content') or message.get('tool_calls')}\n")
    for name in ("reasoning", "content", "tool_calls"):
        if found[name]:
            answered.append(f"{name}: ", style="bold")
            answered.append(f"{found[name]}\n")
    return asked, answered


def _unknown(sample_id: str, why: str) -> UserError:
    return UserError(
        f"there is no such sample: {why}",
        where=sample_id,
        remedy="Take an id from the dataset's column `id`, or from the report.",
    )
