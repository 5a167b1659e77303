"""Declared aggregates whose cells are lists: those of different values, ``quantile``, ``collect`` and ``top``."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.aggregates.declare import Declared
from headrace.aggregates.distinct_numbers import SUM_DISTINCT
from headrace.aggregates.lifting import (
    Mask,
    PaneAggregate,
    comparable,
    floats,
    is_comparable,
    plain,
    travels,
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
    distinct,
    list_of,
    lists,
    merge_python_lists,
    values_of,
)
from headrace.aggregates.rules import merge_field
from headrace.aggregates.sketch import buckets_of
from headrace.model.batch import Int64s, Rows
from headrace.model.shapes import column_of

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_SKETCHED = pa.struct([pa.field(BUCKET, pa.int32()), pa.field(COUNT, pa.int64())])


class _ListAggregate(PaneAggregate):
    """One column of lists; in Python a list, a set or a dict."""

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(name, agg, codec, where)
        self.type = column_of(self.values.type).arrow

    def _set_rule(self, rule: str, most: int = 0) -> None:
        self.merge = lambda older, newer: merge_python_lists(rule, most, (older, newer))

    def accumulators(self, merged: Sequence[pa.Array]) -> tuple[Int64s, list[Any]]:
        flat, counts = values_of(merged[0])
        present = np.flatnonzero(counts)
        values = self._python(flat)
        return present, [self._accumulator(values[start:end]) for start, end in pairwise(_bounds(counts[present]))]

    def _python(self, flat: pa.Array) -> Any:
        return self.values.objects(flat)

    def _accumulator(self, part: Any) -> Any:
        """The values of a merged cell, as they are kept in Python."""
        return part

    def _cells(self, taken: Mask | None, flat: pa.Array) -> list[pa.Array]:
        """A list of one value for each row that is taken, and an empty one for the others."""
        counts = np.ones(len(flat), np.int64) if taken is None else taken.astype(np.int64)
        if taken is not None:
            flat = flat.filter(pa.array(taken))
        return [lists(self.fields[0].type, flat, counts)]


class DistinctAggregate(_ListAggregate):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        self.fields = [merge_field(f"{name}.set", list_of(self.type), SET)]
        self.in_columns = is_comparable(self.values.type)
        self.acc_type = set[self.values.type]  # type: ignore[name-defined]
        self._set_rule(SET)
        self.gather = self._accumulator
        # Not-a-number is not equal to itself: of floats sets have to be looked through.
        self.absorb = None if self.values.type is float else _add_values

    @classmethod
    def words_of_result(cls, agg: Declared[Any], value: Any) -> list[Any]:
        zero = {Decimal: Decimal(0), float: 0.0}.get(value, 0)
        return [agg.kind, zero] if agg.kind == SUM_DISTINCT else [agg.kind]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = plain(self.values.array(rows), self.type)
        return self._cells(self.taken_rows(rows, array), comparable(self.values.type, array))

    def _accumulator(self, part: Any) -> Any:
        return distinct(set(part))


class QuantileAggregate(_ListAggregate):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        self._q = agg.q
        self.fields = [merge_field(f"{name}.sketch", list_of(_SKETCHED), SKETCH)]
        self.acc_type = dict[int, int]
        self._set_rule(SKETCH)
        self.gather = _sketch

    @property
    def columns_of_result(self) -> list[str]:
        return [*super().columns_of_result, repr(float(self._q))]

    @classmethod
    def words_of_result(cls, agg: Declared[Any], value: Any) -> list[Any]:
        return [agg.kind, agg.q]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = plain(self.values.array(rows), self.type)
        taken = self.taken_rows(rows, array)
        numbers = floats(array.fill_null(0) if array.null_count else array)
        ones = pa.array(np.ones(len(numbers), np.int64))
        sketched = [pa.array(buckets_of(numbers).astype(np.int32)), ones]
        return self._cells(taken, pa.StructArray.from_arrays(sketched, fields=list(_SKETCHED)))

    def elements(self, *arrays: pa.Array) -> Any:
        return buckets_of(self.values.floats(arrays[-1])).tolist()

    def _python(self, flat: pa.Array) -> Any:
        return list(zip(*(flat.field(name).to_numpy().tolist() for name in (BUCKET, COUNT))))

    def _accumulator(self, part: Any) -> Any:
        return dict(part)


class CollectAggregate(_ListAggregate):
    holds_values = True

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        self._numbered = pa.struct([pa.field(CAME, pa.int64()), pa.field(VALUE, self.type)]) if several else None
        rule, kind = (LIST, self.type) if self._numbered is None else (ARRIVALS, self._numbered)
        self.fields = [merge_field(f"{name}.{rule}", list_of(kind), rule)]
        self.in_columns = travels(self.values.type)
        self.acc_type = list[self.values.type]  # type: ignore[name-defined]
        self._set_rule(LIST)
        self.gather = list

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = plain(self.values.array(rows), self.type)
        taken = self.taken_rows(rows, array)
        if self._numbered is None:
            return self._cells(taken, array)
        numbered = pa.StructArray.from_arrays([self._arrivals(len(rows)), array], fields=list(self._numbered))
        return self._cells(taken, numbered)


class TopAggregate(_ListAggregate):
    """``top``. Of values that are compared by themselves, equal ones are the same: nobody asks which came first."""

    holds_values = True

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        kind, most = self.type, agg.n
        if self.by is not None:
            self._by_type = column_of(self.by.type).arrow
            came = [pa.field(CAME, pa.int64())] if several else []
            kind = pa.struct([pa.field(BY, self._by_type), *came, pa.field(VALUE, self.type)])
        self._several = several
        self.fields = [merge_field(f"{name}.top", list_of(kind), TOP, most=most)]
        compared = self.values.type if self.by is None else self.by.type
        self.in_columns = is_comparable(compared) and travels(self.values.type)
        self.acc_type = list[tuple[compared, self.values.type]]  # type: ignore[name-defined,valid-type]
        self._set_rule(TOP, most)
        self.gather = lambda part: merge_python_lists(TOP, most, (part,))

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = plain(self.values.array(rows), self.type)
        if self.by is None:
            return self._cells(self.taken_rows(rows, array), comparable(self.values.type, array))
        by = plain(self.by.array(rows), self._by_type)
        came = [self._arrivals(len(rows))] if self._several else []
        parts = [comparable(self.by.type, by), *came, array]
        pairs = pa.StructArray.from_arrays(parts, fields=list(self.fields[0].type.value_type))
        return self._cells(self.taken_rows(rows, array, by), pairs)

    def _python(self, flat: pa.Array) -> Any:
        assert self.by is not None, "keys keep what values are compared by"
        return list(zip(self.by.objects(flat.field(BY)), self.values.objects(flat.field(VALUE))))


def _bounds(counts: Int64s) -> list[int]:
    return [0, *np.cumsum(counts).tolist()]


def _add_values(older: set[Any], newer: set[Any]) -> set[Any]:
    older |= newer
    return older


def _sketch(buckets: Sequence[int]) -> dict[int, int]:
    sketch: dict[int, int] = {}
    for bucket in buckets:
        sketch[bucket] = sketch.get(bucket, 0) + 1
    return dict(sorted(sketch.items()))
