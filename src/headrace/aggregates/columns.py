"""Declared aggregates, each once: its columns of partials, and the accumulator that stands for them in Python.

In bulk, rows are *lifted*, batch by batch, into a few typed columns; sorting and merging them
(`headrace.state.panes.table`) is the same whether they are rows, what an earlier batch came to, or what runs hold;
results are read off the merged columns (`headrace.aggregates.results`). Nothing of that happens row by row. For one key
the same is done in Python, with accumulators: few rows, and values that have no column type.

Aggregates whose cells are lists stand in `headrace.aggregates.listed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.aggregates.declare import Agg, Declared
from headrace.aggregates.lifting import (
    NUMBERS,
    ORDERED,
    PaneAggregate,
    amounts,
    ones,
    plain,
    some_rows,
    travels,
    valid_rows,
    where_taken,
)
from headrace.aggregates.listed import CollectAggregate, DistinctAggregate, QuantileAggregate, TopAggregate
from headrace.aggregates.mean import AVG, MeanAggregate
from headrace.aggregates.numbers import adder, summing
from headrace.aggregates.rules import (
    BESIDE,
    GREATEST,
    LATEST,
    LEAST,
    MAX,
    MIN,
    SUM,
    Choice,
    greater,
    lesser,
    merge_field,
)
from headrace.model.batch import Int64s, Rows
from headrace.model.columns import DECIMAL
from headrace.model.shapes import column_of

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


class _Count(PaneAggregate):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        self.fields = [merge_field(f"{name}.count", pa.int64(), SUM)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        return [ones(len(rows), self.taken_rows(rows))]

    def accumulators(self, merged: Sequence[pa.Array]) -> tuple[Int64s, list[Any]]:
        present = np.flatnonzero(merged[0].to_numpy())
        return present, some_rows(merged, present)[0].to_numpy().tolist()


class _Sum(PaneAggregate):
    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        self.acc_type = kind = self.values.type
        self.in_columns = kind in (*NUMBERS, Decimal)
        self.type = {float: pa.float64(), Decimal: DECIMAL}.get(kind, pa.int64())
        field = merge_field(f"{name}.sum", self.type, SUM)
        self.fields = [field]
        self.merge, self.gather = adder(field), summing(field)

    @classmethod
    def words_of_result(cls, agg: Declared[Any], value: Any) -> list[Any]:
        return [agg.kind, {Decimal: Decimal(0), float: 0.0}.get(value, 0)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        return [amounts(array, self.taken_rows(rows, array), self.type)]

    def accumulators(self, merged: Sequence[pa.Array]) -> tuple[Int64s, list[Any]]:
        return np.arange(len(merged[0])), self.values.python(merged[0])


class _Extreme(PaneAggregate):
    """``min`` and ``max``."""

    holds_values = True

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        self.acc_type = self.values.type
        self.in_columns = self.values.type in ORDERED
        self.type = column_of(self.values.type).arrow
        by_number, by_order, self.merge = {"min": (MIN, LEAST, lesser), "max": (MAX, GREATEST, greater)}[agg.kind]
        self.gather = partial(reduce, self.merge)
        self.fields = [merge_field(f"{name}.{agg.kind}", self.type, by_number if self.values.is_number else by_order)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        return [where_taken(plain(array, self.type), self.taken_rows(rows, array))]

    def accumulators(self, merged: Sequence[pa.Array]) -> tuple[Int64s, list[Any]]:
        present = valid_rows(merged[0])
        return present, self.values.python(some_rows(merged, present)[0])


class _ChoiceAggregate(PaneAggregate):
    """The value of the row that another column chooses: ``first``, ``last``, and ``min`` and ``max`` by something."""

    holds_values = True

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        self.type = column_of(self.values.type).arrow
        self.timed = self.by is None
        self.by_type = pa.int64() if self.by is None else column_of(self.by.type).arrow
        chosen_by = int | None if self.by is None else self.by.type
        self.acc_type = tuple[chosen_by, self.values.type]  # type: ignore[valid-type,name-defined]
        self.in_columns = travels(self.values.type) and (self.by is None or self.by.type in ORDERED)
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
        if self.timed:
            self.merge = _later if rule == LATEST else _earlier
        else:
            self.merge = Choice(rule, 0, None)
        self.gather = partial(reduce, self.merge)

    @property
    def columns_of_result(self) -> list[str]:
        return super().columns_of_result[:3]

    @classmethod
    def words_of_result(cls, agg: Declared[Any], value: Any) -> list[Any]:
        return [agg.kind] if agg.by is None else [agg.kind, "by"]

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        if self.by is not None:
            by = self.by.array(rows)
            taken = self.taken_rows(rows, array, by)
        else:
            by = pa.array(np.zeros(len(rows), np.int64) if rows.times is None else rows.times)
            taken = self.taken_rows(rows, array)
        came = [self._arrivals(len(rows))] if self._numbered else []
        return [where_taken(plain(by, self.by_type), taken), plain(array, self.type), *came]

    def accumulators(self, merged: Sequence[pa.Array]) -> tuple[Int64s, list[Any]]:
        present = valid_rows(merged[0])
        by, values = some_rows(merged[:2], present)
        chosen_by = by.to_numpy().tolist() if self.by is None else self.by.python(by)
        return present, list(zip(chosen_by, self.values.python(values)))


_CLASSES: Final[dict[str, type[PaneAggregate]]] = {
    "count": _Count,
    "sum": _Sum,
    AVG: MeanAggregate,
    "min": _Extreme,
    "max": _Extreme,
    "first": _ChoiceAggregate,
    "last": _ChoiceAggregate,
    **dict.fromkeys(("count_distinct", "sum_distinct", "avg_distinct"), DistinctAggregate),
    "quantile": QuantileAggregate,
    "collect": CollectAggregate,
    "top": TopAggregate,
}


def class_of(agg: Declared[Any]) -> type[PaneAggregate]:
    """How a declared aggregate is computed."""
    found = _CLASSES[agg.kind]
    return _ChoiceAggregate if found is _Extreme and agg.by is not None else found


def pane_aggregate(
    name: str, agg: Agg[Any], codec: RowCodec, where: str, *, several: bool = False
) -> PaneAggregate | None:
    """How an aggregate is kept as columns; None where it cannot be.

    That is an aggregator of one's own, and one of values that have no column type, or one that does not tell equal
    values. ``several``: windows are put together from several partials that do not come in the order of their rows.
    """
    if not isinstance(agg, Declared):
        return None
    made: Callable[..., PaneAggregate] = class_of(agg)
    aggregate = made(name, agg, codec, where, several=several)
    return aggregate if aggregate.in_columns else None


def key_aggregate(name: str, agg: Declared[Any], codec: RowCodec, where: str) -> PaneAggregate:
    """The same as keys keep it; what the values of ``top`` are compared by stands beside them."""
    if agg.kind == "top" and agg.by is None:
        agg = replace(agg, by=agg.column)
    made: Callable[..., PaneAggregate] = class_of(agg)
    return made(name, agg, codec, where, several=False)


def _later(older: tuple[int | None, Any], newer: tuple[int | None, Any]) -> tuple[int | None, Any]:
    """The rule ``latest`` of times; without event time rows count as they came."""
    return older if older[0] is not None and newer[0] is not None and newer[0] < older[0] else newer


def _earlier(older: tuple[int | None, Any], newer: tuple[int | None, Any]) -> tuple[int | None, Any]:
    return newer if older[0] is not None and newer[0] is not None and newer[0] < older[0] else older
