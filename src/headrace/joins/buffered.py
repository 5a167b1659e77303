"""Joins collect the rows of both sides while an epoch lasts and join them when it ends.

So results depend on the rows of the epoch alone, not on their order or batches, and the work is a few sorts and
searches over arrays. Rows are stored in two tables of whole rows, ``!left`` and ``!right``
(`headrace.state.rows.table`), by key and time. `PairingOperator` gives every pair once, in the epoch that brings the
later of its two rows.

A key that is null, or has a part that is, equals nothing, as in SQL: its rows have no partners and are not stored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.joins.fresh import Fresh, fresh_slices, null_keys
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.model.pairs import NONE, PairCodec, PairRows, SideRows
from headrace.operators.contract import LATES, StatefulOperator, TaskInfo
from headrace.operators.matching import Mask, PartnerRanges, RowLine
from headrace.state.rows.find import GatheredRows
from headrace.state.rows.table import joined

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.rows.find import GatheredRows
    from headrace.state.rows.table import RowTable
    from headrace.state.shard import ShardState


How = Literal["inner", "left", "right", "full", "semi", "anti"]

TABLES: Final = ("!left", "!right")
UNMATCHED: Final = ("unmatched_left", "unmatched_right")
OUTER: Final[dict[str, tuple[bool, bool]]] = {
    "inner": (False, False),
    "left": (True, False),
    "right": (False, True),
    "full": (True, True),
    # These give left rows alone, and say themselves which.
    "semi": (False, False),
    "anti": (False, False),
}


class JoinOperator(StatefulOperator):
    """Base of the joins. Port 0 is the left side, port 1 the right."""

    tables: tuple[RowTable, RowTable]

    def __init__(self, step: str, left: RowCodec, right: RowCodec, how: How) -> None:
        super().__init__(step)
        self.codecs = (left, right)
        self.codec = PairCodec(left, right)
        self.outer = OUTER[how]
        """By port: whether rows without a partner come out too."""
        self.reached = MIN_TIME

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.reached = self.watermark
        self.tables = self.open_tables()

    # --- what a join says of itself

    @abstractmethod
    def open_tables(self) -> tuple[RowTable, RowTable]:
        """The tables of both sides for this task."""

    @abstractmethod
    def join(self, fresh: Fresh) -> Iterator[None]:
        """Gives out what the new rows of some keys bring, and keeps what may be wanted later; yields in between."""

    def are_late(self, port: int, at: Int64s) -> Mask | None:
        """Which rows come when nothing can become of them any more; None: none ever does."""
        return None

    def expires(self, port: int, at: Int64s) -> Int64s | None:
        """When rows may be forgotten; None: never."""
        return None

    def alone_at(self, port: int, at: Int64s) -> Int64s:
        """The times that results without a partner carry."""
        return at

    def expire(self) -> Iterator[None]:
        """Gives out what time has made certain about rows of earlier epochs; yields in between."""
        return iter(())

    # --- rows come

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if not len(rows):
            return
        assert keys is not None, f"step {self.step} is keyed and was given rows without keys"
        self.state.check_owned(keys.hashes)
        rows, keys = self._without_late(port, rows, keys)
        rows, keys = self._without_nulls(port, rows, keys)
        if len(rows):
            at = times_of(rows)
            encoded = keys.encoded
            if isinstance(encoded, pa.ChunkedArray):
                encoded = encoded.combine_chunks()
            self.tables[port].add(
                keys.hashes,
                encoded,
                at,
                rows.columns,
                expires=self.expires(port, at),
                extra=self.extra(port, len(rows)),
            )
        self.state.relieve(len(rows))

    def extra(self, port: int, count: int) -> Sequence[pa.Array]:
        """Columns of ours beside those of new rows."""
        return ()

    def _without_late(self, port: int, rows: Rows, keys: Keys) -> tuple[Rows, Keys]:
        late = None if rows.times is None else self.are_late(port, rows.times)
        if late is None or not late.any():
            return rows, keys
        self.report.late += int(np.count_nonzero(late))
        outlet = self.outlets.get(LATES[port])
        if outlet is not None:
            outlet(rows.take(np.flatnonzero(late)))
        in_time = np.flatnonzero(~late)
        return rows.take(in_time), keys.take(in_time)

    def _without_nulls(self, port: int, rows: Rows, keys: Keys) -> tuple[Rows, Keys]:
        nulls = null_keys(keys.encoded)
        if not len(nulls):
            return rows, keys
        alone = rows.take(nulls)
        self.give_alone(port, SideRows(rows.codec, len(alone), lambda i: alone.columns[i]), np.arange(len(alone)),
                        times_of(alone))  # fmt: skip
        rest = np.delete(np.arange(len(rows)), nulls)
        return rows.take(rest), keys.take(rest)

    # --- the epoch ends

    def finish(self) -> Iterator[None]:
        self.reached = self.task.ends_at(self.step)
        for fresh in fresh_slices(self.state, self.tables):
            yield from self.join(fresh)
        yield from self.expire()

    @property
    def spilled(self) -> bool:
        """Whether the epoch's rows were written before they were joined: then they are kept already."""
        return self.state.spills > 0

    def side(self, port: int, found: GatheredRows) -> SideRows:
        """Rows as pairs refer to them."""
        return SideRows(self.codecs[port], len(found), found.column)

    # --- results go

    def give_pairs(
        self, left: SideRows, left_at: Int64s, right: SideRows, right_at: Int64s, times: Int64s | None
    ) -> None:
        if len(left_at):
            self.emit(PairRows(self.codec, left, left_at, right, right_at, times))

    def give_alone(self, port: int, rows: SideRows, positions: Int64s, at: Int64s) -> None:
        """Rows that have no partner: beside nothing where the join is an outer one, and to whoever reads such rows."""
        if not len(positions):
            return
        times = none_if_untimed(self.alone_at(port, at))
        if self.outer[port]:
            nobody = self.nobody(1 - port)
            none = np.full(len(positions), NONE)
            if port == 0:
                self.give_pairs(rows, positions, nobody, none, times)
            else:
                self.give_pairs(nobody, none, rows, positions, times)
        outlet = self.outlets.get(UNMATCHED[port])
        if outlet is not None:
            outlet(rows.take(positions, times))

    def nobody(self, port: int) -> SideRows:
        """A side without rows."""
        schema = self.codecs[port].schema
        return SideRows(self.codecs[port], 0, lambda index: pa.array([], schema.field(index).type))

    def tells_alone(self, port: int) -> bool:
        """Whether anybody wants to know of rows without a partner."""
        return self.outer[port] or UNMATCHED[port] in self.outlets


def times_of(rows: Rows) -> Int64s:
    """Event times; rows without belong to the beginning of time."""
    return np.full(len(rows), MIN_TIME) if rows.times is None else rows.times


def none_if_untimed(times: Int64s) -> Int64s | None:
    """Times of results; None where no side has any."""
    return times if len(times) and int(times.max()) > MIN_TIME else None


class PartnerRows(NamedTuple):
    """Which rows of one side have a partner now: of earlier epochs, as far as they were looked at, and new ones."""

    old: GatheredRows
    old_met: Mask
    new_met: Mask


class PairingOperator(JoinOperator):
    """Base: a pair comes out in the epoch that brings the later of its rows."""

    @abstractmethod
    def reach(self, port: int, at: Int64s) -> tuple[Int64s, Int64s]:
        """From when to when partners of rows of one side may be, both included."""

    @abstractmethod
    def settle(self, port: int, fresh: Fresh, met: PartnerRows) -> None:
        """Keeps what is worth keeping of one side, and gives out what has no partner."""

    def old_rows(self, port: int, fresh: Fresh) -> GatheredRows:
        """Rows of one side from earlier epochs that new rows of the other may belong to."""
        wanted = fresh.partner_times(1 - port, *self.reach(1 - port, fresh.sides[1 - port].at))
        return self.tables[port].find(wanted).recoded(fresh.present(1 - port))

    def join(self, fresh: Fresh) -> Iterator[None]:
        old_left, old_right = self.old_rows(0, fresh), self.old_rows(1, fresh)
        new_left, new_right = (side.gathered(codec) for side, codec in zip(fresh.sides, self.codecs, strict=True))
        left, right = joined([old_left, new_left], self.codecs[0]), joined([old_right, new_right], self.codecs[1])
        keys = len(fresh.hashes)
        all_right = RowLine(right.codes, right.at, keys)
        only_new = RowLine(new_right.codes, new_right.at, keys)
        # Kept rows ask in the order of the line, however they lie in runs: results must not depend on that.
        order = RowLine(old_left.codes, old_left.at, keys).rows(np.arange(len(old_left)))
        by_new = self._partners(all_right, new_left.codes, new_left.at)
        by_old = self._partners(only_new, old_left.codes[order], old_left.at[order])
        # Every new left row with all right rows, then the kept left rows with the new right rows: every pair once.
        sides = self.side(0, left), self.side(1, right)
        for lefts, rights in _positions(by_new, by_old, all_right, only_new, order, len(old_right)):
            times = none_if_untimed(np.maximum(left.at[lefts], right.at[rights]))
            self.give_pairs(sides[0], lefts, sides[1], rights, times)
            yield
        old_left_met = np.zeros(len(old_left), np.bool_)
        old_left_met[order] = by_old.counts > 0
        right_met = all_right.mask(by_new.covered(len(right)))
        new_right_met = right_met[len(old_right) :] | only_new.mask(by_old.covered(len(new_right)))
        self.settle(0, fresh, PartnerRows(old_left, old_left_met, by_new.counts > 0))
        self.settle(1, fresh, PartnerRows(old_right, right_met[: len(old_right)], new_right_met))
        yield

    def _partners(self, line: RowLine, codes: Int64s, at: Int64s) -> PartnerRanges:
        return line.between(codes, *self.reach(0, at))


def _positions(
    by_new: PartnerRanges, by_old: PartnerRanges, all_right: RowLine, only_new: RowLine, order: Int64s, kept_right: int
) -> Iterator[tuple[Int64s, Int64s]]:
    """Positions of all pairs, some at a time; on each side kept rows stand before new ones."""
    for asks, places in by_new.pairs():
        yield asks + len(order), all_right.rows(places)
    for asks, places in by_old.pairs():
        yield order[asks], only_new.rows(places) + kept_right
