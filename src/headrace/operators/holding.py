"""Rows that wait in a task: `HeldRows` gives them back in the order of event time, `QueuedRows` in the order they came.

Both keep Arrow columns, and beyond a limit write them to temporary files without a name, so that nothing is left of
them however the process ends. Memory is bounded by the limit while rows come; while sorted rows are given back, by a
chunk of each file.

Sorted rows come by the hash of their key, then by time, then in the order they came. So the rows of one key come in
order of time, and no bytes of keys are compared: two keys of one hash come mixed, each of them in order. A row without
time belongs to the beginning of time. Rows are never looked at here; late rows are the business of the caller.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, Keys, Rows, UInt64s
from headrace.model.ids import MIN_TIME
from headrace.operators.contract import TaskInfo
from headrace.operators.keyed import KeyedOperator

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.shard import ShardState


HELD_BYTES: Final = 64 * 2**20
"""Rows held in memory, counted as Arrow columns; sorting them takes about as much again."""
_CHUNK_ROWS: Final = 16_384
_HASH, _KEY, _TIME, _FIELDS = range(4)
"""Columns of a held batch; the fields of the rows follow from the fourth on."""


class _WaitingRows:
    """Rows of one input of a step in one task, as Arrow batches with their keys and times."""

    def __init__(self, limit_bytes: int = HELD_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._codec: RowCodec | None = None
        self._batches: list[pa.RecordBatch] = []
        self._size_bytes = 0

    def add(self, rows: Rows, keys: Keys) -> None:
        """Takes rows, all of one type, behind those that came before."""
        if not len(rows):
            return
        self._codec = rows.codec
        encoded = keys.encoded.combine_chunks() if isinstance(keys.encoded, pa.ChunkedArray) else keys.encoded
        times = pa.nulls(len(rows), pa.int64()) if rows.times is None else pa.array(rows.times, pa.int64())
        columns = [pa.array(keys.hashes, pa.uint64()), encoded, times, *rows.columns]
        batch = pa.RecordBatch.from_arrays(columns, names=[str(i) for i in range(len(columns))])
        self._batches.append(batch)
        self._size_bytes += batch.nbytes
        if self._size_bytes > self._limit_bytes:
            self._spill(self._in_memory())

    def _spill(self, batches: list[pa.RecordBatch]) -> None:
        raise NotImplementedError

    def _in_memory(self) -> list[pa.RecordBatch]:
        """The batches in memory; they are in memory no longer."""
        batches, self._batches, self._size_bytes = self._batches, [], 0
        return batches

    def _rows_and_keys(self, batch: pa.RecordBatch) -> tuple[Rows, Keys]:
        assert self._codec is not None
        times = None if batch.column(_TIME).null_count == batch.num_rows else _times(batch)
        return Rows.of_columns(self._codec, batch.columns[_FIELDS:], times), Keys(_hashes(batch), batch.column(_KEY))


class HeldRows(_WaitingRows):
    """Rows that come back sorted by hash of key and time."""

    def __init__(self, limit_bytes: int = HELD_BYTES) -> None:
        super().__init__(limit_bytes)
        self._files: list[_Chunks] = []

    @property
    def files(self) -> int:
        """How many files hold rows that did not fit into memory."""
        return len(self._files)

    def drain(self) -> Iterator[tuple[Rows, Keys]]:
        """Everything in order, piece by piece; afterwards there is nothing."""
        runs: list[Sequence[pa.RecordBatch]] = [*self._files]
        if self._batches:
            rest = _in_order(self._in_memory())
            runs.append([rest.slice(start, _CHUNK_ROWS) for start in range(0, rest.num_rows, _CHUNK_ROWS)])
        self._files = []
        for batch in runs[0] if len(runs) == 1 else _merge(runs):
            yield self._rows_and_keys(batch)

    def _spill(self, batches: list[pa.RecordBatch]) -> None:
        self._files.append(_write_chunks(_in_order(batches)))


class _Chunks(Sequence[pa.RecordBatch]):
    """The chunks of a file, read where they lie."""

    def __init__(self, reader: pa.ipc.RecordBatchFileReader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return int(self._reader.num_record_batches)

    def __getitem__(self, place: int) -> pa.RecordBatch:  # type: ignore[override]
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._reader.get_batch(place)


def _write_chunks(batch: pa.RecordBatch) -> _Chunks:
    with tempfile.TemporaryFile(prefix="headrace-") as file:
        with pa.ipc.new_file(file, batch.schema) as writer:
            for start in range(0, batch.num_rows, _CHUNK_ROWS):
                writer.write_batch(batch.slice(start, _CHUNK_ROWS))
        file.flush()
        # The mapping keeps the file alive, and is the last to do so.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _Chunks(pa.ipc.open_file(pa.py_buffer(mapped)))


class _ChunkCursor:
    """How far one sorted run has been given back."""

    def __init__(self, run: Sequence[pa.RecordBatch], place: int) -> None:
        self.place = place
        """Among the runs: rows of an earlier one came before."""
        self._run = run
        self._next = 0
        self._start = 0
        self._batch: pa.RecordBatch | None = None
        self._hashes: UInt64s = np.empty(0, np.uint64)
        self._times: Int64s = np.empty(0, np.int64)
        self.advance()

    def advance(self) -> bool:
        """Goes on to the next chunk where this one is used up; False at the end of the run."""
        if self._batch is not None and self._start < self._batch.num_rows:
            return True
        if self._next == len(self._run):
            return False
        self._batch = batch = self._run[self._next]
        self._hashes, self._times = _hashes(batch), _times(batch)
        self._next += 1
        self._start = 0
        return True

    def bound(self) -> tuple[int, int, int] | None:
        """Up to where everything of this run is at hand; None: all of it."""
        if self._next == len(self._run):
            return None
        return int(self._hashes[-1]), int(self._times[-1]), self.place

    def take(self, bound: tuple[int, int, int] | None) -> pa.RecordBatch:
        """The rows up to the bound; of two rows with the same hash and time, that of the earlier run comes first."""
        assert self._batch is not None
        end = self._batch.num_rows
        if bound is not None:
            hashed, time, place = bound
            low = int(np.searchsorted(self._hashes, np.uint64(hashed), "left"))
            high = int(np.searchsorted(self._hashes, np.uint64(hashed), "right"))
            end = low + int(np.searchsorted(self._times[low:high], time, "right" if self.place <= place else "left"))
        start, self._start = self._start, max(end, self._start)
        return self._batch.slice(start, self._start - start)


def _merge(runs: Sequence[Sequence[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Sorted runs as one. In each round everything is given back that no row still in a file can come before."""
    cursors = [_ChunkCursor(run, place) for place, run in enumerate(runs)]
    while cursors:
        bounds = [bound for cursor in cursors if (bound := cursor.bound()) is not None]
        bound = min(bounds, default=None)
        yield _in_order([cursor.take(bound) for cursor in cursors])
        cursors = [cursor for cursor in cursors if cursor.advance()]


def _in_order(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    batch = pa.concat_batches(batches)
    return batch.take(pa.array(np.lexsort((_times(batch), _hashes(batch)))))


def _hashes(batch: pa.RecordBatch) -> UInt64s:
    hashes: UInt64s = batch.column(_HASH).to_numpy(zero_copy_only=False)
    return hashes


def _times(batch: pa.RecordBatch) -> Int64s:
    times: Int64s = batch.column(_TIME).fill_null(MIN_TIME).to_numpy(zero_copy_only=False)
    return times


class QueuedRows(_WaitingRows):
    """Rows that come back in the order in which they came."""

    def __init__(self, limit_bytes: int = HELD_BYTES) -> None:
        super().__init__(limit_bytes)
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    @property
    def spilled(self) -> bool:
        """Whether rows that did not fit into memory are in a file."""
        return self._file is not None

    def drain(self) -> Iterator[tuple[Rows, Keys]]:
        """Everything as it came, batch by batch; afterwards there is nothing."""
        file, self._file = self._file, None
        if file is not None:
            assert self._writer is not None
            self._writer.close()
            self._writer = None
            file.seek(0)
            with file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    yield self._rows_and_keys(batch)
        for batch in self._in_memory():
            yield self._rows_and_keys(batch)

    def _spill(self, batches: list[pa.RecordBatch]) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="headrace-")  # noqa: SIM115 - it goes with this object
            self._writer = pa.ipc.new_stream(self._file, batches[0].schema)
        assert self._writer is not None
        for batch in batches:
            self._writer.write_batch(batch)


class HoldsRows(KeyedOperator):
    """Base of the steps whose rows of an epoch are handled at its end, by key and time."""

    held: HeldRows

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        # Where state has little room, rows have no more.
        self.held = HeldRows(min(HELD_BYTES, self.state.limit_bytes))

    def take(self, port: int, rows: Rows, keys: Keys) -> None:
        self.held.add(rows, keys)

    def finish(self) -> Iterator[None]:
        for rows, keys in self.held.drain():
            super().take(0, rows, keys)
            yield
        yield from super().finish() or ()
