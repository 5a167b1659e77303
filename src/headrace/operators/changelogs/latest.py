"""``latest`` over a changelog: all rows of a key are kept, so that the newest of those that are left is known.

What is kept: in the table ``value`` the newest row as it was given out, beside it its time, and in ``!rows`` the rows
of the key, each with its time. As everywhere behind changelogs an epoch's rows are put together first, those that come
and those that go, and one is taken out of the other at the end. The newest row is the one with the greatest time and,
of equal times, the greatest bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.model.batch import Rows
from headrace.model.ids import MIN_TIME
from headrace.model.job import VALUE_TABLE
from headrace.model.row_kind import DELETE, INSERT, takes_back
from headrace.model.values import value_codec
from headrace.operators.changelogs.errors import below_zero
from headrace.operators.contract import TaskInfo
from headrace.operators.keyed import KeyedBatch, KeyedOperator, stamps_of
from headrace.operators.rolling import TIME_TABLE

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.overlay import ValueColumn
    from headrace.state.shard import ShardState

ROWS_TABLE: Final = "!rows"
_EMIT_KEYS: Final = 32_768


def kept_type(row_type: Any) -> Any:
    """What is kept of a key: rows with their times, those that came and those that go with this epoch."""
    return tuple[list[tuple[int, row_type]], list[tuple[int, row_type]]]


class RetractingLatestOperator(KeyedOperator):
    """The newest row of each key that changed, once per epoch; of a key without rows that which it gave out last."""

    newest: ValueColumn
    times: ValueColumn
    rows: ValueColumn

    def __init__(self, step: str, codec: RowCodec, key_type: Any = None) -> None:
        super().__init__(step, key_type)
        self.codec = codec
        self._stored = value_codec(codec.type)
        self._kept = value_codec(kept_type(codec.type))

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.newest = self.state.values(VALUE_TABLE, self._stored)
        self.times = self.state.values(TIME_TABLE, value_codec(int))
        self.rows = self.state.values(ROWS_TABLE, self._kept, track=True)

    def handle(self, port: int, batch: KeyedBatch) -> None:
        rows, count = batch.rows, len(batch.slots)
        back = np.zeros(count, np.bool_) if rows.kinds is None else takes_back(rows.kinds)
        times = [MIN_TIME] * count if rows.times is None else rows.times.tolist()
        for slot, goes, time, row in zip(batch.slots.tolist(), back.tolist(), times, rows.objects):
            kept: tuple[list[Any], list[Any]] = self.rows.get(slot) or ([], [])
            kept[goes].append((time, row))
            self.rows.put(slot, kept)

    def finish(self) -> Iterator[None]:
        for slots in self.state.changed(self.rows):
            for start in range(0, len(slots), _EMIT_KEYS):
                self._give(slots[start : start + _EMIT_KEYS].tolist())
                yield

    def results(self, slots: list[int]) -> Rows:
        """The rows that hold for these keys, each of which has one."""
        rows = [self.newest.get(slot) for slot in slots]
        return Rows.of_objects(self.codec, rows, stamps_of([self.times.get(slot) for slot in slots]))

    def _give(self, slots: list[int]) -> None:
        given: list[Any] = []
        times: list[int] = []
        kinds: list[int] = []
        for slot in slots:
            left = self._settle(slot)
            if left:
                (time, row), kind = left[-1], INSERT
            else:
                row, time, kind = self.newest.get(slot), self.times.get(slot), DELETE
            if row is not None:
                given.append(row)
                times.append(MIN_TIME if time is None else time)
                kinds.append(kind)
            self.newest.put(slot, row if left else None)
            self.times.put(slot, time if left else None)
        timed = any(time > MIN_TIME for time in times)
        self.emit(Rows.of_objects(self.codec, given, times if timed else None, np.array(kinds, np.int8)))

    def _settle(self, slot: int) -> list[tuple[int, Any]]:
        """Takes out what goes; gives back what is left, the newest last."""
        came, gone = self.rows.get(slot) or ([], [])
        encode = self._stored.encode
        contents = {(time, encode(row)): row for time, row in came}
        left = Counter((time, encode(row)) for time, row in came)
        left.subtract((time, encode(row)) for time, row in gone)
        if any(count < 0 for count in left.values()):
            raise below_zero(self.step, -sum(count for count in left.values() if count < 0), self.key_of(slot))
        rows = [(each[0], contents[each]) for each in sorted(left.elements())]
        self.rows.put(slot, (rows, []) if rows else None)
        return rows
