"""``INSERT INTO``: the rows of a query as those of a table, by the places of their columns, and its sink behind them.

Values are stored as Spark stores them in ANSI mode: what fits by a widening or as text goes in, anything else needs a
cast that somebody wrote.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.dataflow.site import Site
from headrace.dataflow.stream import Stream
from headrace.errors import ProgramError
from headrace.model.rows import codec_of
from headrace.model.shapes import spark_type
from headrace.sql.expr import quote_name
from headrace.tables.declared import DeclaredTable, in_statement
from headrace.tables.dialect import ParsedStatement
from headrace.tables.statements import InsertInto


def insert_rows(
    table: DeclaredTable, statement: InsertInto, rows: Stream[Any], parsed: ParsedStatement, output: str, site: Site
) -> None:
    """Writes the rows of a query to the sink of a table."""
    fitted = fit_columns(table, statement, rows, parsed, site)
    sink = table.open_sink()
    with in_statement(parsed, statement.target_at, site):
        fitted.write(sink, name=output)


def fit_columns(
    table: DeclaredTable, statement: InsertInto, rows: Stream[Any], parsed: ParsedStatement, site: Site
) -> Stream[Any]:
    """The rows with the columns of the table: their names, their order and their types."""
    wanted = codec_of(table.write_type())
    names = _targets(table, statement, list(wanted.schema.names), parsed, site)
    given = rows.node.codec.schema
    if len(names) != len(given.names):
        raise _error(
            parsed, statement.target_at, site,
            f"the query gives {len(given.names)} columns, and {len(names)} are to be filled",
            expected=f"{statement.target}: {', '.join(names)}",
            next_move=f"the query gives {', '.join(given.names)}: name the columns that it fills, "
            f"INSERT INTO {statement.target} ({', '.join(names[: len(given.names)])}) SELECT …",
        )  # fmt: skip
    columns = {name: quote_name(column) for name, column in zip(names, given.names, strict=True)}
    same = given.equals(wanted.schema) and set(rows.node.codec.required) == set(wanted.required)
    if same and columns == {name: quote_name(name) for name in wanted.schema.names}:
        return rows
    ordered = {field.name: columns.get(field.name, _null(field)) for field in wanted.schema}
    with in_statement(parsed, statement.query.offset, site):
        return rows.select(table.write_type(), **ordered)


def _null(field: pa.Field) -> str:
    return f"CAST(NULL AS {spark_type(field.type)})"


def _targets(
    table: DeclaredTable, statement: InsertInto, written: list[str], parsed: ParsedStatement, site: Site
) -> list[str]:
    """The columns that are filled, in the order of the query's."""
    if not statement.columns:
        return written
    low = {name.lower(): name for name in written}
    for name in statement.columns:
        if name.lower() not in low:
            raise _error(
                parsed, statement.target_at, site, f"{table.name} has no column {name!r} to write",
                expected=f"columns among {', '.join(written)}",
            )  # fmt: skip
    filled = [low[name.lower()] for name in statement.columns]
    required = [name for name in codec_of(table.write_type()).required if name not in filled]
    if required:
        raise _error(
            parsed, statement.target_at, site, f"{', '.join(required)} cannot be left out: NOT NULL",
            expected=f"all columns of {table.name} that have to have a value",
        )  # fmt: skip
    return filled


def _error(parsed: ParsedStatement, at: int, site: Site, what: str, **parts: str) -> ProgramError:
    error = ProgramError(what, where=parsed.where(at, str(site)), found=parsed.point(at), **parts)
    error.in_query = True  # type: ignore[attr-defined]
    return error
