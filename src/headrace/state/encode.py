"""Writing a run: sorts rows, checks the invariants of `headrace.state.format`, and lays out the bytes.

:class:`RunEncoder` turns sorted batches into the pieces of a file one after the other, so that a fold never holds more
than a slice in memory; :func:`encode_run` is the short way for a delta that is in memory anyway.

What this module deliberately does not do: decide where a run is stored, or drop rows.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StoreError
from headrace.model.report import RunRef
from headrace.state.format import (
    ALIGNMENT,
    BY_TIME,
    DUE,
    END_OF_STREAM,
    MAGIC,
    PANES,
    ROWS,
    SORT_COLUMNS,
    VALUE,
    VERSION,
    BatchEntry,
    Footer,
    TableData,
    TableEntry,
    hash_bounds,
    table_schema,
)
from headrace.state.panes.table import PANE_COLUMNS, compact_rows
from headrace.state.rows.format import sort_kept

BATCH_ROWS: Final = 50_000
BATCH_BYTES: Final = 64 * 2**20
"""Batches of large values hold fewer rows, so that touching one stays cheap."""

Piece: TypeAlias = bytes | pa.Buffer


def encode_run(tables: Sequence[TableData], *, lo: int, hi: int, groups: int) -> pa.Buffer:
    """The bytes of a run file. Rows may come in any order; tables without rows are left out."""
    encoder = RunEncoder(lo, hi, groups)
    pieces: list[Piece] = []
    for table in sorted(tables, key=lambda data: data.name):
        rows = sort_rows(table.kind, table.batch, where=f"table {table.name}")
        if rows.num_rows:
            schema = rows.schema if table.kind in (PANES, ROWS) else None
            expires = "expires" in rows.schema.names
            pieces.extend(encoder.table(table.name, table.kind, [rows], expires=expires, schema=schema))
    pieces.extend(encoder.finish())
    return pa.py_buffer(b"".join(pieces))


class RunEncoder:
    """Lays out one run file. Call ``table`` once per table, then ``finish``; what they yield, in order, is the file.

    The generators must be exhausted one after the other. ``rows``, ``size_bytes`` and ``crc`` are true at the end.
    """

    def __init__(self, lo: int, hi: int, groups: int) -> None:
        self.lo, self.hi, self.groups = lo, hi, groups
        self.rows = 0
        self.size_bytes = 0
        self.crc = 0
        self._bounds = hash_bounds(lo, hi, groups)
        self._tables: list[TableEntry] = []

    def table(
        self, name: str, kind: str, batches: Iterable[pa.RecordBatch], *, expires: bool, schema: pa.Schema | None = None
    ) -> Iterator[Piece]:
        """Sorted, clean batches (see :func:`sort_rows`) that continue each other; they are cut to size here.

        ``schema``: of a panes table, the only kind whose columns differ from table to table.
        """
        if any(table.name == name for table in self._tables):
            raise ValueError(f"two tables named {name!r} in one run")
        schema = table_schema(kind, expires=expires) if schema is None else schema
        entries: list[BatchEntry] = []
        head: pa.Buffer = schema.serialize()
        start = 0
        last: int | None = None
        for rows in batches:
            for batch in _cut(kind, rows.select(schema.names).cast(schema)):
                if not entries:
                    # The section begins with its first batch: an empty table leaves no trace.
                    yield from self._start(aligned=True)
                    start = self.size_bytes
                    yield self._count(head)
                first, last = self._check(name, kind, batch, last)
                data = batch.serialize()
                more = {"first_hash": batch.column("hash")[0].as_py(), "last": last} if kind == PANES else {}
                entries.append(BatchEntry(self.size_bytes, data.size, batch.num_rows, zlib.crc32(data), first, **more))
                yield self._count(data)
        if not entries:
            return
        yield self._count(END_OF_STREAM)
        count = sum(entry.rows for entry in entries)
        self.rows += count
        length = self.size_bytes - start
        self._tables.append(TableEntry(name, kind, start, length, count, head.size, zlib.crc32(head), entries))

    def finish(self) -> Iterator[Piece]:
        yield from self._start(aligned=False)
        footer = msgspec.msgpack.encode(Footer(VERSION, self.lo, self.hi, self.groups, self._tables))
        yield self._count(footer + struct.pack("<II", len(footer), zlib.crc32(footer)) + MAGIC)

    def _start(self, *, aligned: bool) -> Iterator[Piece]:
        if self.size_bytes == 0:
            yield self._count(MAGIC)
        if aligned and self.size_bytes % ALIGNMENT:
            yield self._count(bytes(ALIGNMENT - self.size_bytes % ALIGNMENT))

    def _count(self, piece: Piece) -> Piece:
        self.crc = zlib.crc32(piece, self.crc)
        self.size_bytes += len(piece)
        return piece

    def _check(self, name: str, kind: str, batch: pa.RecordBatch, last: int | None) -> tuple[int, int]:
        """Range and order of a batch; answers its first and last hash (time in a due table, slice in a panes table)."""
        hashes = batch.column("hash").to_numpy()
        sort = batch.column(SORT_COLUMNS[kind][0]).to_numpy()
        low, high = (int(hashes.min()), int(hashes.max())) if kind in BY_TIME else (int(hashes[0]), int(hashes[-1]))
        if low < self._bounds[0] or high > self._bounds[1]:
            raise StoreError(
                f"a row of table {name} does not belong to this shard",
                expected=f"hashes of key groups [{self.lo}, {self.hi}) of {self.groups}",
                found=f"hashes from {low:#018x} to {high:#018x}",
                next_move="this is a defect of the exchange or of the key encoding; please report it",
            )
        first = int(sort[0])
        if (last is not None and (first < last or (kind == VALUE and first == last))) or np.any(sort[1:] < sort[:-1]):
            raise StoreError(f"rows of table {name} are not sorted", next_move="this is a defect; please report it")
        if kind == PANES and np.any((sort[1:] == sort[:-1]) & (hashes[1:] < hashes[:-1])):
            raise StoreError(f"rows of table {name} are not sorted", next_move="this is a defect; please report it")
        return first, int(sort[-1])


def sort_rows(kind: str, rows: pa.Table | pa.RecordBatch, *, where: str = "") -> pa.RecordBatch:
    """One sorted batch with the columns of its kind; refuses two rows of one sort key, but drops such due rows.

    The common case, distinct hashes, is one argsort and a take per column. Rows of a panes table are merged.
    """
    if kind == ROWS:
        return sort_kept(rows, where)
    if kind == PANES:
        return compact_rows(_as_batch(kind, rows, _panes_schema(rows.schema)))
    batch = _as_batch(kind, rows)
    order = _order(kind, batch, where)
    if order is not None:
        batch = pa.RecordBatch.from_arrays(
            [pc.take(column, order, boundscheck=False) for column in batch.columns], schema=batch.schema
        )
    return batch


def describe_run(
    data: pa.Buffer | bytes, *, epoch: int, file: str = "", level: int = 0, lo: int | None = None, hi: int | None = None
) -> RunRef:
    """The reference to an encoded run; inline when no file is given. ``lo`` and ``hi`` narrow what it covers."""
    from headrace.state.run import open_run

    run = open_run(data, name=file or "inline run", cached=False)
    return RunRef(
        epoch=epoch,
        lo=run.lo if lo is None else lo,
        hi=run.hi if hi is None else hi,
        rows=run.rows,
        size_bytes=len(data),
        crc=run_crc(data),
        file=file,
        inline=b"" if file else bytes(data),
        level=level,
    )


def sort_order(columns: Mapping[str, pa.Array]) -> pa.Array:
    """The permutation that sorts rows by these columns; nulls come first."""
    plain: dict[str, pa.Array] = {}
    for name, column in columns.items():
        if column.null_count:
            plain[f"{name} is there"] = column.is_valid().cast(pa.uint8())
            column = column.fill_null(b"")
        plain[name] = column
    return pc.sort_indices(pa.table(plain), sort_keys=[(name, "ascending") for name in plain])


def run_crc(data: pa.Buffer | bytes) -> int:
    """The checksum that a reference to these bytes carries."""
    return zlib.crc32(data)


def _panes_schema(schema: pa.Schema) -> pa.Schema:
    if schema.names[:3] != list(PANE_COLUMNS):
        raise StoreError(f"a panes table begins with {', '.join(PANE_COLUMNS)}", found=", ".join(schema.names))
    return schema


def _as_batch(kind: str, rows: pa.Table | pa.RecordBatch, schema: pa.Schema | None = None) -> pa.RecordBatch:
    names = rows.schema.names
    expires = "expires" in names and rows.column("expires").null_count < rows.num_rows
    schema = table_schema(kind, expires=expires) if schema is None else schema
    columns = []
    for field in schema:
        column = rows.column(field.name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                column = pa.concat_arrays(column.chunks)
        if not field.nullable and column.null_count:
            raise StoreError(f"the column {field.name} of a {kind} table has no nulls", found=f"{column.null_count}")
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _order(kind: str, batch: pa.RecordBatch, where: str) -> pa.Array | None:
    """The permutation that sorts, or ``None`` when the rows are in order already."""
    if batch.num_rows < 2:
        return None
    first = batch.column(SORT_COLUMNS[kind][0]).to_numpy()
    if np.all(first[1:] > first[:-1]):
        return None
    order: Any = np.argsort(first)
    ranked = first[order]
    if not np.any(ranked[1:] == ranked[:-1]):
        return pa.array(order)
    return _order_by_all(kind, batch, where)


def _order_by_all(kind: str, batch: pa.RecordBatch, where: str) -> pa.Array | None:
    """For ties in the first column: collisions, entries of one key, timers of one time."""
    if _above_before(kind, batch).all():
        return None
    order = sort_order({name: batch.column(name) for name in SORT_COLUMNS[kind]})
    above = _above_before(kind, batch.take(order))
    if kind == DUE:
        # An index holds hints: one of each is enough.
        return order.filter(pa.array(np.append(True, above)))
    if not above.all():
        raise StoreError(
            f"two rows of one {' and '.join(SORT_COLUMNS[kind][1:])}",
            where=where,
            expected="one row each: the newest",
            next_move="this is a defect; please report it",
        )
    return order


def _above_before(kind: str, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """For each row but the first whether it sorts after the one before."""
    above: npt.NDArray[np.bool_] = np.zeros(batch.num_rows - 1, bool)
    for name in reversed(SORT_COLUMNS[kind]):
        column = batch.column(name)
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        greater = pc.greater(after, before).fill_null(False).to_numpy(zero_copy_only=False)
        equal = pc.equal(after, before).fill_null(False).to_numpy(zero_copy_only=False)
        if name == "sub":
            no_sub_before = before.is_null().to_numpy(zero_copy_only=False)
            no_sub_after = after.is_null().to_numpy(zero_copy_only=False)
            greater = greater | (no_sub_before & ~no_sub_after)
            equal = equal | (no_sub_before & no_sub_after)
        above = greater | (equal & above)
    return above


def _cut(kind: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    if rows == 0:
        return
    step = max(1, min(BATCH_ROWS, int(rows * BATCH_BYTES / max(1, batch.nbytes))))
    if rows <= step + step // 2:
        yield batch
        return
    hashes = batch.column("hash").to_numpy()
    start = 0
    while start < rows:
        end = min(rows, start + step)
        if kind == VALUE:
            # A lookup must find all keys of a hash in one batch.
            while end < rows and hashes[end] == hashes[end - 1]:
                end += 1
        yield batch.slice(start, end - start)
        start = end
