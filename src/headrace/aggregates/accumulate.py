"""Accumulators of keys: partial aggregates of a batch's keys in Python, merged key by key, stored and described.

Rolling aggregates and windows row by row keep one small value per key and aggregate, the accumulator; None means that
nothing was added yet. A batch comes in key order, so the rows of a key are a stretch. Many rows are lifted into columns
and merged by the bulk rules (`headrace.aggregates.columns`, `headrace.aggregates.rules`); few rows, and values that
have no columns, are merged by the scalar forms of the same rules. An accumulator is the cell of the aggregate's column
in Python, or of several columns the tuple of their cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial, reduce
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import structs

from headrace.aggregates.columns import pane_aggregate
from headrace.aggregates.declare import Agg, Aggregator, Declared, column_annotation
from headrace.aggregates.lifting import Values
from headrace.aggregates.list_rules import (
    BUCKET,
    BY,
    COUNT,
    LIST,
    SET,
    SKETCH,
    TOP,
    VALUE,
    distinct,
    merge_python_lists,
    values_of,
)
from headrace.aggregates.numbers import adder, summing
from headrace.aggregates.own import find_misfit
from headrace.aggregates.results import EXACT, finish_of
from headrace.aggregates.rules import GREATEST, LEAST, Choice, greater, lesser, merge_columns
from headrace.aggregates.sketch import buckets_of
from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s, Rows
from headrace.model.type_shape import TypeShape, accumulators_shape
from headrace.model.values import ValueCodec, value_codec
from headrace.sql.evaluate.expressions import compile_predicate

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

TIME_NOTE: Final = "!time"
"""Time of the newest row of a key; always the last note."""
NOT_COUNTED: Final[Any] = object()
"""Stands where an aggregate does not take a row."""
_FEW_ROWS: Final = 48
"""Up to so many rows the scalar rules are done before Arrow has begun."""
_LIST_RULES: Final = {"count_distinct": SET, "collect": LIST, "top": TOP, "quantile": SKETCH}
_EXACT: Final = frozenset({"min", "max", "first", "last", "top", "collect"})
"""Kinds of aggregates whose results are values of their column."""
_CHOICES: Final = {"min": LEAST, "max": GREATEST}


class TakenStretches(NamedTuple):
    """Rows of a batch that an aggregate takes, as stretches of equal keys."""

    rows: Int64s | None
    """Positions in the batch; None: all."""
    groups: Int64s
    """For each stretch, which of the batch's keys it belongs to."""
    starts: Int64s
    """Where each stretch begins among the rows taken."""

    def cut(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """The values of each stretch."""
        bounds = [*self.starts.tolist(), len(values)]
        return [values[start:end] for start, end in pairwise(bounds)]


class RowValues(NamedTuple):
    """What `KeyFold.gather` takes of each row of a batch."""

    values: Sequence[Any]
    whole: bool
    """Whether the aggregate takes every row; where it does not, the value is `NOT_COUNTED`."""

    def at(self, rows: list[int]) -> Sequence[Any]:
        """The values of some rows, as far as they count."""
        values = self.values
        if self.whole:
            return [values[row] for row in rows]
        return [value for row in rows if (value := values[row]) is not NOT_COUNTED]


class Partials(NamedTuple):
    """One accumulator for each of some of a batch's keys."""

    groups: list[int]
    accs: list[Any]


class KeyFold:
    """One aggregate over rows of one type, as accumulators."""

    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str, name: str) -> None:
        if agg.kind == "top" and agg.by is None:
            agg = replace(agg, by=agg.column)
        self.kind = agg.kind
        self.values = Values(codec, agg.column or "", where) if agg.column is not None else None
        self.by = Values(codec, agg.by, where) if agg.by is not None else None
        self._columns = pane_aggregate(name, agg, codec, where)
        self._holds = None if agg.where is None else compile_predicate(agg.where, codec.schema, where)
        self._timed = agg.kind in ("first", "last")
        self.acc_type: Any = int
        """Type of the stored accumulator."""
        self.merge: Callable[[Any, Any], Any] = add
        """The accumulator of two that hold something, the older one first."""
        self.gather: Callable[[Any], Any] = len
        """The accumulator of the values of a stretch, of pairs where rows are compared by something else."""
        self._define(agg)
        zero = {Decimal: Decimal(0), float: 0.0}.get(self.values.type, 0) if self.values is not None else 0
        by = ("by",) if self.by is not None and agg.kind != "top" else ()
        more = {"sum": (zero,), "quantile": (agg.q,)}.get(agg.kind, by)
        self.result: Callable[[Any], Any] = finish_of(agg.kind, *more)
        """The result of an accumulator, or of None."""

    def _define(self, agg: Declared[Any]) -> None:
        kind, value = agg.kind, None if self.values is None else self.values.type
        if kind in ("sum", "avg"):
            assert self._columns is not None, "numbers have columns"
            field = self._columns.fields[0]
            add_two, add_all = adder(field), summing(field)
            self.acc_type, self.merge, self.gather = value, add_two, add_all
            if kind == "avg":
                exact = value is Decimal
                self.acc_type = tuple[Decimal if exact else float, int]  # type: ignore[misc]
                self.merge = lambda older, newer: (add_two(older[0], newer[0]), older[1] + newer[1])
                self.gather = lambda part: (add_all(part if exact else list(map(float, part))), len(part))
        elif kind in _LIST_RULES:
            rule, most = _LIST_RULES[kind], agg.n
            element: Any = tuple[self.by.type, value] if self.by is not None else value  # type: ignore[name-defined,valid-type]
            self.acc_type = {
                SET: set[element], SKETCH: dict[int, int], LIST: list[element], TOP: list[element],
            }[rule]  # fmt: skip
            self.merge = lambda older, newer: merge_python_lists(rule, most, (older, newer))
            self.gather = {
                SET: lambda part: distinct(set(part)), SKETCH: _sketch, LIST: list,
                TOP: lambda part: merge_python_lists(TOP, most, (part,)),
            }[rule]  # fmt: skip
        elif self._timed or self.by is not None:
            by = int | None if self.by is None else self.by.type
            self.acc_type = tuple[by, value]  # type: ignore[valid-type]
            timed = _later if kind == "last" else _earlier
            self.merge = timed if self._timed else Choice(_CHOICES[kind], 0, None)
            self.gather = partial(reduce, self.merge)
        elif kind in ("min", "max"):
            self.acc_type, self.merge = value, lesser if kind == "min" else greater
            self.gather = partial(reduce, self.merge)

    def partials(self, rows: Rows, starts: Int64s) -> Partials:
        """What each stretch of rows amounts to by itself."""
        if self._columns is None or len(rows) <= _FEW_ROWS or self.kind == "count":
            return self._partials_of_few(rows, starts)
        merged = merge_columns(self._columns.fields, self._columns.lift(rows), starts)
        if self.kind == "sum":
            return Partials(list(range(len(starts))), self._values.python(merged[0]))
        if self.kind in _LIST_RULES:
            return self._partials_of_lists(merged[0])
        told = merged[-1] if self.kind == "avg" else merged[0]
        present = np.flatnonzero(told.to_numpy()) if self.kind == "avg" else _valid(told)
        if len(present) < len(starts):
            merged = [column.take(pa.array(present)) for column in merged]
        return Partials(present.tolist(), self._accs(merged, rows))

    def _accs(self, merged: Sequence[pa.Array], rows: Rows) -> list[Any]:
        if len(merged) == 1:
            return self._values.python(merged[0])
        first, second = merged
        if self.kind == "avg":
            totals = self._values.objects(first) if pa.types.is_decimal(first.type) else first.to_numpy().tolist()
            return list(zip(totals, second.to_numpy().tolist()))
        if not self._timed:
            assert self.by is not None
            return list(zip(self.by.python(first), self._values.python(second)))
        times = [None] * len(first) if rows.times is None else first.to_numpy().tolist()
        return list(zip(times, self._values.python(second)))

    def _partials_of_lists(self, column: pa.ListArray) -> Partials:
        flat, counts = values_of(column)
        present = np.flatnonzero(counts)
        if self.kind == "quantile":
            values: Any = list(zip(*(flat.field(name).to_numpy().tolist() for name in (BUCKET, COUNT))))
        elif self.by is not None:
            values = list(zip(self.by.objects(flat.field(BY)), self._values.objects(flat.field(VALUE))))
        else:
            values = self._values.objects(flat)
        bounds = np.cumsum(counts[present]).tolist()
        parts = [values[start:end] for start, end in zip([0, *bounds], bounds)]
        if self.kind == "count_distinct":
            return Partials(present.tolist(), [distinct(set(part)) for part in parts])
        return Partials(present.tolist(), [dict(part) for part in parts] if self.kind == "quantile" else parts)

    def row_values(self, rows: Rows) -> RowValues:
        """What `gather` takes of each row, for whoever puts rows together one by one."""
        taken, values = self._taken_values(rows, np.arange(len(rows)))
        if taken.rows is None:
            return RowValues(values, whole=True)
        spread = [NOT_COUNTED] * len(rows)
        for row, value in zip(taken.rows.tolist(), values):
            spread[row] = value
        return RowValues(spread, whole=False)

    def _partials_of_few(self, rows: Rows, starts: Int64s) -> Partials:
        taken, values = self._taken_values(rows, starts)
        groups = taken.groups.tolist()
        if self.kind == "count":
            return Partials(groups, np.diff(np.append(taken.starts, len(values))).tolist())
        accs: list[Any] = []
        try:
            for part in taken.cut(values) if groups else ():
                accs.append(self.gather(part))
        except FunctionFailed as error:
            error.stretch = groups[len(accs)]
            raise
        return Partials(groups, accs)

    def _taken_values(self, rows: Rows, starts: Int64s) -> tuple[TakenStretches, Sequence[Any]]:
        """The stretches of rows that count, and what `gather` takes of each row."""
        arrays = [values.array(rows) for values in (self.by, self.values) if values is not None]
        taken = self._taken_rows(rows, starts, arrays)
        total = len(rows) if taken.rows is None else len(taken.rows)
        if self.kind == "count" or not total:
            return taken, range(total)
        if taken.rows is not None:
            arrays = [array.take(pa.array(taken.rows)) for array in arrays]
        values: Any = self.listed(*arrays)
        if self._timed:
            times = rows.times if rows.times is None or taken.rows is None else rows.times[taken.rows]
            values = list(zip([None] * total if times is None else times.tolist(), values))
        return taken, values

    def listed(self, *arrays: pa.Array) -> Any:
        """What `gather` takes, of arrays without nulls: what rows are compared by, if that is something else; values.

        Those of ``first`` and ``last`` lack their times.
        """
        if self.kind == "quantile":
            return buckets_of(self._values.floats(arrays[-1])).tolist()
        values = self._values.objects(arrays[-1])
        return values if self.by is None else list(zip(self.by.objects(arrays[0]), values))

    def _taken_rows(self, rows: Rows, starts: Int64s, arrays: Sequence[pa.Array]) -> TakenStretches:
        """The rows where the condition holds and values are there."""
        mask = None if self._holds is None else self._holds(rows.record_batch)
        for array in arrays:
            if array.null_count:
                valid = array.is_valid().to_numpy(zero_copy_only=False)
                mask = valid if mask is None else mask & valid
        if mask is None or bool(mask.all()):
            return TakenStretches(None, np.arange(len(starts)), starts)
        positions = np.flatnonzero(mask)
        # Rows of a key stay together, so a stretch begins wherever the key changes among the rows that are left.
        groups = np.searchsorted(starts, positions, "right") - 1
        begins = np.flatnonzero(np.diff(groups, prepend=-1))
        return TakenStretches(positions, groups[begins], begins)

    @property
    def _values(self) -> Values:
        assert self.values is not None, "only count has no values"
        return self.values

    def results(self, accs: list[Any]) -> list[Any]:
        return accs if self.kind in ("min", "max") and self.by is None else list(map(self.result, accs))


def make_fold(agg: Agg[Any], codec: RowCodec, where: str, name: str = "") -> KeyFold | None:
    """How an aggregate is computed over rows of this type; None for an own Aggregator, which takes row by row."""
    return KeyFold(agg, codec, where, name or agg.kind) if isinstance(agg, Declared) else None


def _later(older: tuple[int | None, Any], newer: tuple[int | None, Any]) -> tuple[int | None, Any]:
    """The rule ``latest`` of times; without event time rows count as they came."""
    return older if older[0] is not None and newer[0] is not None and newer[0] < older[0] else newer


def _earlier(older: tuple[int | None, Any], newer: tuple[int | None, Any]) -> tuple[int | None, Any]:
    return newer if older[0] is not None and newer[0] is not None and newer[0] < older[0] else older


def _sketch(buckets: Sequence[int]) -> dict[int, int]:
    sketch: dict[int, int] = {}
    for bucket in buckets:
        sketch[bucket] = sketch.get(bucket, 0) + 1
    return dict(sorted(sketch.items()))


def _valid(array: pa.Array) -> Int64s:
    if not array.null_count:
        return np.arange(len(array))
    return np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))


# --- as they are stored


def accumulator_type(agg: Agg[Any], fold: KeyFold | None) -> Any:
    """The type of what an aggregate keeps of some rows."""
    if isinstance(agg, Aggregator):
        return agg.accumulator_type()
    return Any if fold is None else fold.acc_type


def describe_accumulators(aggs: Mapping[str, Agg[Any]], taken: RowCodec, where: str) -> TypeShape:
    """The type of the accumulators of a key, as they are stored."""
    kinds = {name: accumulator_type(agg, make_fold(agg, taken, where, name)) for name, agg in aggs.items()}
    return accumulators_shape(kinds)


def accumulators_codec(aggs: Mapping[str, Agg[Any]], folds: Sequence[KeyFold | None], *notes: str) -> ValueCodec:
    """Accumulators as a map by the name of their aggregate, so that aggregates may come and go; in memory a list.

    ``notes``: names of further numbers, which stand behind the accumulators.
    """
    fields: list[Any] = []
    for i, ((name, agg), fold) in enumerate(zip(aggs.items(), folds)):
        kind = accumulator_type(agg, fold)
        fields.append((f"acc{i}", kind | None, msgspec.field(default=None, name=name)))
    for i, name in enumerate((*notes, TIME_NOTE)):
        fields.append((f"note{i}", int | None, msgspec.field(default=None, name=name)))
    stored = msgspec.defstruct("Accumulators", fields, gc=False, omit_defaults=True)
    inner = value_codec(stored)
    return ValueCodec(
        lambda accs: inner.encode(stored(*accs)),
        lambda raw: list(structs.astuple(inner.decode(raw))),
        # What an aggregator of the user's own makes need not fit the type it says.
        each=any(isinstance(agg, Aggregator) for agg in aggs.values()),
        find_misfit=partial(find_misfit, aggs),
    )


def describe_results(aggs: Mapping[str, Agg[Any]], taken: RowCodec) -> dict[str, list[Any]]:
    """Result → its kind, and behind it what else `finish_of` needs, for readers without the program; it is stored."""
    return {name: _describe(agg, taken) for name, agg in aggs.items()}


def _describe(agg: Agg[Any], taken: RowCodec) -> list[Any]:
    if not isinstance(agg, Declared):
        return [agg.kind]
    value = column_annotation(taken, agg.column or "")[0] if agg.kind == "sum" or agg.kind in _EXACT else None
    if agg.kind == "sum":
        # What a sum of nothing is; text, where decimals are stored as text.
        return ["sum", "0" if value is Decimal else 0.0 if value is float else 0]
    if agg.kind == "quantile":
        return ["quantile", agg.q]
    by = ["by"] if agg.kind in ("min", "max") and agg.by is not None else []
    return [agg.kind, *by, *([EXACT] if value is Decimal else [])]
