"""Parameters of a statement: how many it has, what type each is compared with, and their values as literals.

A value stands in the place of its parameter as a literal, because DuckDB takes the type of a literal of text from what
it is compared with, as Postgres does, and takes a parameter's from its value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import sqlglot
from sqlglot import exp

from headrace.errors import StatementFailed
from headrace.snapshots.errors import BAD_TEXT

if TYPE_CHECKING:
    from headrace.snapshots.table import StateTable, TableName

_TOKENS: Final = re.compile(
    r"[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|\$\$.*?\$\$|(?<![\w$])\$(\d{1,5})\b",
    re.DOTALL,
)
"""Texts, names and comments, in which nothing is a parameter; and parameters."""
_TYPES: Final = {"INT": pa.int64(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "TEXT": pa.string()}


@lru_cache(4096)
def parameter_count(statement: str) -> int:
    """How many parameters a statement has: ``$3`` is the third of three.

    >>> parameter_count("SELECT '$9' WHERE a = $2")
    2
    """
    return max((int(found[1]) for found in _TOKENS.finditer(statement) if found[1]), default=0)


def with_literals(statement: str, parameters: Sequence[Any]) -> str:
    """A statement with values in the places of its parameters.

    >>> with_literals("SELECT '$1' WHERE a = $1 AND b > $2", ["it's", 3])
    "SELECT '$1' WHERE a = 'it''s' AND b > 3"
    """

    def replace(found: re.Match[str]) -> str:
        if not found[1]:
            return found[0]
        place = int(found[1])
        if not 1 <= place <= len(parameters):
            raise StatementFailed(
                f"there is no parameter ${place}", code="42P02", found=f"{len(parameters)} values", place=found.start()
            )
        return _literal(parameters[place - 1])

    return _TOKENS.sub(replace, statement) if parameters else statement


def _literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value) if value >= 0 else f"({value})"
        case float():
            return f"'{value!r}'::DOUBLE"
        case Decimal():
            return f"'{value:f}'" if not value.is_finite() else f"({value:f})"
        case bytes():
            return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
        case datetime():
            return f"'{value.isoformat(' ')}'::TIMESTAMP{'TZ' if value.tzinfo else ''}"
        case date():
            return f"'{value.isoformat()}'::DATE"
    text = str(value)
    if "\0" in text:
        raise StatementFailed("a text with a zero byte cannot be asked for", code=BAD_TEXT)
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def parameter_types(statement: str, tables: Mapping[TableName, StateTable]) -> dict[int, pa.DataType]:
    """Place of a parameter, from 0 → the type of the column or cast that it stands beside, as far as that is plain."""
    try:
        tree = sqlglot.parse_one(statement, read="postgres")
    except sqlglot.errors.SqlglotError:
        return {}
    used = {each.name for each in tree.find_all(exp.Table)}
    columns = {
        column.name: column.type.arrow
        for name, table in tables.items()
        if name.table in used
        for column in table.columns
    }
    found: dict[int, pa.DataType] = {}
    for parameter in tree.find_all(exp.Parameter):
        kind = _kind_beside(parameter, columns)
        if kind is not None and parameter.name.isdecimal():
            found[int(parameter.name) - 1] = kind
    return found


def _kind_beside(parameter: exp.Parameter, columns: Mapping[str, pa.DataType]) -> pa.DataType | None:
    parent = parameter.parent
    if isinstance(parent, exp.Limit | exp.Offset):
        return pa.int64()
    if isinstance(parent, exp.Cast):
        return _TYPES.get(parent.to.sql("postgres").split("(")[0].split(" ")[0])
    if isinstance(parent, exp.EQ | exp.NEQ | exp.GT | exp.GTE | exp.LT | exp.LTE | exp.Between | exp.In):
        beside = next(parent.find_all(exp.Column), None)
        return None if beside is None else columns.get(beside.name)
    return None
