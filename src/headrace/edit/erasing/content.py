"""Files of a store without the rows of a key: runs, and rows that wait in loops. Nothing is changed in place.

A column of Arrow's may hold bytes that no row of it refers to any more, left over from a larger one that it was cut out
of; they are written along. So a file is rewritten as well where only such bytes say the key, and every column is
gathered anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.edit.erasing.keys import KeyMatch
from headrace.state.encode import Piece, RunEncoder
from headrace.state.format import PANES, ROWS
from headrace.state.run import RunTable, StateRun


def count_rows(run: StateRun, match: KeyMatch) -> int:
    """How many rows of a run are of such a key: every row of every table is looked at."""
    return sum(int(match.rows_of(run_batch).sum()) for table in run.tables.values() for run_batch in _batches(table))


class RewrittenRun:
    """A run without some rows: iterating it, once, gives the pieces of the file; after that its figures hold."""

    def __init__(self, run: StateRun, match: KeyMatch) -> None:
        self._run = run
        self._match = match
        self.encoder = RunEncoder(run.lo, run.hi, run.groups)

    def __iter__(self) -> Iterator[Piece]:
        for name, table in sorted(self._run.tables.items()):
            batches = (self._without(batch) for batch in _batches(table))
            schema = table.schema if table.kind in (PANES, ROWS) else None
            whole = (batch for batch in batches if batch.num_rows)
            yield from self.encoder.table(name, table.kind, whole, expires=table.has_expires, schema=schema)
        yield from self.encoder.finish()

    def _without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mask = self._match.rows_of(batch)
        return _gather(batch, ~mask)


def _batches(table: RunTable) -> Iterator[pa.RecordBatch]:
    return (table.block(number).batch for number in range(len(table)))


def loop_without(data: pa.Buffer, text: str) -> tuple[pa.Buffer, int, int]:
    """Rows of a loop without those that have the key in any column: the bytes, how many are left, how many went.

    Rows of a loop have no key yet, so the key is looked for in each of their fields.
    """
    kept, left, gone = pa.BufferOutputStream(), 0, 0
    with pa.ipc.open_stream(data) as stream, pa.ipc.new_stream(kept, stream.schema) as writer:
        for batch in stream:
            mask = np.zeros(batch.num_rows, bool)
            for column in batch.columns:
                mask |= _says(column, text)
            rest = _gather(batch, ~mask)
            writer.write_batch(rest)
            left, gone = left + rest.num_rows, gone + int(mask.sum())
    return kept.getvalue(), left, gone


def _gather(batch: pa.RecordBatch, mask: Any) -> pa.RecordBatch:
    """Some rows, with the bytes that they refer to and no others."""
    return batch.take(pa.array(np.flatnonzero(mask)))


def _says(column: pa.Array, text: str) -> Any:
    try:
        same = pc.equal(column, pa.scalar(text).cast(column.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return np.zeros(len(column), bool)
    return same.fill_null(False).to_numpy(zero_copy_only=False)
