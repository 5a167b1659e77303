"""Columns as whole numbers: the numbers of a column, and numbers in the order of its values, whatever their type."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.batch import Int64s

INT64: Final = np.iinfo(np.int64)


def numbers_of(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Numbers or times of a column, and which of them are there (None: all)."""
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time64(kind):
        column = column.view(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.view(pa.int32())
    if valid is not None:
        column = column.fill_null(0)
    return column.to_numpy(zero_copy_only=False), valid


def ranks_of(column: pa.Array) -> Int64s:
    """Whole numbers in the order of the values, equal for equal ones; null is the smallest that can be said.

    Not-a-number is greater than every number.
    """
    kinds, kind = pa.types, column.type
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_temporal(kind):
        values, valid = numbers_of(column)
        ranks = _float_ranks(values) if values.dtype.kind == "f" else values.astype(np.int64)
        # Two values at the lower end share a rank with null and its neighbour; no clock or counter gets there.
        ranks = np.maximum(ranks, INT64.min + 1)
    else:
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
        plain = column.cast(pa.uint8()) if kinds.is_boolean(kind) else column
        ranks = pc.rank(plain, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
    return ranks if valid is None else np.where(valid, ranks, INT64.min)


def _float_ranks(values: npt.NDArray[Any]) -> Int64s:
    """The bits of a float in an order: of positive ones they are in order already, of negative ones the other way."""
    clean = np.where(np.isnan(values), np.nan, values.astype(np.float64) + 0.0)
    bits = clean.view(np.int64)
    ordered: Int64s = np.where(bits < 0, -(bits & INT64.max), bits)
    return ordered
