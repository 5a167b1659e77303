"""Declared aggregates as columns of partial aggregates: a row becomes a partial of its own, and partials merge by rule.

So there is one way to compute everything: rows are *lifted*, batch by batch, into a few typed columns; sorting and
merging them (`headrace.state.panes`) is the same whether they are rows, what an earlier batch came to, or what runs
hold; results are read off the merged columns (`headrace.state.pane_results`). Nothing here happens row by row.

`pane_aggregate` answers None for what has no such columns: aggregators of one's own, and values that have no column
type, or one that does not tell equal values.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.batch import Rows
from headrace.model.columns import DECIMAL
from headrace.model.shapes import column_of
from headrace.operators.accumulate import Values
from headrace.operators.aggregates import Agg, Declared
from headrace.operators.pane_lifting import NUMBERS, ORDERED, Mask, PaneAggregate, floats, plain, travels, where_taken
from headrace.operators.pane_listed import listed_aggregate
from headrace.state.pane_results import LISTED
from headrace.state.pane_rules import BESIDE, GREATEST, LATEST, LEAST, MAX, MIN, SUM, merge_field

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

__all__ = ["PaneAggregate", "pane_aggregate"]


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
        kinds = {float: pa.float64(), Decimal: DECIMAL}
        self.type = kinds.get(self.values.type, pa.int64())
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
        if pa.types.is_decimal(array.type):
            array = pa.array(floats(array.fill_null(0) if array.null_count else array))
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
        return [where_taken(plain(array, self.type), self._taken(rows, array))]


class _Chosen(PaneAggregate):
    """The value of the row that another column chooses: ``first``, ``last``, and ``min`` and ``max`` by something."""

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        self.values = Values(codec, agg.column or "", where)
        self.type = column_of(self.values.type).arrow
        self.by = None if agg.by is None else Values(codec, agg.by, where)
        self.by_type = pa.int64() if self.by is None else column_of(self.by.type).arrow
        rule = {"first": LEAST, "last": LATEST, "min": LEAST, "max": GREATEST}[agg.kind]
        by = f"{name}.{agg.kind}_{'time' if self.by is None else 'by'}"
        # Rows of one time are in one slice, where older ones come first; rows equal in something else need not be.
        came = f"{name}.came" if several and self.by is not None else ""
        self.fields = [
            merge_field(by, self.by_type, rule, ties=came),
            merge_field(f"{name}.value", self.type, BESIDE, of=by),
        ]
        self._numbered = bool(came)
        if came:
            self.fields.append(merge_field(came, pa.int64(), BESIDE, of=by))

    @property
    def told(self) -> list[str]:
        return super().told[:3]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        if self.by is not None:
            by = self.by.array(rows)
            taken = self._taken(rows, array, by)
        else:
            by = pa.array(np.zeros(len(rows), np.int64) if rows.times is None else rows.times)
            taken = self._taken(rows, array)
        came = [self._arrivals(len(rows))] if self._numbered else []
        return [where_taken(plain(by, self.by_type), taken), plain(array, self.type), *came]


def pane_aggregate(
    name: str, agg: Agg[Any], codec: RowCodec, where: str, *, several: bool = False
) -> PaneAggregate | None:
    """How an aggregate is kept as columns; None where it cannot be.

    ``several``: windows are put together from several partials that do not come in the order of their rows.
    """
    if not isinstance(agg, Declared):
        return None
    if agg.kind == "count":
        return _Count(name, agg, codec, where)
    if agg.kind in LISTED:
        return listed_aggregate(name, agg, codec, where, several=several)
    kind = Values(codec, agg.column or "", where).type
    if agg.kind == "sum":
        return _Sum(name, agg, codec, where) if kind in (*NUMBERS, Decimal) else None
    if agg.kind == "avg":
        return _Avg(name, agg, codec, where) if kind in (*NUMBERS, Decimal) else None
    if agg.kind in ("first", "last"):
        return _Chosen(name, agg, codec, where, several=several) if travels(kind) else None
    if agg.by is not None:
        ordered = Values(codec, agg.by, where).type in ORDERED
        return _Chosen(name, agg, codec, where, several=several) if ordered and travels(kind) else None
    return _Extreme(name, agg, codec, where) if kind in ORDERED else None


def _ones(count: int, taken: Mask | None) -> pa.Array:
    return pa.array(np.ones(count, np.int64) if taken is None else taken.astype(np.int64))


def _amounts(array: pa.Array, taken: Mask | None, kind: pa.DataType) -> pa.Array:
    """Numbers to add up: 0 where a row is not taken."""
    array = plain(array, kind)
    if taken is None:
        return array
    if pa.types.is_decimal(kind):
        return pc.if_else(pa.array(taken), array, pa.scalar(Decimal(0), kind))
    numbers = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    return pa.array(np.where(taken, numbers, numbers.dtype.type(0)))
