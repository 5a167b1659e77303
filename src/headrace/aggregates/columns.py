"""Declared aggregates as columns of partial aggregates: a row becomes a partial of its own, and partials merge by rule.

So there is one way to compute everything: rows are *lifted*, batch by batch, into a few typed columns; sorting and
merging them (`headrace.state.panes.table`) is the same whether they are rows, what an earlier batch came to, or what
runs hold; results are read off the merged columns (`headrace.aggregates.results`). Nothing here happens row by row.

`pane_aggregate` answers None for what has no such columns: aggregators of one's own, and values that have no column
type, or one that does not tell equal values.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.declare import Agg, Declared
from headrace.aggregates.lifting import (
    NUMBERS,
    ORDERED,
    Mask,
    PaneAggregate,
    Values,
    comparable,
    floats,
    is_comparable,
    plain,
    travels,
    where_taken,
)
from headrace.aggregates.list_rules import (
    ARRIVALS,
    BUCKET,
    BY,
    CAME,
    COUNT,
    LIST,
    SET,
    SKETCH,
    TOP,
    VALUE,
    list_of,
    lists,
)
from headrace.aggregates.results import LISTED
from headrace.aggregates.rules import BESIDE, GREATEST, LATEST, LEAST, MAX, MIN, SUM, merge_field
from headrace.aggregates.sketch import buckets_of
from headrace.model.batch import Rows
from headrace.model.columns import DECIMAL
from headrace.model.shapes import column_of

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

__all__ = ["PaneAggregate", "pane_aggregate"]

_SKETCHED = pa.struct([pa.field(BUCKET, pa.int32()), pa.field(COUNT, pa.int64())])


class _Count(PaneAggregate):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self.fields = [merge_field(f"{name}.count", pa.int64(), SUM)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        return [_ones(len(rows), self._taken_rows(rows))]


class _Sum(PaneAggregate):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self.values = Values(codec, agg.column or "", where)
        kinds = {float: pa.float64(), Decimal: DECIMAL}
        self.type = kinds.get(self.values.type, pa.int64())
        self.fields = [merge_field(f"{name}.sum", self.type, SUM)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        return [_amounts(array, self._taken_rows(rows, array), self.type)]


class _Avg(PaneAggregate):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self.values = Values(codec, agg.column or "", where)
        self.type = DECIMAL if self.values.type is Decimal else pa.float64()
        self.fields = [
            merge_field(f"{name}.total", self.type, SUM),
            merge_field(f"{name}.rows", pa.int64(), SUM),
        ]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        taken = self._taken_rows(rows, array)
        if pa.types.is_integer(array.type):
            # As Python and Spark do: whole numbers beyond 2**53 are rounded to the nearest float.
            array = array.cast(pa.float64(), safe=False)
        return [_amounts(array, taken, self.type), _ones(len(rows), taken)]


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
        return [where_taken(plain(array, self.type), self._taken_rows(rows, array))]


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
    def columns_of_result(self) -> list[str]:
        return super().columns_of_result[:3]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        if self.by is not None:
            by = self.by.array(rows)
            taken = self._taken_rows(rows, array, by)
        else:
            by = pa.array(np.zeros(len(rows), np.int64) if rows.times is None else rows.times)
            taken = self._taken_rows(rows, array)
        came = [self._arrivals(len(rows))] if self._numbered else []
        return [where_taken(plain(by, self.by_type), taken), plain(array, self.type), *came]


class _Listed(PaneAggregate):
    """One column of lists."""

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self.values = Values(codec, agg.column or "", where)
        self.type = column_of(self.values.type).arrow

    def _cells(self, taken: Mask | None, flat: pa.Array) -> list[pa.Array]:
        """A list of one value for each row that is taken, and an empty one for the others."""
        counts = np.ones(len(flat), np.int64) if taken is None else taken.astype(np.int64)
        if taken is not None:
            flat = flat.filter(pa.array(taken))
        return [lists(self.fields[0].type, flat, counts)]


class _Distinct(_Listed):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self.fields = [merge_field(f"{name}.set", list_of(self.type), SET)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = plain(self.values.array(rows), self.type)
        return self._cells(self._taken_rows(rows, array), comparable(self.values.type, array))


class _Quantile(_Listed):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self._q = agg.q
        self.fields = [merge_field(f"{name}.sketch", list_of(_SKETCHED), SKETCH)]

    @property
    def columns_of_result(self) -> list[str]:
        return [*super().columns_of_result, repr(float(self._q))]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = plain(self.values.array(rows), self.type)
        taken = self._taken_rows(rows, array)
        numbers = floats(array.fill_null(0) if array.null_count else array)
        ones = pa.array(np.ones(len(numbers), np.int64))
        sketched = [pa.array(buckets_of(numbers).astype(np.int32)), ones]
        return self._cells(taken, pa.StructArray.from_arrays(sketched, fields=list(_SKETCHED)))


class _Collect(_Listed):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        self._numbered = pa.struct([pa.field(CAME, pa.int64()), pa.field(VALUE, self.type)]) if several else None
        rule, kind = (LIST, self.type) if self._numbered is None else (ARRIVALS, self._numbered)
        self.fields = [merge_field(f"{name}.{rule}", list_of(kind), rule)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = plain(self.values.array(rows), self.type)
        taken = self._taken_rows(rows, array)
        if self._numbered is None:
            return self._cells(taken, array)
        numbered = pa.StructArray.from_arrays([self._arrivals(len(rows)), array], fields=list(self._numbered))
        return self._cells(taken, numbered)


class _Top(_Listed):
    """``top``. Of values that are compared by themselves, equal ones are the same: nobody asks which came first."""

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        self.by = None if agg.by is None else Values(codec, agg.by, where)
        kind = self.type
        if self.by is not None:
            self._by_type = column_of(self.by.type).arrow
            came = [pa.field(CAME, pa.int64())] if several else []
            kind = pa.struct([pa.field(BY, self._by_type), *came, pa.field(VALUE, self.type)])
        self._several = several
        self.fields = [merge_field(f"{name}.top", list_of(kind), TOP, most=agg.n)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = plain(self.values.array(rows), self.type)
        if self.by is None:
            return self._cells(self._taken_rows(rows, array), comparable(self.values.type, array))
        by = plain(self.by.array(rows), self._by_type)
        came = [self._arrivals(len(rows))] if self._several else []
        parts = [comparable(self.by.type, by), *came, array]
        pairs = pa.StructArray.from_arrays(parts, fields=list(self.fields[0].type.value_type))
        return self._cells(self._taken_rows(rows, array, by), pairs)


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
        return _listed_aggregate(name, agg, codec, where, several=several)
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


def _listed_aggregate(
    name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool
) -> PaneAggregate | None:
    """How such an aggregate is kept as a column; None where its type has none that says enough."""
    kind = Values(codec, agg.column or "", where).type
    if agg.kind == "quantile":
        return _Quantile(name, agg, codec, where)
    if agg.kind == "count_distinct":
        return _Distinct(name, agg, codec, where) if is_comparable(kind) else None
    if agg.kind == "collect":
        return _Collect(name, agg, codec, where, several=several) if travels(kind) else None
    by = kind if agg.by is None else Values(codec, agg.by, where).type
    return _Top(name, agg, codec, where, several=several) if is_comparable(by) and travels(kind) else None


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
