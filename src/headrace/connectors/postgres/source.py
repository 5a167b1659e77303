"""`table`: the rows of a Postgres table, or of a query, as a bounded input or as what a lookup asks.

As an input it is a snapshot: the table is copied once, when a job first starts (`copy_table`), and the job reads the
copy (`spool`), so that what is read again after a crash is what was read before. What changes in the table
afterwards is not seen. As the other side of a lookup it is asked live (`lookup`).
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from pyarrow import csv

from headrace.connectors.postgres.lookup import TableLookup
from headrace.connectors.postgres.select import SESSION, Selection, from_clause, translate_select_error
from headrace.connectors.postgres.server import open_connection, psycopg_module, quoted, text_literal
from headrace.connectors.postgres.spool import BAD, BATCH_ROWS, Copy, Spool, SpoolFile
from headrace.connectors.reading import check_positive, position, slice_range
from headrace.connectors.source_contract import SURE, BadRows, Offset, Passage, Replay, Source, Split, SplitReader
from headrace.errors import EnvironmentMissing, HeadraceError, ProgramError
from headrace.model.field_names import field_name
from headrace.model.rows import codec_of

if TYPE_CHECKING:
    import psycopg

    from headrace.errors import BadRow
    from headrace.model.rows import RowCodec

COPY: str = "copy"
"""The field of a position that names the copy it belongs to."""


class TableSource(Source):
    kind: ClassVar[str] = "table"
    python: ClassVar[bool] = True

    def __init__(
        self,
        query_or_table: str,
        dsn: str,
        split_by: Any,
        partitions: int,
        per_epoch: int | None,
        spool: str | os.PathLike[str] | None,
    ) -> None:
        self.text = query_or_table
        self.where = f"source.table({_short(query_or_table)!r})"
        from_clause(query_or_table, self.where)
        self.dsn = dsn
        self.split_by = None if split_by is None else field_name(split_by, "split_by", self.where)
        self.partitions = check_positive("partitions", partitions, self.where) or 1
        self.per_epoch = check_positive("per_epoch", per_epoch, self.where)
        self.spool = None if spool is None else os.fspath(spool)
        self._store_folder: str | None = None

    @property
    def bounded(self) -> bool:
        return True

    def bind(self, codec: RowCodec) -> TableSource:
        if self.split_by is not None:
            codec.index(self.split_by, where=self.where)
        return self

    def placed_in(self, folder: str) -> TableSource:
        placed = TableSource(self.text, self.dsn, self.split_by, self.partitions, self.per_epoch, self.spool)
        placed._store_folder = folder
        return placed

    def reader(self, codec: RowCodec) -> TableReader:
        folder = self.spool or self._store_folder
        if folder is None:
            raise EnvironmentMissing(
                "there is no store to keep the copy of the table in",
                where=self.where,
                next_move="read the source in a program, or give it a folder: spool=…",
            )
        spool = Spool(folder)
        known = spool.copies()
        chosen = known[0] if known else self._copy(spool, codec)
        self._check_same(spool, chosen, codec)
        return TableReader(spool, chosen, self.per_epoch, self.partitions)

    def _copy(self, spool: Spool, codec: RowCodec) -> str:
        selection = Selection(self.text, codec, self.where)
        psycopg = psycopg_module()
        try:
            return copy_table(spool, self.dsn, selection, self.text, self.split_by, self.partitions).id
        except psycopg.Error as error:
            raise translate_select_error(error, self.where, self.dsn) from error

    def _check_same(self, spool: Spool, id: str, codec: RowCodec) -> None:
        copy = spool.describe(id)
        if (copy.taken_from, copy.schema) != (self.text, str(codec.schema)):
            raise ProgramError(
                "this job reads a copy that was made for another table or other rows",
                where=self.where,
                expected=f"{_short(copy.taken_from)!r} with the columns {_top_lines(copy.schema)}",
                found=f"{_short(self.text)!r} with the columns {_top_lines(str(codec.schema))}",
                next_move="read it under another name, or begin anew: headrace run --fresh",
            )

    def lookup(self, output: Any, *, key: Any) -> TableLookup:
        """What ``stream.lookup`` asks: the row of type `output` whose column `key` has the value looked for.

        The table is asked live, for many values by one query; see ``docs/guides/postgres.md``.
        """
        name = field_name(key, "key", self.where)
        return TableLookup(self.text, self.dsn, codec_of(output, where=self.where), name, self.where)

    def check_replay(self, passage: Passage) -> Replay:
        # It is read from the job's own copy, which stays as long as the store.
        return SURE

    def describe(self) -> str:
        return f"table {_short(self.text)}"


class TableReader(SplitReader):
    def __init__(self, spool: Spool, chosen: str, per_epoch: int | None, partitions: int) -> None:
        self.spool = spool
        self.chosen = chosen
        self.per_epoch = per_epoch
        self.partitions = partitions

    def initial(self) -> Offset:
        return {"i": 0}

    def latest(self, start: Offset, limit: int | None) -> Offset:
        at, id = position(start), start.get(COPY, self.chosen)
        steps = [step for step in (self.per_epoch, limit) if step is not None]
        stop = min([self.spool.describe(id).rows, *(at + step for step in steps)])
        return start if stop <= at else {"i": stop, COPY: id}

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        cut = slice_range(position(start), position(end), self.partitions)
        return [Split(each.id, each.start, {**each.end, COPY: end[COPY]}) for each in cut]

    def read(self, split: Split) -> Iterator[pa.RecordBatch | BadRows]:
        yield from self.spool.read(split.end[COPY], position(split.start), position(split.end))

    def remaining(self, start: Offset) -> int:
        return max(0, self.spool.describe(start.get(COPY, self.chosen)).rows - position(start))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def _top_lines(schema: str) -> str:
    return ", ".join(line for line in schema.splitlines() if not line.startswith(("-", " ")))


# --- copies a table, as it is at one moment, into Arrow files of a `Spool`
# All of it is one snapshot of the database (REPEATABLE READ, handed to further connections where several copy ranges of
# a column side by side), so the copy is what one transaction would have seen.
#
# Rows that cannot be decoded are part of it, as text with the reason. They come first: where nobody reads the errors of
# the stream, the job stops in its first epoch, not in its last.


log = logging.getLogger("headrace.table")

FILE_BYTES: Final = 64 * 2**20
"""Of Arrow columns in one file: what a task that reads from an object store holds in memory."""
_TEXT_BYTES: Final = 16 * 2**20
"""Of text that is parsed at once; a batch of long rows has fewer of them for it."""

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
        writers = [_Writers(spool, f"{id}-{number:04d}") for number in range(len(statements))]
        try:
            if exported is None:
                _copy(connection, statements[0], selection, writers[0])
            else:
                _copy_side_by_side(dsn, exported[0], statements, selection, writers)
        except BaseException:
            for writer in writers:
                writer.give_up()
            raise
    bad = [file for writer in writers for file in writer.bad.files]
    copy = Copy(
        id, taken_from, str(selection.codec.schema), [*bad, *(file for each in writers for file in each.rows.files)]
    )
    spool.finish(copy)
    log.info("%s: copied %s rows; %s more are bad", selection.where, copy.rows - copy.bad, copy.bad)
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
    dsn: str, snapshot: str, statements: list[str], selection: Selection, writers: list[_Writers]
) -> None:
    def work(statement: str, writer: _Writers) -> None:
        with _snapshot(dsn, snapshot) as connection:
            _copy(connection, statement, selection, writer)

    with ThreadPoolExecutor(len(statements), thread_name_prefix="headrace-table") as pool:
        for done in [pool.submit(work, *each) for each in zip(statements, writers, strict=True)]:
            done.result()


def _copy(connection: psycopg.Connection[Any], statement: str, selection: Selection, writers: _Writers) -> None:
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        lines: list[Any] = []
        size_bytes = 0
        for line in copy:
            lines.append(line)
            size_bytes += len(line)
            if len(lines) == BATCH_ROWS or size_bytes >= _TEXT_BYTES:
                _add(lines, size_bytes, selection, writers)
                lines, size_bytes = [], 0
        if lines:
            _add(lines, size_bytes, selection, writers)
        writers.put()


def _add(lines: list[Any], size_bytes: int, selection: Selection, writers: _Writers) -> None:
    names = selection.codec.names
    table = csv.read_csv(
        pa.BufferReader(b"".join(lines)),
        csv.ReadOptions(use_threads=False, block_size=size_bytes + 1, column_names=names),
        _LINES,
        csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), **_NULLS),
    )
    texts = [column.combine_chunks() for column in table.columns]
    arrays, bad = selection.arrays(texts)
    writers.rows.add(pa.RecordBatch.from_arrays(arrays, schema=selection.codec.schema))
    if bad:
        rows = sorted(bad)
        shown = zip(rows, selection.shown(texts, rows), strict=True)
        # Whoever mends the table does not mend the copy, so that is what is named.
        where = f"the copy of {selection.where}"
        told = [BadRows.text(where, text, _reason(bad[row])) for row, text in shown]
        writers.bad.add(pa.RecordBatch.from_arrays([pa.array(told, pa.string())], schema=BAD))


def _reason(error: BadRow) -> str:
    return error.what if error.__cause__ is None else f"{error.what}: {error.found}"


class _Writers:
    """Where the rows of one connection go."""

    def __init__(self, spool: Spool, stem: str) -> None:
        self.rows = _Writer(spool, stem)
        self.bad = _Writer(spool, f"{stem}-bad", bad=True)

    def put(self) -> None:
        self.rows.put()
        self.bad.put()

    def give_up(self) -> None:
        self.rows.give_up()
        self.bad.give_up()


class _Writer:
    """Gathers batches into files."""

    def __init__(self, spool: Spool, stem: str, *, bad: bool = False) -> None:
        self._spool = spool
        self._stem = stem
        self._is_bad = bad
        self._batches: list[pa.RecordBatch] = []
        self._size_bytes = 0
        self.files: list[SpoolFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._batches.append(batch)
        self._size_bytes += batch.nbytes
        if self._size_bytes >= FILE_BYTES:
            self.put()

    def put(self) -> None:
        batches, self._batches, self._size_bytes = self._batches, [], 0
        if not batches:
            return
        out = pa.BufferOutputStream()
        with pa.ipc.new_file(out, batches[0].schema) as file:
            for batch in batches:
                file.write_batch(batch)
        name = f"{self._stem}-{len(self.files):05d}.arrow"
        self._spool.put(name, out.getvalue())
        self.files.append(SpoolFile(name, sum(batch.num_rows for batch in batches), self._is_bad))

    def give_up(self) -> None:
        for file in self.files:
            with suppress(OSError, HeadraceError):
                self._spool.remove(file.name)
