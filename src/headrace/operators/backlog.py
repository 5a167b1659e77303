"""Rows that wait for others to be handled first, and are then given back as they came.

Rows are kept as Arrow columns. Beyond a limit they are written to a temporary file without a name, so that nothing is
left of them however the process ends; memory does not grow with their number.

What this deliberately does not do: sort rows (`headrace.operators.holding` does), or look at them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.model.batch import Keys, Rows
from headrace.model.ids import MIN_TIME

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

HELD_BYTES: Final = 64 * 2**20
"""Rows held in memory, counted as Arrow columns."""
_HASH, _KEY, _TIME, _FIELDS = range(4)
"""Columns of a held batch; the fields of the rows follow from the fourth on."""


class Backlog:
    """The rows of one input of a step in one task."""

    def __init__(self, limit_bytes: int = HELD_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._codec: RowCodec | None = None
        self._batches: list[pa.RecordBatch] = []
        self._size_bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    @property
    def spilled(self) -> bool:
        """Whether rows that did not fit into memory are in a file."""
        return self._file is not None

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
            self._spill()

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
                    yield self._given_back(batch)
        batches, self._batches, self._size_bytes = self._batches, [], 0
        for batch in batches:
            yield self._given_back(batch)

    def _spill(self) -> None:
        batches, self._batches, self._size_bytes = self._batches, [], 0
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="headrace-")  # noqa: SIM115 - it goes with this object
            self._writer = pa.ipc.new_stream(self._file, batches[0].schema)
        assert self._writer is not None
        for batch in batches:
            self._writer.write_batch(batch)

    def _given_back(self, batch: pa.RecordBatch) -> tuple[Rows, Keys]:
        assert self._codec is not None
        times = None
        column = batch.column(_TIME)
        if column.null_count < len(column):
            times = column.fill_null(MIN_TIME).to_numpy(zero_copy_only=False)
        hashes = batch.column(_HASH).to_numpy(zero_copy_only=False).astype(np.uint64, copy=False)
        return Rows.of_columns(self._codec, batch.columns[_FIELDS:], times), Keys(hashes, batch.column(_KEY))
