"""`postgres`: rows into a table, appended or replaced by key, exactly once.

Workers stage the bytes that COPY reads (`rows`); releasing an epoch is one transaction in the driver:

1. the row of this output in ``headrace_epochs`` is locked, and read: an epoch that is not newer than what it says was
   written before, by this driver or by one that took over, and nothing happens;
2. the staged bytes go by COPY into the table, or into a temporary one from where the last row of each key is merged;
3. the row in ``headrace_epochs`` says the new epoch, and all of it is committed.

A driver that sleeps in between holds the lock, or finds the newer epoch when it wakes: it never writes over newer rows.
A connection is kept from release to release, and given up after any error.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pyarrow as pa

from headrace.connectors.postgres.binary import END, SIGNATURE, show_row
from headrace.connectors.postgres.rows import BINARY, CSV, header, row_encoder
from headrace.connectors.postgres.server import (
    Kind,
    open_connection,
    psycopg_module,
    quoted,
    split_name,
    table_columns,
    why_not,
)
from headrace.connectors.postgres.table import EPOCHS_TABLE, PostgresTarget, prepare_table
from headrace.connectors.recorded import is_released
from headrace.connectors.sink_contract import GuaranteeChoice, Release, Sink, StageTask, StageWriter, chosen_guarantee
from headrace.connectors.staged import PartWriter
from headrace.errors import ProgramError, SinkFailed, SinkUnavailable
from headrace.model.crash import reach
from headrace.model.field_names import field_name
from headrace.model.report import StagedPart

if TYPE_CHECKING:
    from typing import Self

    import psycopg
    import pyarrow as pa

    from headrace.connectors.postgres.table import PostgresTarget
    from headrace.model.report import StagedPart
    from headrace.model.rows import RowCodec

Mode = Literal["append", "upsert"]


_ROWS: Final = "headrace_rows"
_ORDER: Final = "headrace_order"
_CHUNK_BYTES: Final = 2**18
_SETTINGS: Final = "SET lock_timeout = '30s'; SET idle_in_transaction_session_timeout = '60s'"
"""A driver that sleeps with the lock must not stop the one that took over for ever."""


class PostgresSink(Sink):
    kind: ClassVar[str] = "postgres"
    driver_only: ClassVar[tuple[str, ...]] = ("dsn", "_connection", "_rows_of")

    def __init__(
        self,
        table: str,
        dsn: str,
        key: Any,
        mode: Mode | None,
        create: bool,
        guarantee: GuaranteeChoice,
    ) -> None:
        where = f"sink.postgres({table!r})"
        self.target = PostgresTarget(split_name(table, where), where)
        self.table = table
        self.dsn = dsn
        self.key = _key_names(key, where)
        self.mode: Mode = mode or ("upsert" if self.key else "append")
        self.create = create
        self.guarantee = chosen_guarantee(guarantee, where)
        self.accepts_updates = self.mode == "upsert"  # type: ignore[misc]
        self.format = CSV
        """What workers stage: text goes into any table, the binary form into most; `start` finds out."""
        self._connection: psycopg.Connection[Any] | None = None
        self._rows_of: tuple[str, ...] | None = None
        """The columns of the temporary table, where this connection has one."""
        if self.mode not in ("append", "upsert"):
            raise ProgramError(
                f"there is no mode {self.mode!r}",
                where=where,
                expected='"append" or "upsert"',
                found=repr(mode),
                next_move="leave mode= out: with key= rows replace those of the same key, without it they are appended",
            )
        if self.mode == "upsert" and not self.key:
            raise ProgramError(
                "rows can be replaced only by a key",
                where=where,
                expected='key="id" or key=(Sale.shop, Sale.day) beside mode="upsert"',
                found="no key",
            )

    def bind(self, codec: RowCodec, output: str) -> Self:
        columns = {column.name: column for column in table_columns(codec)}
        for name in self.key:
            column = columns[codec.names[codec.index(name, where=self.target.where)]]
            if column.nullable or column.array or column.kind == "json":
                raise ProgramError(
                    f"{name} cannot be part of the key",
                    where=self.target.where,
                    expected="plain values that are always there: text, numbers, times, UUIDs",
                    found=f"{name} {column.ddl}" + (", which may be null" if column.nullable else ""),
                    next_move="key by other columns, or fill this one in with with_columns first",
                )
        return super().bind(codec, output)

    def start(self) -> None:
        assert self.codec is not None
        with self._connected("prepare the table") as connection:
            columns = table_columns(self.codec)
            binary = prepare_table(connection, self.target, columns, self.key, create=self.create, epochs=self._guarded)
        self.format = BINARY if binary else CSV

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        key = self.key if self.mode == "upsert" else ()
        return PartWriter(task, row_encoder(codec, self.target.where, key, self.format), self.format)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        assert self.codec is not None
        place = Place(ctx.read, {column.name: column.kind for column in table_columns(self.codec) if not column.array})
        with self._connected(f"write epoch {ctx.epoch}", place) as connection, connection.transaction():
            if self._guarded and not self._claim(connection, ctx):
                return
            self._copy(connection, parts, ctx, place)
            if self._guarded:
                self._note(connection, ctx)

    def takes(self, part: StagedPart) -> bool:
        return part.format in (CSV, BINARY)

    def close(self) -> None:
        self._disconnect()

    def own_name(self) -> str:
        return ".".join(self.target.name)

    def describe(self) -> str:
        how = f"upsert by {', '.join(self.key)}" if self.mode == "upsert" else "append"
        return f"postgres {self.table} ({how})"

    # --- epochs

    @property
    def _guarded(self) -> bool:
        return self.guarantee == "exactly once"

    @property
    def _epochs(self) -> str:
        return self.target.beside(EPOCHS_TABLE).sql

    def _claim(self, connection: psycopg.Connection[Any], ctx: Release) -> bool:
        """Locks what is known of this output; whether the epoch is newer than that."""
        ours = (ctx.job, ctx.output)
        connection.execute(f"INSERT INTO {self._epochs} VALUES (%s, %s, -1, -1, now()) ON CONFLICT DO NOTHING", ours)
        row = connection.execute(
            f"SELECT timeline, epoch FROM {self._epochs} WHERE job = %s AND output = %s FOR UPDATE", ours
        ).fetchone()
        assert row is not None
        timeline, epoch = row
        return not is_released((timeline, epoch), ctx, self.target.where)

    def _note(self, connection: psycopg.Connection[Any], ctx: Release) -> None:
        connection.execute(
            f"UPDATE {self._epochs} SET timeline = %s, epoch = %s, released_at = now() WHERE job = %s AND output = %s",
            (int(ctx.timeline), ctx.epoch, ctx.job, ctx.output),
        )

    # --- rows

    def _copy(
        self, connection: psycopg.Connection[Any], parts: Iterable[StagedPart], ctx: Release, place: Place
    ) -> None:
        """Parts go one behind the other; those of the same columns and form by one COPY."""
        for (columns, format), group in groupby(_opened(parts, ctx), key=lambda each: (each[0], each[1].format)):
            # Rows that were staged in binary before the table was altered go by way of a table of their own types.
            altered = format == BINARY and self.format != BINARY
            direct = self.mode == "append" and not altered
            into = self.target.sql if direct else self._rows_table(connection, columns, altered)
            place.columns, place.parts = columns, []
            statement = (
                f"COPY {into} ({_listed(columns)}) FROM STDIN (FORMAT {'binary' if format == BINARY else 'csv'})"
            )
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write(SIGNATURE if format == BINARY else b"")
                for _, part, start, buffer in group:
                    place.parts.append((part, start))
                    view = memoryview(buffer)
                    for at in range(start, len(view), _CHUNK_BYTES):
                        copy.write(view[at : at + _CHUNK_BYTES])
                copy.write(END if format == BINARY else b"")
            place.parts = []
            if not direct:
                self._merge(connection, columns)

    def _rows_table(self, connection: psycopg.Connection[Any], columns: tuple[str, ...], altered: bool) -> str:
        """A temporary table like these columns of the target; it is emptied by every commit and lives on."""
        name = f"pg_temp.{_ROWS}"
        if self._rows_of == columns and not altered:
            connection.execute(f"TRUNCATE {name}")
            return name
        source = f"SELECT {_listed(columns)} FROM {self.target.sql}"
        if altered:
            assert self.codec is not None
            types = {column.name: column.ddl for column in table_columns(self.codec)}
            nulls = ", ".join(f"NULL::{types.get(name, 'text')} AS {quoted(name)}" for name in columns)
            source = f"SELECT {nulls}"
        connection.execute(f"DROP TABLE IF EXISTS {name}")
        connection.execute(f"CREATE TEMPORARY TABLE {_ROWS} ON COMMIT DELETE ROWS AS {source} WITH NO DATA")
        connection.execute(f"ALTER TABLE {name} ADD COLUMN {_ORDER} bigint GENERATED ALWAYS AS IDENTITY (CACHE 1000)")
        self._rows_of = None if altered else columns
        return name

    def _merge(self, connection: psycopg.Connection[Any], columns: tuple[str, ...]) -> None:
        """The last row of each key replaces what is there. Keys come sorted, so that two jobs do not lock crosswise."""
        into = f"INSERT INTO {self.target.sql} ({_listed(columns)})"
        if self.mode == "append":
            connection.execute(f"{into} SELECT {_listed(columns)} FROM pg_temp.{_ROWS} ORDER BY {_ORDER}")
            return
        key = _listed(self.key)
        rest = [quoted(name) for name in columns if name not in self.key]
        do = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "NOTHING"
        connection.execute(
            f"{into} SELECT DISTINCT ON ({key}) {_listed(columns)} FROM pg_temp.{_ROWS} ORDER BY {key}, {_ORDER} DESC "
            f"ON CONFLICT ({key}) DO {do}"
        )

    # --- the connection

    @contextmanager
    def _connected(self, doing: str, place: Place | None = None) -> Iterator[psycopg.Connection[Any]]:
        """A connection, new or kept; whatever goes wrong ends it, so that the next call begins with another."""
        try:
            with telling(self.target, self.dsn, doing, place):
                if self._connection is None or self._connection.closed:
                    self._connection = open_connection(self.dsn, f"headrace {self.output}")
                    self._connection.execute(_SETTINGS)
                    self._rows_of = None
                yield self._connection
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        connection, self._connection, self._rows_of = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


def _opened(parts: Iterable[StagedPart], ctx: Release) -> Iterator[tuple[tuple[str, ...], StagedPart, int, pa.Buffer]]:
    for number, part in enumerate(parts):
        if number:
            reach("between_files", ctx.epoch)
        buffer = ctx.read(part)
        columns, start = header(buffer)
        yield columns, part, start, buffer


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _key_names(key: Any, where: str) -> tuple[str, ...]:
    if key is None:
        return ()
    fields = key if isinstance(key, list | tuple) else (key,)
    return tuple(field_name(field, "key", where) for field in fields)


# --- what Postgres says no to, in words: which table, column and row, and what to do
# Whether trying again may help is decided by the SQLSTATE. An error without one is of the connection itself.


_PASSING: Final = re.compile(r"^(08|40001|40003|40P01|53|57P|58|55P03|57014|25006|25P0[34])")
"""SQLSTATEs of what passes: connections, deadlocks, resources, shutdowns, a server that is read-only for a while."""
_FOR_GOOD: Final = re.compile(r"password authentication failed|no pg_hba\.conf entry|FATAL: .* does not exist")
"""A refused login has no SQLSTATE on the client's side. Where the server speaks another language it is tried again."""
_PLACE: Final = re.compile(r"line (\d+)(?:, column ([^:\n]+))?")
_STAYS: Final = "the rows stay staged in the store, and are released first when the job is started again"


class Place:
    """What is being copied, for the case that it fails."""

    def __init__(self, read: Callable[[StagedPart], pa.Buffer], kinds: dict[str, Kind]) -> None:
        self._read = read
        self._kinds = kinds
        self.columns: tuple[str, ...] = ()
        self.parts: list[tuple[StagedPart, int]] = []
        """What has gone into the COPY so far, and where the rows begin in there."""

    def row(self, line: int) -> str:
        """The row at this line of the COPY, counted as the server does."""
        if not self.parts or self.parts[0][0].format != BINARY:
            return self._text_row(line)
        for part, start in self.parts:
            shown, rows = show_row(memoryview(self._read(part))[start:], line, self.columns, self._kinds)
            if shown:
                return shown
            line -= rows
        return ""

    def _text_row(self, line: int) -> str:
        # Lines inside of values count too, but in the first row only their carriage returns: the server has yet to
        # find out how lines end.
        at, newline = 0, "\r"
        for part, start in self.parts:
            text = bytes(memoryview(self._read(part))[start:]).decode(errors="replace")
            for cells in csv.reader(io.StringIO(text, newline="\n")):
                at += 1 + sum(cell.count(newline) for cell in cells)
                newline = "\n"
                if at >= line:
                    return ", ".join(f"{name}={cell!r}" for name, cell in zip(self.columns, cells, strict=False))[:500]
        return ""


@contextmanager
def telling(target: PostgresTarget, dsn: str, doing: str, place: Place | None = None) -> Iterator[None]:
    """Puts what psycopg raises inside into our words."""
    psycopg = psycopg_module()
    try:
        yield
    except psycopg.Error as error:
        raise translate_postgres_error(error, target, dsn, doing, place) from error


def translate_postgres_error(
    error: psycopg.Error, target: PostgresTarget, dsn: str, doing: str, place: Place | None
) -> SinkFailed:
    state = error.sqlstate or ""
    said = why_not(error, dsn)
    if _PASSING.match(state) or (not state and not _FOR_GOOD.search(said) and _of_connection(error)):
        lock = f" Who holds it: {_holders(target)}" if state == "55P03" else ""
        return SinkUnavailable(
            f"Postgres could not {doing} just now",
            where=target.where,
            found=f"{said}{lock}",
            next_move=f"see that the server runs and can be reached from here; {_STAYS}",
        )
    column, row = ("", "") if place is None else _where_in_rows(error, place)
    return SinkFailed(
        f"Postgres refused to {doing}" + (f": column {column}" if column else ""),
        where=target.where,
        found=said + (f"\n            in the row {row}" if row else ""),
        next_move=f"{_next_move(state, target, column)}; {_STAYS}",
    )


def _of_connection(error: psycopg.Error) -> bool:
    psycopg = psycopg_module()
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


def _holders(target: PostgresTarget) -> str:
    return (
        f"SELECT pid, application_name FROM pg_stat_activity WHERE application_name LIKE 'headrace %' -- {target.sql}"
    )


def _where_in_rows(error: psycopg.Error, place: Place) -> tuple[str, str]:
    """The column and the row that the server blames, as far as it says."""
    column = error.diag.column_name or ""
    found = _PLACE.search(error.diag.context or "")
    if found is None:
        return column, ""
    return column or (found.group(2) or ""), place.row(int(found.group(1)))


def _next_move(state: str, target: PostgresTarget, column: str) -> str:
    alter = f"ALTER TABLE {target.sql}"
    name = quoted(column) if column else "…"
    moves = {
        "23505": "write with key= to replace the row that is there, or drop the unique index",
        "23502": f"let it be null ({alter} ALTER COLUMN {name} DROP NOT NULL)",
        "23503": "insert the row that is referred to, or drop the foreign key",
        "23514": "change or drop the check that refuses the row",
        "22003": f"widen the column ({alter} ALTER COLUMN {name} TYPE …)",
        "22001": f"widen the column ({alter} ALTER COLUMN {name} TYPE text)",
        "42501": "grant the user of the DSN the rights to insert, update and select there",
        "3F000": "create the schema first",
        "42P01": "start again: a table that was dropped is made anew unless create=False",
    }
    return moves.get(state) or "alter the table so that it takes the row, or correct the DSN"
