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
    bodies = [array[1:-1] for array in arrays]
    lengths = np.array([body.count(b",") + 1 if body else 0 for body in bodies], dtype=np.int64)
    joined = b",".join([body for body in bodies if body])
    # The fast way knows digits and single commas only; anything else is read, or refused, one by
    # one.
    plain = (
        not joined.translate(None, b"0123456789,")
        and b",," not in joined
        and not joined.startswith(b",")
        and not joined.endswith(b",")
        and all(array[:1] == b"[" and array[-1:] == b"]" for array in arrays)
    )
    if not plain:
        return _parse_one_by_one(arrays)
    flat = np.fromstring(joined, dtype=np.int64, sep=",")
    if len(flat) and flat.max() > _INT32_MAX:
        return _parse_one_by_one(arrays)
    return flat.astype(np.int32), lengths


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
