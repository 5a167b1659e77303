"""Fragments of sessions: what rows of one key came to that lay close together, and which of them are one session.

A table of sessions is a panes table whose slice is an end. A row of it, a *fragment*, says: from its start up to its
end (``pane``) one session of this key has no gap, and this is part of what it holds. Fragments of one key that overlap
or touch, directly or through others, are one session; so a session is put together whenever somebody wants to know it,
and adding to one never reads it. Fragments of one key and end are one session, which is why they may be merged like
rows of any panes table, without looking at others.

Invariants
- A fragment is over when the clock has reached its end and the time that late rows are allowed: whoever moves the clock
  has fired its session by then, or has written its content again with a later end, if the session goes on.
- No column of such a table depends on the order in which its fragments are merged.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, UInt64s
from headrace.state.panes.table import compact_rows, find_groups, merge_rows

START: Final = "!start.min"
"""Where the session has begun at the latest; merging finds the least."""
WAS_LATE: Final = "!late.max"
"""1: the session has given a result after its end had passed; only where rows may be late."""

_INT64_MAX: Final = int(np.iinfo(np.int64).max)
_SIEVE: Final = np.zeros(1 << 18, np.bool_)
_SIEVED: Final = np.uint64(len(_SIEVE) - 1)
_SPARSE: Final = 8
"""The sieve is used where it holds this many times as many bits as hashes are wanted."""


class Sessions(NamedTuple):
    """Fragments put together."""

    of_row: Int64s
    """The number of the session that each fragment is in."""
    starts: Int64s
    ends: Int64s
    """Bounds of each session."""


def find_sessions(hashes: UInt64s, keys: pa.BinaryArray, starts: Int64s, ends: Int64s) -> Sessions:
    """Which fragments are one session; keys of one hash are told apart by their bytes."""
    if not len(hashes):
        return Sessions(*(np.zeros(0, np.int64) for _ in range(3)))
    groups = find_groups(np.zeros(len(hashes), np.int64), hashes, keys)
    slots = np.repeat(np.arange(len(groups.starts)), np.diff(np.append(groups.starts, len(hashes))))
    if groups.order is None:
        return join_stretches(slots, starts, ends)
    order = groups.order
    found = join_stretches(slots, starts[order], ends[order])
    return found._replace(of_row=_put_back(found.of_row, order))


def join_fragments(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Whole sessions: one row for each, in the order of their ends. Raises where a sum leaves its column."""
    return merge_rows(_ending_together(rows)) if rows.num_rows else rows


def compact_fragments(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same to be stored: a session whose sum would leave its column stays several fragments with one end."""
    return compact_rows(_ending_together(rows)) if rows.num_rows else rows


def _ending_together(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Fragments with the ends of their sessions."""
    starts, ends = rows.column(START).to_numpy(), rows.column(0).to_numpy()
    sessions = find_sessions(rows.column(1).to_numpy(), rows.column(2), starts, ends)
    return ending_at(rows, sessions.ends[sessions.of_row])


def find_hashes(hashes: UInt64s, wanted: UInt64s) -> tuple[Int64s, Int64s]:
    """Where hashes are that are wanted, and which of these they are; wanted ones are distinct and in order."""
    rows: Int64s | None = None
    if len(wanted) * _SPARSE < len(_SIEVE) and len(hashes) > len(wanted):
        # Most are told by a few bits, which costs much less than looking for each.
        sieve = _SIEVE.copy()
        sieve[wanted & _SIEVED] = True
        rows = np.flatnonzero(sieve[hashes & _SIEVED])
        hashes = hashes[rows]
    places = np.minimum(np.searchsorted(wanted, hashes), max(len(wanted) - 1, 0))
    found = np.flatnonzero(wanted[places] == hashes) if len(wanted) else np.zeros(0, np.int64)
    return (found if rows is None else rows[found]), places[found]


def ending_at(rows: pa.RecordBatch, ends: Int64s) -> pa.RecordBatch:
    """The same fragments with other ends."""
    return pa.RecordBatch.from_arrays([pa.array(ends), *rows.columns[1:]], schema=rows.schema)


def join_stretches(slots: Int64s, starts: Int64s, ends: Int64s) -> Sessions:
    """Stretches of time of one slot that overlap or touch, directly or through others; slots never fall."""
    inner = _order_within(slots, starts)
    if inner is not None:
        slots, starts, ends = slots[inner], starts[inner], ends[inner]
    fresh = np.ones(len(slots), np.bool_)
    fresh[1:] = (slots[1:] != slots[:-1]) | (starts[1:] > _running_max(slots, ends)[:-1])
    firsts = np.flatnonzero(fresh)
    of_row = np.cumsum(fresh) - 1
    if inner is not None:
        of_row = _put_back(of_row, inner)
    return Sessions(of_row, starts[firsts], np.maximum.reduceat(ends, firsts))


def _put_back(values: Int64s, order: Int64s) -> Int64s:
    """What was computed in an order, where it came from."""
    back = np.empty(len(order), np.int64)
    back[order] = values
    return back


def _order_within(slots: Int64s, values: Int64s) -> Int64s | None:
    """The order by slot, then value; None: they are in it."""
    packed = _packed_numbers(slots, values)
    if packed is None:
        return np.lexsort((values, slots))
    return None if bool(np.all(packed[1:] >= packed[:-1])) else np.argsort(packed)


def _running_max(slots: Int64s, values: Int64s) -> Int64s:
    """The greatest value so far among those of the same slot; slots never fall."""
    packed = _packed_numbers(slots, values)
    if packed is not None:
        greatest: Int64s = np.maximum.accumulate(packed)
        return values + (greatest - packed)
    # Ranks by slot, then value: whatever a later slot has is greater than all of an earlier one.
    order = np.lexsort((values, slots))
    ranks: Int64s = np.maximum.accumulate(_put_back(np.arange(len(order)), order))
    return values[order][ranks]


def _packed_numbers(slots: Int64s, values: Int64s) -> Int64s | None:
    """Numbers in the order of slots, then values, as far apart as the values of a slot are; None: they do not fit."""
    low, high = int(values.min()), int(values.max())
    span = high - low + 1
    if (int(slots[-1]) + 1) * span > _INT64_MAX:
        return None
    packed: Int64s = slots * span + (values - low)
    return packed
