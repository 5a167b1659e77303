"""Frames: what is written is read as it was, where it lies, and nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import EpochFailed
from headrace.model.wire import (
    HASH,
    KEY,
    MARKER,
    REPORT,
    ROW_TIME,
    ROWS,
    WEIGHT_BYTES,
    WIRE_SCHEMA,
    control_batch,
    edge_schema,
    frames_batch,
    order_keys,
    read_frames,
    read_rows,
    report_batch,
    rows_batches,
)

FIELDS = pa.schema(
    [
        ("name", pa.string()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("total", pa.decimal128(38, 18)),
        ("on", pa.bool_()),
    ]
)
SCHEMA = edge_schema([HASH, KEY, ROW_TIME], FIELDS)


def rows(count: int) -> pa.RecordBatch:
    numbers = range(count)
    fields = [
        [None if n % 5 == 4 else f"name {n}" for n in numbers],
        list(numbers),
        list(numbers),
        [[str(i) for i in range(n % 3)] for n in numbers],
        [None if n % 7 == 6 else {"x": float(n), "y": -0.0} for n in numbers],
        [[(str(n), n)] for n in numbers],
        [None if n % 2 else n for n in numbers],
        [n % 3 == 0 for n in numbers],
    ]
    keys = [b"k" * (n % 4) for n in numbers]
    columns = [list(numbers), keys, list(numbers), *fields]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


@pytest.mark.parametrize("piece", [(0, 0), (0, 1), (0, 40), (3, 30)])
def test_rows_come_out_as_they_went_in(piece: tuple[int, int]) -> None:
    given = rows(40).slice(*piece)
    (batch,) = rows_batches(7, SCHEMA, [(1, given)])
    (frame,) = read_frames(batch)
    assert (frame.kind, frame.edge) == (ROWS, 7)
    assert read_rows(frame, SCHEMA).equals(given)


def test_a_batch_names_the_shard_of_each_frame_and_keeps_their_order() -> None:
    batch = control_batch([(REPORT, 2, b"a"), (MARKER, 0, b""), (REPORT, 2, b"ccc")])
    assert batch.schema == WIRE_SCHEMA
    assert batch.column(0).to_pylist() == [2, 0, 2]
    assert [frame.body.to_pybytes() for frame in read_frames(batch)] == [b"a", b"", b"ccc"]
    assert [frame.body.to_pybytes() for frame in read_frames(batch.slice(1, 1))] == [b""]
    sent_on = frames_batch([5, 6, 7], [frame.data for frame in read_frames(batch)])
    assert sent_on.column(1).equals(batch.column(1))


def test_arrays_are_read_where_they_lie_at_multiples_of_eight_bytes() -> None:
    (batch,) = rows_batches(0, SCHEMA, [(0, rows(9)), (1, rows(33)), (0, rows(2))])
    batch = through_ipc(batch)
    data = batch.column(1).buffers()[2]
    frames = list(read_frames(batch))
    assert [read_rows(frame, SCHEMA).num_rows for frame in frames] == [9, 33, 2]
    for frame in frames:
        assert (frame.body.address - data.address) % 8 == 0
        for buffer in read_rows(frame, SCHEMA).column(0).buffers()[1:]:
            assert data.address <= buffer.address < data.address + data.size and buffer.address % 8 == 0


def through_ipc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch as it comes from another process."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return next(iter(reader))


def test_a_large_frame_counts_as_many_rows_because_spark_cuts_batches_by_rows() -> None:
    batch = control_batch([(REPORT, 3, bytes(10 * WEIGHT_BYTES)), (REPORT, 4, b"small")])
    assert batch.column(0).to_pylist() == [3] * 11 + [4]
    assert [len(frame.body) for frame in read_frames(batch)] == [10 * WEIGHT_BYTES, 5]


def test_rows_of_many_bytes_are_handed_on_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.model.wire._BATCH_BYTES", 4_000)
    batches = list(rows_batches(3, SCHEMA, [(n, rows(20)) for n in range(5)]))
    assert len(batches) > 1
    assert [batch.column(0).unique().to_pylist() for batch in batches] == [[n] for n in range(5)]
    assert all(read_rows(frame, SCHEMA).equals(rows(20)) for batch in batches for frame in read_frames(batch))
    assert list(rows_batches(3, SCHEMA, [])) == []


def test_frames_in_columns_with_wide_offsets_are_read_all_the_same() -> None:
    batch = control_batch([(REPORT, 0, b"one"), (REPORT, 1, b"two")])
    wide = pa.RecordBatch.from_arrays([batch.column(0), batch.column(1).cast(pa.large_binary())], names=["s", "f"])
    assert [frame.body.to_pybytes() for frame in read_frames(wide)] == [b"one", b"two"]


@pytest.mark.parametrize("data", [b"HF", b"HF" + bytes([2]) + bytes(20), b"no frame at all, but long enough"])
def test_bytes_that_are_no_frame_are_refused_in_words(data: bytes) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([0], pa.int32()), pa.array([data])], schema=WIRE_SCHEMA)
    with pytest.raises(EpochFailed, match="no frame of this version"):
        list(read_frames(batch))


def test_the_end_of_a_frame_that_is_cut_off_is_missed() -> None:
    (whole,) = rows_batches(0, SCHEMA, [(0, rows(9))])
    data = whole.column(1)[0].as_py()[:-16]
    batch = pa.RecordBatch.from_arrays([pa.array([0], pa.int32()), pa.array([data])], schema=WIRE_SCHEMA)
    with pytest.raises(EpochFailed):
        list(read_frames(batch))


def test_order_keys_sort_by_level_task_and_place() -> None:
    places = [(0, 0, 9), (0, 1, 0), (0, 300, 5), (1, 0, 0)]
    keys = [order_keys(level, task, first, 2).to_pylist() for level, task, first in places]
    flat = [key for pair in keys for key in pair]
    assert flat == sorted(flat) and len(set(flat)) == 8


def test_reports_go_to_the_driver_without_a_frame() -> None:
    assert report_batch([b"one", b"two"]).column("report").to_pylist() == [b"one", b"two"]
    assert np.array_equal(report_batch([]).num_rows, 0)
