"""Retraction: rows that were added to an aggregate are taken out of its partials again.

``count``, ``sum`` and ``avg`` are taken apart as they were put together. All others but ``quantile`` keep what their
rows were lifted to, in the order in which they came; of equal rows the newest goes. Partials that can be retracted are
columns like all others: they are lifted, merged by rule and read, in bulk, and cell by cell for one key.

Sums of whole numbers and decimals are exact. Sums of floats are kept in two numbers: the sum, and what rounding took
off it, so that what is left when large numbers have gone is not lost. Infinities and not-a-number are counted beside
the sum, so that they can go again. What was never added cannot be taken out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.aggregates.columns import pane_aggregate
from headrace.aggregates.declare import Agg, Declared
from headrace.aggregates.lifting import PaneAggregate
from headrace.aggregates.list_rules import LIST, LIST_RULES, SET, SKETCH, TOP, distinct, list_of, lists, values_of
from headrace.aggregates.numbers import adder, ranks_of, sum_overflow, summing
from headrace.aggregates.results import RowFinish, read_results
from headrace.aggregates.rules import SUM, RowMerge, merge_columns, merge_field, nothing, rule_of
from headrace.errors import FunctionFailed, ProgramError
from headrace.model.batch import Int64s, Rows

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


class Retractable:
    """One aggregate as columns that rows can be taken out of."""

    fields: list[pa.Field]

    def __init__(self, ordinary: PaneAggregate) -> None:
        self.ordinary = ordinary
        self._results = {ordinary.name: ordinary.columns_of_result}

    def lift(self, rows: Rows) -> list[pa.Array]:
        """One cell per row and column."""
        raise NotImplementedError

    def merge(self, columns: Sequence[pa.Array], starts: Int64s) -> list[pa.Array]:
        """What each stretch of cells comes to."""
        return merge_columns(self.fields, list(columns), starts)

    def plus(self, older: Sequence[Any], newer: Sequence[Any]) -> list[Any]:
        """What the cells of one key come to with further ones."""
        return [add_two(*two) for add_two, *two in zip(self._adding, older, newer, strict=True)]

    @cached_property
    def _adding(self) -> list[Callable[[Any, Any], Any]]:
        # Whole numbers may leave 64 bits until what goes is taken out.
        plain = (pa.types.is_list(field.type) or pa.types.is_integer(field.type) for field in self.fields)
        return [add if each else adder(field) for each, field in zip(plain, self.fields, strict=True)]

    def retract(self, columns: Sequence[pa.Array], removed: Sequence[pa.Array]) -> list[pa.Array]:
        """What is left of each key, of merged columns that have a row for each key."""
        raise NotImplementedError

    def retract_cells(self, cells: Sequence[Any], removed: Sequence[Any]) -> list[Any]:
        """What is left of one key; cells of lists are Python's lists."""
        raise NotImplementedError

    def read(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The results of merged columns."""
        batch = pa.RecordBatch.from_arrays(self._settled(columns), schema=pa.schema(self.ordinary.fields))
        return read_results(batch, self._results)[self.ordinary.name]

    def read_cells(self, cells: Sequence[Any]) -> Any:
        """The result of one key."""
        fields = self.ordinary.fields
        named = dict(zip((field.name for field in fields), self._settled_cells(cells)))
        return RowFinish(self._results, fields).finish(named)[self.ordinary.name]

    def _settled(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The columns that the aggregate has where nothing is taken out."""
        raise NotImplementedError

    def _settled_cells(self, cells: Sequence[Any]) -> list[Any]:
        raise NotImplementedError


def retractable(name: str, agg: Agg[Any], codec: RowCodec, where: str) -> Retractable:
    """How an aggregate is kept where rows may be taken out; refuses what cannot be."""
    ordinary = pane_aggregate(name, replace(agg, over_us=None), codec, where) if isinstance(agg, Declared) else None
    rules = set() if ordinary is None else {rule_of(field) for field in ordinary.fields}
    if ordinary is None or SKETCH in rules:
        raise ProgramError(
            f"rows cannot be taken out of the aggregate {name!r}",
            where=where,
            expected="count, sum, avg, min, max, first, last, top, collect or different values of plain columns",
            found=f"{agg.kind}, whose sketch does not know its rows"
            if SKETCH in rules
            else "an aggregator of one's own"
            if not isinstance(agg, Declared)
            else f"{agg.kind} of values without a column type",
            next_move="compute it over rows that are only added, or use another aggregate",
        )
    if rules != {SUM}:
        return _KeptRows(ordinary)
    return (_AddedFloats if pa.types.is_floating(ordinary.fields[0].type) else _AddedRows)(ordinary)


class _AddedRows(Retractable):
    """``count``, and ``sum`` and ``avg`` of whole numbers and decimals: columns of sums."""

    def __init__(self, ordinary: PaneAggregate) -> None:
        super().__init__(ordinary)
        self.fields = list(ordinary.fields)

    def lift(self, rows: Rows) -> list[pa.Array]:
        return list(self.ordinary.lift(rows))

    def retract(self, columns: Sequence[pa.Array], removed: Sequence[pa.Array]) -> list[pa.Array]:
        return [_subtract(*each) for each in zip(self.fields, columns, removed, strict=True)]

    def retract_cells(self, cells: Sequence[Any], removed: Sequence[Any]) -> list[Any]:
        return [
            summing(field)((cell, less.copy_negate() if isinstance(less, Decimal) else -less))
            for field, cell, less in zip(self.fields, cells, removed, strict=True)
        ]

    def _settled(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return list(columns)

    def _settled_cells(self, cells: Sequence[Any]) -> list[Any]:
        return list(cells)


class _AddedFloats(Retractable):
    """``sum`` and ``avg`` of floats: the sum of the finite ones, and behind the other columns how many of each special
    value are in it, and last what rounding took off the sum."""

    def __init__(self, ordinary: PaneAggregate) -> None:
        super().__init__(ordinary)
        name = ordinary.name
        special = [merge_field(f"{name}.{value}", pa.int64(), SUM) for value in ("nan", "inf", "minus_inf")]
        rounded = merge_field(f"{name}.rounded", pa.float64(), SUM)
        self.fields = [*ordinary.fields, *special, rounded]

    def lift(self, rows: Rows) -> list[pa.Array]:
        cells = self.ordinary.lift(rows)
        numbers = cells[0].to_numpy(zero_copy_only=False)
        masks = [np.isnan(numbers), numbers == math.inf, numbers == -math.inf]
        finite = np.where(np.isfinite(numbers), numbers, 0.0)
        counts = [pa.array(mask.astype(np.int64)) for mask in masks]
        return [pa.array(finite), *cells[1:], *counts, pa.array(np.zeros(len(finite)))]

    def merge(self, columns: Sequence[pa.Array], starts: Int64s) -> list[pa.Array]:
        if not len(starts):
            return list(columns)
        total, rounded = (cells.to_numpy(zero_copy_only=False).copy() for cells in (columns[0], columns[-1]))
        place = np.arange(len(total)) - np.repeat(starts, np.diff(np.append(starts, len(total))))
        # Neighbours of a stretch are added two by two, until each has one number left.
        while (odd := np.flatnonzero(place & 1)).size:
            total[odd - 1], lost = _two_sum(total[odd - 1], total[odd])
            rounded[odd - 1] += rounded[odd] + lost
            even = (place & 1) == 0
            total, rounded, place = total[even], rounded[even], place[even] >> 1
        others = merge_columns(self.fields[1:-1], list(columns[1:-1]), starts)
        return [pa.array(total), *others, pa.array(rounded)]

    def plus(self, older: Sequence[Any], newer: Sequence[Any]) -> list[Any]:
        total, lost = _two_sum(older[0], newer[0])
        others = super().plus(older, newer)[1:-1]
        return [total, *others, older[-1] + newer[-1] + lost]

    def retract(self, columns: Sequence[pa.Array], removed: Sequence[pa.Array]) -> list[pa.Array]:
        numbers, gone = ([each.to_numpy(zero_copy_only=False) for each in (cells[0], cells[-1])]
                         for cells in (columns, removed))  # fmt: skip
        total, lost = _two_sum(numbers[0], -gone[0])
        others = zip(self.fields[1:-1], columns[1:-1], removed[1:-1], strict=True)
        return [pa.array(total), *(_subtract(*each) for each in others), pa.array(numbers[1] - gone[1] + lost)]

    def retract_cells(self, cells: Sequence[Any], removed: Sequence[Any]) -> list[Any]:
        return self.plus(cells, [-cell for cell in removed])

    def _settled(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        count = len(self.ordinary.fields)
        wanted = (columns[0], columns[-1], *columns[count:-1])
        cells = zip(*(column.to_numpy(zero_copy_only=False).tolist() for column in wanted))
        totals = [_with_special(total + rounded, *special) for total, rounded, *special in cells]
        return [pa.array(totals, pa.float64()), *columns[1:count]]

    def _settled_cells(self, cells: Sequence[Any]) -> list[Any]:
        count = len(self.ordinary.fields)
        return [_with_special(cells[0] + cells[-1], *cells[count:-1]), *cells[1:count]]


def _two_sum(one: Any, other: Any) -> tuple[Any, Any]:
    """The sum of two numbers, or of two arrays of them, and what rounding took off it, exactly."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = one + other
        part = total - one
        lost = (one - (total - part)) + (other - part)
    return total, np.where(np.isfinite(total), lost, 0.0) if isinstance(total, np.ndarray) else _finite(lost)


class _KeptRows(Retractable):
    """Everything else: a list of what rows were lifted to. Of the others it is the struct of a row's cells."""

    def __init__(self, ordinary: PaneAggregate) -> None:
        super().__init__(ordinary)
        self._rule = rule_of(ordinary.fields[0])
        self._listed = self._rule in LIST_RULES
        element = (
            ordinary.fields[0].type.value_type
            if self._listed
            else pa.struct([pa.field(f"c{i}", field.type) for i, field in enumerate(ordinary.fields)])
        )
        self.fields = [merge_field(f"{ordinary.name}.rows", list_of(element), LIST)]

    def lift(self, rows: Rows) -> list[pa.Array]:
        cells, kind = self.ordinary.lift(rows), self.fields[0].type
        if self._listed:
            return [cells[0] if cells[0].type == kind else cells[0].cast(kind)]
        flat = pa.StructArray.from_arrays(cells, fields=list(kind.value_type))
        valid = cells[0].is_valid()
        return [lists(kind, flat.filter(valid), valid.to_numpy(zero_copy_only=False).astype(np.int64))]

    def retract(self, columns: Sequence[pa.Array], removed: Sequence[pa.Array]) -> list[pa.Array]:
        kept, gone = values_of(columns[0]), values_of(removed[0])
        codes = _codes(pa.concat_arrays([kept.flat, gone.flat]))
        owners = np.concatenate([kept.owners, gone.owners])
        groups = np.unique(np.stack([owners, codes]), axis=1, return_inverse=True)[1].reshape(-1)
        kept_groups, gone_groups = groups[: len(kept.flat)], groups[len(kept.flat) :]
        count = int(groups.max(initial=-1)) + 1
        present, less = np.bincount(kept_groups, minlength=count), np.bincount(gone_groups, minlength=count)
        if bool(np.any(less > present)):
            place = int(np.flatnonzero((less > present)[gone_groups])[0])
            raise _never_added(self.fields[0], int(gone.owners[place]))
        # Of equal ones the newest goes: those that are followed by fewer equal ones than have to go.
        order = np.argsort(kept_groups, kind="stable")
        ranked = kept_groups[order]
        behind = np.cumsum(present)[ranked] - 1 - np.arange(len(order))
        stays = np.empty(len(order), bool)
        stays[order] = behind >= less[ranked]
        counts = np.bincount(kept.owners[stays], minlength=len(kept.counts))
        return [lists(self.fields[0].type, kept.flat.filter(pa.array(stays)), counts)]

    def retract_cells(self, cells: Sequence[Any], removed: Sequence[Any]) -> list[Any]:
        less, left = Counter(map(_same, removed[0] or ())), list[Any]()
        for value in reversed(cells[0] or ()):
            if less[_same(value)]:
                less[_same(value)] -= 1
            else:
                left.append(value)
        if less.total():
            raise _never_added(self.fields[0])
        return [left[::-1]]

    def _settled(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        fields = self.ordinary.fields
        flat, counts = values_of(columns[0])
        some = np.flatnonzero(counts)
        if not len(some):
            return [nothing(field, len(counts)) for field in fields]
        cells = [flat.field(i) for i in range(len(fields))] if not self._listed else []
        if self._listed:
            cells = [lists(fields[0].type, flat, np.ones(len(flat), np.int64))]
        starts = (np.cumsum(counts) - counts)[some]
        places = np.full(len(counts), -1)
        places[some] = np.arange(len(some))
        merged = merge_columns(fields, cells, starts)
        return [column.take(pa.array(places, mask=places < 0)) for column in merged]

    def _settled_cells(self, cells: Sequence[Any]) -> list[Any]:
        rows = cells[0] or ()
        if not rows:
            return [None] * len(self.ordinary.fields)
        if not self._listed:
            return RowMerge(self.ordinary.fields).merge(rows)
        # A cell with a single value for each row, in Python.
        single = {SET: lambda row: distinct({row}), TOP: lambda row: [row if isinstance(row, tuple) else (row,)]}
        make: Any = single.get(self._rule, lambda row: [row])
        return RowMerge(self.ordinary.fields).merge([[make(row)] for row in rows])


def _subtract(field: pa.Field, column: pa.Array, less: pa.Array) -> pa.Array:
    if pa.types.is_decimal(field.type):
        add_up = summing(field)
        cells = [add_up((cell, gone.copy_negate())) for cell, gone in zip(column.to_pylist(), less.to_pylist())]
        return pa.array(cells, field.type)
    numbers, gone = column.to_numpy(zero_copy_only=False), less.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        left = numbers - gone
    if numbers.dtype.kind != "f":
        # The sign of the difference is wrong only where both numbers have different signs.
        lost = np.flatnonzero(((numbers ^ gone) & (numbers ^ left)) < 0)
        if len(lost):
            raise sum_overflow(field, int(lost[0]))
    return pa.array(left, field.type)


def _with_special(total: float, nans: int, infinities: int, opposites: int) -> float:
    if nans or (infinities and opposites):
        return math.nan
    return math.inf if infinities else -math.inf if opposites else total


def _finite(number: float) -> float:
    """Of a sum that has left the range of floats, nothing is known to be lost."""
    return number if math.isfinite(number) else 0.0


def _codes(flat: pa.Array) -> Int64s:
    """A number for each value, the same for the same, as far as aggregates tell."""
    if pa.types.is_struct(flat.type):
        parts: npt.NDArray[np.int64] = np.stack([_codes(flat.field(i)) for i in range(flat.type.num_fields)])
        return np.unique(parts, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    if pa.types.is_nested(flat.type):
        seen: dict[str, int] = {}
        return np.array([seen.setdefault(repr(value), len(seen)) for value in flat.to_pylist()], dtype=np.int64)
    return ranks_of(flat)


def _same(value: Any) -> Any:
    """A value as it is compared: not-a-number is one value."""
    if isinstance(value, tuple):
        return tuple(map(_same, value))
    if isinstance(value, list | dict):
        return repr(value)
    return math.nan if value != value else value


def _never_added(field: pa.Field, stretch: int | None = None) -> FunctionFailed:
    error = FunctionFailed(
        f"the aggregate {field.name.rpartition('.')[0]!r} cannot take out a row that was never added",
        expected="rows that were added before",
        next_move="report it: updates and what they replace must come in pairs",
    )
    error.stretch = stretch
    return error
