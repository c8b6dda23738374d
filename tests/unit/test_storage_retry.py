"""Retries: frozen once, cut into parts, and a later one wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.errors import CorruptPart
from tasks.storage import layout
from tasks.storage.config import StoreConfig
from tasks.storage.record import (
    PartFooter,
    PartHeader,
    PartReceipt,
    RetriedConversation,
    RetryList,
    Superseded,
)
from tasks.storage.retry import (
    CONVERSATIONS_A_PART,
    Standing,
    freeze_retry,
    hash_retries,
    read_retries,
    split_retry,
    sum_standing,
    sum_superseded,
)
from tasks.storage.store import ArtifactStore, open_store

PLAN = "ab" * 32


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(StoreConfig(uri=(tmp_path / "store").as_uri()))


def entry(number: int, chunk_id: int = 0, **fields: object) -> RetriedConversation:
    values = {
        "prompt_id": f"p{number}",
        "sample": 0,
        "chunk_id": chunk_id,
        "part_key": layout.data_key(chunk_id),
        "part_sha256": "0" * 64,
        "status": "failed",
        "failure": "deadline",
        "flags": (),
        "n_generations": 0,
        "n_prompt_tokens": 0,
        "n_output_tokens": 0,
    }
    return RetriedConversation.model_validate({**values, **fields})


def retry(number: int, *entries: RetriedConversation) -> RetryList:
    return RetryList(
        retry=number, plan_sha=PLAN, reason="failures", gates=(), conversations=entries
    )


def receipt(chunk_id: int, n_rows: int, of_retry: int = 0, **counts: int) -> PartReceipt:
    names = ("n_completed", "n_truncated", "n_partial", "n_failed", "n_generations")
    footer = PartFooter.model_validate(
        {
            **dict.fromkeys((*names, "n_prompt_tokens", "n_output_tokens"), 0),
            "n_rows": n_rows,
            **counts,
            "failures": {},
            "gates": {},
            "server_versions": {},
            "rows_sha256": "",
        }
    )
    header = PartHeader(plan_sha=PLAN, chunk_id=chunk_id, input_sha256="", retry=of_retry)
    key = layout.part_key(layout.PartPlace(of_retry, chunk_id, 0))
    return PartReceipt(key=key, sha256="0" * 64, n_bytes=1, header=header, footer=footer)


def test_the_first_list_of_a_number_wins(store: ArtifactStore) -> None:
    first = retry(1, entry(1))
    assert freeze_retry(store, first) == first
    assert freeze_retry(store, retry(1, entry(1), entry(2))) == first
    later = freeze_retry(store, retry(2, entry(3)))
    assert read_retries(store, PLAN) == [first, later]
    assert list(hash_retries(store, 1)) == [layout.retry_key(1)]


def test_a_damaged_or_missing_list_is_told(store: ArtifactStore) -> None:
    freeze_retry(store, retry(2, entry(1)))
    with pytest.raises(CorruptPart, match="it is missing"):
        read_retries(store, PLAN)
    store.create(layout.retry_key(1), b"{}")
    with pytest.raises(CorruptPart, match="damaged"):
        read_retries(store, PLAN)


def test_a_long_list_becomes_several_parts_with_every_conversation_once() -> None:
    asked = retry(1, *(entry(number) for number in range(2 * CONVERSATIONS_A_PART + 1)))
    shares = split_retry(asked)
    assert [len(share.conversations) for share in shares] == [1000, 1000, 1]
    assert sum((share.conversations for share in shares), ()) == asked.conversations
    assert len({share.input_sha256 for share in shares}) == 3


def test_a_later_retry_stands_in_for_an_earlier_one() -> None:
    lists = (retry(1, entry(1), entry(2, chunk_id=1)), retry(2, entry(2, chunk_id=1)))
    retries = (receipt(0, 2, of_retry=1), receipt(0, 1, of_retry=2))
    standing = Standing((receipt(0, 5), receipt(1, 5)), retries, lists)
    located = {key: set(found) for key, found in standing.locate_superseded().items()}
    assert located == {
        layout.data_key(0): {("p1", 0)},
        layout.data_key(1): {("p2", 0)},
        layout.part_key(layout.PartPlace(1, 0, 0)): {("p2", 0)},
    }
    assert standing.list_open() == []
    unfinished = Standing(standing.parts, retries[:1], lists)
    assert [(share.retry, share.id) for share in unfinished.list_open()] == [(2, 0)]


def test_what_no_longer_counts_is_known_while_parts_are_still_to_come() -> None:
    lists = (retry(1, entry(1), entry(2, chunk_id=1)), retry(2, entry(2, chunk_id=1)))
    # Chunk 1 has no part now, and the second retry has none yet.
    standing = Standing((receipt(0, 5),), (receipt(0, 2, of_retry=1),), lists)
    gone = standing.sum_retried()
    assert {key: each.n_rows for key, each in gone.items()} == {layout.data_key(0): 1}
    whole = Standing(
        (receipt(0, 5), receipt(1, 5)),
        (receipt(0, 2, of_retry=1), receipt(0, 1, of_retry=2)),
        lists,
    )
    located = {key: len(entries) for key, entries in whole.locate_superseded().items()}
    assert {key: each.n_rows for key, each in whole.sum_retried().items()} == located


def test_sums_leave_out_what_no_longer_counts() -> None:
    parts = [
        receipt(0, 5, n_completed=3, n_failed=2, n_generations=4),
        receipt(0, 2, of_retry=1, n_completed=2, n_generations=2),
    ]
    gone = sum_superseded([entry(1), entry(2, status="partial", n_generations=1)])
    assert (gone.n_rows, gone.n_failed, gone.n_partial) == (2, 1, 1)
    assert gone.failures == {"deadline": 2}
    both_failed = sum_superseded([entry(1), entry(2)])
    sums = sum_standing(parts, {layout.data_key(0): both_failed})
    assert (sums["n_rows"], sums["n_completed"], sums["n_failed"]) == (5, 5, 0)
    assert sum_standing(parts, {"another": Superseded(n_rows=9)})["n_rows"] == 7


@pytest.mark.parametrize("key", ["data/retry-00-part-000000.jsonl.zst", "_run/retry-1.json"])
def test_another_spelling_is_no_key_of_a_retry(key: str) -> None:
    assert layout.parse_part_key(key) is None
    assert layout.parse_retry_key(key) is None


def test_keys_of_retries_are_read_back() -> None:
    assert layout.retry_key(1) == "_run/retry-01.json"
    assert layout.parse_retry_key(layout.retry_key(123)) == 123
    key = layout.part_key(layout.PartPlace(1, 2, 3))
    assert key == "data/retry-01-part-000002.r3.jsonl.zst"
    assert layout.parse_part_key(key) == (1, 2, 3)
    assert layout.parse_data_key(key) is None, "it is no chunk's part"
    sha = "0" * 64
    assert layout.tokens_key("abcdef012345", key, sha).startswith("tokens/abcdef012345/retry-01-")
