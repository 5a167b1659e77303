"""What is due when: the indexes by time that a step keeps beside its own tables, seen from one task.

An index is a hint. A row of it says that something about a key may be due at a time; the timer itself, or the row that
waits, is the truth. Timers are indexed from their columns at each flush; rows that wait say themselves when they are
due (`headrace.state.rows.table.HintTable`). Both stand in one table per clock, told apart by a number.

What this module deliberately does not do: call anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.batch import Int64s, UInt64s
from headrace.state.cells import ABSENT
from headrace.state.format import DUE, TableData
from headrace.state.overlay import UNLOADED, KeyTable, ValueColumn, changed_slots
from headrace.state.rows.table import HINTS, HintTable

if TYPE_CHECKING:
    from headrace.state.cells import EntriesColumn

Numbers = npt.NDArray[np.uint8]


class DueKeys(NamedTuple):
    """Rows of an index, in time order; a key may stand there several times."""

    times: Int64s
    hashes: UInt64s
    keys: pa.BinaryArray
    numbers: Numbers
    """Which of the step's timers, in the order in which they were indexed; or what a `HintTable` was told."""

    def only(self, mask: npt.NDArray[np.bool_]) -> DueKeys:
        """The rows for which a mask holds."""
        return DueKeys(self.times[mask], self.hashes[mask], self.keys.filter(pa.array(mask)), self.numbers[mask])


class DueIndexes:
    """All indexes of one step in one task."""

    def __init__(self, keys: KeyTable) -> None:
        self._keys = keys
        self._timers: dict[str, list[ValueColumn | EntriesColumn]] = {}
        self._hints: dict[str, HintTable] = {}
        self._spilled_from: dict[str, int] = {}
        """Index → earliest time that a spill of this epoch put there; it may lie behind the watermark."""
        self._indexed: dict[str, int] = {}
        """Index → earliest time that was last put there."""

    def add_timer(self, due_table: str, column: ValueColumn | EntriesColumn) -> None:
        """Keeps an index by time of this column, whose values (or names of entries) are times."""
        self._timers.setdefault(due_table, []).append(column)

    def hints(self, due_table: str) -> HintTable:
        """The rows of an index that the caller gives himself."""
        made = self._hints[due_table] = HintTable()
        return made

    def index_of(self, table: str) -> tuple[str, int] | None:
        """The index that the timers in a table have, and their number there; None where it holds no timers."""
        for due_table, columns in self._timers.items():
            for number, column in enumerate(columns):
                if column.table == table:
                    return due_table, number
        return None

    # --- asking

    def due(self, due_table: str, after_us: int, upto_us: int) -> DueKeys:
        """Where something with after < time ≤ upto may be, and what was set in this epoch and lies further back."""
        # A wall clock may go back between two epochs; then nothing that is stored can be due.
        after_us = min(after_us, upto_us, self._spilled_from.get(due_table, after_us + 1) - 1)
        stored = self._keys.layers.due(due_table, after_us, upto_us).cast(HINTS)
        fresh = pa.Table.from_batches(self._fresh(due_table, upto_us), HINTS)
        whole = pa.concat_tables([stored, fresh]).combine_chunks()
        times = whole.column("time").to_numpy()
        order = np.argsort(times, kind="stable")
        keys = pa.concat_arrays([*whole.column("key").chunks, pa.array([], pa.binary())])
        return DueKeys(
            times[order], whole.column("hash").to_numpy()[order], keys.take(pa.array(order)),
            whole.column("timer").to_numpy()[order],
        )  # fmt: skip

    def next_due(self, due_table: str, after_us: int) -> int | None:
        """The earliest time after this one; a hint, never later than the truth."""
        fresh = [time for _, _, time in self._timer_times(due_table) if time > after_us]
        stored = self._keys.layers.next_due(due_table, after_us)
        return min(fresh if stored is None else [*fresh, stored], default=None)

    def waits_for(self, due_table: str, after_us: int) -> int | None:
        """The same once everything is flushed, from what was written down anyway; a hint for people."""
        stored = self._keys.layers.next_due(due_table, after_us)
        fresh = self._indexed.get(due_table, after_us)
        return min([time for time in (stored, fresh) if time is not None and time > after_us], default=None)

    def _timer_times(self, due_table: str) -> Iterator[tuple[int, int, int]]:
        """(Number, slot, time) of every timer that was set since the last spill and still stands."""
        for number, column in enumerate(self._timers.get(due_table, ())):
            for slot, time in _changed_times(column):
                yield number, slot, time

    def _fresh(self, due_table: str, upto_us: int | None) -> Iterator[pa.RecordBatch]:
        """What came since the last spill."""
        numbers: list[int] = []
        slots: list[int] = []
        times: list[int] = []
        for number, slot, time in self._timer_times(due_table):
            if upto_us is None or time <= upto_us:
                numbers.append(number)
                slots.append(slot)
                times.append(time)
        if times:
            hashes, keys = self._keys.pick(np.array(slots, dtype=np.int64))
            arrays: list[Any] = [pa.array(times, pa.int64()), pa.array(hashes), keys, pa.array(numbers, pa.uint8())]
            yield pa.RecordBatch.from_arrays(arrays, schema=HINTS)
        hints = self._hints.get(due_table)
        for batch in () if hints is None else hints.batches():
            some = batch if upto_us is None else batch.filter(pa.array(batch.column("time").to_numpy() <= upto_us))
            if some.num_rows:
                yield some

    # --- what `ShardState` asks for

    def weigh(self) -> int:
        return sum(hints.weigh() for hints in self._hints.values())

    def changes(self) -> Iterator[TableData]:
        """The rows of all indexes; columns of timers and tables of rows still have what is to be indexed."""
        for due_table in dict.fromkeys([*self._timers, *self._hints]):
            hints = self._hints.get(due_table)
            batches = [*self._fresh(due_table, None), *([] if hints is None else hints.followed())]
            if batches:
                rows = pa.Table.from_batches(batches, HINTS)
                earliest = self._indexed[due_table] = int(rows.column("time").to_numpy().min())
                self._spilled_from[due_table] = min(earliest, self._spilled_from.get(due_table, earliest))
                yield TableData(due_table, DUE, rows)

    def clear(self) -> None:
        for hints in self._hints.values():
            hints.clear()


def _changed_times(column: ValueColumn | EntriesColumn) -> Iterator[tuple[int, int]]:
    """(slot, time) of every timer that was set since the last spill and still stands."""
    if isinstance(column, ValueColumn):
        values = column.values
        for slot in changed_slots(column.dirty).tolist():
            time = values[slot]
            if time is not None and time is not UNLOADED:
                yield slot, time
        return
    for slot, cell in column.changed_cells():
        for time in cell.changed:
            if cell.items.get(time, ABSENT) is not ABSENT:
                yield slot, time
