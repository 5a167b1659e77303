"""The words of a run file: kinds of tables, their columns, the footer. The file itself is specified in docs/formats.

A run file is a magic, one section per table (an Arrow IPC stream, 64-byte aligned), a footer in MessagePack, and a
trailer of 16 bytes. The footer says where each record batch lies, what it begins with and its CRC-32, so that a reader
touches and verifies only the batches it needs.

Invariants, checked by the writer and again by the reader:
- rows of a table are sorted: value by (hash, key), entries by (hash, key, sub) with the clear marker first, due by
  (time, hash, key, timer), panes by (pane, hash, key), rows by (hash, key, at, seq); no table holds two rows of one
  sort key;
- every hash lies in the key groups [lo, hi) of the file;
- in a value table all rows of one hash lie in one record batch.

What this module deliberately does not do: read or write files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

MAGIC: Final = b"HRUN0001"
TRAILER_BYTES: Final = 16
ALIGNMENT: Final = 64
VERSION: Final = 1

VALUE: Final = "value"
ENTRIES: Final = "entries"
DUE: Final = "due"
PANES: Final = "panes"
"""Partial aggregates: rows of several runs are merged, not replaced (`headrace.state.panes.table`)."""

ROWS: Final = "rows"
"""Whole rows by key and time: rows of several runs stand beside each other (`headrace.state.rows.format`)."""

BY_TIME: Final = frozenset({DUE, PANES})
"""Kinds that are sorted by a time before the hash."""

END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""How an Arrow IPC stream ends."""

_COLUMNS: Final[dict[str, dict[str, pa.DataType]]] = {
    VALUE: {"hash": pa.uint64(), "key": pa.binary(), "value": pa.binary(), "expires": pa.int64()},
    ENTRIES: {
        "hash": pa.uint64(),
        "key": pa.binary(),
        "sub": pa.binary(),
        "value": pa.binary(),
        "expires": pa.int64(),
    },
    DUE: {"time": pa.int64(), "hash": pa.uint64(), "key": pa.binary(), "timer": pa.uint8()},
}

SORT_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    VALUE: ("hash", "key"),
    ENTRIES: ("hash", "key", "sub"),
    DUE: ("time", "hash", "key", "timer"),
    PANES: ("pane", "hash", "key"),
    ROWS: ("hash", "key", "at", "seq"),
}

_MAY_BE_NULL: Final = frozenset({"sub", "value", "expires"})


@dataclass(frozen=True)
class TableData:
    """Rows of one table on their way into a run, in any order."""

    name: str
    kind: str
    """One of ``VALUE``, ``ENTRIES``, ``DUE``, ``PANES``, ``ROWS``."""
    batch: pa.Table | pa.RecordBatch


class BatchEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one record batch lies, counted from the start of the file."""

    offset: int
    length: int
    rows: int
    crc: int
    first: int
    """Hash of its first row; in a due table the time of it, in a panes table its slice."""
    first_hash: int | None = None
    """In a panes table: hash of its first row …"""
    last: int | None = None
    """… and the slice of its last row."""


class TableEntry(msgspec.Struct, frozen=True):
    name: str
    kind: str
    offset: int
    """Start of the section: the schema message, followed by the batches without gaps."""
    length: int
    rows: int
    schema_length: int
    schema_crc: int
    batches: list[BatchEntry]


class Footer(msgspec.Struct, frozen=True):
    version: int
    lo: int
    hi: int
    groups: int
    tables: list[TableEntry]


def table_schema(kind: str, *, expires: bool) -> pa.Schema:
    """The columns of a table; ``expires`` is there only when a row has one. A panes table brings its own schema."""
    columns = [(name, type_) for name, type_ in _COLUMNS[kind].items() if expires or name != "expires"]
    return pa.schema([pa.field(name, type_, nullable=name in _MAY_BE_NULL) for name, type_ in columns])


def hash_bounds(lo: int, hi: int, groups: int) -> tuple[int, int]:
    """First and last hash of the key groups [lo, hi): a key group is the top bits of the hash."""
    if groups <= 0 or groups & (groups - 1):
        raise ValueError(f"the number of key groups is a power of two, not {groups}")
    if not 0 <= lo < hi <= groups:
        raise ValueError(f"not a range of {groups} key groups: [{lo}, {hi})")
    width = 2**64 // groups
    return lo * width, hi * width - 1
