"""Copies a table, as it is at one moment, into Arrow files of a `Spool`.

All of it is one snapshot of the database (REPEATABLE READ, handed to further connections where several copy ranges of
a column side by side), so the copy is what one transaction would have seen.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import csv

from headrace.errors import HeadraceError
from headrace.model.postgres import open_connection, quoted, text_literal
from headrace.sources.table_select import SESSION, Selection
from headrace.sources.table_spool import BATCH_ROWS, Copy, Spool, SpoolFile

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger("headrace.table")

FILE_BYTES: Final = 64 * 2**20
"""Of Arrow columns in one file: what a task that reads from an object store holds in memory."""
_TEXT_BYTES: Final = 16 * 2**20
"""Of text that is parsed at once; a batch may have fewer rows for it only at the end of a file."""

_NULLS: Final = {"strings_can_be_null": True, "quoted_strings_can_be_null": False, "null_values": [""]}
_LINES: Final = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)


def copy_table(
    spool: Spool, dsn: str, selection: Selection, taken_from: str, split_by: str | None, partitions: int
) -> Copy:
    """Makes a copy of all rows. Raises psycopg.Error, or what the rows themselves are wrong with."""
    id = uuid.uuid4().hex
    with _snapshot(dsn, None) as connection:
        types = selection.check(connection)
        ranges = _ranges(connection, selection, split_by, types, partitions)
        exported = connection.execute("SELECT pg_export_snapshot()").fetchone() if len(ranges) > 1 else None
        select = f"SELECT {selection.select(types)} FROM {selection.from_sql} AS t"
        statements = [f"COPY ({select}{where}) TO STDOUT (FORMAT csv)" for where in ranges]
        writers = [_Writer(spool, f"{id}-{number:04d}") for number in range(len(statements))]
        try:
            if exported is None:
                _copy(connection, statements[0], selection, writers[0])
            else:
                _copy_side_by_side(dsn, exported[0], statements, selection, writers)
        except BaseException:
            for writer in writers:
                writer.give_up()
            raise
    files = [file for writer in writers for file in writer.files]
    copy = Copy(id, taken_from, str(selection.codec.schema), files)
    spool.finish(copy)
    log.info("%s: copied %s rows", selection.where, copy.rows)
    return copy


@contextmanager
def _snapshot(dsn: str, snapshot: str | None) -> Iterator[psycopg.Connection[Any]]:
    connection = open_connection(dsn, "headrace source.table")
    try:
        connection.execute(SESSION)
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if snapshot is not None:
                connection.execute(f"SET TRANSACTION SNAPSHOT {text_literal(snapshot)}")
            yield connection
    finally:
        connection.close()


def _ranges(
    connection: psycopg.Connection[Any],
    selection: Selection,
    split_by: str | None,
    types: dict[str, str],
    partitions: int,
) -> list[str]:
    """Conditions that together hold for each row once: about equal shares of the column's values."""
    if split_by is None or partitions == 1:
        return [""]
    name = f"t.{quoted(split_by)}"
    shares = ", ".join(str(number / partitions) for number in range(1, partitions))
    shares_sql = f"percentile_disc(ARRAY[{shares}]::float8[]) WITHIN GROUP (ORDER BY {name})"
    found = connection.execute(
        "SELECT DISTINCT edges.edge, edges.edge::text AS shown "
        f"FROM (SELECT unnest({shares_sql}) FROM {selection.from_sql} AS t) AS edges(edge) "
        "WHERE edges.edge IS NOT NULL ORDER BY edges.edge"
    ).fetchall()
    edges = [f"{text_literal(text)}::{quoted(types[split_by])}" for _, text in found]
    if not edges:
        return [""]
    between = [f" WHERE {name} >= {low} AND {name} < {high}" for low, high in pairwise(edges)]
    return [f" WHERE {name} < {edges[0]} OR {name} IS NULL", *between, f" WHERE {name} >= {edges[-1]}"]


def _copy_side_by_side(
    dsn: str, snapshot: str, statements: list[str], selection: Selection, writers: list[_Writer]
) -> None:
    def work(statement: str, writer: _Writer) -> None:
        with _snapshot(dsn, snapshot) as connection:
            _copy(connection, statement, selection, writer)

    with ThreadPoolExecutor(len(statements), thread_name_prefix="headrace-table") as pool:
        for done in [pool.submit(work, *each) for each in zip(statements, writers, strict=True)]:
            done.result()


def _copy(connection: psycopg.Connection[Any], statement: str, selection: Selection, writer: _Writer) -> None:
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        lines: list[Any] = []
        size_bytes = 0
        for line in copy:
            lines.append(line)
            size_bytes += len(line)
            if len(lines) == BATCH_ROWS:
                writer.add(_batch(lines, size_bytes, selection), whole=True)
                lines, size_bytes = [], 0
            elif size_bytes >= _TEXT_BYTES:
                writer.add(_batch(lines, size_bytes, selection), whole=False)
                lines, size_bytes = [], 0
        if lines:
            writer.add(_batch(lines, size_bytes, selection), whole=False)
        writer.put()


def _batch(lines: list[Any], size_bytes: int, selection: Selection) -> pa.RecordBatch:
    names = selection.codec.names
    table = csv.read_csv(
        pa.BufferReader(b"".join(lines)),
        csv.ReadOptions(use_threads=False, block_size=size_bytes + 1, column_names=names),
        _LINES,
        csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), **_NULLS),
    )
    arrays = selection.arrays([column.combine_chunks() for column in table.columns])
    return pa.RecordBatch.from_arrays(arrays, schema=selection.codec.schema)


class _Writer:
    """Gathers batches into files. A batch that is not whole ends its file: in a file only the last one may be short."""

    def __init__(self, spool: Spool, stem: str) -> None:
        self._spool = spool
        self._stem = stem
        self._batches: list[pa.RecordBatch] = []
        self.files: list[SpoolFile] = []

    def add(self, batch: pa.RecordBatch, *, whole: bool) -> None:
        self._batches.append(batch)
        if not whole or sum(each.nbytes for each in self._batches) >= FILE_BYTES:
            self.put()

    def put(self) -> None:
        batches, self._batches = self._batches, []
        if not batches:
            return
        out = pa.BufferOutputStream()
        with pa.ipc.new_file(out, batches[0].schema) as file:
            for batch in batches:
                file.write_batch(batch)
        name = f"{self._stem}-{len(self.files):05d}.arrow"
        self._spool.put(name, out.getvalue())
        self.files.append(SpoolFile(name, sum(batch.num_rows for batch in batches)))

    def give_up(self) -> None:
        for file in self.files:
            with suppress(OSError, HeadraceError):
                self._spool.remove(file.name)
