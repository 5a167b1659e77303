"""A session of SQL over state: statements one after the other, each over one published epoch.

Which epoch that is: the newest when a statement begins; inside of a transaction the one that its first statement read,
to its end; and any that is kept where the session was told so (``SET at = …``). Nothing is ever written.

A session is used by one thread at a time. `cancel` may be called by any.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import HeadraceError, ProgramError, StatementFailed
from headrace.snapshots.answers import StatementAnswer
from headrace.snapshots.catalog import open_tables
from headrace.snapshots.column_memory import BUDGET_BYTES, ColumnMemory
from headrace.snapshots.database import (
    MEMORY_MB,
    Database,
    ReadConnection,
    Signature,
    Tables,
    quoted,
    read_table,
    signature_of,
)
from headrace.snapshots.errors import BAD_SETTING, CANCELED, SYNTAX, of_duckdb, read_only
from headrace.snapshots.literals import with_literals
from headrace.snapshots.settings import SessionCommand, parse_command
from headrace.state.moments import Moment, parse_moment

if TYPE_CHECKING:
    import duckdb
    import polars as pl

    from headrace.read.snapshot import Snapshot
    from headrace.snapshots.sources import SnapshotSource
    from headrace.snapshots.table import StateTable, TableName

BATCH_ROWS: Final = 16_384
STATEMENT_S: Final = 60.0
_MOST_DATABASES: Final = 8
_MOST_CATALOGS: Final = 16
_UNBOUND: Final = frozenset({"BinderException", "CatalogException"})
_READING: Final = frozenset({"SELECT", "EXPLAIN"})


class Engine:
    """What the sessions of a process share: columns that were read, and databases."""

    def __init__(
        self,
        *,
        memory_mb: int = MEMORY_MB,
        kept_bytes: int = BUDGET_BYTES,
        statement_s: float = STATEMENT_S,
        threads: int = 0,
    ) -> None:
        """``memory_mb``: of DuckDB, for each set of tables; ``kept_bytes``: of columns that are kept."""
        self.kept = ColumnMemory(kept_bytes)
        self.statement_s = statement_s
        self._memory_mb, self._threads = memory_mb, threads
        self._databases: OrderedDict[Signature, Database] = OrderedDict()
        self._catalogs: OrderedDict[object, tuple[Snapshot, Tables]] = OrderedDict()
        self._lock = threading.Lock()

    def session(
        self, snapshots: SnapshotSource, may_read: Callable[[str], bool] | None = None, scope: object = None
    ) -> SqlSession:
        """``may_read``: which states it sees, by their addresses; ``scope``: equal for sessions that see the same."""
        return SqlSession(self, snapshots, may_read, scope)

    def tables(self, snapshot: Snapshot, may_read: Callable[[str], bool] | None, scope: object) -> Tables:
        """The tables of an epoch."""
        name = id(snapshot), scope
        with self._lock:
            known = self._catalogs.get(name)
            if known is not None and known[0] is snapshot:
                self._catalogs.move_to_end(name)
                return known[1]
        tables = open_tables(snapshot) if may_read is None else open_tables(snapshot, may_read)
        with self._lock:
            self._catalogs[name] = snapshot, tables
            while len(self._catalogs) > _MOST_CATALOGS:
                self._catalogs.popitem(last=False)
        return tables

    def close(self) -> None:
        """Lets go of everything; sessions were closed before."""
        with self._lock:
            databases, self._databases = list(self._databases.values()), OrderedDict()
            self._catalogs.clear()
        for database in databases:
            database.close()

    def database(self, signature: Signature, tables: Tables) -> Database:
        """The database for tables with such columns."""
        with self._lock:
            known = self._databases.get(signature)
            if known is None:
                known = self._databases[signature] = Database(tables, memory_mb=self._memory_mb, threads=self._threads)
            self._databases.move_to_end(signature)
            while len(self._databases) > _MOST_DATABASES:
                # Sessions that use it go on: each has a connection of its own.
                self._databases.popitem(last=False)[1].close()
            return known


class SqlSession:
    """One client's statements."""

    def __init__(
        self, engine: Engine, snapshots: SnapshotSource, may_read: Callable[[str], bool] | None, scope: object
    ) -> None:
        self.engine = engine
        self.moment: Moment | None = None
        """The moment that statements are of; None: the newest epoch."""
        self.in_transaction = False
        self._snapshots = snapshots
        self._may_read = may_read
        self._scope = scope
        self._pinned: Snapshot | None = None
        """The epoch of the transaction."""
        self._current: Snapshot | None = None
        self._tables: Tables = {}
        self._connected: tuple[Signature, ReadConnection] | None = None
        self._failure: BaseException | None = None
        self._canceled = False
        self._lock = threading.Lock()

    # --- which epoch

    def snapshot(self) -> Snapshot:
        """The epoch that a statement which begins now is of."""
        if self._pinned is not None:
            return self._pinned
        found = self._snapshots.newest() if self.moment is None else self._snapshots.at(self.moment)
        if self.in_transaction:
            self._pinned = found
        return found

    def use_moment(self, text: str) -> None:
        """Statements are of a past epoch from now on: its number, a savepoint or a time. Empty: of the newest."""
        if self.in_transaction and self._pinned is not None:
            raise StatementFailed(
                "a transaction stays with its epoch", code="25001", next_move="end it first: COMMIT",
            )  # fmt: skip
        try:
            moment = parse_moment(text) if text else None
        except ProgramError as error:
            raise StatementFailed(error.what, code=BAD_SETTING, expected=error.expected, found=error.found) from None
        if moment is not None:
            self._snapshots.at(moment)
        self.moment = moment

    def begin(self) -> None:
        self.in_transaction = True

    def end(self) -> None:
        self.in_transaction = False
        self._pinned = None

    # --- tables

    def tables(self) -> Tables:
        """The tables of the epoch, by name."""
        self._current = snapshot = self.snapshot()
        self._tables = self.engine.tables(snapshot, self._may_read, self._scope)
        return self._tables

    @property
    def epoch(self) -> int:
        """The epoch of the last statement; −1 before the first."""
        return -1 if self._current is None else self._current.epoch

    # --- statements

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> StatementAnswer:
        """The answer to one statement. Its rows are computed as they are taken, before the next statement is run."""
        command = parse_command(statement)
        if command is not None:
            return self._command(command)
        with self._lock:
            self._canceled, self._failure = False, None
        connection = self.connection()
        try:
            return self._select(connection, statement, parameters)
        except HeadraceError:
            raise
        except Exception as error:
            raise self._error(error, statement) from None

    def connection(self) -> ReadConnection:
        """A connection to a database with the tables of the epoch."""
        tables = self.tables()
        signature = signature_of(tables)
        if self._connected is None or self._connected[0] != signature:
            database = self.engine.database(signature, tables)
            self.close()
            self._connected = signature, database.connect(self._reader)
        return self._connected[1]

    def _select(self, connection: ReadConnection, statement: str, parameters: Sequence[Any]) -> StatementAnswer:
        statements = connection.inner.extract_statements(statement)
        if len(statements) != 1:
            raise StatementFailed("one statement at a time", code=SYNTAX, found=f"{len(statements)} statements")
        kind = statements[0].type.name
        if kind not in _READING:
            raise read_only(kind)
        query = with_literals(statements[0].query, parameters)
        if kind == "EXPLAIN":
            rows = connection.inner.execute(query).fetchall()
            lines = [line for *_, text in rows for line in str(text).splitlines()]
            table = pa.table({"plan": pa.array(lines, pa.string())})
            return StatementAnswer(table.schema, iter(table.to_batches()), self.epoch)
        timer = self._timer()
        try:
            reader = connection.inner.sql(query).to_arrow_reader(BATCH_ROWS)
        except Exception as error:
            timer.cancel()
            if type(error).__name__ in _UNBOUND:
                # A relation that cannot be bound does not say the place; a statement that cannot be is never run.
                connection.inner.execute(query)
            raise
        except BaseException:
            timer.cancel()
            raise
        return StatementAnswer(reader.schema, self._batches(reader, timer, statement), self.epoch)

    def schema_of(self, statement: str, parameters: Sequence[Any]) -> pa.Schema:
        """The columns that the answer would have; nothing is run."""
        inner = self.connection().inner
        query = with_literals(statement, parameters)
        try:
            kinds = [each.type.name for each in inner.extract_statements(query)]
            if kinds == ["EXPLAIN"]:
                return pa.schema([("plan", pa.string())])
            if kinds != ["SELECT"]:
                raise read_only(", ".join(kinds))
            return _schema_of(inner, query)
        except HeadraceError:
            raise
        except Exception as error:
            raise self._error(error, statement) from None

    @property
    def is_open(self) -> bool:
        """Whether a statement's epoch is there without reading files."""
        return self._pinned is not None or (self.moment is None and self._snapshots.ready())

    def _batches(
        self, reader: pa.RecordBatchReader, timer: threading.Timer, statement: str
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except HeadraceError:
            raise
        except Exception as error:
            raise self._error(error, statement) from None
        finally:
            timer.cancel()

    def _timer(self) -> threading.Timer:
        timer = threading.Timer(self.engine.statement_s, self.cancel)
        timer.daemon = True
        timer.start()
        return timer

    def _error(self, error: Exception, statement: str) -> HeadraceError:
        failure = self._failure
        if isinstance(failure, HeadraceError):
            return failure
        if self._canceled:
            return _canceled(self.engine.statement_s)
        return of_duckdb(error, statement)

    def cancel(self) -> None:
        """Ends the statement that runs."""
        with self._lock:
            self._canceled = True
            connected = self._connected
        if connected is not None:
            connected[1].interrupt()

    def close(self) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            connected[1].close()

    # --- scans

    def _reader(self, name: TableName) -> Callable[..., Iterator[pl.DataFrame]]:
        def read(
            with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
        ) -> Iterator[pl.DataFrame]:
            try:
                table: StateTable = self._tables[name]
                yield from read_table(table, self.engine.kept, with_columns, predicate, n_rows, self._go_on)
            except BaseException as error:
                # What goes through DuckDB comes out as text.
                self._failure = error
                raise

        return read

    def _go_on(self) -> None:
        if self._canceled:
            raise _canceled(self.engine.statement_s)

    # --- commands

    def _command(self, command: SessionCommand) -> StatementAnswer:
        match command.verb:
            case "BEGIN":
                self.begin()
            case "COMMIT" | "ROLLBACK":
                self.end()
            case "SET" | "RESET":
                self.use_moment(command.value)
            case "SHOW":
                return self._shown(command.name)
        return StatementAnswer(pa.schema([]), iter(()), self.epoch, command.verb)

    def _shown(self, name: str) -> StatementAnswer:
        if name == "tables":
            self.tables()
            column = pa.array([str(each) for each in self._tables], pa.string())
            table = pa.table({"table": column})
        elif name == "at":
            table = pa.table({"at": pa.array(["newest" if self.moment is None else str(self.moment)])})
        else:
            table = pa.table({"epoch": pa.array([self.snapshot().epoch])})
        return StatementAnswer(table.schema, iter(table.to_batches()), self.epoch)


def _schema_of(inner: duckdb.DuckDBPyConnection, query: str) -> pa.Schema:
    try:
        relation = inner.sql(query)
    except Exception:
        # A statement that cannot be bound says where; see above.
        inner.execute(query)
        raise
    named = zip(relation.types, relation.columns)
    nulls = ", ".join(f"NULL::{kind} AS {quoted(name)}" for kind, name in named)
    schema: pa.Schema = inner.sql(f"SELECT {nulls} LIMIT 0").to_arrow_table().schema
    return schema


def _canceled(most_s: float) -> StatementFailed:
    return StatementFailed(
        "the statement was canceled",
        code=CANCELED,
        expected=f"an answer within {most_s:g} s, and nobody who cancels it",
        next_move="ask for fewer rows, or let the server take longer: --sql-timeout-s",
    )
