"""What Postgres calls things: the type of a column, the name of a table, a connection that tells why there is none.

Shared by the sink that writes tables and the source that reads them. psycopg is imported when somebody connects: a
program is built, explained and tested without it.

| annotation | column |
|---|---|
| ``int`` ``float`` ``bool`` ``str`` ``bytes`` | bigint, double precision, boolean, text, bytea |
| ``Timestamp`` ``datetime`` | timestamp with time zone |
| ``Duration`` ``timedelta`` | interval |
| ``date`` ``time`` ``Decimal`` ``UUID`` | date, time, numeric, uuid |
| ``Enum`` ``Literal`` | the type of their values |
| ``list`` ``set`` ``tuple[T, ...]`` of the above | an array |
| anything else: dicts, Records, unions, ``Any`` | jsonb |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, NewType
from uuid import UUID

import pyarrow as pa

from headrace.connectors.sink_contract import HiddenValue
from headrace.errors import ProgramError
from headrace.model.columns import Column, ListColumn
from headrace.model.packages import package
from headrace.model.shapes import split_optional
from headrace.model.time import Duration, Timestamp

if TYPE_CHECKING:
    import psycopg

    from headrace.model.rows import RowCodec

Kind = Literal[
    "int", "float", "bool", "text", "bytes", "moment", "span", "date", "clock", "decimal", "uuid", "json"
]  # fmt: skip

DDL: Final[dict[Kind, str]] = {
    "int": "bigint",
    "float": "double precision",
    "bool": "boolean",
    "text": "text",
    "bytes": "bytea",
    "moment": "timestamp with time zone",
    "span": "interval",
    "date": "date",
    "clock": "time without time zone",
    "decimal": "numeric",
    "uuid": "uuid",
    "json": "jsonb",
}

_BY_ANNOTATION: Final[dict[Any, Kind]] = {
    Timestamp: "moment",
    datetime: "moment",
    Duration: "span",
    timedelta: "span",
    date: "date",
    time: "clock",
    Decimal: "decimal",
    UUID: "uuid",
}
_BY_ARROW: Final[dict[pa.DataType, Kind]] = {
    pa.int64(): "int",
    pa.float64(): "float",
    pa.bool_(): "bool",
    pa.string(): "text",
    pa.binary(): "bytes",
}


@dataclass(frozen=True)
class TableColumn:
    """A field of a row type as a column of a table."""

    name: str
    annotation: Any
    kind: Kind
    """Of the column, or of the items where it is an array."""
    array: bool
    nullable: bool
    column: Column

    @property
    def bare(self) -> Any:
        """The annotation of a value, or of an item where it is an array, without None."""
        bare, _ = split_optional(self.annotation)
        return _item_annotation(bare) if self.array else bare

    @property
    def ddl(self) -> str:
        return DDL[self.kind] + ("[]" if self.array else "")

    @property
    def item(self) -> Column:
        return self.column.item if self.array and isinstance(self.column, ListColumn) else self.column


def table_columns(codec: RowCodec) -> list[TableColumn]:
    """The columns that rows of this type have in a table, in the order of the fields."""
    return [_column(name, codec.annotations[name], codec.columns[name]) for name in codec.names]


def _column(name: str, annotation: Any, column: Column) -> TableColumn:
    bare, nullable = split_optional(annotation)
    kind, array = _kind(bare, column), False
    if kind is None and isinstance(column, ListColumn):
        kind, array = _kind(_item_annotation(bare), column.item), True
    if kind is None:
        kind, array = "json", False
    return TableColumn(name, annotation, kind, array, nullable, column)


def _item_annotation(bare: Any) -> Any:
    return split_optional(next(part for part in bare.__args__ if part is not Ellipsis))[0]


def _kind(bare: Any, column: Column) -> Kind | None:
    """The kind of a plain value; None for one that has parts."""
    if column.packed:
        return None
    if isinstance(bare, type | NewType) and bare in _BY_ANNOTATION:
        return _BY_ANNOTATION[bare]
    return _BY_ARROW.get(column.arrow)


# --- names


def quoted(name: str) -> str:
    """A name as SQL reads it back, whatever is in it.

    >>> quoted('odd "name"')
    '"odd ""name""\"'
    """
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    """Names in a list, as SQL reads them back."""
    return ", ".join(map(quoted, names))


def text_literal(text: str) -> str:
    """Text as SQL reads it back, whatever ``standard_conforming_strings`` says."""
    doubled = text.replace("'", "''")
    return "E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in text else f"'{doubled}'"


def split_name(text: str, where: str) -> tuple[str, ...]:
    """A table's name, with its schema where one is given. Parts are as written; a part with a dot stands in quotes.

    >>> split_name("sales", ""), split_name("shop.sales", ""), split_name('shop."odd.name"', "")
    (('sales',), ('shop', 'sales'), ('shop', 'odd.name'))
    """
    parts: list[str] = []
    rest = text
    while True:
        if rest.startswith('"'):
            end = _closing_quote(rest)
            part = rest[1:end].replace('""', '"') if end < len(rest) else ""
            rest = rest[end + 1 :]
        else:
            part, dot, after = rest.partition(".")
            rest = dot + after
        parts.append(part)
        if not rest.startswith("."):
            break
        rest = rest[1:]
    if rest or len(parts) > 2 or not all(parts) or "\0" in text:
        raise ProgramError(
            "invalid table name",
            where=where,
            expected="table or schema.table; a name with a dot in double quotes",
            found=repr(text),
            next_move="""write it as in 'shop.sales' or 'shop."sales.2024"'""",
        )
    return tuple(parts)


def _closing_quote(text: str) -> int:
    at = 1
    while at < len(text):
        if text[at] != '"':
            at += 1
        elif text[at + 1 : at + 2] == '"':
            at += 2
        else:
            return at
    return len(text)


# --- connections


def psycopg_module() -> Any:
    """psycopg, or in words how to get it."""
    with package("psycopg", extra="postgres", where="postgres"):
        import psycopg
    return psycopg


def open_connection(dsn: str, name: str) -> psycopg.Connection[Any]:
    """A connection that commits only what is in a transaction of ours. Raises psycopg.Error."""
    made: psycopg.Connection[Any] = psycopg_module().connect(**connection_arguments(dsn, name), autocommit=True)
    return made


def connection_arguments(dsn: str, name: str) -> dict[str, Any]:
    """What to connect with: the DSN, and what it leaves open. Raises psycopg.Error."""
    psycopg_module()
    from psycopg.conninfo import conninfo_to_dict

    ours = {
        "application_name": name[:63],
        "connect_timeout": 10,
        # A server that vanished without a word is noticed within a minute, not within two hours.
        "keepalives_idle": 20,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }
    given = conninfo_to_dict(dsn.reveal() if isinstance(dsn, HiddenValue) else dsn)
    # Statements are not prepared: behind a pooler the next one may run on another connection.
    return {**ours, **given, "client_encoding": "utf8", "prepare_threshold": None}


def why_not(error: BaseException, dsn: str) -> str:
    """What the client or the server said, without the password should it be in there."""
    told = " ".join(str(error).split()) or type(error).__name__
    try:
        from psycopg.conninfo import conninfo_to_dict

        password = conninfo_to_dict(str(dsn)).get("password")
    except Exception:
        # What could not be read is quoted by the client, and may be anything, also the password.
        return "the DSN cannot be read"
    return told.replace(str(password), "…") if password else told
