"""The first rows of each key by some columns, once per epoch: what has left them goes, what has come to them comes.

What is kept is a multiset of whole rows (`headrace.operators.changelogs.net_rows`): all rows of a key where rows may
go, because then the next one takes the place; otherwise only the first ones. Rows of one place by the columns asked for
stand in the order of their unique key, then of their other columns, so the answer does not depend on how rows came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.numbers import order_by, ranks_of
from headrace.model.batch import Int64s, Keys, Rows, UInt64s
from headrace.model.ids import MIN_TIME
from headrace.model.keys import decode_key
from headrace.operators.changelogs.errors import below_zero
from headrace.operators.changelogs.first_rows import FirstRows, asked_ranks
from headrace.operators.changelogs.net_rows import OWN_FIELDS, ChangedRows, NetSide, add_rows
from headrace.operators.changelogs.pairs import arrange_changes
from headrace.operators.contract import StatefulOperator, TaskInfo
from headrace.operators.spec import COMBINED_PORT
from headrace.state.rows.find import BatchRows, GatheredRows, KeyTimes
from headrace.state.rows.table import RowTable, fresh_batches, joined
from headrace.state.shard import distinct_keys

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.operators.changelogs.top_spec import TopSpec
    from headrace.state.shard import ShardState

ROWS_TABLE: Final = "!rows"
_LEAST, _GREATEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


class _KeyPlaces(NamedTuple):
    """Where rows stand among those of their key, before or after an epoch."""

    first: Int64s
    """The place of a row, from 0; of equal rows that of the first …"""
    given: Int64s
    """… and how many of them are among those that are given out."""


class TopOperator(StatefulOperator):
    """The net effect of each epoch on the first rows of each key."""

    table: RowTable

    def __init__(self, step: str, taken: RowCodec, codec: RowCodec, spec: TopSpec, key_type: Any = None) -> None:
        super().__init__(step)
        self.taken = taken
        self.codec = codec
        self.spec = spec
        self.key_type = key_type
        self._first = FirstRows(spec, taken)
        self._unique = None if spec.unique is None else [taken.names.index(name) for name in spec.unique]

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.table = self.state.rows(ROWS_TABLE, self.taken, OWN_FIELDS, epoch=task.epoch, keeps="net")
        self._first.begin()

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        if port == COMBINED_PORT:
            stands_for, *columns = rows.columns
            self.report.rows_in += pc.sum(stands_for).as_py() or 0
            rows = Rows.of_columns(self.taken, columns, rows.times)
        else:
            self.report.rows_in += len(rows)
        if not len(rows):
            return
        assert keys is not None, f"step {self.step} is keyed and was given rows without keys"
        self.state.check_owned(keys.hashes)
        if not self.spec.signed and (left := self._first.places(rows, keys.encoded)) is not None:
            rows, keys = rows.take(left), keys.take(left)
        add_rows(self.table, self.taken, rows, keys)
        self.state.relieve(len(rows))

    def finish(self) -> Iterator[None]:
        for (batch,) in fresh_batches(self.state, [self.table]):
            distinct = distinct_keys(batch.column("hash").to_numpy(), batch.column("key"))
            self._handle(batch, distinct.codes, distinct.hashes, distinct.keys)
            yield

    def first_rows(self, hashes: UInt64s, keys: pa.BinaryArray) -> Rows:
        """The rows that were given out last for these keys, as far as they hold, where no place stands beside them."""
        old = self.table.find(_all_times(hashes, keys))
        side = NetSide(joined([old], self.taken), len(old))
        if not len(side):
            return Rows.of_objects(self.codec, [])
        order, asked = self._order(side)
        given = self._places(side, order, asked, side.before).given
        return self._rows_of(side, np.repeat(order, given[order]), ())

    def _handle(self, batch: pa.RecordBatch, codes: Int64s, hashes: UInt64s, keys: pa.BinaryArray) -> None:
        old = self.table.find(_all_times(hashes, keys))
        fresh = GatheredRows([BatchRows(batch, None, codes)], self.taken)
        side = NetSide(joined([old, fresh], self.taken), len(old))
        self._check(side, keys)
        if not len(side):
            return
        order, asked = self._order(side)
        before, after = (self._places(side, order, asked, numbers) for numbers in (side.before, side.after))
        self._give(side, before, after)
        kept = side.after if self.spec.signed else after.given
        counts = kept - side.before - (side.delta if self.state.spills else 0)
        ChangedRows(side, np.flatnonzero(counts)).write(self.table, hashes, keys, counts)

    def _check(self, side: NetSide, keys: pa.BinaryArray) -> None:
        wrong = np.flatnonzero(side.after < 0)
        if len(wrong):
            key_type = None if self.key_type is Any else self.key_type
            key = decode_key(keys[int(side.codes[wrong[0]])].as_py(), key_type)
            raise below_zero(self.step, int(-side.after[wrong].sum()), key)

    # --- the order of rows

    def _order(self, side: NetSide) -> tuple[Int64s, list[Int64s]]:
        """Rows by key, and in the order asked for; and the numbers by which that is so."""
        asked = asked_ranks(self.spec, self.taken.names, partial(self._column, side), side.times())
        order = order_by(side.codes, *asked)
        place = _numbers_of_places(order, (side.codes, *asked))
        alike = np.append(place[1:] == place[:-1], False)
        alike[1:] |= alike[:-1].copy()
        at = np.flatnonzero(alike)
        if len(at):
            # What else decides is looked at where it does: rows of one place are few as a rule.
            rows = order[at]
            others = [
                *(self._unique or ()),
                *(i for i in range(len(self.taken.names)) if i not in (self._unique or ())),
            ]
            more = [_ranks_of_any(self._column(side, index, rows)) for index in others]
            order[at] = rows[np.lexsort((side.hashes[rows], side.times()[rows], *reversed(more), place[at]))]
        return order, asked

    def _column(self, side: NetSide, index: int, rows: Int64s | None = None) -> pa.Array:
        """A column of these rows of a side; None: of all."""
        return side.rows.column(index).take(pa.array(side.first if rows is None else side.first[rows]))

    def _places(self, side: NetSide, order: Int64s, asked: Sequence[Int64s], numbers: Int64s) -> _KeyPlaces:
        codes, counts = side.codes[order], numbers[order]
        ends = np.cumsum(counts)
        starts = np.append(0, np.flatnonzero(codes[1:] != codes[:-1]) + 1)
        of_key = np.repeat((ends - counts)[starts], np.diff(np.append(starts, len(codes))))
        first = ends - counts - of_key
        places = np.empty(len(order), np.int64)
        if self.spec.ties != "broken":
            places[order] = self._shared(first, counts, starts, codes, [each[order] for each in asked])
            return _KeyPlaces(places, np.where(places < self.spec.most, numbers, 0))
        places[order] = first
        return _KeyPlaces(places, np.clip(self.spec.most - places, 0, numbers))

    def _shared(self, first: Int64s, counts: Int64s, starts: Int64s, codes: Int64s, asked: Sequence[Int64s]) -> Int64s:
        """The places of rows in their order, where those that are equal by it share one."""
        begins = np.ones(len(codes), np.bool_)
        begins[1:] = codes[1:] != codes[:-1]
        for each in asked:
            begins[1:] |= each[1:] != each[:-1]
        groups, heads = np.cumsum(begins) - 1, np.flatnonzero(begins)
        if self.spec.ties == "shared":
            shared: Int64s = first[heads][groups]
            return shared
        # Of a place only rows that are there count.
        there = (np.add.reduceat(counts, heads) > 0).astype(np.int64)
        before = np.cumsum(there) - there
        of_key = np.repeat(before[groups[starts]], np.diff(np.append(starts, len(codes))))
        dense: Int64s = before[groups] - of_key
        return dense

    # --- what is given out

    def _give(self, side: NetSide, before: _KeyPlaces, after: _KeyPlaces) -> None:
        if self.spec.rank is not None:
            give = self._give_ranked if self.spec.ties == "broken" else self._give_shared
            give(side, before, after)
            return
        more = after.given - before.given
        at = np.flatnonzero(more)
        if not len(at):
            return
        alone = self.spec.most == 1 and self.spec.ties == "broken"
        slots = side.codes if alone else side.slots(self._unique)
        order, kinds = arrange_changes(more[at], (side.codes[at], slots[at]), (side.hashes[at],))
        self._emit(side, at[order], kinds, ())

    def _give_shared(self, side: NetSide, before: _KeyPlaces, after: _KeyPlaces) -> None:
        """Rows in their places, of which one may have several rows."""
        stays = before.first == after.first
        both = np.where(stays, np.minimum(before.given, after.given), 0)
        went, came = before.given - both, after.given - both
        gone, new = np.flatnonzero(went), np.flatnonzero(came)
        if not len(gone) and not len(new):
            return
        at, more = np.concatenate([gone, new]), np.concatenate([-went[gone], came[new]])
        rank = np.concatenate([before.first[gone], after.first[new]])
        slots = side.slots(self._unique)
        order, kinds = arrange_changes(more, (side.codes[at], slots[at]), (rank, side.hashes[at]))
        self._emit(side, at[order], kinds, (pa.array(rank[order] + 1),))

    def _give_ranked(self, side: NetSide, before: _KeyPlaces, after: _KeyPlaces) -> None:
        rows, ranks = zip(*(_spread(places) for places in (before, after)))
        went = ~np.isin(_pairs(rows[0], ranks[0], self.spec.most), _pairs(rows[1], ranks[1], self.spec.most))
        came = ~np.isin(_pairs(rows[1], ranks[1], self.spec.most), _pairs(rows[0], ranks[0], self.spec.most))
        at = np.concatenate([rows[0][went], rows[1][came]])
        rank = np.concatenate([ranks[0][went], ranks[1][came]])
        if not len(at):
            return
        more = np.where(np.arange(len(at)) < int(went.sum()), -1, 1)
        order, kinds = arrange_changes(more, (side.codes[at], rank), (side.hashes[at],))
        self._emit(side, at[order], kinds, (pa.array(rank[order] + 1),))

    def _emit(self, side: NetSide, at: Int64s, kinds: Any, more: Sequence[pa.Array]) -> None:
        self.emit(self._rows_of(side, at, more, kinds))

    def _rows_of(self, side: NetSide, at: Int64s, more: Sequence[pa.Array], kinds: Any = None) -> Rows:
        places = pa.array(side.first[at])
        columns = [side.rows.column(index).take(places) for index in range(len(self.taken.schema))]
        times = side.times()[at]
        timed = bool((times > MIN_TIME).any())
        return Rows.of_columns(self.codec, [*columns, *more], times if timed else None, kinds)


def _all_times(hashes: UInt64s, keys: pa.BinaryArray) -> KeyTimes:
    return KeyTimes(hashes, keys, np.full(len(hashes), _LEAST), np.full(len(hashes), _GREATEST))


def _ranks_of_any(column: pa.Array) -> Int64s:
    """The order of values that have one; what is nested has none, and is told apart by the hash of its row."""
    return np.zeros(len(column), np.int64) if pa.types.is_nested(column.type) else ranks_of(column)


def _numbers_of_places(order: Int64s, values: Sequence[Int64s]) -> Int64s:
    """A number for each row in this order, the same for rows that are equal in all values."""
    differs = np.zeros(len(order), np.int64)
    for each in values:
        ordered = each[order]
        differs[1:] |= ordered[1:] != ordered[:-1]
    return np.cumsum(differs)


def _spread(places: _KeyPlaces) -> tuple[Int64s, Int64s]:
    """Rows by position, each as often as it is given out, with the place it has then."""
    rows = np.repeat(np.arange(len(places.first)), places.given)
    ends = np.cumsum(places.given)
    return rows, places.first[rows] + np.arange(len(rows)) - np.repeat(ends - places.given, places.given)


def _pairs(rows: Int64s, ranks: Int64s, most: int) -> Int64s:
    """A number for each row and place."""
    numbers: Int64s = rows * most + ranks
    return numbers
