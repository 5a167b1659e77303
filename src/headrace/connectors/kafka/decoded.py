"""Messages of binary formats into rows, decoded by the worker: Spark has no words for Avro or Protobuf.

Spark's connector hands out the values as bytes, beside them the fields that other parts of a message fill (computed
and judged in the JVM as for every format), its partition and its offset. All messages of a batch are decoded together.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.binary import BinaryFormat
from headrace.connectors.source_contract import BadRows, SparkRead, WorkerRows
from headrace.model.shapes import quoted
from headrace.model.wire import ROW_SPLIT

if TYPE_CHECKING:
    from headrace.connectors.formats.messages import RowDecoder
    from headrace.model.rows import RowCodec

_VALUE: Final = "value"
_BESIDE: Final = 4
"""Columns in front of those of fields: value, split, place, bad."""
_TEXT_BYTES: Final = 1_000
"""Of a bad message so much is shown."""


class MessageRows(WorkerRows):
    """Rows of one source. `read`: what Spark's connector is told, with the columns of the fields that it fills."""

    tells_splits = True

    def __init__(self, binary: BinaryFormat, codec: RowCodec, read: SparkRead, place: str) -> None:
        self._binary, self._codec = binary, codec
        self._placed = [name for name in codec.schema.names if name in read.columns]
        self._rest = [name for name in codec.schema.names if name not in read.columns]
        self._decoder: RowDecoder | None = None
        self.prepare = read.prepare
        bad = "CAST(NULL AS STRING)" if read.bad is None else f"IF({read.bad}, {read.raw}, NULL)"
        self.pieces = (
            f"`value` AS {_VALUE}",
            f"{read.split} AS __split",
            f"{place} AS __place",
            f"{bad} AS __bad",
            *(f"{read.columns[name]} AS {quoted(f'__field_{name}')}" for name in self._placed),
        )
        self.keep = "true" if read.keep is None else read.keep

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoder": None}

    def read(self, pieces: pa.RecordBatch) -> Iterator[pa.RecordBatch | BadRows]:
        told = pieces.column(3)
        if told.null_count < len(told):
            yield BadRows(told.drop_null().to_pylist())
            pieces = pieces.filter(told.is_null())
        values, fields = pieces.column(0), dict(zip(self._placed, pieces.columns[_BESIDE:]))
        if values.null_count:
            # A tombstone that is kept: a row of defaults.
            yield from self._without_value(pieces.filter(values.is_null()))
            pieces = pieces.filter(values.is_valid())
            values, fields = pieces.column(0), dict(zip(self._placed, pieces.columns[_BESIDE:]))
        if not pieces.num_rows:
            return
        decoded, faults = self._rows().decode(values.cast(pa.binary()))
        columns = {**fields, **dict(zip(self._rest, decoded))}
        batch = self._batch(columns, pieces.column(1))
        if faults.bad.any():
            yield BadRows([_bad_text(pieces, row, faults.reasons[row]) for row in np.flatnonzero(faults.bad).tolist()])
            batch = batch.filter(pa.array(~faults.bad))
        yield batch

    def _rows(self) -> RowDecoder:
        if self._decoder is None:
            self._decoder = self._binary.decoder(self._codec, self._rest)
        return self._decoder

    def _without_value(self, pieces: pa.RecordBatch) -> Iterator[pa.RecordBatch | BadRows]:
        lacking = [name for name in self._rest if name in self._codec.required]
        if lacking:
            reason = f"the message has no value, and {lacking[0]} has no default"
            yield BadRows([_bad_text(pieces, row, reason) for row in range(pieces.num_rows)])
            return
        defaults = {name: self._defaults(name, pieces.num_rows) for name in self._rest}
        yield self._batch({**dict(zip(self._placed, pieces.columns[_BESIDE:])), **defaults}, pieces.column(1))

    def _defaults(self, name: str, count: int) -> pa.Array:
        value = self._codec.defaults.get(name)
        column = self._codec.columns[name]
        return pa.nulls(count, column.arrow) if value is None else column.encode([value] * count)

    def _batch(self, columns: dict[str, pa.Array], splits: pa.Array) -> pa.RecordBatch:
        schema = self._codec.schema
        arrays = [_as(columns[field.name], field.type) for field in schema]
        return pa.RecordBatch.from_arrays([*arrays, splits], schema=schema.append(pa.field(ROW_SPLIT, pa.string())))


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


def _bad_text(pieces: pa.RecordBatch, row: int, reason: str) -> str:
    value = pieces.column(0)[row].as_py() or b""
    shown = base64.b64encode(value[:_TEXT_BYTES]).decode() + ("…" if len(value) > _TEXT_BYTES else "")
    return BadRows.text(pieces.column(2)[row].as_py(), f"base64:{shown}", reason)
