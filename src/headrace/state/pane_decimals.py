"""Sums of decimals, exact: 128 bits are added as four numbers of 32, which cannot overflow on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import FunctionFailed

_LOW: Final = 0xFFFFFFFF
_SURE: Final = 10**38 >> 96
"""Sums whose highest part is below this have 38 digits at most; others are looked at."""

Reduce = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


def sum_decimals(field: pa.Field, column: pa.Array, add_up: Reduce) -> pa.Array:
    """Sums of a column of decimals without nulls; ``add_up`` gives those of a column of whole numbers."""
    parts = _parts(column)
    sums = [add_up(parts[:, i].astype(np.int64)) for i in range(3)]
    sums.append(add_up(parts[:, 3].view(np.int32).astype(np.int64)))
    made = np.zeros((len(sums[0]), 4), np.uint32)
    carried: Any = 0
    for i, part in enumerate(sums):
        whole = part + carried
        made[:, i] = (whole & _LOW).astype(np.uint32)
        carried = whole >> 32
    # What is left over repeats the sign of the highest part, or something was lost.
    lost = carried != (made[:, 3].view(np.int32) >> 31)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(made))]
    summed = pa.Array.from_buffers(field.type, len(made), buffers)
    if bool(np.any(lost)) or not _fits(made, summed):
        raise FunctionFailed(
            f"the sum {field.name.rpartition('.')[0]!r} leaves {field.type.precision} digits",
            expected=f"sums with at most {field.type.precision - field.type.scale} digits before the point",
            next_move="sum a column of float instead, or smaller numbers",
        )
    return summed


def _parts(column: pa.Array) -> npt.NDArray[np.uint32]:
    """The four parts of each decimal, the lowest first."""
    data = np.frombuffer(column.buffers()[1], np.uint32)
    return data.reshape(-1, 4)[column.offset : column.offset + len(column)]


def _fits(made: npt.NDArray[np.uint32], summed: pa.Array) -> bool:
    highest = made[:, 3].view(np.int32)
    if not bool(np.any((highest >= _SURE) | (highest < -_SURE))):
        return True
    try:
        summed.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
