"""The columns that rows wear between two levels of a job: the one place where reserved columns are spelled.

Every exchange of a job has the same schema: a few reserved columns, then *slots*, typed columns that edges share. An
edge's fields are laid into slots of their own type, so two edges with three text fields each need three text slots,
not six columns. Rows of an edge leave the slots of others null.

Rows of a keyed edge have their key in ``k`` and its hash in ``h``. Control rows (negative edge numbers) carry their
content in ``k`` and the number of the shard they go to in ``h``. Rows of edges without a key have that number in ``h``,
too: those that are spread over the shards have an empty ``k``; those that go to every shard stand there once for each,
and their ``k`` says their order (`order_keys`), which is the same on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

EDGE: Final = "e"
HASH: Final = "h"
KEY: Final = "k"
TIME: Final = "t"
RESERVED: Final = (EDGE, HASH, KEY, TIME)

REPORT: Final = -1
"""A task report on its way to the driver."""
MARKER: Final = -2
"""The end of one upstream task: its attempt and the largest event times it saw."""
BAD_ROW: Final = -3
"""An input row that could not be decoded, as JSON text."""

ROW_TIME: Final = "__time"
"""Event time of a source row in microseconds, beside its fields, before the first exchange."""
ROW_SPLIT: Final = "__split"
"""Which split of its source a row came from."""
ROW_BAD: Final = "__bad"
"""JSON text that tells where an undecodable row was; null for good rows."""

ROW_MARK: Final = "__mark"
"""Time in microseconds before which, a row says, no row comes any more; only where rows of a source do."""

_RESERVED_FIELDS: Final = (
    pa.field(EDGE, pa.int32()),
    pa.field(HASH, pa.int64()),
    pa.field(KEY, pa.binary()),
    pa.field(TIME, pa.int64()),
)

REPORT_SCHEMA: Final = pa.schema([pa.field("report", pa.binary())])
"""What the last level returns to the driver."""


def wire_schema(slots: Sequence[pa.DataType]) -> pa.Schema:
    """The schema of every exchange of a job with these slots."""
    return pa.schema([*_RESERVED_FIELDS, *(pa.field(slot_name(i), kind) for i, kind in enumerate(slots))])


def slot_name(index: int) -> str:
    return f"s{index}"


def assign_slots(edges: Iterable[Sequence[pa.DataType]]) -> tuple[list[pa.DataType], list[tuple[int, ...]]]:
    """Lay the fields of each edge into shared typed slots; returns the slots, and for each edge its fields' slots."""
    slots: list[pa.DataType] = []
    placed: list[tuple[int, ...]] = []
    for fields in edges:
        taken: set[int] = set()
        places: list[int] = []
        for kind in fields:
            free = next((i for i, slot in enumerate(slots) if i not in taken and slot == kind), None)
            if free is None:
                slots.append(kind)
                free = len(slots) - 1
            taken.add(free)
            places.append(free)
        placed.append(tuple(places))
    return slots, placed


def order_keys(level: int, task: int, first: int, count: int) -> pa.BinaryArray:
    """``k`` of rows that every shard must see in one order: by level, task and place in what the task sent."""
    rows = np.zeros(count, dtype=[("level", ">u1"), ("task", ">u4"), ("place", ">u8")])
    rows["level"], rows["task"], rows["place"] = level, task, np.arange(first, first + count)
    offsets = np.arange(count + 1, dtype=np.int32) * rows.dtype.itemsize
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def control_batch(schema: pa.Schema, kind: int, rows: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    """Control rows: (shard, content) pairs of one kind, with every slot null."""
    count = len(rows)
    arrays: list[pa.Array] = [
        pa.array([kind] * count, pa.int32()),
        pa.array([shard for shard, _ in rows], pa.int64()),
        pa.array([content for _, content in rows], pa.binary()),
        pa.nulls(count, pa.int64()),
    ]
    arrays += [pa.nulls(count, field.type) for field in list(schema)[len(RESERVED) :]]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
