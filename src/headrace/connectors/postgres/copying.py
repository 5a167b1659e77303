"""Staged rows on their way into a table, by COPY over one connection.

Rows are appended at once, or go into a temporary table first, from where the last row of each key is merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.connectors.postgres.binary import END, SIGNATURE
from headrace.connectors.postgres.rows import BINARY, header
from headrace.connectors.postgres.server import listed, quoted, table_columns
from headrace.model.crash import reach

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

    from headrace.connectors.postgres.errors import Place
    from headrace.connectors.postgres.table import PostgresTarget
    from headrace.model.report import StagedPart
    from headrace.model.rows import RowCodec

ROWS: Final = "pg_temp.headrace_rows"
"""The temporary table."""
_ORDER: Final = "headrace_order"
_CHUNK_BYTES: Final = 2**18


class PartReader(Protocol):
    """Where parts are read from: a `Release`, or what stands for one."""

    epoch: int

    def read(self, part: StagedPart) -> pa.Buffer: ...


class RowCopy:
    """What one connection knows of the rows that it takes."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        target: PostgresTarget,
        codec: RowCodec,
        key: Sequence[str],
        format: str,
    ) -> None:
        self._connection = connection
        self._target = target
        self._codec = codec
        self._key = key
        """Of the rows that are replaced; empty where rows are appended."""
        self._format = format
        self._columns: tuple[str, ...] | None = None
        """Those of the temporary table, where there is one."""

    def append(self, parts: Iterable[StagedPart], ctx: PartReader, place: Place) -> None:
        """Parts go one behind the other; those of the same columns and form by one COPY."""
        for columns, format, group in _grouped(parts, ctx):
            if self._is_altered(format):
                self._copy(self._rows_table(columns, format), columns, format, group, place)
                self.insert(columns)
            else:
                self._copy(self._target.sql, columns, format, group, place)

    def by_rows(self, parts: Iterable[StagedPart], ctx: PartReader, place: Place) -> Iterator[tuple[str, ...]]:
        """The same into the temporary table; gives back the columns that rows have which lie there now."""
        for columns, format, group in _grouped(parts, ctx):
            self._copy(self._rows_table(columns, format), columns, format, group, place)
            yield columns

    def newest_rows(self, columns: Sequence[str]) -> str:
        """A query: of the rows in the temporary table the last one of each key."""
        key = listed(self._key)
        return f"SELECT DISTINCT ON ({key}) {listed(columns)} FROM {ROWS} ORDER BY {key}, {_ORDER} DESC"

    def insert(self, columns: Sequence[str]) -> None:
        """The rows in the temporary table are appended."""
        names = listed(columns)
        self._connection.execute(
            f"INSERT INTO {self._target.sql} ({names}) SELECT {names} FROM {ROWS} ORDER BY {_ORDER}"
        )

    def merge(self, columns: Sequence[str]) -> None:
        """The last row of each key replaces what is there. Keys come sorted, so that two jobs do not lock crosswise."""
        self._connection.execute(
            f"INSERT INTO {self._target.sql} ({listed(columns)}) {self.newest_rows(columns)} "
            f"{on_conflict(self._key, columns)}"
        )

    def delete(self, columns: Sequence[str]) -> None:
        """The rows of the keys that lie in the temporary table go."""
        same = " AND ".join(f"t.{quoted(name)} = r.{quoted(name)}" for name in self._key)
        self._connection.execute(f"DELETE FROM {self._target.sql} t USING ({self.newest_rows(columns)}) r WHERE {same}")

    def _copy(
        self,
        into: str,
        columns: Sequence[str],
        format: str,
        group: Iterable[tuple[StagedPart, int, pa.Buffer]],
        place: Place,
    ) -> None:
        place.columns, place.parts = tuple(columns), []
        binary = format == BINARY
        statement = f"COPY {into} ({listed(columns)}) FROM STDIN (FORMAT {'binary' if binary else 'csv'})"
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(SIGNATURE if binary else b"")
            for part, start, buffer in group:
                place.parts.append((part, start))
                view = memoryview(buffer)
                for at in range(start, len(view), _CHUNK_BYTES):
                    copy.write(view[at : at + _CHUNK_BYTES])
            copy.write(END if binary else b"")
        place.parts = []

    def _is_altered(self, format: str) -> bool:
        """Rows that were staged in binary before the table was altered go by way of a table of their own types."""
        return format == BINARY and self._format != BINARY

    def _rows_table(self, columns: tuple[str, ...], format: str) -> str:
        """A temporary table like these columns of the target; it is emptied by every commit and lives on."""
        altered = self._is_altered(format)
        if self._columns == columns and not altered:
            self._connection.execute(f"TRUNCATE {ROWS}")
            return ROWS
        source = f"SELECT {listed(columns)} FROM {self._target.sql}"
        if altered:
            types = {column.name: column.ddl for column in table_columns(self._codec)}
            nulls = ", ".join(f"NULL::{types.get(name, 'text')} AS {quoted(name)}" for name in columns)
            source = f"SELECT {nulls}"
        name = ROWS.partition(".")[2]
        self._connection.execute(f"DROP TABLE IF EXISTS {ROWS}")
        self._connection.execute(f"CREATE TEMPORARY TABLE {name} ON COMMIT DELETE ROWS AS {source} WITH NO DATA")
        self._connection.execute(
            f"ALTER TABLE {ROWS} ADD COLUMN {_ORDER} bigint GENERATED ALWAYS AS IDENTITY (CACHE 1000)"
        )
        self._columns = None if altered else columns
        return ROWS


def on_conflict(key: Sequence[str], columns: Sequence[str]) -> str:
    """What an INSERT does where the key is there already."""
    rest = [quoted(name) for name in columns if name not in key]
    do = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "NOTHING"
    return f"ON CONFLICT ({listed(key)}) DO {do}"


def _grouped(
    parts: Iterable[StagedPart], ctx: PartReader
) -> Iterator[tuple[tuple[str, ...], str, Iterator[tuple[StagedPart, int, pa.Buffer]]]]:
    for (columns, format), group in groupby(_open_parts(parts, ctx), key=lambda each: (each[0], each[1].format)):
        yield columns, format, (each[1:] for each in group)


def _open_parts(
    parts: Iterable[StagedPart], ctx: PartReader
) -> Iterator[tuple[tuple[str, ...], StagedPart, int, pa.Buffer]]:
    for number, part in enumerate(parts):
        if number:
            reach("between_files", ctx.epoch)
        buffer = ctx.read(part)
        columns, start = header(buffer)
        yield columns, part, start, buffer
