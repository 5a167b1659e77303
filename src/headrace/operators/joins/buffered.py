"""What joins share: rows of both sides are gathered while the epoch lasts and joined when it ends.

An epoch is joined at once, whatever the order and the batches in which its rows came: so results depend on the epoch's
rows alone, and the work is a few sorts and searches over arrays instead of something per row. Rows are kept in two
tables of whole rows, ``!left`` and ``!right`` (`headrace.state.rows`), by key and time.

A key that is null, or has a part that is, equals nothing, as in SQL: its rows have no partners and are not kept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.model.pairs import NONE, PairCodec, PairRows, SideRows
from headrace.operators.contract import Operator, TaskInfo
from headrace.operators.joins.fresh import Fresh, fresh_slices, null_keys
from headrace.operators.joins.matching import Mask

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.rows import RowTable
    from headrace.state.rows_find import Gathered
    from headrace.state.shard import ShardState

How = Literal["inner", "left", "right", "full"]

TABLES: Final = ("!left", "!right")
UNMATCHED: Final = ("unmatched_left", "unmatched_right")
LATES: Final = ("late_left", "late_right")
"""Outlets by port."""
OUTER: Final[dict[str, tuple[bool, bool]]] = {
    "inner": (False, False),
    "left": (True, False),
    "right": (False, True),
    "full": (True, True),
}


class JoinOperator(Operator):
    """Base of the joins. Port 0 is the left side, port 1 the right."""

    state: ShardState
    tables: tuple[RowTable, RowTable]

    def __init__(self, step: str, left: RowCodec, right: RowCodec, how: How) -> None:
        super().__init__(step)
        self.codecs = (left, right)
        self.codec = PairCodec(left, right)
        self.outer = OUTER[how]
        """By port: whether rows without a partner come out too."""
        self.task = TaskInfo(0, 0, 0)
        self.watermark = self.reached = MIN_TIME

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        assert state is not None, f"step {self.step} keeps state and was given none"
        state.step = self.step
        self.state = state
        self.task = task
        self.watermark = task.starts_at(self.step)
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

    def side(self, port: int, found: Gathered) -> SideRows:
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
