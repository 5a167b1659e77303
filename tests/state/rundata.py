"""Runs made by hand for tests: small tables, small batches, hashes that collide."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from headrace.model.report import RunRef
from headrace.state import encode, lookup
from headrace.state.format import DUE, ENTRIES, VALUE, TableData
from headrace.state.lookup import Layers
from headrace.state.run import StateRun, describe_run, encode_run, open_run

GROUPS = 8
Cell = tuple[bytes | None, int | None]
"""Value (None: a tombstone) and expiry."""


def toy_hash(key: bytes) -> int:
    """Seven hashes for all keys, two of them neighbours: most keys collide with some other."""
    slot = zlib.crc32(key) % 7
    return 2**64 - 1 if slot == 6 else slot * (2**64 // 6) + (slot == 5)


def needles(keys: Sequence[bytes]) -> tuple[np.ndarray, pa.BinaryArray]:
    return np.array([toy_hash(key) for key in keys], np.uint64), pa.array(keys, pa.binary())


def value_table(rows: Mapping[bytes, Cell], name: str = "v") -> TableData:
    hashes, keys = needles(list(rows))
    values, expires = [cell[0] for cell in rows.values()], [cell[1] for cell in rows.values()]
    batch = pa.table(
        {"hash": hashes, "key": keys, "value": pa.array(values, pa.binary()), "expires": pa.array(expires, pa.int64())}
    )
    return TableData(name, VALUE, batch)


def entries_table(rows: Mapping[tuple[bytes, bytes | None], Cell], name: str = "m") -> TableData:
    hashes, keys = needles([key for key, _ in rows])
    batch = pa.table(
        {
            "hash": hashes,
            "key": keys,
            "sub": pa.array([sub for _, sub in rows], pa.binary()),
            "value": pa.array([cell[0] for cell in rows.values()], pa.binary()),
            "expires": pa.array([cell[1] for cell in rows.values()], pa.int64()),
        }
    )
    return TableData(name, ENTRIES, batch)


def due_table(rows: Sequence[tuple[int, bytes, int]], name: str = "!event") -> TableData:
    hashes, keys = needles([key for _, key, _ in rows])
    batch = pa.table(
        {
            "time": pa.array([time for time, _, _ in rows], pa.int64()),
            "hash": hashes,
            "key": keys,
            "timer": pa.array([timer for _, _, timer in rows], pa.uint8()),
        }
    )
    return TableData(name, DUE, batch)


def make_run(tables: Sequence[TableData], epoch: int, *, level: int = 0) -> tuple[RunRef, StateRun]:
    """An inline run of all key groups."""
    data = encode_run(tables, lo=0, hi=GROUPS, groups=GROUPS)
    return describe_run(data, epoch=epoch, level=level), open_run(data)


def layers_of(runs: Sequence[tuple[RunRef, StateRun]], lo: int = 0, hi: int = GROUPS) -> Layers:
    return Layers(runs, lo=lo, hi=hi, groups=GROUPS)


@contextmanager
def small_batches(rows: int, few: int = 0, batch_bytes: int = encode.BATCH_BYTES) -> Iterator[None]:
    """Runs of several batches from a handful of rows, and bulk lookups for any number of keys."""
    before = encode.BATCH_ROWS, encode.BATCH_BYTES, lookup.FEW
    encode.BATCH_ROWS, encode.BATCH_BYTES, lookup.FEW = rows, batch_bytes, few  # type: ignore[misc]
    try:
        yield
    finally:
        encode.BATCH_ROWS, encode.BATCH_BYTES, lookup.FEW = before  # type: ignore[misc]
