"""Columns of tables that were read before, kept in memory: a table is decoded once, however often it is asked.

What stays the same over epochs (a step that did not change) stays here, too: columns go by the version of their table.
Columns of one table have the same order of rows, so that any of them can stand side by side.

Invariants
- At most ``budget_bytes`` are held; what was asked for last stays. A table that is larger than half of it is given out
  piece by piece, and nothing of it is held here.
- One thread reads a table at a time; others that want the same columns wait for it.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import polars as pl
import pyarrow as pa

from headrace.snapshots.table import StateTable

BUDGET_BYTES: Final = 512 * 2**20

_Name = tuple[tuple[object, ...], str]


class _HeldColumn(NamedTuple):
    series: pl.Series
    size_bytes: int


class ColumnMemory:
    """Columns of any number of tables. May be asked by several threads."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self._kept: OrderedDict[_Name, _HeldColumn] = OrderedDict()
        self._held_bytes = 0
        # Letting go of a table may come while the lock is held: whenever Python collects garbage.
        self._lock = threading.RLock()
        self._reading: weakref.WeakValueDictionary[tuple[object, ...], _Turn] = weakref.WeakValueDictionary()

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def frames(self, table: StateTable, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """A whole table with these columns: at once where it is held, else in pieces."""
        version = table.version
        with self._lock:
            turn = self._reading.get(version)
            if turn is None:
                turn = self._reading[version] = _Turn()
        with turn.lock:
            held = self._find(version, names)
            rows = self._read(table, version, names) if held is None else held
        if isinstance(rows, pl.DataFrame):
            yield rows
            return
        pieces, rest = rows
        yield from pieces
        del pieces
        for batch in rest:
            yield frame_of_batch(batch)

    def _find(self, version: tuple[object, ...], names: Sequence[str]) -> pl.DataFrame | None:
        with self._lock:
            if any((version, name) not in self._kept for name in names):
                return None
            for name in names:
                self._kept.move_to_end((version, name))
            return pl.DataFrame([self._kept[version, name].series for name in names])

    def _read(
        self, table: StateTable, version: tuple[object, ...], names: Sequence[str]
    ) -> pl.DataFrame | tuple[list[pl.DataFrame], Iterator[pa.RecordBatch]]:
        """The columns as a whole, which are kept; or what was read of them by the time that they were too large."""
        with self._lock:
            missing = [name for name in names if (version, name) not in self._kept]
        batches = table.batches(missing)
        pieces: list[pl.DataFrame] = []
        size = 0
        for batch in batches:
            pieces.append(frame_of_batch(batch))
            size += batch.nbytes
            if size > self.budget_bytes // 2:
                if len(missing) == len(names):
                    return pieces, batches
                return [], table.batches(names)
        whole = pl.concat(pieces, rechunk=False) if pieces else frame_of_batch(_no_rows(table, missing))
        with self._lock:
            for series in whole:
                self._keep(table, (version, series.name), series)
        if len(missing) == len(names):
            return whole
        # What was held before may have been let go of meanwhile: then reading once more is right.
        held = self._find(version, names)
        return ([], table.batches(names)) if held is None else held

    def _keep(self, table: StateTable, name: _Name, series: pl.Series) -> None:
        """Under the lock."""
        size = int(series.estimated_size())
        self._kept[name] = _HeldColumn(series, size)
        self._held_bytes += size
        # A table's version is told by its runs in memory: once they are let go, nobody can ask for it again.
        weakref.finalize(table.reader.layers, self._drop, name).atexit = False
        while self._held_bytes > self.budget_bytes:
            _, gone = self._kept.popitem(last=False)
            self._held_bytes -= gone.size_bytes

    def _drop(self, name: _Name) -> None:
        with self._lock:
            gone = self._kept.pop(name, None)
            if gone is not None:
                self._held_bytes -= gone.size_bytes


class _Turn:
    """Who reads a table."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def frame_of_batch(batch: pa.RecordBatch) -> pl.DataFrame:
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _no_rows(table: StateTable, names: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], pa.schema([table.schema.field(name) for name in names]))
