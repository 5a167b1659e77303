"""*Settle*: rows that may go wait until their window is over; those that still hold then go into it.

So windows see rows that stay, and each row once. What is kept is a multiset of whole rows by key
(`headrace.operators.changelogs.net_rows`); a row that goes has the time of the one it takes back, and so lies in the
same window. A row whose window was over when the epoch began is late, whether it comes or goes: the window is not
opened again.

A row of windows with fixed bounds is forgotten when the last of its windows is over. Rows of a session are taken out
when the session is. Where a row belongs to several windows, it is given once for each of them, at the last instant of
that window, because it may hold at the end of one and not at the end of the next: `SettledWindows` puts it in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, Keys, Rows, UInt64s
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.job import COLUMNS
from headrace.model.keys import decode_key
from headrace.model.type_shape import describe_type
from headrace.operators.changelogs.errors import below_zero
from headrace.operators.changelogs.net_rows import OWN_FIELDS, TIME, ChangedRows, NetSide, add_rows
from headrace.operators.contract import LATE, StatefulOperator, TaskInfo
from headrace.operators.matching import Mask, shifted
from headrace.operators.spec import StepInfo, StepSpec, StoredType
from headrace.state.rows.find import KeyTimes
from headrace.state.rows.table import fresh_batches
from headrace.state.shard import CHUNK_KEYS, EVENT_DUE, distinct_keys
from headrace.windows.kinds import Assigner, Cumulating, Session, Sliding, has_window

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.model.rows import RowCodec
    from headrace.operators.contract import Operator
    from headrace.state.rows.table import HintTable, RowTable
    from headrace.state.shard import ShardState

HELD_TABLE: Final = "!held"
_LEAST, _GREATEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class SettleSpec(StepSpec):
    """The step that the planner puts before windows over rows that may go."""

    takes_back: ClassVar[bool] = True

    windows: Assigner
    of: str
    """The windowed step."""

    @property
    def uses_watermark(self) -> bool:
        return True

    def build(self, info: StepInfo) -> Operator:
        return SettleOperator(info.step, info.codec, self.windows, info.key_type)

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return {HELD_TABLE: StoredType(COLUMNS, describe_type(info.codec.type), info.codec.type)}

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        columns = ", ".join(f"{field.name} {field.type}" for field in info.codec.schema)
        return {"rows": f"rows that wait for the end of {self.windows}, of ({columns})"}

    def tell(self) -> tuple[str, ...]:
        return (f"keeps rows until their window of {self.of} is over, and gives those that hold then",)


class SettleOperator(StatefulOperator):
    """The rows that hold when their window is over."""

    table: RowTable
    hints: HintTable

    def __init__(self, step: str, codec: RowCodec, assigner: Assigner, key_type: Any = None) -> None:
        super().__init__(step)
        self.codec = codec
        self.key_type = key_type
        self._assigner = assigner
        self._gap_us = assigner.gap_us if isinstance(assigner, Session) else None
        self._several = isinstance(assigner, Sliding | Cumulating)

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        # When a session is over, its rows do not say by themselves.
        clock = EVENT_DUE if self._gap_us is None else ""
        self.table = self.state.rows(HELD_TABLE, self.codec, OWN_FIELDS, epoch=task.epoch, clock=clock, keeps="net")
        self.hints = self.state.indexes.hints(EVENT_DUE)

    def _over(self, times: Int64s) -> Int64s:
        """When the window of a row is over, as far as the row alone can say."""
        if self._gap_us is not None:
            over = shifted(times, self._gap_us - 1)
        else:
            over = self._assigner.last_ends(np.where(has_window(times), times, 0)) - 1
        return np.where(has_window(times), over, MIN_TIME)

    def _next_over(self, times: Int64s) -> Int64s:
        """When the first window of a row is over that was not when the epoch began."""
        if not self._several:
            return self._over(times)
        rows, ends = self._pairs(times)
        alive = ends - 1 > self.watermark
        over = np.full(len(times), MAX_TIME)
        np.minimum.at(over, rows[alive], ends[alive] - 1)
        return over

    def _pairs(self, times: Int64s) -> tuple[Int64s, Int64s]:
        """Each row with the end of each of its windows."""
        assigned = self._assigner.assign(times)
        assert assigned.rows is not None
        return assigned.rows, assigned.ends

    # --- rows come

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if not len(rows):
            return
        assert keys is not None and rows.times is not None, f"step {self.step} needs keys and event time"
        self.state.check_owned(keys.hashes)
        over = self._over(rows.times)
        late = over <= self.watermark
        if self._several:
            # A row between two windows is late only if its own time has passed.
            outside = over < rows.times
            late &= ~outside | (rows.times <= self.watermark)
            kept = np.flatnonzero(late | ~outside)
            rows, keys, over, late = rows.take(kept), keys.take(kept), over[kept], late[kept]
            assert rows.times is not None
        if late.any():
            self.report.late += int(np.count_nonzero(late))
            if LATE in self.outlets:
                self.outlets[LATE](rows.take(np.flatnonzero(late)))
            in_time = np.flatnonzero(~late)
            rows, keys, over = rows.take(in_time), keys.take(in_time), over[in_time]
        if len(rows):
            add_rows(self.table, self.codec, rows, keys, None if self._gap_us is not None else over)
        self.state.relieve(len(rows))

    # --- windows are over

    def finish(self) -> Iterator[None]:
        reached = self.task.ends_at(self.step)
        hashes, names = [np.empty(0, np.uint64)], [pa.array([], pa.binary())]
        for (batch,) in fresh_batches(self.state, [self.table]):
            over = self._next_over(batch.column(TIME).to_numpy())
            hints = np.flatnonzero(over > reached)
            self.hints.add(
                over[hints], batch.column("hash").to_numpy()[hints], batch.column("key").take(pa.array(hints)), 0
            )
            asked = (over <= reached) | (batch.column("count").to_numpy() < 0)
            found = np.flatnonzero(asked)
            hashes.append(batch.column("hash").to_numpy()[found])
            names.append(batch.column("key").take(pa.array(found)))
            if not self.state.spills:
                self.table.put_back(batch)
        if reached > self.watermark:
            due = self.state.layers.due(EVENT_DUE, self.watermark, reached)
            hashes.append(due.column("hash").to_numpy())
            names.append(pa.concat_arrays([*due.column("key").cast(pa.binary()).chunks, pa.array([], pa.binary())]))
        distinct = distinct_keys(np.concatenate(hashes), pa.concat_arrays(names))
        for start in range(0, len(distinct.keys), CHUNK_KEYS):
            end = start + CHUNK_KEYS
            self._settle(distinct.hashes[start:end], distinct.keys[start:end], reached)
            yield

    def _settle(self, hashes: UInt64s, keys: pa.BinaryArray, reached: int) -> None:
        wanted = KeyTimes(hashes, keys, np.full(len(hashes), _LEAST), np.full(len(hashes), _GREATEST))
        rows = self.table.find(wanted, buffered=True, fresh=True)
        if self._gap_us is None:
            rows = rows.only(rows.expires() > self.watermark)
        side = NetSide(rows, len(rows))
        self._check(side, keys)
        if self._several:
            self._give_by_window(side, hashes, keys, reached)
            return
        times = side.times()
        order = np.lexsort((side.hashes, times, side.codes))
        over = self._over(times)[order] if self._gap_us is None else self._ends(side.codes[order], times[order])
        settled = order[over <= reached]
        if not len(settled):
            return
        if self._gap_us is not None:
            ChangedRows(side, settled).write(self.table, hashes, keys, -side.before)
        places = np.repeat(settled, side.before[settled])
        self._emit(side, places, times[places])

    def _give_by_window(self, side: NetSide, hashes: UInt64s, keys: pa.BinaryArray, reached: int) -> None:
        """Gives rows for each of their windows that is over now, in the order of time; says when the next one is."""
        times = side.times()
        at, ends = self._pairs(times)
        lasts = ends - 1
        due = (lasts > self.watermark) & (lasts <= reached)
        waits = np.zeros(len(side), np.bool_)
        waits[at[due]] = True
        following = np.full(len(side), MAX_TIME)
        later = (lasts > reached) & waits[at] & (side.before[at] > 0)
        np.minimum.at(following, at[later], lasts[later])
        hints = np.flatnonzero(following < MAX_TIME)
        if len(hints):
            _, first = np.unique(np.stack([side.codes[hints], following[hints]]), axis=1, return_index=True)
            chosen = hints[first]
            codes = side.codes[chosen]
            self.hints.add(following[chosen], hashes[codes], keys.take(pa.array(codes)), 0)
        at, lasts = at[due], lasts[due]
        order = np.lexsort((side.hashes[at], times[at], lasts, side.codes[at]))
        counts = side.before[at[order]]
        self._emit(side, np.repeat(at[order], counts), np.repeat(lasts[order], counts))

    def _emit(self, side: NetSide, places: Int64s, times: Int64s) -> None:
        if len(places):
            columns = [side.rows.column(index).take(pa.array(side.first[places])) for index in range(side.rows.width)]
            self.emit(Rows.of_columns(self.codec, columns, times))

    def _ends(self, codes: Int64s, times: Int64s) -> Int64s:
        """When the session of each row is over; rows stand in the order of key and time."""
        if not len(codes):
            return codes
        assert self._gap_us is not None
        apart = (codes[1:] != codes[:-1]) | (times[1:] >= times[:-1] + self._gap_us)
        lasts = np.append(np.flatnonzero(apart), len(codes) - 1)
        counts = np.diff(np.append(-1, lasts))
        return np.repeat(shifted(times[lasts], self._gap_us - 1), counts)

    def _check(self, side: NetSide, keys: pa.BinaryArray) -> None:
        wrong: Mask = side.before < 0
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            key = keys[int(side.codes[first])].as_py()
            key_type = None if self.key_type is Any else self.key_type
            raise below_zero(self.step, int(-side.before[wrong].sum()), decode_key(key, key_type))
