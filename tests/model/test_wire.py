from __future__ import annotations

import pyarrow as pa

from headrace.model.wire import REPORT, assign_slots, control_batch, wire_schema


def test_edges_share_slots_of_one_type() -> None:
    slots, placed = assign_slots([[pa.string(), pa.int64(), pa.string()], [pa.int64(), pa.string()]])
    assert slots == [pa.string(), pa.int64(), pa.string()]
    assert placed == [(0, 1, 2), (1, 0)]


def test_an_edge_never_puts_two_fields_into_one_slot() -> None:
    _, placed = assign_slots([[pa.int64()], [pa.int64(), pa.int64()]])
    assert placed[1] == (0, 1)


def test_control_rows_carry_shard_and_content() -> None:
    schema = wire_schema([pa.string()])
    batch = control_batch(schema, REPORT, [(1, b"x"), (0, b"y")])
    assert batch.schema == schema
    assert batch.column("h").to_pylist() == [1, 0]
    assert batch.column("k").to_pylist() == [b"x", b"y"]
    assert batch.column("s0").null_count == 2
