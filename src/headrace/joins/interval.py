"""The interval join: rows of one key whose times lie in a stretch around each other.

A pair belongs together if ``low ≤ right.time − left.time ≤ high``. A left row is kept until the watermark has come to
``time + high``, a right row until ``time − low``: from then on no partner can come that is not late itself. A row that
had none by then comes out alone, with that time (or its own, if that is later), so that steps behind it take it for a
row in time.

A row behind the watermark is joined with what is still kept; only when nothing can be kept for it any more is it late:
a left row at ``time + high + max(0, −low)``, a right row at ``time − low + max(0, high)``.

Which rows had a partner is remembered where somebody wants to know of the others: a column ``open`` says that a row had
none when its epoch ended, an index by time says when to look at it again, and the tables ``!paired_left`` and
``!paired_right`` name the open rows that found one since.

A program may come back with other bounds. Rows that are kept stay as long as they were promised to, by the ``expires``
they were written with; the tables say between which spans those lie, so that only then has anybody to look for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.joins.buffered import TABLES, How, PairingOperator, PartnerRows
from headrace.joins.fresh import Fresh
from headrace.model.batch import Int64s, UInt64s
from headrace.model.ids import MIN_TIME
from headrace.operators.matching import Mask, shifted, shifted_us, without
from headrace.state.rows.find import GatheredRows, KeyTimes, whole_array
from headrace.state.rows.table import RowTable
from headrace.state.shard import CHUNK_KEYS, EVENT_DUE, distinct_keys

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import TaskInfo
    from headrace.state.rows.table import HintTable
    from headrace.state.shard import ShardState

PAIRED: Final = ("!paired_left", "!paired_right")
_OPEN: Final = "open"
_LASTS: Final = b"lasts_us"
"""In the metadata of a table: the least and the greatest span for which some of its rows are kept."""


class IntervalJoinOperator(PairingOperator):
    """Joins by key and a stretch of time, both bounds included."""

    paired: tuple[RowTable, RowTable]
    hints: HintTable

    def __init__(self, step: str, left: RowCodec, right: RowCodec, low_us: int, high_us: int, how: How) -> None:
        super().__init__(step, left, right, how)
        self._around_us = ((low_us, high_us), (-high_us, -low_us))
        """By port: where partners lie, from a row's own time."""
        self._lasts_us = (high_us, -low_us)
        """By port: how long after its time a row may still meet one that is in time."""
        self._kept_us = [(high_us, high_us), (-low_us, -low_us)]
        """By port: the least and the greatest span for which rows are kept, those of earlier programs too."""
        self._hopes_us = (high_us + max(0, -low_us), -low_us + max(0, high_us))
        """By port: how long after its time there may be anything left to meet."""

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.paired = (self._open_paired(0), self._open_paired(1))
        self.hints = self.state.indexes.hints(EVENT_DUE)

    def open_tables(self) -> tuple[RowTable, RowTable]:
        return self._open(0), self._open(1)

    def _open(self, port: int) -> RowTable:
        extra = [pa.field(_OPEN, pa.bool_())]
        table = self.state.rows(TABLES[port], self.codecs[port], extra, epoch=self.task.epoch, clock=EVENT_DUE)
        spans = [self._lasts_us[port]]
        for view in self.state.layers.views(TABLES[port]):
            spans += map(int, (view.table.schema.metadata or {}).get(_LASTS, b"").split())
        least, most = self._kept_us[port] = min(spans), max(spans)
        table.schema = table.schema.with_metadata({**table.schema.metadata, _LASTS: b"%d %d" % (least, most)})
        return table

    def _open_paired(self, port: int) -> RowTable:
        return self.state.rows(PAIRED[port], None, epoch=self.task.epoch, clock=EVENT_DUE)

    def reach(self, port: int, at: Int64s) -> tuple[Int64s, Int64s]:
        low_us, high_us = self._around_us[port]
        low, high = shifted(at, low_us), shifted(at, high_us)
        return low, high

    def are_late(self, port: int, at: Int64s) -> Mask | None:
        if self.watermark <= MIN_TIME:
            return None
        late: Mask = shifted(at, self._hopes_us[port]) <= self.watermark
        return late

    def expires(self, port: int, at: Int64s) -> Int64s:
        return shifted(at, self._lasts_us[port])

    def alone_at(self, port: int, at: Int64s) -> Int64s:
        return np.maximum(at, self.expires(port, at))

    def extra(self, port: int, count: int) -> list[pa.Array]:
        # Written as open in case they are spilled: then the table of paired rows tells which are not.
        return [pa.array(np.full(count, self.tells_alone(port)))]

    def since(self, port: int) -> int:
        """The earliest time of a row that was not forgotten when the epoch began, wherever it may still lie."""
        if self.watermark <= MIN_TIME:
            return MIN_TIME
        return shifted_us(self.watermark, -self._kept_us[port][1]) + 1

    def _bounds_changed(self, port: int) -> bool:
        """Whether rows are kept that another program promised to keep shorter or longer."""
        least, most = self._kept_us[port]
        return least < most

    def old_rows(self, port: int, fresh: Fresh) -> GatheredRows:
        low, high = self.reach(1 - port, fresh.sides[1 - port].at)
        wanted = fresh.partner_times(1 - port, np.maximum(low, self.since(port)), high)
        found = self.tables[port].find(wanted)
        if self._bounds_changed(port):
            found = found.only(found.expires() > self.watermark)
        return found.recoded(fresh.present(1 - port))

    # --- what becomes of new rows

    def settle(self, port: int, fresh: Fresh, met: PartnerRows) -> None:
        """Keeps new rows as long as partners may come, and knows which rows wait for their first."""
        new = fresh.sides[port]
        stays = self.expires(port, new.at) > self.reached
        tells = self.tells_alone(port)
        if tells:
            self._tell(port, fresh, stays, met.new_met)
            found = np.flatnonzero(met.old_met & met.old.flags(_OPEN))
            expires = self._expires_of(port, met.old)[found]
            self._mark_paired(port, fresh, met.old.codes[found], met.old.at[found], met.old.seq[found], expires)
        if not self.spilled:
            kept = np.flatnonzero(stays)
            batch = new.batch if len(kept) == len(new) else new.batch.take(pa.array(kept))
            self.tables[port].put_back(batch, **{_OPEN: ~met.new_met[kept] & tells})

    def _tell(self, port: int, fresh: Fresh, stays: Mask, met: Mask) -> None:
        new = fresh.sides[port]
        over = np.flatnonzero(~stays & ~met)
        self.give_alone(port, self.side(port, new.gathered(self.codecs[port])), over, new.at[over])
        waits = np.flatnonzero(stays & ~met)
        codes = new.codes[waits]
        expires = self.expires(port, new.at[waits])
        self.hints.add(expires, fresh.hashes[codes], fresh.keys.take(pa.array(codes)), port)
        if self.spilled:
            found = np.flatnonzero(stays & met)
            seq = new.batch.column("seq").to_numpy()
            expires = self.expires(port, new.at[found])
            self._mark_paired(port, fresh, new.codes[found], new.at[found], seq[found], expires)

    def _expires_of(self, port: int, rows: GatheredRows) -> Int64s:
        """Until when rows of earlier epochs are kept."""
        return rows.expires() if self._bounds_changed(port) else self.expires(port, rows.at)

    def _mark_paired(self, port: int, fresh: Fresh, codes: Int64s, at: Int64s, seq: Int64s, expires: Int64s) -> None:
        if len(codes):
            keys = fresh.keys.take(pa.array(codes))
            self.paired[port].add(fresh.hashes[codes], keys, at, (), expires=expires, seq=seq)

    # --- rows whose time is over

    def expire(self) -> Iterator[None]:
        if self.reached <= self.watermark:
            return
        due = self.state.layers.due(EVENT_DUE, self.watermark, self.reached)
        timers = due.column("timer").to_numpy()
        for port in (0, 1):
            mine = np.flatnonzero(timers == port)
            if len(mine) and self.tells_alone(port):
                some = due.take(pa.array(mine))
                yield from self._expire_keys(port, some.column("hash").to_numpy(), whole_array(some.column("key")))

    def _expire_keys(self, port: int, hashes: UInt64s, keys: pa.BinaryArray) -> Iterator[None]:
        distinct = distinct_keys(hashes, keys)
        low, high = self.since(port), shifted_us(self.reached, -self._kept_us[port][0])
        for start in range(0, len(distinct.keys), CHUNK_KEYS):
            some = distinct.hashes[start : start + CHUNK_KEYS]
            wanted = KeyTimes(
                some, distinct.keys[start : start + CHUNK_KEYS], np.full(len(some), low), np.full(len(some), high)
            )
            rows = self.tables[port].find(wanted)
            paired = self.paired[port].find(wanted, buffered=True)
            unpaired = without(rows.codes, rows.seq, paired.codes, paired.seq, len(some))
            expires = self._expires_of(port, rows)
            due = (expires > self.watermark) & (expires <= self.reached)
            alone = np.flatnonzero(rows.flags(_OPEN) & unpaired & due)
            alone = alone[np.lexsort((rows.seq[alone], rows.at[alone], rows.codes[alone]))]
            at = rows.at[alone]
            if self._bounds_changed(port):
                # What `alone_at` takes for their time, so that they carry the one that they were promised to come with.
                at = shifted(np.maximum(at, expires[alone]), -max(self._lasts_us[port], 0))
            self.give_alone(port, self.side(port, rows), alone, at)
            yield
