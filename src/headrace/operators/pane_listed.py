"""Declared aggregates whose accumulators are lists: a row becomes a list of one value, and lists merge by rule.

The rules are those of `headrace.state.pane_lists`. Where windows are made of several slices (``several``), rows of one
epoch lie by slice and not as they came, so that values on whose order something depends carry a number that tells it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.model.batch import Rows
from headrace.model.shapes import column_of
from headrace.operators.accumulate import Values
from headrace.operators.aggregates import Declared
from headrace.operators.pane_lifting import Mask, PaneAggregate, comparable, floats, is_comparable, plain, travels
from headrace.operators.sketch import buckets_of
from headrace.state.pane_lists import ARRIVALS, BUCKET, BY, CAME, COUNT, LIST, SET, SKETCH, TOP, VALUE, list_of, lists
from headrace.state.pane_rules import merge_field

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_SKETCHED = pa.struct([pa.field(BUCKET, pa.int32()), pa.field(COUNT, pa.int64())])


def listed_aggregate(
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
        return self._cells(self._taken(rows, array), comparable(self.values.type, array))


class _Quantile(_Listed):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self._q = agg.q
        self.fields = [merge_field(f"{name}.sketch", list_of(_SKETCHED), SKETCH)]

    @property
    def told(self) -> list[str]:
        return [*super().told, repr(float(self._q))]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = plain(self.values.array(rows), self.type)
        taken = self._taken(rows, array)
        numbers = floats(array.fill_null(0) if array.null_count else array)
        unknown = np.isnan(numbers)
        if unknown.any():
            taken = ~unknown if taken is None else taken & ~unknown
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
        taken = self._taken(rows, array)
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
            return self._cells(self._taken(rows, array), comparable(self.values.type, array))
        by = plain(self.by.array(rows), self._by_type)
        came = [self._arrivals(len(rows))] if self._several else []
        parts = [comparable(self.by.type, by), *came, array]
        pairs = pa.StructArray.from_arrays(parts, fields=list(self.fields[0].type.value_type))
        return self._cells(self._taken(rows, array, by), pairs)
