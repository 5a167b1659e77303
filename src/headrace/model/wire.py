"""Frames: what crosses an exchange. Spark sees two columns, the number of a shard and bytes, and nothing of a program.

A frame is a header and a body. The body of a frame of rows is one Arrow record batch in the schema of its edge: what is
known of the key, event time where the edge has one, then the fields. Markers and reports are frames, too. The format is
specified in docs/formats/frame.md.

Invariants
- Bodies begin at, and frames end at, a multiple of 8 bytes, so that arrays are read where they lie.
- Whoever reads a frame knows the schema of its edge from the program; it does not travel.
- Bytes of a key travel only where the fields do not give them. Of rows that go to every shard they say the order
  (`order_keys`), which is the same on all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import EpochFailed

SHARD: Final = "shard"
FRAME: Final = "frame"
WIRE_SCHEMA: Final = pa.schema([pa.field(SHARD, pa.int32()), pa.field(FRAME, pa.binary())])
"""The schema of every exchange."""
WIRE_DDL: Final = f"{SHARD} INT, {FRAME} BINARY"

REPORT_SCHEMA: Final = pa.schema([pa.field("report", pa.binary())])
"""What the last level returns to the driver."""
REPORT_DDL: Final = "report BINARY"

ROWS: Final = 1
"""Rows of an edge, whose number the header tells."""
MARKER: Final = 2
"""The end of one upstream task: its attempt and the largest event times it saw."""
REPORT: Final = 3
"""A task report on its way to the driver."""

ROW_TIME: Final = "__time"
"""Event time of a source row in microseconds, beside its fields, before the first exchange."""
ROW_SPLIT: Final = "__split"
"""Which split of its source a row came from."""
ROW_BAD: Final = "__bad"
"""JSON text that tells where an undecodable row was; null for good rows."""
ROW_MARK: Final = "__mark"
"""Time in microseconds before which, a row says, no row comes any more; only where rows of a source do."""

HASH: Final = "__hash"
KEY: Final = "__key"
ROW_KIND: Final = "__kind"
"""What a row of a changelog is (`headrace.model.row_kind`); other rows do not have it."""

BESIDE_TYPES: Final = {
    ROW_TIME: pa.int64(),
    ROW_SPLIT: pa.string(),
    ROW_BAD: pa.string(),
    ROW_MARK: pa.int64(),
    HASH: pa.uint64(),
    KEY: pa.binary(),
    ROW_KIND: pa.int8(),
}
"""What stands beside the fields of rows, in front of an exchange and in frames."""

_HEADER: Final = struct.Struct("<2sBBIQ")
"""Magic, version, kind, number of the edge, bytes of the body."""
_MAGIC: Final = b"HF"
_VERSION: Final = 1
_ALIGNMENT: Final = 8

WEIGHT_BYTES: Final = 1_024
"""Spark cuts batches for Python by the number of their rows. So a frame takes a row for each of so many bytes: itself,
and behind it rows without a frame."""
_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Rows that are handed to Spark together, where there is more than a frame of them."""


class Frame(NamedTuple):
    kind: int
    edge: int
    """Of rows."""
    body: pa.Buffer
    data: pa.Buffer
    """With header and padding, to be sent on."""


def edge_schema(beside: Iterable[str], fields: pa.Schema) -> pa.Schema:
    """The columns of a frame of rows: ``beside`` the fields, then those."""
    return pa.schema([*(pa.field(name, BESIDE_TYPES[name]) for name in beside), *fields])


def rows_batches(
    edge: int, schema: pa.Schema, pieces: Iterable[tuple[int, pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Rows of an edge, each piece for a shard, as they are handed to Spark: written once, straight into place."""
    group: list[tuple[int, pa.RecordBatch]] = []
    sizes: list[int] = []
    for shard, piece in pieces:
        size = pa.ipc.get_record_batch_size(piece)
        if sizes and sum(sizes) + size > _BATCH_BYTES:
            yield _rows_batch(edge, schema, group, sizes)
            group, sizes = [], []
        group.append((shard, piece))
        sizes.append(size)
    if group:
        yield _rows_batch(edge, schema, group, sizes)


def _rows_batch(
    edge: int, schema: pa.Schema, pieces: Sequence[tuple[int, pa.RecordBatch]], sizes: Sequence[int]
) -> pa.RecordBatch:
    # Arrow's writer begins with the schema, which nobody needs. An empty batch makes it do so before the first frame.
    no_rows = pieces[0][1].slice(0, 0)
    prologue_bytes = schema.serialize().size + pa.ipc.get_record_batch_size(no_rows) + _ALIGNMENT
    data = pa.allocate_buffer(prologue_bytes + sum(sizes) + _HEADER.size * len(pieces))
    sink = pa.FixedSizeBufferWriter(data)
    writer = pa.ipc.new_stream(sink, schema)
    writer.write_batch(no_rows)
    offsets = [sink.tell()]
    for (_, piece), size in zip(pieces, sizes, strict=True):
        sink.write(_HEADER.pack(_MAGIC, _VERSION, ROWS, edge, size))
        writer.write_batch(piece)
        offsets.append(sink.tell())
    return _wire_batch([shard for shard, _ in pieces], offsets, data)


def control_batch(addressed: Iterable[tuple[int, int, bytes]]) -> pa.RecordBatch:
    """Markers and reports, each with its kind and for a shard, as they are handed to Spark."""
    frames = []
    shards = []
    for kind, shard, content in addressed:
        header = _HEADER.pack(_MAGIC, _VERSION, kind, 0, len(content))
        frames.append(b"".join((header, content, bytes(-len(content) % _ALIGNMENT))))
        shards.append(shard)
    return frames_batch(shards, frames)


def frames_batch(shards: Sequence[int], frames: Sequence[bytes | pa.Buffer]) -> pa.RecordBatch:
    """Whole frames, each for a shard, as they are handed to Spark."""
    offsets = [0]
    for frame in frames:
        offsets.append(offsets[-1] + len(frame))
    return _wire_batch(shards, offsets, pa.py_buffer(b"".join(frames)))


def _wire_batch(shards: Sequence[int], offsets: Sequence[int], data: pa.Buffer) -> pa.RecordBatch:
    starts = np.array(offsets, np.int32)
    rows = 1 + np.diff(starts) // WEIGHT_BYTES
    # A row without a frame begins and ends where the frame before it ends.
    ends = np.concatenate([starts[:1], np.repeat(starts[1:], rows)])
    count = len(ends) - 1
    frames = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), data])
    addressed = pa.array(np.repeat(np.array(shards, np.int32), rows))
    return pa.RecordBatch.from_arrays([addressed, frames], schema=WIRE_SCHEMA)


def read_frames(batch: pa.RecordBatch) -> Iterator[Frame]:
    """The frames of a batch from Spark, each where it lies."""
    # A session may have been told to give columns with wide offsets.
    column = batch.column(1).cast(pa.binary())
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    # Rows that only add weight are empty.
    for row in np.flatnonzero(np.diff(offsets)).tolist():
        start, end = int(offsets[row]), int(offsets[row + 1])
        yield _read_frame(data.slice(start, end - start))


def _read_frame(data: pa.Buffer) -> Frame:
    if data.size >= _HEADER.size:
        magic, version, kind, edge, size = _HEADER.unpack_from(data)
        if magic == _MAGIC and version == _VERSION and _HEADER.size + size <= data.size:
            return Frame(kind, edge, data.slice(_HEADER.size, size), data)
    raise EpochFailed(
        "what came through an exchange is no frame of this version",
        where=f"a frame of {data.size} bytes",
        expected=f"version {_VERSION}",
        found=repr(data[:4].to_pybytes()),
        next_move="see that driver and workers run the same version of Headrace, and start again",
    )


def read_rows(frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a frame, in the schema of its edge, where they lie."""
    return pa.ipc.read_record_batch(frame.body, schema)


def order_keys(level: int, task: int, first: int, count: int) -> pa.BinaryArray:
    """Key bytes of rows that every shard must see in one order: by level, task and place in what the task sent."""
    rows = np.zeros(count, dtype=[("level", ">u1"), ("task", ">u4"), ("place", ">u8")])
    rows["level"], rows["task"], rows["place"] = level, task, np.arange(first, first + count)
    offsets = np.arange(count + 1, dtype=np.int32) * rows.dtype.itemsize
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def report_batch(reports: Iterable[bytes]) -> pa.RecordBatch:
    """Reports as the last level hands them to the driver."""
    return pa.RecordBatch.from_arrays([pa.array(list(reports), pa.binary())], schema=REPORT_SCHEMA)
