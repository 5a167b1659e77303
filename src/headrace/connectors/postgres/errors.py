"""What Postgres says no to, in words: which table, column and row, and what to do.

Whether trying again may help is decided by the SQLSTATE. An error without one is of the connection itself.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.connectors.postgres.binary import show_row
from headrace.connectors.postgres.rows import BINARY
from headrace.connectors.postgres.server import Kind, psycopg_module, quoted, why_not
from headrace.errors import SinkFailed, SinkUnavailable

if TYPE_CHECKING:
    import psycopg

    from headrace.connectors.postgres.table import PostgresTarget
    from headrace.model.report import StagedPart

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
