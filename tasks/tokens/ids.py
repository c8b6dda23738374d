"""JSON arrays of token ids to numpy, many at once.

Enters: unparsed JSON arrays (`[1,2,3]`), as the servers wrote them. Leaves: one flat int32 array
and the length of each. It exists for speed: parsing array by array into Python lists costs more
than all the rest of assembly. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Int8Array = npt.NDArray[np.int8]

_INT32_MAX = np.iinfo(np.int32).max
_EMPTY = np.zeros(0, dtype=np.int32)
_COMMA = ord(",")
_ZERO = ord("0")
_MOST_DIGITS = 8  # of an id, so that its digits fit a word; longer ones are read one by one
_PAD = b"0" * _MOST_DIGITS

_decode_list = msgspec.json.Decoder(list[int]).decode


class BadIds(ValueError):
    """The array at `index` of those given is no JSON array of token ids."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


def parse_id_arrays(arrays: Sequence[bytes]) -> tuple[Int32Array, Int64Array]:
    """Parse JSON arrays of ids.

    Returns:
        The ids of all arrays in order, shape [n_ids], and each one's length, shape [n_arrays].

    Raises:
        BadIds: if one is no JSON array of integers from 0 to 2**31 - 1.
    """
    # The fast way knows digits and single commas only; anything else is read, or refused, one by
    # one.
    if any(array[:1] != b"[" or array[-1:] != b"]" for array in arrays):
        return _parse_one_by_one(arrays)
    # In front a pad, so that every id has a whole word before its end.
    bodies = [memoryview(array)[1:-1] for array in arrays if len(array) > len(b"[]")]
    joined = b",".join([_PAD, *bodies, b""])
    if joined.translate(None, b"0123456789,"):
        return _parse_one_by_one(arrays)
    chars = np.frombuffer(joined, np.uint8)
    ends = np.flatnonzero(chars == _COMMA)
    n_digits = np.diff(ends) - 1
    if len(n_digits) and not 1 <= n_digits.min() <= n_digits.max() <= _MOST_DIGITS:
        return _parse_one_by_one(arrays)
    # JSON has no `007`.
    if n_digits[chars[ends[:-1] + 1] == _ZERO].max(initial=1) > 1:
        return _parse_one_by_one(arrays)
    # With each array's last comma; an empty one adds nothing.
    n_bytes = [len(array) - 1 if len(array) > len(b"[]") else 0 for array in arrays]
    n_until = np.searchsorted(ends, np.cumsum(n_bytes, dtype=np.int64) + len(_PAD))
    return _read_digits(joined, ends[1:], n_digits), np.diff(n_until, prepend=0)


def _read_digits(joined: bytes, ends: Int64Array, n_digits: Int64Array) -> Int32Array:
    """Read numbers of up to eight digits, given where each ends; both arrays have shape [n_ids].

    All digits of a number are added up within one 64-bit word, neighbours first: four steps on
    whole arrays, where a parser takes one step a character.
    """
    every_eight = np.ndarray((len(joined) - 7,), "<u8", joined, strides=(1,))
    words = every_eight[ends - 8].astype(np.uint64, copy=False)
    n_before = ((_MOST_DIGITS - n_digits) * 8).astype(np.uint64)
    words &= np.uint64(0x0F0F0F0F0F0F0F0F)
    words >>= n_before  # what stands before the number goes, and zeros come in
    words <<= n_before
    for scale, n_bits, kept in (
        (10, 8, 0x00FF00FF00FF00FF),
        (100, 16, 0x0000FFFF0000FFFF),
        (10_000, 32, 0x00000000FFFFFFFF),
    ):
        words *= np.uint64(1 + (scale << n_bits))
        words >>= np.uint64(n_bits)
        words &= np.uint64(kept)
    return words.astype(np.int32)


def _parse_one_by_one(arrays: Sequence[bytes]) -> tuple[Int32Array, Int64Array]:
    parsed: list[Int32Array] = []
    for index, array in enumerate(arrays):
        try:
            values = _decode_list(array)
        except msgspec.DecodeError as error:
            raise BadIds(index, f"not a JSON array of integers ({error})") from error
        if values and (min(values) < 0 or max(values) > _INT32_MAX):
            raise BadIds(index, f"ids from {min(values)} to {max(values)}")
        parsed.append(np.array(values, dtype=np.int32))
    lengths = np.array([len(values) for values in parsed], dtype=np.int64)
    return np.concatenate([_EMPTY, *parsed]), lengths
