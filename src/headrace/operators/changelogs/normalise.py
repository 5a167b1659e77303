"""*Normalise*: from rows that replace each other by key to a changelog.

What is kept is the table ``value``: the row that each key gave out last, so that it can be taken back byte for byte,
and beside it its time. Rows of an epoch are compacted: what goes out at its end is the difference between what was
given out before and what holds now, and nothing where that is the same.

While the epoch runs, what a key had given out before stands in ``!before``; between epochs that table is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.model.batch import Rows
from headrace.model.job import VALUE_TABLE
from headrace.model.row_kind import AFTER, BEFORE, DELETE, INSERT, takes_back
from headrace.model.values import value_codec
from headrace.operators.contract import TaskInfo
from headrace.operators.keyed import KeyedBatch, KeyedOperator, stamps_of
from headrace.operators.rolling import TIME_TABLE

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.overlay import ValueColumn
    from headrace.state.shard import ShardState

BEFORE_TABLE: Final = "!before"
_EMIT_KEYS: Final = 32_768


class NormaliseOperator(KeyedOperator):
    """The net effect of each epoch on each key."""

    newest: ValueColumn
    times: ValueColumn
    before: ValueColumn

    def __init__(self, step: str, codec: RowCodec, key_type: Any = None) -> None:
        super().__init__(step, key_type)
        self.codec = codec
        self._stored = value_codec(codec.type)
        # What was given out and its time, in a list; an empty one where nothing was.
        self._pending = value_codec(list[Any])

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.newest = self.state.values(VALUE_TABLE, self._stored, track=True)
        self.times = self.state.values(TIME_TABLE, value_codec(int))
        self.before = self.state.values(BEFORE_TABLE, self._pending)

    def handle(self, port: int, batch: KeyedBatch) -> None:
        rows, slots = batch.rows, batch.slots
        # Only the last row of each key says what holds.
        last = np.append(batch.starts()[1:], len(slots)) - 1
        chosen = slots[last]
        self._remember(chosen.tolist())
        gone = np.zeros(len(last), np.bool_) if rows.kinds is None else takes_back(rows.kinds[last])
        for slot in chosen[gone].tolist():
            self.newest.put(slot, None)
            self.times.put(slot, None)
        held = last[~gone]
        times = None if rows.times is None else rows.times[held].tolist()
        put, put_time = self.newest.put, self.times.put
        for i, (slot, row) in enumerate(zip(chosen[~gone].tolist(), rows.take(held).objects if len(held) else ())):
            put(slot, row)
            if times is not None:
                put_time(slot, times[i])

    def _remember(self, slots: list[int]) -> None:
        """Keeps what these keys gave out before this epoch, where it is not kept yet."""
        encode = self._stored.encode
        for slot in slots:
            if self.before.get(slot) is None:
                row = self.newest.get(slot)
                self.before.put(slot, [] if row is None else [encode(row), self.times.get(slot)])

    def finish(self) -> Iterator[None]:
        for slots in self.state.changed(self.newest):
            for start in range(0, len(slots), _EMIT_KEYS):
                self._give(slots[start : start + _EMIT_KEYS].tolist())
                yield

    def results(self, slots: list[int]) -> Rows:
        """The rows that hold for these keys, each of which has one."""
        rows = [self.newest.get(slot) for slot in slots]
        return Rows.of_objects(self.codec, rows, stamps_of([self.times.get(slot) for slot in slots]))

    def _give(self, slots: list[int]) -> None:
        encode, decode = self._stored.encode, self._stored.decode
        given: list[Any] = []
        times: list[int | None] = []
        kinds: list[int] = []
        for slot in slots:
            old, new, time = self.before.get(slot), self.newest.get(slot), self.times.get(slot)
            self._forget(slot)
            if old and new is not None and old == [encode(new), time]:
                continue
            if old:
                given.append(decode(old[0]))
                times.append(old[1])
                kinds.append(DELETE if new is None else BEFORE)
            if new is not None:
                given.append(new)
                times.append(time)
                kinds.append(AFTER if old else INSERT)
        self.emit(Rows.of_objects(self.codec, given, stamps_of(times), np.array(kinds, np.int8)))

    def _forget(self, slot: int) -> None:
        """Empties what was kept for the epoch; where it was never written, without a trace in the delta."""
        if self.state.spills:
            self.before.put(slot, None)
        else:
            self.before.restore(slot, (None, 0, None))
