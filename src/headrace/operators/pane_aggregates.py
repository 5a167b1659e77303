"""Declared aggregates as columns of partial aggregates: a row becomes a partial of its own, and partials merge by rule.

So there is one way to compute everything: rows are *lifted*, batch by batch, into a few typed columns; sorting and
merging them (`headrace.state.panes`) is the same whether they are rows, what an earlier batch came to, or what runs
hold; results are read off the merged columns (`headrace.state.pane_results`). Nothing here happens row by row.

`pane_aggregate` answers None for what has no such columns: sets, lists, sketches, sums of decimals, own aggregators.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.batch import Rows
from headrace.model.columns import PackedColumn
from headrace.model.shapes import column_of
from headrace.model.time import Duration, Timestamp
from headrace.operators.accumulate import Values
from headrace.operators.aggregates import Agg, Declared
from headrace.operators.expressions import compile_predicate
from headrace.state.pane_rules import BESIDE, GREATEST, LATEST, LEAST, MAX, MIN, SUM, merge_field

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

Mask = npt.NDArray[np.bool_]

_NUMBERS: Final = (int, float, Duration)
_TIMES: Final = (Timestamp, datetime, timedelta)
_ORDERED: Final = (*_NUMBERS, *_TIMES, bool, str, bytes, date, Decimal, UUID)
"""Types whose columns are in the order of their values."""


class PaneAggregate:
    """One aggregate: its columns, and how a row becomes a cell of each."""

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        self.name = name
        self.kind = agg.kind
        self.fields: list[pa.Field] = []
        self._holds: Callable[[pa.RecordBatch], Mask] | None = (
            None if agg.where is None else compile_predicate(agg.where, codec.schema, where)
        )

    def lift(self, rows: Rows) -> list[pa.Array]:
        """One cell per row and column."""
        raise NotImplementedError

    def _taken(self, rows: Rows, *arrays: pa.Array) -> Mask | None:
        """Rows that the condition holds for and whose values are there; None: all."""
        taken = None if self._holds is None else self._holds(rows.record_batch)
        for array in arrays:
            if array.null_count:
                there = array.is_valid().to_numpy(zero_copy_only=False)
                taken = there if taken is None else taken & there
        return taken


class _Count(PaneAggregate):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self.fields = [merge_field(f"{name}.count", pa.int64(), SUM)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        return [_ones(len(rows), self._taken(rows))]


class _Sum(PaneAggregate):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self.values = Values(codec, agg.column or "", where)
        self.type = pa.float64() if self.values.type is float else pa.int64()
        self.fields = [merge_field(f"{name}.sum", self.type, SUM)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        return [_amounts(array, self._taken(rows, array), self.type)]


class _Avg(PaneAggregate):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self.values = Values(codec, agg.column or "", where)
        self.fields = [
            merge_field(f"{name}.total", pa.float64(), SUM),
            merge_field(f"{name}.rows", pa.int64(), SUM),
        ]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        taken = self._taken(rows, array)
        return [_amounts(array, taken, pa.float64()), _ones(len(rows), taken)]


class _Extreme(PaneAggregate):
    """``min`` and ``max``."""

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self.values = Values(codec, agg.column or "", where)
        self.type = column_of(self.values.type).arrow
        by_number = {"min": MIN, "max": MAX}[agg.kind]
        by_order = {"min": LEAST, "max": GREATEST}[agg.kind]
        rule = by_number if self.values.is_number else by_order
        self.fields = [merge_field(f"{name}.{agg.kind}", self.type, rule)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        return [_where_taken(_plain(array, self.type), self._taken(rows, array))]


class _Chosen(PaneAggregate):
    """The value of the row that another column chooses: ``first``, ``last``, and ``min`` and ``max`` by something."""

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self.values = Values(codec, agg.column or "", where)
        self.type = column_of(self.values.type).arrow
        self.by = None if agg.by is None else Values(codec, agg.by, where)
        self.by_type = pa.int64() if self.by is None else column_of(self.by.type).arrow
        rule = {"first": LEAST, "last": LATEST, "min": LEAST, "max": GREATEST}[agg.kind]
        by = f"{name}.{agg.kind}_{'time' if self.by is None else 'by'}"
        self.fields = [
            merge_field(by, self.by_type, rule),
            merge_field(f"{name}.value", self.type, BESIDE, of=by),
        ]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        if self.by is not None:
            by = self.by.array(rows)
            taken = self._taken(rows, array, by)
        else:
            by = pa.array(np.zeros(len(rows), np.int64) if rows.times is None else rows.times)
            taken = self._taken(rows, array)
        return [_where_taken(_plain(by, self.by_type), taken), _plain(array, self.type)]


def pane_aggregate(name: str, agg: Agg[Any], codec: RowCodec, where: str) -> PaneAggregate | None:
    """How an aggregate is kept as columns; None where it cannot be."""
    if not isinstance(agg, Declared):
        return None
    if agg.kind == "count":
        return _Count(name, agg, codec, where)
    if agg.kind not in ("sum", "avg", "min", "max", "first", "last"):
        return None
    kind = Values(codec, agg.column or "", where).type
    if agg.kind == "sum":
        return _Sum(name, agg, codec, where) if kind in _NUMBERS else None
    if agg.kind == "avg":
        return _Avg(name, agg, codec, where) if kind in _NUMBERS else None
    if agg.kind in ("first", "last"):
        return _Chosen(name, agg, codec, where) if _travels(kind) else None
    if agg.by is not None:
        ordered = Values(codec, agg.by, where).type in _ORDERED
        return _Chosen(name, agg, codec, where) if ordered and _travels(kind) else None
    return _Extreme(name, agg, codec, where) if kind in _ORDERED else None


def _travels(kind: Any) -> bool:
    """Whether a column of this type may be moved about as it is."""
    return not isinstance(column_of(kind), PackedColumn)


def _ones(count: int, taken: Mask | None) -> pa.Array:
    return pa.array(np.ones(count, np.int64) if taken is None else taken.astype(np.int64))


def _amounts(array: pa.Array, taken: Mask | None, kind: pa.DataType) -> pa.Array:
    """Numbers to add up: 0 where a row is not taken."""
    array = _plain(array, kind)
    if taken is None:
        return array
    numbers = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    return pa.array(np.where(taken, numbers, numbers.dtype.type(0)))


def _where_taken(array: pa.Array, taken: Mask | None) -> pa.Array:
    """Null where a row is not taken."""
    return array if taken is None else pc.if_else(pa.array(taken), array, pa.scalar(None, array.type))


def _plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array of exactly this type, in one piece."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if array.type == kind else array.cast(kind)
