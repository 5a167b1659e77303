"""DuckDB over the tables of an epoch: it plans and computes, and asks for the columns and rows that a statement needs.

A database holds views, one for each table, and no rows. Each view reads what its connection has registered under the
table's inner name: a lazy frame, which DuckDB asks for columns and hands its filters. So tables of any epoch that have
the same columns are read through one database, and a connection says which epoch that is.

Invariants
- SQL reaches no file, no network, no Python variable and no setting: external access is off, and the configuration is
  locked before the first statement.
- Memory is bounded: DuckDB fails a statement that needs more, and nothing is spilled to a disk.
- A filter that is handed on is applied before rows are given: DuckDB does not check it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from headrace.model.packages import package
from headrace.snapshots.column_memory import ColumnMemory, frame_of_batch
from headrace.snapshots.key_filters import keys_of
from headrace.snapshots.table import PUBLIC, StateTable, TableName

if TYPE_CHECKING:
    import duckdb

MEMORY_MB: Final = 512
_INNER: Final = "__headrace_{}"

Signature = tuple[tuple[TableName, str], ...]
Tables = Mapping[TableName, StateTable]


def signature_of(tables: Tables) -> Signature:
    """Equal for tables that one database can be made for."""
    return tuple((name, table.schema.to_string(show_field_metadata=False)) for name, table in sorted(tables.items()))


def inner_names(names: Sequence[TableName]) -> dict[TableName, str]:
    """Table → what connections register it as."""
    return {name: _INNER.format(number) for number, name in enumerate(sorted(names))}


class Database:
    """The views of one set of tables."""

    def __init__(self, tables: Tables, *, memory_mb: int = MEMORY_MB, threads: int = 0) -> None:
        """``threads``: of DuckDB; 0: as many as there are cores."""
        with package("duckdb", extra="sql", where="SQL over state"):
            import duckdb

        config: dict[str, Any] = {
            "python_enable_replacements": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "memory_limit": f"{memory_mb}MB",
            "temp_directory": "",
            "errors_as_json": "true",
        }
        if threads:
            config["threads"] = str(threads)
        self._root = duckdb.connect(":memory:", config=config)
        self._schemas = {name: polars_schema(table.schema) for name, table in tables.items()}
        self._inner = inner_names(list(tables))
        # Views are bound where they are made, too: to frames without rows.
        self._register(self._root, lambda name: None)
        for schema in sorted({name.schema for name in tables} | {PUBLIC}):
            self._root.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
        for name, inner in self._inner.items():
            self._root.execute(
                f"CREATE VIEW {quoted(name.schema)}.{quoted(name.table)} AS SELECT * FROM temp.main.{inner}"
            )
        self._unregister(self._root)
        for setting in ("TimeZone = 'UTC'", "enable_external_access = false", "lock_configuration = true"):
            self._root.execute(f"SET GLOBAL {setting}")

    def connect(self, read: Callable[[TableName], Callable[..., Iterator[pl.DataFrame]]]) -> ReadConnection:
        """``read``: makes of a table's name what reads it, given columns and a filter."""
        connection = self._root.cursor()
        connection.execute(f"USE {PUBLIC}")
        self._register(connection, read)
        return ReadConnection(connection, list(self._inner.values()))

    def close(self) -> None:
        self._root.close()

    def _unregister(self, connection: duckdb.DuckDBPyConnection) -> None:
        for inner in self._inner.values():
            connection.unregister(inner)

    def _register(self, connection: duckdb.DuckDBPyConnection, read: Callable[[TableName], Any]) -> None:
        for name, inner in self._inner.items():
            source = read(name)
            connection.register(inner, register_io_source(source or _nothing, schema=self._schemas[name]))


class ReadConnection:
    """A connection of one session. Used by one thread at a time, and interrupted by any."""

    def __init__(self, inner: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
        """``names``: of the frames that it has registered."""
        self.inner = inner
        self._names = names

    def interrupt(self) -> None:
        with contextlib.suppress(Exception):
            self.inner.interrupt()

    def close(self) -> None:
        # A frame that a closed connection still has is never let go of.
        for name in self._names:
            self.inner.unregister(name)
        self.inner.close()


def read_table(
    table: StateTable,
    kept: ColumnMemory,
    columns: Sequence[str] | None,
    predicate: pl.Expr | None,
    rows: int | None,
    go_on: Callable[[], None],
) -> Iterator[pl.DataFrame]:
    """The rows of a table as a scan asks for them. ``go_on`` raises where the statement was canceled."""
    names = [column.name for column in table.columns] if columns is None else list(columns)
    needed = names if predicate is None else list(dict.fromkeys([*names, *predicate.meta.root_names()]))
    keys = keys_of(predicate, table)
    pieces = kept.frames(table, needed) if keys is None else iter((frame_of_batch(table.rows_of(keys, needed)),))
    left = rows
    for piece in pieces:
        go_on()
        wanted = piece if predicate is None else piece.filter(predicate)
        if left is not None:
            wanted = wanted.head(left)
            left -= wanted.height
        yield wanted.select(names)
        if left == 0:
            return


def _nothing(
    with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
) -> Iterator[pl.DataFrame]:
    return iter(())


def polars_schema(schema: pa.Schema) -> dict[str, Any]:
    """The types that polars has for the columns of a table."""
    return dict(frame_of_batch(pa.RecordBatch.from_pylist([], schema)).schema)


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever it is made of."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
