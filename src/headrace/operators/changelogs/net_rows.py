"""Rows that come and go, as an epoch finds and leaves them.

Rows with the same cells and time are one row with a number. A table of them is written without being read: an entry
says by how much numbers have changed (`headrace.state.rows.netting`). `NetSide` has, for every row that an epoch
concerns, its number before and after the epoch, and that of its partners before. Rows stand in the order of (key, hash
of the row), whatever run or batch they came from, so results do not depend on how rows lie.

What this module deliberately does not do: decide what is given out.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.batch import Int64s, Keys, Rows, UInt64s
from headrace.model.ids import MIN_TIME
from headrace.model.row_hash import hash_rows
from headrace.model.row_kind import takes_back
from headrace.operators.matching import Mask
from headrace.state.rows.find import GatheredRows
from headrace.state.rows.netting import COUNT, MET, NET_FIELDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.model.rows import RowCodec
    from headrace.state.rows.table import RowTable

TIME: Final = "event_time"
"""The column with the event time of a row: ``at`` is its hash."""
OWN_FIELDS: Final = (pa.field(TIME, pa.int64()), *NET_FIELDS)
"""Columns of such a table beside those of rows."""


def add_rows(table: RowTable, codec: RowCodec, rows: Rows, keys: Keys, expires: Int64s | None = None) -> None:
    """Takes rows of a changelog, or of a stream whose rows only come."""
    at = np.full(len(rows), MIN_TIME) if rows.times is None else rows.times
    encoded = keys.encoded
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(rows.columns, codec.schema, strict=True)
    ]
    ones = np.ones(len(rows), np.int64)
    counts = ones if rows.kinds is None else np.where(takes_back(rows.kinds), -ones, ones)
    extra = [pa.array(at), pa.array(counts), pa.array(np.zeros(len(rows), np.int64))]
    table.add(keys.hashes, encoded, hash_rows(columns, at), columns, expires=expires, extra=extra)


class NetSide:
    """Distinct rows of one side, sorted by (code, hash)."""

    def __init__(self, rows: GatheredRows, old: int) -> None:
        """``old``: so many of the rows are of earlier epochs; the others came with this one."""
        self.rows = rows
        order = np.lexsort((rows.at, rows.codes))
        codes, hashes = rows.codes[order], rows.at[order]
        differ = (codes[1:] != codes[:-1]) | (hashes[1:] != hashes[:-1])
        begins = np.append(0, np.flatnonzero(differ) + 1) if len(order) else np.empty(0, np.int64)
        is_old = order < old
        counts, met = rows.numbers(COUNT)[order], rows.numbers(MET)[order]
        before, delta = _sums(np.where(is_old, counts, 0), begins), _sums(np.where(is_old, 0, counts), begins)
        concerned = np.flatnonzero((before != 0) | (delta != 0))
        starts = begins[concerned]
        self.codes: Int64s = codes[starts]
        self.hashes: Int64s = hashes[starts]
        self.first: Int64s = order[starts]
        """The position of each row among those it was made of."""
        self.before: Int64s = before[concerned]
        self.after: Int64s = self.before + delta[concerned]
        self.met: Int64s = _sums(met, begins)[concerned]
        """How many partners each had before."""
        self.delta: Int64s = delta[concerned]

    def __len__(self) -> int:
        return len(self.codes)

    def between(self, low: int, high: int) -> NetSide:
        """The rows of some keys, by their codes, both included."""
        start, end = np.searchsorted(self.codes, low, "left"), np.searchsorted(self.codes, high, "right")
        if not start and end == len(self):
            return self
        part = copy(self)
        for name in ("codes", "hashes", "first", "before", "after", "met", "delta"):
            setattr(part, name, getattr(self, name)[start:end])
        return part

    @property
    def changed(self) -> Mask:
        changed: Mask = self.before != self.after
        return changed

    def times(self) -> Int64s:
        return self.rows.numbers(TIME)[self.first]

    def expires(self) -> Int64s:
        return self.rows.expires()[self.first]

    def slots(self, unique: Sequence[int] | None) -> Int64s:
        """Rows that stand in each other's place have one number: one that goes, and one of its unique key that comes.

        ``unique``: positions of the columns of the unique key. Without one, any row of the same join key will do.
        """
        slots = np.arange(len(self))
        goes, comes = (self.before > 0) & (self.after == 0), (self.before == 0) & (self.after > 0)
        some = np.flatnonzero(goes | comes)
        if not len(some) or not goes.any() or not comes.any():
            return slots
        identity = np.zeros(len(some), np.int64)
        if unique is not None:
            columns = [self.rows.column(index).take(pa.array(self.first[some])) for index in unique]
            identity = hash_rows(columns, identity)
        codes, coming = self.codes[some], comes[some]
        order = np.lexsort((coming, identity, codes))
        ranks = np.empty(len(some), np.int64)
        ranks[order] = _ranks(codes[order], identity[order], coming[order])
        order = np.lexsort((coming, ranks, identity, codes))
        mine, following = order[:-1], order[1:]
        pairs = ~coming[mine] & coming[following] & (ranks[mine] == ranks[following])
        pairs &= (codes[mine] == codes[following]) & (identity[mine] == identity[following])
        slots[some[following[pairs]]] = some[mine[pairs]]
        return slots


def _sums(values: Int64s, starts: Int64s) -> Int64s:
    return np.add.reduceat(values, starts) if len(starts) else np.empty(0, np.int64)


def _ranks(*sorted_by: npt.NDArray[np.generic]) -> Int64s:
    """The place of each element among those that are equal to it; they stand side by side."""
    count = len(sorted_by[0])
    differ = np.zeros(count, np.bool_)
    differ[0] = True
    for values in sorted_by:
        differ[1:] |= values[1:] != values[:-1]
    starts = np.flatnonzero(differ)
    return np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))


class ChangedRows:
    """Some rows of a side, in the order in which their columns are gathered."""

    def __init__(self, side: NetSide, at: Int64s) -> None:
        self.side = side
        self.at = at[np.argsort(side.first[at], kind="stable")]

    def only(self, mask: Mask) -> ChangedRows:
        return ChangedRows(self.side, self.at[mask[self.at]])

    def write(
        self, table: RowTable, hashes: UInt64s, keys: pa.BinaryArray, counts: Int64s, partners: Int64s | None = None,
        expires: Int64s | None = None,
    ) -> None:  # fmt: skip
        """Adds entries for them. ``hashes`` and ``keys``: by code; the others by position among the side's rows."""
        side, at = self.side, self.at
        if not len(at):
            return
        mask = np.zeros(len(side.rows), np.bool_)
        mask[side.first[at]] = True
        chosen = side.rows.only(mask)
        columns = [chosen.column(index) for index in range(chosen.width)]
        met = np.zeros(len(at), np.int64) if partners is None else partners[at]
        codes = side.codes[at]
        table.add(
            hashes[codes], keys.take(pa.array(codes)), side.hashes[at], columns,
            expires=None if expires is None else expires[at],
            extra=[pa.array(values) for values in (side.times()[at], counts[at], met)],
        )  # fmt: skip
