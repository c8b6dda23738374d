"""JSON arrays of ids parse to the same numbers as a JSON parser gives, or are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.tokens.ids import BadIds, parse_id_arrays

IDS = st.lists(st.integers(0, 2**31 - 1))


@given(st.lists(IDS), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_parsing_many_arrays_is_parsing_each(
    arrays: list[list[int]], separators: tuple[str, str]
) -> None:
    written = [json.dumps(array, separators=separators).encode() for array in arrays]
    flat, lengths = parse_id_arrays(written)
    assert flat.dtype == np.int32
    assert flat.tolist() == [value for array in arrays for value in array]
    assert lengths.tolist() == [len(array) for array in arrays]


@pytest.mark.parametrize(
    "bad",
    b'|7|[1|1]|{1}|[1,,2]|[,1]|[1,]|[-1]|[1.5]|["1"]|[2147483648]|[null]|[[1]]|[1]x|null'.split(
        b"|"
    ),
)
def test_what_is_no_array_of_ids_is_named_by_its_place(bad: bytes) -> None:
    with pytest.raises(BadIds) as error:
        parse_id_arrays([b"[1,2]", bad, b"[3]"])
    assert error.value.index == 1
    assert error.value.reason
