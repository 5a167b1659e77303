"""Rows as Kafka messages: key, value and headers in bytes, made in the tasks and staged as columns.

Staged columns: ``value`` (null is a tombstone) and, where the sink says so, ``key``, ``headers``, ``topic``,
``partition`` and ``timestamp`` (milliseconds; 0 is the moment of sending). What is released reads them by name, so
rows that an earlier program staged go out as that program said.

A key of one field is its text (bytes stay bytes); a key of several fields is a JSON array. Both depend on the values
alone, so a key always goes to the same partition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.binary import BINARY
from headrace.connectors.formats.messages import RowEncoder
from headrace.connectors.formats.misfits import UnfitValue
from headrace.connectors.kafka.envelope import ENVELOPE, envelopes
from headrace.connectors.sink_contract import StageTask, StageWriter
from headrace.connectors.staged import PartWriter, encode_arrow
from headrace.connectors.text import json_documents, value_bytes, value_texts
from headrace.errors import SinkFailed
from headrace.model.report import StagedPart
from headrace.model.row_kind import DELETE, holds_or_goes

if TYPE_CHECKING:
    from headrace.model.batch import Rows
    from headrace.model.rows import RowCodec

Format = Literal["json", "text", "bytes", "avro", "protobuf", "debezium-json"]
FORMATS: Final = ("json", "text", "bytes", *BINARY, ENVELOPE)
MESSAGES: Final = "messages"
"""The format of what is staged: Arrow, but columns of messages and not of rows."""

_SLICE_ROWS: Final = 50_000
"""Rows encoded at once: a column of bytes holds at most 2 GiB."""
_TOPIC_CHARS: Final = 249
_TOPIC: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{_TOPIC_CHARS}}}")
_LAST_PARTITION: Final = 2**31 - 1
_UNWRITTEN: Final = "nothing of this epoch was written, start again after the change"


@dataclass(frozen=True)
class MessageForm:
    """Which column of a row becomes which part of a message."""

    format: Format
    value: str | None
    """The column that is the value, of text and bytes."""
    key: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]
    """Name of the header → column."""
    topic: str | None
    partition: str | None
    timestamp: str | None
    limit_bytes: int
    """The largest message that the producer would take."""
    where: str
    encoder: RowEncoder | None = None
    """What writes whole rows in a binary format."""


class MessageWriter(StageWriter):
    """Stages the rows of one task as messages."""

    def __init__(self, form: MessageForm, codec: RowCodec, task: StageTask) -> None:
        self._form = form
        self._codec = codec
        self._parts = PartWriter(task, encode_arrow, MESSAGES)

    def write(self, rows: Rows) -> None:
        if not len(rows):
            return
        if self._form.format == ENVELOPE:
            self._write_envelopes(rows)
            return
        gone = None
        if rows.kinds is not None:
            said = np.flatnonzero(holds_or_goes(rows.kinds))
            gone = rows.kinds[said] == DELETE
            rows = rows.take(said)
        batch = rows.record_batch
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            messages = encode_messages(batch.slice(start, _SLICE_ROWS), self._codec, self._form)
            if gone is not None:
                # A message without a value takes back that of its key.
                value = pc.if_else(pa.array(gone[start : start + _SLICE_ROWS]), None, messages.column("value"))
                messages = messages.set_column(messages.schema.get_field_index("value"), "value", value)
            self._parts.add(messages)

    def _write_envelopes(self, rows: Rows) -> None:
        said, values = envelopes(rows, self._codec)
        batch = rows.take(said).record_batch
        for start in range(0, len(said), _SLICE_ROWS):
            part = values.slice(start, _SLICE_ROWS)
            self._parts.add(encode_messages(batch.slice(start, _SLICE_ROWS), self._codec, self._form, part))

    def finish(self) -> list[StagedPart]:
        return self._parts.finish()


def encode_messages(
    batch: pa.RecordBatch, codec: RowCodec, form: MessageForm, values: pa.Array | None = None
) -> pa.RecordBatch:
    """The messages of some rows, as columns. ``values``: where they are made already."""
    columns: dict[str, pa.Array] = {"value": _values(batch, codec, form) if values is None else values}
    if form.key:
        columns["key"] = encode_key([batch.column(name) for name in form.key])
    if form.headers:
        columns["headers"] = _headers(batch, form.headers)
    if form.topic is not None:
        columns["topic"] = _topics(batch.column(form.topic), form)
    if form.partition is not None:
        columns["partition"] = _partitions(batch.column(form.partition), form)
    if form.timestamp is not None:
        micros = batch.column(form.timestamp).cast(pa.timestamp("us", "UTC")).view(pa.int64())
        columns["timestamp"] = pc.divide(micros, 1000).fill_null(0)
    _check_sizes(columns, form)
    return pa.RecordBatch.from_pydict(columns)


def _values(batch: pa.RecordBatch, codec: RowCodec, form: MessageForm) -> pa.Array:
    if form.format == "json" and form.encoder is None:
        return json_documents(batch, codec)
    if form.encoder is not None:
        try:
            return form.encoder.encode(batch.columns, batch.num_rows)
        except UnfitValue as unfit:
            raise SinkFailed(
                f"a row cannot be written as {form.format}",
                where=form.where,
                expected="values that the schema can say",
                found=str(unfit),
                next_move=f"mend it with with_columns before writing, or write under another schema; {_UNWRITTEN}",
            ) from unfit
    assert form.value is not None
    return batch.column(form.value).cast(pa.binary())


def encode_key(columns: Sequence[pa.Array]) -> pa.Array:
    """Keys as bytes; a key of one field that is null is no key."""
    if len(columns) == 1:
        return value_bytes(columns[0])
    parts = [_json_parts(column) for column in columns]
    return pa.array([msgspec.json.encode(key) for key in zip(*parts, strict=True)], pa.binary())


def _json_parts(column: pa.Array) -> list[Any]:
    kinds = pa.types
    plain = kinds.is_integer(column.type) or kinds.is_boolean(column.type) or kinds.is_floating(column.type)
    if plain or kinds.is_binary(column.type):
        return list(column.to_pylist())
    return list(value_texts(column).to_pylist())


def _headers(batch: pa.RecordBatch, headers: tuple[tuple[str, str], ...]) -> pa.Array:
    """A map per row: its pairs are what the producer takes."""
    count, width = batch.num_rows, len(headers)
    values = pa.concat_arrays([value_bytes(batch.column(column)) for _, column in headers])
    # All values of the first header lie before those of the second; a map wants them row by row.
    by_row = np.arange(count * width).reshape(width, count).T.ravel()
    names = pa.array([name for name, _ in headers], pa.string())
    which = pa.array(np.tile(np.arange(width), count))
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    return pa.MapArray.from_arrays(offsets, names.take(which), values.take(pa.array(by_row)))


# --- what can never be sent is found here, before its epoch is published, while the program can still change


def _topics(column: pa.Array, form: MessageForm) -> pa.Array:
    """Null, and text that is empty, stand for the topic of the sink."""
    # Few topics, many rows: each name is looked at once.
    for name in column.unique().to_pylist():
        if name and (not _TOPIC.fullmatch(name) or name in (".", "..")):
            raise SinkFailed(
                f"a row's {form.topic} is no name of a topic",
                where=form.where,
                expected=f"1 to {_TOPIC_CHARS} of the characters a-z, A-Z, 0-9, '.', '_' and '-', and not '.' or '..'",
                found=f"{form.topic}={name[:80]!r}{'…' if len(name) > 80 else ''}, {len(name)} characters",
                next_move=f"mend it with with_columns before writing, or write such rows elsewhere; {_UNWRITTEN}",
            )
    return column


def _partitions(column: pa.Array, form: MessageForm) -> pa.Array:
    """Null and −1 let the key choose. Whether a topic has the partition is Kafka's to say: it may be given more."""
    low, high = pc.min_max(column).values()
    wrong = [each for each in (low.as_py(), high.as_py()) if each is not None and not -1 <= each <= _LAST_PARTITION]
    if wrong:
        raise SinkFailed(
            f"a row's {form.partition} is no number of a partition",
            where=form.where,
            expected="a number from 0 on, or −1 or null where the key is to choose",
            found=f"{form.partition}={wrong[0]}",
            next_move=f"mend it with with_columns before writing, or filter such rows out; {_UNWRITTEN}",
        )
    return column.cast(pa.int32()).fill_null(-1)


def _check_sizes(columns: dict[str, pa.Array], form: MessageForm) -> None:
    """A message is not larger than the producer takes."""
    sizes = pc.binary_length(columns["value"]).fill_null(0)
    if "key" in columns:
        sizes = pc.add(sizes, pc.binary_length(columns["key"]).fill_null(0))
    largest = pc.max(sizes).as_py() or 0
    if largest <= form.limit_bytes:
        return
    place = sizes.index(largest).as_py()
    which = f", with the key {(columns['key'][place].as_py() or b'')[:80]!r}" if "key" in columns else ""
    raise too_large(largest, form.where, limit_bytes=form.limit_bytes, which=which)


def too_large(size_bytes: int | None, where: str, *, limit_bytes: int | None = None, which: str = "") -> SinkFailed:
    """A message that Kafka does not take; its size and the limit as far as they are known."""
    size = "a message" if size_bytes is None else f"a message of {size_bytes:,} bytes"
    limit = "what max.message.bytes of the topic says" if limit_bytes is None else f"{limit_bytes:,} bytes"
    return SinkFailed(
        f"{size} is too large for Kafka",
        where=where,
        expected=f"at most {limit}",
        found=size + which,
        next_move="raise max.message.bytes of the topic and write hr.sink.kafka(…, message_max_bytes=…), or make the "
        "rows smaller",
    )
