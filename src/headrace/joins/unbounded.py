"""Joins without a stretch of time: both sides are kept for ever, or as long as a time to live says.

`UnboundedJoinOperator` keeps every row and gives every pair once, in the epoch that brings the later of its rows: the
inner join of rows that stay. All other joins of all rows are `headrace.joins.regular`.

`LatestJoinOperator` keeps the newest row of each key on either side, by event time where there is one, among equals the
last to come. A key whose newest row changed on either side comes out once per epoch, and replaces what came before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.joins.buffered import TABLES, How, JoinOperator, PairingOperator, PartnerRows, none_if_untimed
from headrace.joins.condition import Condition
from headrace.joins.fresh import Fresh
from headrace.model.batch import Int64s
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.pairs import NONE, PairRows, SideRows
from headrace.operators.matching import Mask, RowLine, shifted
from headrace.state.rows.find import GatheredRows, KeyTimes
from headrace.state.rows.table import RowTable, joined
from headrace.state.shard import EVENT_DUE, WALL_DUE

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.rows.format import Keeps
    from headrace.state.ttl import TTL


class LastingJoin(JoinOperator):
    """Base: rows are kept until their time to live is over, if they have one."""

    keeps: Keeps = "all"
    own_fields: tuple[pa.Field, ...] = ()
    """Columns of ours beside those of rows."""

    def __init__(self, step: str, left: RowCodec, right: RowCodec, how: How, ttl: TTL | None) -> None:
        super().__init__(step, left, right, how)
        self.ttl = ttl

    def open_tables(self) -> tuple[RowTable, RowTable]:
        return self._open(0), self._open(1)

    def _open(self, port: int) -> RowTable:
        clock = "" if self.ttl is None else EVENT_DUE if self.ttl.clock == "event" else WALL_DUE
        return self.state.rows(
            TABLES[port], self.codecs[port], self.own_fields, epoch=self.task.epoch, clock=clock, keeps=self.keeps
        )

    def expires(self, port: int, at: Int64s) -> Int64s | None:
        if self.ttl is None:
            return None
        if self.ttl.clock == "wall":
            return np.full(len(at), self.task.clock_us + self.ttl.span_us)
        return shifted(np.maximum(at, self.watermark), self.ttl.span_us)

    def living(self, found: GatheredRows) -> GatheredRows:
        """Without rows that have expired."""
        if self.ttl is None or not len(found):
            return found
        now_us = self.watermark if self.ttl.clock == "event" else self.task.clock_us
        return found.only(found.expires() > now_us)


class UnboundedJoinOperator(LastingJoin, PairingOperator):
    """Every pair of rows of one key, as far as a further condition holds for it."""

    def __init__(self, step: str, left: RowCodec, right: RowCodec, ttl: TTL | None, on: str | None = None) -> None:
        super().__init__(step, left, right, "inner", ttl)
        self._condition = None if on is None else Condition(step, on, self.codec)

    def give_pairs(
        self, left: SideRows, left_at: Int64s, right: SideRows, right_at: Int64s, times: Int64s | None
    ) -> None:
        if self._condition is not None and len(left_at):
            holds = self._condition.holds(PairRows(self.codec, left, left_at, right, right_at, times))
            left_at, right_at = left_at[holds], right_at[holds]
            times = None if times is None else times[holds]
        super().give_pairs(left, left_at, right, right_at, times)

    def reach(self, port: int, at: Int64s) -> tuple[Int64s, Int64s]:
        return np.full(len(at), MIN_TIME), np.full(len(at), MAX_TIME)

    def old_rows(self, port: int, fresh: Fresh) -> GatheredRows:
        return self.living(super().old_rows(port, fresh))

    def settle(self, port: int, fresh: Fresh, met: PartnerRows) -> None:
        if not self.spilled:
            self.tables[port].put_back(fresh.sides[port].batch)


class LatestJoinOperator(LastingJoin):
    """The newest row of either side for each key."""

    keeps: Keeps = "latest"

    def join(self, fresh: Fresh) -> Iterator[None]:
        keys = np.arange(len(fresh.hashes))
        sides, newest, changed = [], [], np.zeros(len(keys), np.bool_)
        for port in (0, 1):
            kept = self._newest_rows(port, fresh)
            rows = joined([kept, fresh.sides[port].gathered(self.codecs[port])], self.codecs[port])
            line = RowLine(rows.codes, rows.at, len(keys))
            last = line.last_upto(keys, np.full(len(keys), MAX_TIME))
            positions = np.where(last >= 0, line.rows(np.maximum(last, 0)), NONE) if len(line) else last
            changed |= positions >= len(kept)
            self._keep(port, fresh, positions[positions >= len(kept)] - len(kept))
            sides.append(rows)
            newest.append(positions)
        self._give(sides, newest, changed)
        yield

    def _newest_rows(self, port: int, fresh: Fresh) -> GatheredRows:
        ends = np.full(len(fresh.hashes), MAX_TIME)
        # Nothing lies at the end of time, so the row right before it is the newest.
        found = self.tables[port].find(KeyTimes(fresh.hashes, fresh.keys, ends, ends), back=True)
        return self.living(found)

    def _keep(self, port: int, fresh: Fresh, positions: Int64s) -> None:
        if not self.spilled:
            self.tables[port].put_back(fresh.sides[port].batch.take(pa.array(positions)))

    def _give(self, sides: list[GatheredRows], newest: list[Int64s], changed: Mask) -> None:
        left, right = newest
        both = changed & (left >= 0) & (right >= 0)
        wanted = both.copy()
        for port, alone in ((0, changed & (right < 0)), (1, changed & (left < 0))):
            if self.outer[port]:
                wanted |= alone
        lefts, rights = left[wanted], right[wanted]
        times = np.maximum(_times(sides[0], lefts), _times(sides[1], rights))
        self.give_pairs(self.side(0, sides[0]), lefts, self.side(1, sides[1]), rights, none_if_untimed(times))


def _times(rows: GatheredRows, positions: Int64s) -> Int64s:
    """Times of rows; where there is none, the beginning of time."""
    return np.append(rows.at, MIN_TIME)[positions]
