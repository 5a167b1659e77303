"""Columns as whole numbers, and exact sums: what the merge rules compute with.

Sums are exact or refused. A sum of whole numbers stays within 64 bits and a sum of decimals within the digits of its
column; beyond that every path raises the same error (`sum_overflow`). Where partial sums are merged only to be stored,
those that would not fit stay apart instead (`lost_sums`). Sums of floats are rounded as floats are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import reduce
from operator import add
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s

INT64: Final = np.iinfo(np.int64)
_MIN64, _MAX64 = int(INT64.min), int(INT64.max)
_LOW: Final = 0xFFFFFFFF
_SURE: Final = 10**38 >> 96
"""Sums whose highest part is below this have 38 digits at most; others are looked at."""
_EXACT: Final = Context(prec=77)
"""Digits for the sum of two decimals of 38 digits, whatever their scales."""

Reduce = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


# --- columns as numbers


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

    Not-a-number is greater than every number, and −0.0 is equal to 0.0.
    """
    kinds, kind = pa.types, column.type
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_temporal(kind):
        values, valid = numbers_of(column)
        ranks = float_ranks(values) if values.dtype.kind == "f" else values.astype(np.int64)
        # The smallest number means null, and ranks must have a negative: such values are counted instead.
        if len(ranks) and int(ranks.min()) <= _MIN64 + 1:
            ranks = np.unique(ranks, return_inverse=True)[1].astype(np.int64)
    else:
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
        plain = column.cast(pa.uint8()) if kinds.is_boolean(kind) else column
        ranks = pc.rank(plain, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
    return ranks if valid is None else np.where(valid, ranks, INT64.min)


def float_ranks(values: npt.NDArray[Any]) -> Int64s:
    """The bits of a float in an order: of positive ones they are in order already, of negative ones the other way."""
    clean = np.where(np.isnan(values), np.nan, values.astype(np.float64) + 0.0)
    bits = clean.view(np.int64)
    ordered: Int64s = np.where(bits < 0, -(bits & INT64.max), bits)
    return ordered


NUMBER_BITS: Final = 63
"""What a whole number has room for."""


def order_by(*columns: Int64s) -> Int64s:
    """The stable order of rows by whole numbers, the most important first."""
    count = len(columns[0])
    if count < 2:
        return np.arange(count)
    lows = [int(column.min()) for column in columns]
    bits = [(int(column.max()) - low).bit_length() for column, low in zip(columns, lows, strict=True)]
    if sum(bits) > NUMBER_BITS:
        return np.lexsort(columns[::-1])
    packed = columns[0] - lows[0]
    for column, low, wide in zip(columns[1:], lows[1:], bits[1:]):
        packed = (packed << wide) | (column - low)
    return order_of(packed, sum(bits))


def order_of(numbers: Int64s, bits: int) -> Int64s:
    """The stable order of numbers from 0 that take so many bits.

    Plain numbers are sorted many times faster than places by numbers, so places are put in where there is room.
    """
    count = len(numbers)
    of_place = max(count - 1, 1).bit_length()
    if bits + of_place > NUMBER_BITS:
        return np.argsort(numbers, kind="stable")
    placed = (numbers << of_place) | np.arange(count)
    placed.sort()
    order: Int64s = placed & ((1 << of_place) - 1)
    return order


# --- sums


def sum_overflow(field: pa.Field, stretch: int | None = None) -> FunctionFailed:
    """A sum that its column cannot hold; ``stretch``: of which stretch."""
    name, _, kind = field.name.rpartition(".")
    whose = f"the sum behind avg {name!r}" if kind == "total" else f"the sum {name or field.name!r}"
    if pa.types.is_decimal(field.type):
        error = FunctionFailed(
            f"{whose} leaves {field.type.precision} digits",
            expected=f"sums with at most {field.type.precision - field.type.scale} digits before the point",
            next_move="sum a column of float instead, or smaller numbers",
        )
    else:
        error = FunctionFailed(
            f"{whose} leaves 64 bits",
            expected=f"sums from {_MIN64} to {_MAX64}",
            next_move="convert it first: hr.sum('CAST(n AS DECIMAL(38,0))') holds 20 digits, CAST(n AS DOUBLE) rounds",
        )
    error.stretch = stretch
    return error


def summing(field: pa.Field) -> Callable[[Sequence[Any]], Any]:
    """The sum of the cells of one key: the scalar form of `sum_whole` and `sum_decimals`. Only the whole must fit."""
    if pa.types.is_floating(field.type):
        return lambda cells: reduce(add, cells)
    if pa.types.is_decimal(field.type):
        bound = Decimal(10) ** (field.type.precision - field.type.scale)

        def sum_decimal_cells(cells: Sequence[Any]) -> Any:
            total = reduce(_EXACT.add, cells)
            if -bound < total < bound:
                return total
            raise sum_overflow(field)

        return sum_decimal_cells

    def sum_cells(cells: Sequence[Any]) -> Any:
        total = sum(cells)
        if _MIN64 <= total <= _MAX64:
            return total
        raise sum_overflow(field)

    return sum_cells


def adder(field: pa.Field) -> Callable[[Any, Any], Any]:
    """`summing` of two cells, the older one first."""
    add_all = summing(field)
    if pa.types.is_floating(field.type):
        return add
    if pa.types.is_decimal(field.type):
        return lambda older, newer: add_all((older, newer))

    def add_two(older: Any, newer: Any) -> Any:
        total = older + newer
        return total if _MIN64 <= total <= _MAX64 else add_all((older, newer))

    return add_two


def sum_whole(field: pa.Field, values: npt.NDArray[Any], add_up: Reduce, longest: Callable[[], int]) -> Int64s:
    """Sums of 64-bit numbers. ``add_up`` reduces by stretches; ``longest``: rows of the longest stretch."""
    if not len(values):
        return add_up(values)
    largest = max(int(values.max()), -int(values.min()))
    # The bound with all rows in one stretch is nearly always enough, and costs nothing.
    if largest * len(values) <= _MAX64 or largest * longest() <= _MAX64:
        return add_up(values)
    total, lost = _add_halves(values, add_up)
    if len(lost):
        raise sum_overflow(field, int(lost[0]))
    return total


def sum_decimals(field: pa.Field, column: pa.Array, add_up: Reduce) -> pa.Array:
    """Sums of a column of decimals without nulls."""
    summed, lost = _add_quarters(field, column, add_up)
    if len(lost):
        raise sum_overflow(field, int(lost[0]))
    return summed


def lost_sums(field: pa.Field, column: pa.Array, add_up: Reduce) -> Int64s:
    """Which stretches have a sum that the column cannot hold."""
    if pa.types.is_floating(field.type) or not len(column):
        return np.zeros(0, np.int64)
    if pa.types.is_decimal(field.type):
        return _add_quarters(field, column, add_up)[1]
    return _add_halves(column.to_numpy(zero_copy_only=False), add_up)[1]


def _add_halves(values: npt.NDArray[Any], add_up: Reduce) -> tuple[Int64s, Int64s]:
    """Sums, and which of them are lost: halves of 32 bits cannot overflow, and tell together whether the whole does."""
    high, low = add_up(values >> 32), add_up(values & _LOW)
    high += low >> 32
    total: Int64s = (high << 32) | (low & _LOW)
    return total, np.flatnonzero(high != high.astype(np.int32))


def _add_quarters(field: pa.Field, column: pa.Array, add_up: Reduce) -> tuple[pa.Array, Int64s]:
    """Sums, and which of them are lost: 128 bits are added as four numbers of 32, which cannot overflow."""
    data = np.frombuffer(column.buffers()[1], np.uint32).reshape(-1, 4)
    parts = data[column.offset : column.offset + len(column)]
    sums = [add_up(parts[:, i].astype(np.int64)) for i in range(3)]
    sums.append(add_up(parts[:, 3].view(np.int32).astype(np.int64)))
    joined = np.zeros((len(sums[0]), 4), np.uint32)
    carried: Any = 0
    for i, part in enumerate(sums):
        whole = part + carried
        joined[:, i] = (whole & _LOW).astype(np.uint32)
        carried = whole >> 32
    # What is left over repeats the sign of the highest part, or something was lost.
    highest = joined[:, 3].view(np.int32)
    lost = carried != (highest >> 31)
    for row in np.flatnonzero((highest >= _SURE) | (highest < -_SURE)).tolist():
        number = int.from_bytes(joined[row].tobytes(), "little", signed=True)
        lost[row] |= abs(number) >= 10**field.type.precision
    buffers = [None, pa.py_buffer(np.ascontiguousarray(joined))]
    return pa.Array.from_buffers(field.type, len(joined), buffers), np.flatnonzero(lost)
