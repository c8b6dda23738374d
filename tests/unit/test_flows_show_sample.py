"""From a sample back to its source row, its server and its plan; its tokens beside its text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from flows.command_line.show_sample import describe_sample, find_sample
from tasks.errors import UserError
from tests.support.assembling import SETTINGS
from tests.support.finished import FinishedRun, finish_run
from tests.support.outcomes import to_ids


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return finish_run(tmp_path_factory.mktemp("run"))


def test_every_generation_is_traced_to_its_row_server_and_plan(finished: FinishedRun) -> None:
    rows = {prompt.id: prompt.source.row for prompt in finished.run.prompts[0]}
    completions = [c for outcome in finished.outcomes for c in outcome.completions]
    for completion in completions:
        name = f"{completion.prompt_id}#s0#g{completion.generation}"
        found = find_sample(name, finished.prefix)
        lineage = found["lineage"]
        assert lineage["source row"] == rows[completion.prompt_id]
        assert (lineage["endpoint"], lineage["server version"]) == ("http://127.0.0.1:1", "0.5.23")
        assert lineage["plan"] == finished.run.plan.sha
        asked, answered = found["sample"]["runs"]
        assert (asked["mask"], answered["mask"]) == (0, 1)
        assert asked["ids"] == to_ids(completion.prompt_token_ids)
        assert answered["ids"] == to_ids(completion.output_token_ids)
        assert answered["text"] == finished.run.template.decode(answered["ids"])
        assert found["content"] == completion.content


def test_tokens_are_coloured_by_their_mask_beside_the_recorded_text(finished: FinishedRun) -> None:
    first = finished.outcomes[0].completions[0]
    found = find_sample(first.prompt_id, finished.prefix)
    console = Console(file=io.StringIO(), force_terminal=True, width=140, color_system="standard")
    console.print(describe_sample(found))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[36m" in shown, "mask 0 in cyan"
    assert "\x1b[32m" in shown, "mask 1 in green"
    assert "reasoning: " in shown
    assert str(finished.run.plan.sha) in shown


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing", "not of the form"),
        ("0" * 32 + "#s0#g0", "no such prompt"),
        ("{prompt}#s3#g0", "no such sample of it"),
        ("{prompt}#s0#g7", "has 1 generations"),
    ],
)
def test_what_is_no_sample_is_told(finished: FinishedRun, name: str, why: str) -> None:
    prompt = finished.run.prompts[0][0].id
    with pytest.raises(UserError, match=why):
        find_sample(name.format(prompt=prompt), finished.prefix)


def test_a_generation_that_the_policy_left_out_is_shown_without_ids(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    drop = SETTINGS.model_copy(update={"truncated": "drop"})
    finished = finish_run(tmp_path_factory.mktemp("dropped"), tokens=drop)
    cut = finished.outcomes[-1]
    assert cut.status == "truncated"
    found = find_sample(cut.prompt_id, finished.prefix)
    assert found["sample"] is None
    assert found["lineage"]["finish reason"] == "length"
    describe_sample(found)
