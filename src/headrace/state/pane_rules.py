"""How the columns of partial aggregates merge: one rule per column, written into its field, computed in bulk.

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

Columns whose cells are lists have rules of their own: `headrace.state.pane_lists`.

Where older rows do not always come first, because windows are made of several slices, rules that choose name a column
that tells when a row came (``ties``): of equal ones that with the least counts, for ``latest`` that with the greatest,
and null is less than all.

What this module deliberately does not do: find the stretches (see `headrace.state.panes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s
from headrace.state.pane_decimals import sum_decimals
from headrace.state.pane_lists import LIST_RULES, MOST, merge_lists
from headrace.state.pane_ranks import INT64, numbers_of, ranks_of

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
    if pa.types.is_decimal(field.type):
        return sum_decimals(field, column, partial(stretches.reduce, np.add))
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f" or _cannot_overflow(values, stretches.starts):
        return pa.array(stretches.reduce(np.add, values), field.type)
    # Halves of 32 bits cannot overflow while they are added up; together they tell whether the whole does.
    high = stretches.reduce(np.add, values >> 32)
    low = stretches.reduce(np.add, values & 0xFFFFFFFF)
    high += low >> 32
    if bool(np.any(high != high.astype(np.int32))):
        raise FunctionFailed(
            f"the sum {field.name.rpartition('.')[0]!r} leaves 64 bits",
            expected=f"sums from {INT64.min} to {INT64.max}",
            next_move="sum a column of float or Decimal instead, or smaller numbers",
        )
    return pa.array((high << 32) | (low & 0xFFFFFFFF), field.type)


def _cannot_overflow(values: npt.NDArray[Any], starts: Int64s) -> bool:
    largest = max(int(values.max()), -int(values.min()))
    # The bound with all rows in one stretch is nearly always enough, and costs nothing.
    if largest * len(values) <= INT64.max:
        return True
    return largest * int(np.diff(np.append(starts, len(values))).max()) <= INT64.max


def _extreme(field: pa.Field, column: pa.Array, stretches: Stretches) -> pa.Array:
    least = rule_of(field) == MIN
    values, valid = numbers_of(column)
    whole = values.dtype.kind != "f"
    reduce = np.minimum if least and whole else np.fmin if least else np.maximum
    if valid is not None:
        info = np.iinfo(values.dtype) if whole else None
        neutral = (info.max if least else info.min) if info is not None else np.nan if least else -np.inf
        values = np.where(valid, values, values.dtype.type(neutral))
        valid = stretches.reduce(np.logical_or, valid)
    return _as_array(stretches.reduce(reduce, values), valid, field.type)


def _as_array(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None, kind: pa.DataType) -> pa.Array:
    made = pa.array(values, mask=None if valid is None else ~valid)
    return made if made.type == kind else made.view(kind)


def _choose(column: pa.Array, starts: Int64s, rule: str, came: pa.Array | None) -> npt.NDArray[Any]:
    """The row that each stretch is represented by; where nothing is there, any of them, as it is null."""
    ranks = ranks_of(column)
    if rule == LEAST:
        # Null ranks lowest, and must lose here too.
        ranks = np.where(ranks == INT64.min, INT64.min, -ranks)
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
