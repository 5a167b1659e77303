"""Merge rules of columns of partial aggregates: one rule per column, written into its field, in bulk and scalar form.

A panes table describes itself. Each accumulator column carries the name of its rule in its metadata, so that a fold, a
query or a task merges partials without knowing the program that made them. Rows come as stretches, each of one slice
and key, older rows first; a rule makes one cell of each stretch.

===========  =============================================================================================
rule         cell of a stretch
===========  =============================================================================================
``sum``      the sum of numbers; nothing is 0, never null. Leaving 64 bits, or 38 digits of a decimal, is an error
``min``      the least number or time, ``max`` the greatest; not-a-number is greater than all; null is nothing
``least``    the least value of any type that has an order, the oldest of equal ones; null is nothing
``greatest`` the greatest likewise
``latest``   the greatest, but the newest of equal ones
``beside``   what stands in the row that the rule of another column (``of``) chose
``since``    the greatest, and rows older than the first that has it no longer count, in any column
===========  =============================================================================================

Columns whose cells are lists have rules of their own: `headrace.aggregates.list_rules`.

Where older rows do not always come first, because windows are made of several slices, rules that choose name a column
that tells when a row came (``ties``): of equal ones that with the least counts, for ``latest`` that with the greatest,
and null is less than all.

`merge_columns` merges stretches of rows in columns; `RowMerge` merges the rows of a single key cell by cell, in plain
Python. Both say the same for every rule and type (`tests/aggregates/test_merge_rules.py`).

What this module deliberately does not do: find the stretches (see `headrace.state.panes.table`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.list_rules import LIST_RULES, MOST, compare, merge_list_cells, merge_lists
from headrace.aggregates.numbers import (
    INT64,
    adder,
    lost_sums,
    numbers_of,
    ranks_of,
    sum_decimals,
    sum_whole,
    summing,
)
from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s

SUM: Final = "sum"
MIN: Final = "min"
MAX: Final = "max"
LEAST: Final = "least"
GREATEST: Final = "greatest"
LATEST: Final = "latest"
BESIDE: Final = "beside"
SINCE: Final = "since"

_RULE: Final = b"merge"
_OF: Final = b"of"
_TIES: Final = b"ties"
_CHOOSING: Final = frozenset({LEAST, GREATEST, LATEST})
_MOSTLY_SINGLE: Final = 1.5
"""Up to so many rows per stretch, most stretches have a single row."""


def merge_field(
    name: str, kind: pa.DataType, rule: str, *, of: str = "", ties: str = "", most: int | None = None
) -> pa.Field:
    """The field of an accumulator column.

    ``of``: the column whose rule chooses the row, for ``beside``. ``ties``: the column that tells when rows came, for
    rules that choose. ``most``: how many values a cell has at most, for ``top``.
    """
    metadata = {_RULE: rule.encode()}
    metadata |= {_OF: of.encode()} if of else {}
    metadata |= {_TIES: ties.encode()} if ties else {}
    metadata |= {MOST: str(most).encode()} if most is not None else {}
    return pa.field(name, kind, nullable=rule not in (SUM, SINCE), metadata=metadata)


def rule_of(field: pa.Field) -> str:
    """The name of a column's rule."""
    rule: bytes = (field.metadata or {}).get(_RULE, b"")
    return rule.decode()


def of_column(field: pa.Field) -> str:
    """The column whose rule chooses the row, for ``beside``; empty for all others."""
    named: bytes = (field.metadata or {}).get(_OF, b"")
    return named.decode()


def ties_of(field: pa.Field) -> str:
    """The column that tells which of equal rows came first; empty where the older one stands before the newer."""
    named: bytes = (field.metadata or {}).get(_TIES, b"")
    return named.decode()


def with_columns(field: pa.Field, columns: Mapping[str, str]) -> pa.Field:
    """A field as it is called now, and as the columns that its rule names are. ``columns``: name then → now."""
    metadata = dict(field.metadata or {})
    for part in (_OF, _TIES):
        if part in metadata:
            metadata[part] = columns[metadata[part].decode()].encode()
    return field.with_name(columns[field.name]).with_metadata(metadata)


def nothing(field: pa.Field, rows: int) -> pa.Array:
    """Cells of rows that say nothing: what an aggregate amounts to before it saw anything."""
    if field.nullable:
        return pa.nulls(rows, field.type)
    return pa.array(np.zeros(rows, np.int64)).cast(field.type)


def merge_columns(fields: list[pa.Field], columns: list[pa.Array], starts: Int64s) -> list[pa.Array]:
    """One cell for each stretch of each column; ``starts`` tells where the stretches begin."""
    stretches = Stretches.of(starts, len(columns[0]) if columns else 0)
    named = dict(zip((field.name for field in fields), columns))
    chosen: dict[str, pa.Array] = {}
    merged = []
    for field, column in zip(fields, columns, strict=True):
        rule = rule_of(field)
        if rule in _CHOOSING:
            rows = chosen[field.name] = pa.array(_choose(column, starts, rule, named.get(ties_of(field))))
            merged.append(pc.take(column, rows, boundscheck=False))
        elif rule == BESIDE:
            merged.append(pc.take(column, chosen[field.metadata[_OF].decode()], boundscheck=False))
        elif rule in LIST_RULES:
            merged.append(_merge_lists(field, column, stretches))
        else:
            merged.append(_REDUCE[rule](field, column, stretches))
    return merged


def split_sums(fields: Sequence[pa.Field], columns: Sequence[pa.Array], starts: Int64s) -> Int64s:
    """The same stretches, cut where a sum would leave its column: what of them is merged fits, the rest stays apart.

    For partials that are merged to be stored. A later row may bring the sum back, and whether the whole fits is asked
    where it becomes a result.
    """
    add_up = partial(Stretches.of(starts, len(columns[0])).reduce, np.add)
    sums = [(field, column) for field, column in zip(fields, columns) if rule_of(field) == SUM]
    lost = {stretch for field, column in sums for stretch in lost_sums(field, column, add_up).tolist()}
    bounds = np.append(starts, len(columns[0]))
    cuts = [_cuts(sums, int(bounds[stretch]), int(bounds[stretch + 1])) for stretch in sorted(lost)]
    return np.unique(np.concatenate([starts, *cuts]))


def _cuts(sums: Sequence[tuple[pa.Field, pa.Array]], start: int, end: int) -> list[int]:
    """The rows of a stretch that cannot be added to those before them."""
    adding = [adder(field) for field, _ in sums]
    rows = list(zip(*(column.slice(start, end - start).to_pylist() for _, column in sums)))
    cuts, totals = [], rows[0]
    for place, row in enumerate(rows[1:], start + 1):
        try:
            totals = tuple(add_two(total, cell) for add_two, total, cell in zip(adding, totals, row))
        except FunctionFailed:
            cuts.append(place)
            totals = row
    return cuts


class Stretches(NamedTuple):
    """Where stretches begin, and apart from the others those that have more than one row: often there are few."""

    starts: Int64s
    long: Int64s | None
    """Which stretches have several rows; None: they are not told apart."""
    rows: Int64s
    """The rows of those …"""
    inner: Int64s
    """… and where each of them begins among these rows."""

    @classmethod
    def of(cls, starts: Int64s, rows: int) -> Stretches:
        none = np.zeros(0, np.int64)
        if rows > _MOSTLY_SINGLE * len(starts):
            return cls(starts, None, none, none)
        lengths = np.diff(np.append(starts, rows))
        long = np.flatnonzero(lengths > 1)
        counts = lengths[long]
        inner = np.cumsum(counts) - counts
        places = np.arange(int(counts.sum())) + np.repeat(starts[long] - inner, counts)
        return cls(starts, long, places, inner)

    def reduce(self, ufunc: Any, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One number per stretch."""
        if self.long is None:
            return ufunc.reduceat(values, self.starts)  # type: ignore[no-any-return]
        reduced = values[self.starts]
        if len(self.long):
            reduced[self.long] = ufunc.reduceat(values[self.rows], self.inner)
        return reduced


def live_rows(column: pa.Array, starts: Int64s) -> npt.NDArray[np.bool_] | None:
    """Rows that still count by the rule ``since``; None: all of them."""
    marks = column.to_numpy(zero_copy_only=False)
    newest = np.maximum.reduceat(marks, starts)
    lengths = np.diff(np.append(starts, len(marks)))
    equal = marks == np.repeat(newest, lengths)
    if bool(equal.all()):
        return None
    # A mark may be smaller than one before it where a clock was set back; such a row is newer all the same.
    places = np.arange(len(marks))
    first = np.minimum.reduceat(np.where(equal, places, len(marks)), starts)
    live: npt.NDArray[np.bool_] = places >= np.repeat(first, lengths)
    return live


def _sum(field: pa.Field, column: pa.Array, stretches: Stretches) -> pa.Array:
    add_up = partial(stretches.reduce, np.add)
    if pa.types.is_decimal(field.type):
        return sum_decimals(field, column, add_up)
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f":
        # Infinity and its opposite are not-a-number together, and nothing to warn of.
        with np.errstate(invalid="ignore", over="ignore"):
            return pa.array(add_up(values), field.type)
    starts = stretches.starts
    longest = lambda: int(np.diff(np.append(starts, len(values))).max())  # noqa: E731
    return pa.array(sum_whole(field, values, add_up, longest), field.type)


def _extreme(field: pa.Field, column: pa.Array, stretches: Stretches) -> pa.Array:
    least = rule_of(field) == MIN
    values, valid = numbers_of(column)
    whole, better = values.dtype.kind != "f", extreme_ufunc(least=least)
    if valid is not None:
        info = np.iinfo(values.dtype) if whole else None
        neutral = (info.max if least else info.min) if info is not None else np.nan if least else -np.inf
        values = np.where(valid, values, values.dtype.type(neutral))
        valid = stretches.reduce(np.logical_or, valid)
    return _as_array(stretches.reduce(better, values), valid, field.type)


def extreme_ufunc(*, least: bool) -> np.ufunc:
    """``min`` or ``max`` of two columns: not-a-number is greater than every number."""
    return np.fmin if least else np.maximum


def _as_array(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None, kind: pa.DataType) -> pa.Array:
    made = pa.array(values, mask=None if valid is None else ~valid)
    return made if made.type == kind else made.view(kind)


def _choose(column: pa.Array, starts: Int64s, rule: str, came: pa.Array | None) -> npt.NDArray[Any]:
    """The row that each stretch is represented by; where nothing is there, any of them, as it is null."""
    ranks = ranks_of(column)
    if rule == LEAST:
        # Null ranks lowest, and must lose here too.
        ranks = np.where(ranks == INT64.min, INT64.min, -ranks)
    if came is None:
        # Rows mostly come in the order of time: then the row stands at an end of its stretch.
        in_order = ranks[1:] >= ranks[:-1] if rule == LATEST else ranks[1:] <= ranks[:-1]
        in_order[starts[1:] - 1] = True
        if bool(in_order.all()):
            return np.append(starts[1:], len(ranks)) - 1 if rule == LATEST else starts
    best = np.maximum.reduceat(ranks, starts)
    lengths = np.diff(np.append(starts, len(ranks)))
    equal = ranks == np.repeat(best, lengths)
    if came is not None:
        first, never = (np.maximum, INT64.min) if rule == LATEST else (np.minimum, INT64.max)
        arrivals = np.where(equal, ranks_of(came), never)
        equal &= arrivals == np.repeat(first.reduceat(arrivals, starts), lengths)
    places = np.arange(len(ranks))
    if rule == LATEST:
        return np.maximum.reduceat(np.where(equal, places, -1), starts)
    return np.minimum.reduceat(np.where(equal, places, len(ranks)), starts)


def _merge_lists(field: pa.Field, column: pa.ListArray, stretches: Stretches) -> pa.Array:
    """Cells that have nothing to merge with are moved as they are, however large they are."""
    rule, starts, long = rule_of(field), stretches.starts, stretches.long
    if long is None:
        return merge_lists(rule, field, column, starts)
    places = starts.copy()
    if len(long):
        some = merge_lists(rule, field, pc.take(column, pa.array(stretches.rows), boundscheck=False), stretches.inner)
        places[long] = len(column) + np.arange(len(long))
        column = pa.concat_arrays([column, some])
    return pc.take(column, pa.array(places), boundscheck=False)


_REDUCE: Final[Mapping[str, Callable[[pa.Field, pa.Array, Stretches], pa.Array]]] = {
    SUM: _sum,
    MIN: _extreme,
    MAX: _extreme,
    SINCE: _extreme,
}


# --- the same rules, cell by cell


class RowMerge:
    """The rules of some columns for the rows of one key, older rows first: a row is a sequence of cells.

    A cell is None where it says nothing; cells of lists are arrays (`headrace.aggregates.list_rules.merge_list_cells`).
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        names = [field.name for field in fields]
        self._since = next((i for i, field in enumerate(fields) if rule_of(field) == SINCE), None)
        self._choosing: list[tuple[int, Choice]] = []
        self._merging: list[tuple[int, Callable[[Sequence[Any]], Any]]] = []
        self._beside: list[tuple[int, int]] = []
        self._size = len(names)
        for i, field in enumerate(fields):
            rule = rule_of(field)
            if rule in _CHOOSING:
                ties = ties_of(field)
                self._choosing.append((i, Choice(rule, i, names.index(ties) if ties else None)))
            elif rule == BESIDE:
                self._beside.append((i, names.index(of_column(field))))
            elif rule in LIST_RULES:
                self._merging.append((i, partial(merge_list_cells, rule, field)))
            elif rule == SUM:
                self._merging.append((i, summing(field)))
            else:
                self._merging.append((i, partial(reduce, lesser if rule == MIN else greater)))

    def merge(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """One row out of several."""
        if self._since is not None:
            marks = [row[self._since] for row in rows]
            rows = rows[marks.index(max(marks)) :]
        merged: list[Any] = [None] * self._size
        if self._merging:
            columns = list(zip(*rows))
            for i, rule in self._merging:
                merged[i] = rule(columns[i])
        chosen: dict[int, Sequence[Any]] = {}
        for i, choice in self._choosing:
            chosen[i] = reduce(choice, rows)
            merged[i] = chosen[i][i]
        for i, by in self._beside:
            merged[i] = chosen[by][i]
        return merged


class Choice:
    """Which of two rows a rule chooses, the older one given first."""

    def __init__(self, rule: str, by: int, came: int | None) -> None:
        self._by, self._came = by, came
        self._sign = -1 if rule == LEAST else 1
        self._upwards = rule != LEAST
        self._newest = rule == LATEST

    def __call__(self, older: Sequence[Any], newer: Sequence[Any]) -> Sequence[Any]:
        before, after = older[self._by], newer[self._by]
        if before is None or after is None:
            return newer if before is None else older
        if after < before or after > before:
            return newer if (after > before) is self._upwards else older
        order = compare(before, after) * self._sign
        if order == 0 and self._came is not None:
            # Null came before everything else.
            order = _arrival(newer[self._came]) - _arrival(older[self._came])
            order = order if self._newest else -order
        return newer if order > 0 or (order == 0 and self._newest) else older


def lesser(older: Any, newer: Any) -> Any:
    """``min`` of two cells. What is not equal to itself is not-a-number, and greater than every number."""
    if older is None or newer is None:
        return newer if older is None else older
    return newer if newer < older or older != older else older


def greater(older: Any, newer: Any) -> Any:
    """``max`` of two cells."""
    if older is None or newer is None:
        return newer if older is None else older
    return newer if newer > older or newer != newer else older


def _arrival(came: int | None) -> int:
    return INT64.min if came is None else came
