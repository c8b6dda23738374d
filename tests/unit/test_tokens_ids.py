"""JSON arrays of ids parse to the same numbers as a JSON parser gives, or are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.tokens import ids
from tasks.tokens.ids import BadIds, parse_id_arrays

IDS = st.lists(st.integers(0, 2**31 - 1))
SHORT_IDS = st.lists(
    st.integers(1, 8).flatmap(lambda n: st.integers(10 ** (n - 1), 10**n - 1)) | st.just(0)
)


@given(st.lists(IDS), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_parsing_many_arrays_is_parsing_each(
    arrays: list[list[int]], separators: tuple[str, str]
) -> None:
    written = [json.dumps(array, separators=separators).encode() for array in arrays]
    flat, lengths = parse_id_arrays(written)
    assert flat.dtype == np.int32
    assert flat.tolist() == [value for array in arrays for value in array]
    assert lengths.tolist() == [len(array) for array in arrays]


@given(st.lists(SHORT_IDS))
def test_ids_of_up_to_eight_digits_are_read_many_at_once(arrays: list[list[int]]) -> None:
    written = [json.dumps(array, separators=(",", ":")).encode() for array in arrays]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_parse_one_by_one", lambda _arrays: pytest.fail("one by one"))
        flat, lengths = parse_id_arrays(written)
    assert flat.tolist() == [value for array in arrays for value in array]
    assert lengths.tolist() == [len(array) for array in arrays]


@settings(max_examples=500)
@given(st.text("00127,,,- .e[]", max_size=12).map(lambda body: f"[{body}]"), SHORT_IDS)
def test_whatever_is_written_is_read_as_json_or_refused(text: str, before: list[int]) -> None:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    sound = values is not None and all(
        type(value) is int and 0 <= value < 2**31 for value in values
    )
    arrays = [json.dumps(before, separators=(",", ":")).encode(), text.encode()]
    if sound:
        assert parse_id_arrays(arrays)[0].tolist() == [*before, *values]
        return
    with pytest.raises(BadIds) as error:
        parse_id_arrays(arrays)
    assert error.value.index == 1


@pytest.mark.parametrize(
    "bad",
    (
        b'|7|[|[1|1]|{1}|[1,,2]|[,1]|[1,]|[-1]|[1.5]|[1.0]|[1e2]|[007]|[00]|["1"]|[true]|[2147483648]'
        b"|[99999999999999999999]|[null]|[[1]]|[1]x|null"
    ).split(b"|"),
)
def test_what_is_no_array_of_ids_is_named_by_its_place(bad: bytes) -> None:
    with pytest.raises(BadIds) as error:
        parse_id_arrays([b"[1,2]", bad, b"[3]"])
    assert error.value.index == 1
    assert error.value.reason
