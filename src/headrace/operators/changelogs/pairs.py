"""Pairs of −U and +U on their way through a task.

Invariant, for the rows of one batch: a ``-U`` and the ``+U`` that stands in its place lie side by side. What drops rows
mends it here: half a pair becomes ``-D`` or ``+I``. An exchange may part a pair, because the new row may have another
key; so behind one nothing but the sign of a kind counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.batch import Int64s, Rows
from headrace.model.row_kind import AFTER, BEFORE, DELETE, INSERT, Kinds

Mask = npt.NDArray[np.bool_]


def find_pairs(kinds: Kinds) -> Int64s:
    """Where pairs begin."""
    return np.flatnonzero((kinds[:-1] == BEFORE) & (kinds[1:] == AFTER))


def mend_kinds(kinds: Kinds, stays: Mask | None = None) -> Kinds:
    """The kinds of rows of which only some stay; those of the others mean nothing. None: all stay."""
    begins = find_pairs(kinds)
    if stays is not None:
        begins = begins[stays[begins] & stays[begins + 1]]
    whole = np.zeros(len(kinds), np.bool_)
    whole[begins] = whole[begins + 1] = True
    return np.where(whole, kinds, _as_halves(kinds)).astype(np.int8)


def _as_halves(kinds: Kinds) -> Kinds:
    """The kinds of rows that have lost the other half of their pair."""
    return np.where(kinds == BEFORE, DELETE, np.where(kinds == AFTER, INSERT, kinds)).astype(np.int8)


def keep_rows(rows: Rows, kept: Int64s) -> Rows:
    """The rows at these positions, in their order."""
    if len(kept) == len(rows):
        return rows
    if rows.kinds is None:
        return rows.take(kept)
    stays = np.zeros(len(rows), np.bool_)
    stays[kept] = True
    return rows.with_kinds(mend_kinds(rows.kinds, stays)).take(kept)


def arrange_changes(more: Int64s, groups: Sequence[Int64s], ties: Sequence[Int64s]) -> tuple[Int64s, Kinds]:
    """The order in which changed results go out, each as often as its number says, and their kinds.

    ``more``: how many more there are of each. ``groups``: what makes two results stand in each other's place; of a
    group, what goes stands before what comes. ``ties``: what decides beyond that.
    """
    comes = more > 0
    order = np.lexsort((*reversed(ties), comes, *reversed(groups)))
    order = np.repeat(order, np.abs(more[order]))
    mine, following = order[:-1], order[1:]
    replaced = ~comes[mine] & comes[following]
    for values in groups:
        replaced &= values[mine] == values[following]
    kinds = np.where(comes[order], INSERT, DELETE).astype(np.int8)
    begins = np.flatnonzero(replaced)
    kinds[begins], kinds[begins + 1] = BEFORE, AFTER
    return order, kinds


def spread_pairs(kinds: Kinds, counts: Int64s) -> tuple[Int64s, Kinds]:
    """Of rows of which each gave so many: the order in which to give those, and their kinds before it.

    Of a pair whose halves gave equally many, what came first of the one goes with what came first of the other.
    """
    ends = np.cumsum(counts)
    order = np.arange(int(ends[-1]) if len(ends) else 0)
    begins = find_pairs(kinds)
    begins = begins[counts[begins] == counts[begins + 1]]
    whole = np.zeros(len(kinds), np.bool_)
    whole[begins] = whole[begins + 1] = True
    for begin in begins[counts[begins] > 1].tolist():
        first, half = int(ends[begin] - counts[begin]), int(counts[begin])
        order[first : first + 2 * half] = first + np.arange(2 * half).reshape(2, half).T.reshape(-1)
    return order, np.repeat(np.where(whole, kinds, _as_halves(kinds)), counts).astype(np.int8)


def drop_equal_pairs(rows: Rows, *, timed: bool) -> Rows:
    """The rows without pairs whose halves are the same, byte for byte. ``timed``: their times are to be, too."""
    assert rows.kinds is not None
    begins = find_pairs(rows.kinds)
    if not len(begins):
        return rows
    equal = np.ones(len(begins), np.bool_)
    if timed and rows.times is not None:
        equal &= rows.times[begins] == rows.times[begins + 1]
    old, new = pa.array(begins), pa.array(begins + 1)
    for column in rows.columns:
        if not equal.any():
            return rows
        equal &= _same(column.take(old), column.take(new))
    if not equal.any():
        return rows
    gone = begins[equal]
    return rows.take(np.delete(np.arange(len(rows)), np.concatenate([gone, gone + 1])))


def _same(old: pa.Array, new: pa.Array) -> Mask:
    """Which cells are the same bytes: not-a-number is itself, and 0.0 is not −0.0."""
    if pa.types.is_nested(old.type):
        return np.array([repr(a) == repr(b) for a, b in zip(old.to_pylist(), new.to_pylist())], dtype=np.bool_)
    if pa.types.is_floating(old.type):
        whole = {2: pa.int16(), 4: pa.int32(), 8: pa.int64()}[old.type.byte_width]
        old, new = old.view(whole), new.view(whole)
    equal = pc.equal(old, new).fill_null(False).to_numpy(zero_copy_only=False)
    if old.null_count and new.null_count:
        equal = equal | (old.is_null().to_numpy(zero_copy_only=False) & new.is_null().to_numpy(zero_copy_only=False))
    same: Mask = equal
    return same
