"""Tables with a row per key and window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.window import WINDOW_END, WINDOW_START
from headrace.read.columns import with_times
from headrace.read.windows import SlicedReader
from headrace.snapshots.column_types import ColumnType
from headrace.snapshots.table import StateTable


class WindowTable(StateTable):
    """Windows that are merged from slices, and sessions from fragments: finished in columns."""

    reader: SlicedReader

    def named_keys(self) -> tuple[str, ...]:
        return tuple(self.reader.about.key)

    @property
    def row_key(self) -> tuple[str, ...]:
        return (*self.key_names, WINDOW_START, WINDOW_END)

    def more_columns(self) -> Iterator[tuple[str, ColumnType]]:
        batch = self._timed(pa.RecordBatch.from_pydict(self.reader.window_columns(None)))
        for field in batch.schema:
            yield field.name, ColumnType(field.type)

    def _timed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return with_times(batch, self.reader.value_times.fields)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for merged in self.reader.merged_rows():
            yield self._piece(merged, names)

    def rows_of(self, keys: Sequence[bytes], names: Sequence[str]) -> pa.RecordBatch:
        [merged] = self.reader.merged_rows(keys)
        wanted = pa.array(keys, pa.binary())
        # What shares a hash with one of the keys was merged beside it.
        return self._piece(merged.filter(pc.is_in(merged.column("key"), wanted)), names)

    def plain_rows(self, key: bytes, names: Sequence[str]) -> list[tuple[Any, ...]]:
        if any(pa.types.is_nested(self.by_name[name].type.arrow) for name in names):
            return super().plain_rows(key, names)
        rows = self.reader.windows(key).values()
        return [tuple([row.get(name) for name in names]) for row in rows]

    def _piece(self, merged: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        wanted = self.value_names(names)
        made = self.reader.window_columns(merged, wanted)
        timed = self._timed(pa.RecordBatch.from_pydict({name: made[name] for name in wanted}))
        return self.batch(merged.column("key"), names, dict(zip(wanted, timed.columns)))
