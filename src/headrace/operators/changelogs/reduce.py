"""``reduce`` over a changelog, with a function that takes a row out again.

What is kept: in the table ``value`` the reduced row as it was given out, beside it its time, and in ``!rows`` how many
rows it is made of. As everywhere behind changelogs an epoch's rows are put together first, those that come and those
that go apart from each other, and one is taken out of the other at the end: so the order in which they came does not
matter where the function does not care for the order of its rows. A key without rows goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.model.batch import Rows
from headrace.model.ids import MIN_TIME
from headrace.model.job import VALUE_TABLE
from headrace.model.row_kind import DELETE, INSERT, takes_back
from headrace.model.values import value_codec
from headrace.operators.changelogs.errors import below_zero
from headrace.operators.contract import TaskInfo
from headrace.operators.keyed import KeyedBatch, KeyedOperator, check_same_key, stamps_of
from headrace.operators.rolling import TIME_TABLE
from headrace.state.fitting import declared_codec

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.overlay import ValueColumn
    from headrace.state.shard import ShardState

ROWS_TABLE: Final = "!rows"
_EMIT_KEYS: Final = 32_768
_NOTHING: Final = (0, 0, 0, None, None)


def kept_type(row_type: Any) -> Any:
    """What is kept of a key: the number of its rows; with this epoch how many came and went, and what these come to."""
    return tuple[int, int, int, row_type | None, row_type | None]


class RetractingReduceOperator(KeyedOperator):
    """The reduced row of each key that changed, once per epoch; of a key without rows that which it gave out last."""

    reduced: ValueColumn
    times: ValueColumn
    rows: ValueColumn

    def __init__(
        self, step: str, function: Callable[[Any, Any], Any], inverse: Callable[[Any, Any], Any], codec: RowCodec, *,
        key_type: Any = None, key_columns: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(step, key_type)
        self.codec = codec
        self._function = function
        self._inverse = inverse
        self._key_columns = key_columns or ()
        self._key_in = attrgetter(*key_columns) if key_columns else None
        self._stored = declared_codec(codec.type)
        self._kept = declared_codec(kept_type(codec.type))

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.reduced = self.state.values(VALUE_TABLE, self._stored)
        self.times = self.state.values(TIME_TABLE, value_codec(int))
        self.rows = self.state.values(ROWS_TABLE, self._kept, track=True)

    def handle(self, port: int, batch: KeyedBatch) -> None:
        rows, count = batch.rows, len(batch.slots)
        back = np.zeros(count, np.bool_) if rows.kinds is None else takes_back(rows.kinds)
        times = [MIN_TIME] * count if rows.times is None else rows.times.tolist()
        for slot, goes, time, row in zip(batch.slots.tolist(), back.tolist(), times, rows.objects):
            kept = list(self.rows.get(slot) or _NOTHING)
            kept[1 + goes] += 1
            held = kept[3 + goes]
            kept[3 + goes] = row if held is None else self._call(self._function, held, row, slot)
            self.rows.put(slot, tuple(kept))
            newest = self.times.get(slot)
            if not goes and time > MIN_TIME and (newest is None or time > newest):
                self.times.put(slot, time)

    def _call(self, function: Callable[[Any, Any], Any], held: Any, row: Any, slot: int) -> Any:
        try:
            value = function(held, row)
            if self._key_in is not None and self._key_in(value) != self._key_in(row):
                check_same_key(self._key_columns, value, row)
        except Exception as error:
            raise self.failure(error, function, row, slot, way_out="") from error
        return value

    def finish(self) -> Iterator[None]:
        for slots in self.state.changed(self.rows):
            for start in range(0, len(slots), _EMIT_KEYS):
                self._give(slots[start : start + _EMIT_KEYS].tolist())
                yield

    def results(self, slots: list[int]) -> Rows:
        """The rows that hold for these keys, each of which has one."""
        rows = [self.reduced.get(slot) for slot in slots]
        return Rows.of_objects(self.codec, rows, stamps_of([self.times.get(slot) for slot in slots]))

    def _give(self, slots: list[int]) -> None:
        given: list[Any] = []
        times: list[int | None] = []
        kinds: list[int] = []
        for slot in slots:
            before, time = self.reduced.get(slot), self.times.get(slot)
            value = self._settle(slot, before)
            if value is None and before is None:
                # It came and went with this epoch.
                self.times.put(slot, None)
                continue
            given.append(before if value is None else value)
            times.append(time)
            kinds.append(DELETE if value is None else INSERT)
            self.reduced.put(slot, value)
            if value is None:
                self.times.put(slot, None)
        self.emit(Rows.of_objects(self.codec, given, stamps_of(times), np.array(kinds, np.int8)))

    def _settle(self, slot: int, value: Any) -> Any:
        """What the rows of a key come to now; None: it has none."""
        rows, coming, going, came, gone = self.rows.get(slot) or _NOTHING
        left = rows + coming - going
        if left < 0:
            raise below_zero(self.step, -left, self.key_of(slot))
        self.rows.put(slot, (left, 0, 0, None, None) if left else None)
        if not left:
            return None
        if came is not None:
            value = came if value is None else self._call(self._function, value, came, slot)
        return value if gone is None else self._call(self._inverse, value, gone, slot)
