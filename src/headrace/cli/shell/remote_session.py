"""A shell over a server that speaks Postgres' protocol: state that is served elsewhere, or beside a job that runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.cli.shell.session import ShellAnswer, ShellColumn
from headrace.cli.shell.store_session import FUNCTIONS
from headrace.errors import StatementFailed, Unreachable
from headrace.model.columns import TIMESTAMP
from headrace.model.packages import package

if TYPE_CHECKING:
    import psycopg

_TYPES: Final = {
    16: pa.bool_(), 17: pa.binary(), 20: pa.int64(), 21: pa.int64(), 23: pa.int64(), 25: pa.string(),
    700: pa.float64(), 701: pa.float64(), 1082: pa.date32(), 1114: pa.timestamp("us"), 1184: TIMESTAMP,
}  # fmt: skip
"""Types of Postgres → columns; any other is told by its values."""
_TABLES: Final = (
    "SELECT CASE table_schema WHEN 'public' THEN table_name ELSE table_schema || '.' || table_name END "
    "FROM information_schema.tables ORDER BY 1"
)
_COLUMNS: Final = (
    "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)


class RemoteSession:
    """Statements for one server."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._tables: list[str] | None = None

    @property
    def title(self) -> str:
        return f"{self._connection.info.dbname}> "

    def tables(self) -> Sequence[str]:
        # Asked for while a person types: the server is asked once.
        if self._tables is None:
            self._tables = [str(name) for (name,) in self._connection.execute(_TABLES).fetchall()]
        return self._tables

    def columns(self, table: str) -> Sequence[ShellColumn]:
        schema, _, name = table.rpartition(".")
        rows = self._connection.execute(_COLUMNS, [schema or "public", name]).fetchall()
        if not rows:
            raise StatementFailed(
                f"there is no table {table!r}", code="42P01", expected=" or ".join(self.tables()) or "a state"
            )
        return [ShellColumn(column, kind, "key" if nullable == "NO" else "") for column, kind, nullable in rows]

    def functions(self) -> Sequence[str]:
        return FUNCTIONS

    def execute(self, text: str) -> ShellAnswer:
        import psycopg

        try:
            cursor = self._connection.execute(text.encode())
            if cursor.description is None:
                return ShellAnswer(message=cursor.statusmessage or "")
            columns = list(zip(*cursor.fetchall())) or [()] * len(cursor.description)
        except psycopg.OperationalError as error:
            if error.sqlstate is None:
                raise Unreachable("the server is gone", found=str(error).strip()) from None
            raise _failed(error) from None
        except psycopg.Error as error:
            raise _failed(error) from None
        arrays = [_column(values, each.type_code) for values, each in zip(columns, cursor.description)]
        table = pa.table(arrays, names=[each.name for each in cursor.description])
        return ShellAnswer(table.schema, table.to_batches())

    def close(self) -> None:
        self._connection.close()


def _column(values: Sequence[Any], oid: int) -> pa.Array:
    kind = _TYPES.get(oid)
    if kind is None:
        return pa.array([str(value) if isinstance(value, dict) else value for value in values])
    return pa.array(values, kind)


def _failed(error: psycopg.Error) -> StatementFailed:
    diag = error.diag
    place = diag.statement_position
    return StatementFailed(
        diag.message_primary or str(error),
        code=error.sqlstate or "XX000",
        place=None if place is None else int(place) - 1,
        where="" if place is None else f"character {place}",
        found=(diag.message_detail or "").removeprefix("found: "),
        next_move=diag.message_hint or "",
    )


def open_remote_session(url: str) -> RemoteSession:
    """A session with a server. ``url``: ``postgresql://USER:TOKEN@HOST:PORT/APP``."""
    with package("psycopg", extra="postgres", where="--to"):
        import psycopg
    try:
        return RemoteSession(psycopg.connect(url, autocommit=True))
    except psycopg.Error as error:
        raise Unreachable(
            "the server cannot be reached",
            where=url.rpartition("@")[2],
            expected="postgresql://USER:TOKEN@HOST:PORT/APP of `headrace serve --pg-port PORT`",
            found=str(error).strip().splitlines()[-1],
            next_move="start it with --pg-port, or look whether the token is right",
        ) from None
