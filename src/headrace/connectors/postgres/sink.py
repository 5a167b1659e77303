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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pyarrow as pa

from headrace.connectors.postgres.copying import RowCopy
from headrace.connectors.postgres.errors import Place, telling
from headrace.connectors.postgres.rows import BINARY, CSV, row_encoder
from headrace.connectors.postgres.server import open_connection, quoted, split_name, table_columns
from headrace.connectors.postgres.table import EPOCHS_TABLE, PostgresTarget, prepare_beside, prepare_table
from headrace.connectors.postgres.undo import UndoJournal, undo_statements
from headrace.connectors.recorded import is_released
from headrace.connectors.sink_contract import (
    Forget,
    GuaranteeChoice,
    Release,
    Rewind,
    Sink,
    StageTask,
    StageWriter,
    chosen_guarantee,
)
from headrace.connectors.staged import GONE, ChangeWriter, PartWriter
from headrace.errors import ProgramError, SinkFailed
from headrace.model.crash import reach
from headrace.model.field_names import field_name
from headrace.model.report import StagedPart
from headrace.model.time import Span, format_span, span_us

if TYPE_CHECKING:
    from typing import Self

    import psycopg

    from headrace.connectors.keyed_target import KeyedTarget, Position
    from headrace.connectors.postgres.undo import OutputEpoch
    from headrace.model.rows import RowCodec

Mode = Literal["append", "upsert"]

_ROWS_AT_ONCE: Final = 20_000
_SETTINGS: Final = "SET lock_timeout = '30s'; SET idle_in_transaction_session_timeout = '60s'"
"""A driver that sleeps with the lock must not stop the one that took over for ever."""


class PostgresSink(Sink):
    kind: ClassVar[str] = "postgres"
    driver_only: ClassVar[tuple[str, ...]] = ("dsn", "_connection", "_rows", "_journal")

    def __init__(
        self,
        table: str,
        dsn: str,
        key: Any,
        mode: Mode | None,
        create: bool,
        guarantee: GuaranteeChoice,
        undo: Span | None,
    ) -> None:
        where = f"sink.postgres({table!r})"
        self.target = PostgresTarget(split_name(table, where), where)
        self.table = table
        self.dsn = dsn
        self.key = _key_names(key, where)
        self.mode: Mode = mode or ("upsert" if self.key else "append")
        self.create = create
        self.guarantee = chosen_guarantee(guarantee, where)
        self.accepts_updates = self.accepts_changelog = self.mode == "upsert"  # type: ignore[misc]
        self.changelog_key = self.key if self.mode == "upsert" else None
        self.format = CSV
        """What workers stage: text goes into any table, the binary form into most; `start` finds out."""
        self._connection: psycopg.Connection[Any] | None = None
        self._rows: RowCopy | None = None
        """What that connection knows of rows."""
        self.undo_us = None if undo is None else span_us(undo, what="undo", where=where)
        self._journal: UndoJournal | None = None
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
        if self.undo_us is not None:
            if self.mode != "upsert" or not self._guarded or self.undo_us <= 0:
                raise ProgramError(
                    "former rows cannot be kept here",
                    where=where,
                    expected='undo="24h" with rows that are replaced by a key, exactly once',
                    found=f"undo={undo!r}, mode={self.mode!r}, guarantee={guarantee!r}",
                    next_move="leave undo= out: when the job goes back, the output is held until its old end is passed",
                )
            self.rewinds: frozenset[Rewind] = frozenset({"repeat", "hold"})
            self._journal = UndoJournal(self.target, self.key, self.undo_us / 1_000_000)

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
        with self.connected("prepare the table") as connection:
            columns = table_columns(self.codec)
            binary = prepare_table(connection, self.target, columns, self.key, create=self.create, epochs=self._guarded)
            if self._journal is not None:
                prepare_beside(connection, undo_statements(self.target), create=self.create)
        self.format = BINARY if binary else CSV
        self._rows = None

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        key = self.key if self.mode == "upsert" else ()
        encode = row_encoder(codec, self.target.where, key, self.format)
        return ChangeWriter(PartWriter(task, encode, self.format), PartWriter(task, encode, self.format))

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        assert self.codec is not None
        place = Place(ctx.read, {column.name: column.kind for column in table_columns(self.codec) if not column.array})
        with self.connected(f"write epoch {ctx.epoch}", place) as connection, connection.transaction():
            if self._guarded:
                recorded = self._claim(connection, ctx)
                if is_released(recorded, ctx, self.target.where):
                    return
                if self._journal is not None:
                    self._journal.begin(connection, ctx, recorded)
            self._write(connection, parts, ctx, place)
            if self._guarded:
                self._note(connection, ctx, int(ctx.timeline), ctx.epoch)

    def _write(
        self, connection: psycopg.Connection[Any], parts: Sequence[StagedPart], ctx: Release, place: Place
    ) -> None:
        rows = self._rows_of(connection)
        if self.mode == "append":
            rows.append(parts, ctx, place)
            return
        for apply, mine in ((rows.delete, True), (rows.merge, False)):
            for columns in rows.by_rows([part for part in parts if (GONE in part.extra) is mine], ctx, place):
                if self._journal is not None:
                    self._journal.keep_former(connection, rows, columns, ctx)
                apply(columns)

    def moved_to(self, target: str) -> Self | None:
        elsewhere = self._copied()
        where = f"sink.postgres({target!r})"
        elsewhere.table, elsewhere.target = target, PostgresTarget(split_name(target, where), where)
        elsewhere._connection, elsewhere._rows = None, None
        if self.undo_us is not None:
            elsewhere._journal = UndoJournal(elsewhere.target, self.key, self.undo_us / 1_000_000)
        return elsewhere

    def target_name(self) -> str:
        return ".".join(self.target.name if len(self.target.name) > 1 else ("public", *self.target.name))

    def count_rows(self) -> int | None:
        if self.mode != "append":
            # One row of a key stands for all that were written.
            return None
        with self.connected("count rows") as connection, connection.transaction():
            row = connection.execute(f"SELECT count(*) FROM {self.target.sql}").fetchone()
        assert row is not None
        return int(row[0])

    def shown_rows(self) -> Iterator[pa.Table]:
        assert self.codec is not None
        names = [column.name for column in table_columns(self.codec)]
        # As text, which is the same for equal values of one type, whatever the type is.
        texts = ", ".join(f"{quoted(name)}::text" for name in names)
        schema = pa.schema([(name, pa.string()) for name in names])
        with (
            self.connected("read the rows of the table") as connection,
            connection.transaction(),
            connection.cursor(name="headrace_shown") as cursor,
        ):
            cursor.execute(f"SELECT {texts} FROM {self.target.sql}")
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                yield pa.table([list(column) for column in zip(*rows)], schema=schema)

    def takes(self, part: StagedPart) -> bool:
        return part.format in (CSV, BINARY)

    def keyed(self, job: str) -> KeyedTarget | None:
        if self.mode != "upsert" or not self._guarded:
            return None
        from headrace.connectors.postgres.keyed import PostgresKeyed

        return PostgresKeyed(self, job)

    def close(self) -> None:
        self._disconnect()

    def own_name(self) -> str:
        return ".".join(self.target.name)

    def describe(self) -> str:
        how = f"upsert by {', '.join(self.key)}" if self.mode == "upsert" else "append"
        how += "" if self.undo_us is None else f", undo {format_span(self.undo_us)}"
        return f"postgres {self.table} ({how})"

    # --- epochs

    @property
    def _guarded(self) -> bool:
        return self.guarantee == "exactly once"

    @property
    def epochs_sql(self) -> str:
        return self.target.beside(EPOCHS_TABLE).sql

    def _claim(self, connection: psycopg.Connection[Any], ctx: OutputEpoch | Forget) -> tuple[int, int]:
        """Locks what is known of this output: the timeline and epoch that are the newest in the table; −1: none."""
        ours = (ctx.job, ctx.output)
        connection.execute(f"INSERT INTO {self.epochs_sql} VALUES (%s, %s, -1, -1, now()) ON CONFLICT DO NOTHING", ours)
        row = connection.execute(
            f"SELECT timeline, epoch FROM {self.epochs_sql} WHERE job = %s AND output = %s FOR UPDATE", ours
        ).fetchone()
        assert row is not None
        return row[0], row[1]

    def _note(self, connection: psycopg.Connection[Any], ctx: OutputEpoch | Forget, timeline: int, epoch: int) -> None:
        connection.execute(
            f"UPDATE {self.epochs_sql} SET timeline = %s, epoch = %s, released_at = now() "
            "WHERE job = %s AND output = %s",
            (timeline, epoch, ctx.job, ctx.output),
        )

    def released(self, job: str) -> Position:
        with self.connected("read the newest epoch") as connection:
            return self.recorded(connection, job)

    def recorded(self, connection: psycopg.Connection[Any], job: str, *, lock: bool = False) -> Position:
        """The newest epoch of a job in the table, as it is noted there."""
        found = connection.execute(
            f"SELECT timeline, epoch FROM {self.epochs_sql} WHERE job = %s AND output = %s"
            + (" FOR UPDATE" if lock else ""),
            (job, self.output),
        ).fetchone()
        return None if found is None or found[0] < 0 else (found[0], found[1])

    # --- going back

    def check_forget(self, ctx: Forget) -> None:
        journal = self._undo_journal()
        with self.connected("look how far it can go back") as connection, connection.transaction():
            recorded = self._claim(connection, ctx)
            if recorded <= (int(ctx.timeline), ctx.epoch) or recorded >= (int(ctx.next_timeline), 0):
                # Nothing was written behind it; or all was taken back, and the next timeline has begun.
                return
            span = journal.span(connection, ctx.job, ctx.output)
        if span is None or span.last != recorded or span.first > (int(ctx.timeline), ctx.epoch):
            known = span is not None and span.last == recorded
            raise SinkFailed(
                "the table has no earlier values of these rows",
                where=self.target.where,
                expected=f"former rows since epoch {ctx.epoch} of timeline {ctx.timeline}, because of undo=",
                found=f"those since epoch {span.first[1]} of timeline {span.first[0]}"
                if span is not None and known
                else "none: the newest epochs were written without undo=",
                next_move=f"go back less far, hold the output (--hold {ctx.output}), or write to another table; keep "
                "former rows longer from now on with a larger undo=",
            )

    def forget(self, ctx: Forget) -> None:
        journal, following = self._undo_journal(), (int(ctx.next_timeline), -1)
        self.check_forget(ctx)
        with self.connected("take rows back") as connection, connection.transaction():
            recorded = self._claim(connection, ctx)
            journal.take_back(connection, ctx.job, ctx.output, int(ctx.timeline), ctx.epoch)
            reach("forgetting", ctx.epoch)
            if recorded < following:
                # From here on the abandoned timeline is an older one, for every driver.
                self._note(connection, ctx, *following)
                journal.go_on(connection, ctx.job, ctx.output, following)
        reach("forgetting", ctx.epoch)

    def _undo_journal(self) -> UndoJournal:
        if self._journal is None:
            raise SinkFailed(
                "this table cannot take rows back",
                where=self.target.where,
                expected='rows that are replaced by a key, and a program that keeps the former ones: undo="24h"',
                found=self.describe(),
                next_move=f"hold the output until the job has passed its old end (--hold {self.output}), or write to "
                "another table",
            )
        return self._journal

    # --- the connection

    @contextmanager
    def connected(self, doing: str, place: Place | None = None) -> Iterator[psycopg.Connection[Any]]:
        """A connection, new or kept; whatever goes wrong ends it, so that the next call begins with another."""
        try:
            with telling(self.target, self.dsn, doing, place):
                if self._connection is None or self._connection.closed:
                    self._connection = open_connection(self.dsn, f"headrace {self.output}")
                    self._connection.execute(_SETTINGS)
                    self._rows = None
                yield self._connection
        except BaseException:
            self._disconnect()
            raise

    def _rows_of(self, connection: psycopg.Connection[Any]) -> RowCopy:
        if self._rows is None:
            assert self.codec is not None
            self._rows = RowCopy(connection, self.target, self.codec, self.key, self.format)
        return self._rows

    def _disconnect(self) -> None:
        connection, self._connection, self._rows = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


def _key_names(key: Any, where: str) -> tuple[str, ...]:
    if key is None:
        return ()
    fields = key if isinstance(key, list | tuple) else (key,)
    return tuple(field_name(field, "key", where) for field in fields)
