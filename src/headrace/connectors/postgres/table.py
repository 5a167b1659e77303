"""The table that rows go to: made from their type, or compared with it.

A table that is there is never altered. What does not fit is told as one list, with what would mend it, before the first
epoch: a column that is missing or of another type, one that must be filled and is not ours, a null that has no place,
a key without an index that says it is one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.connectors.postgres.binary import FITS as FITS_BINARY
from headrace.connectors.postgres.server import Kind, TableColumn, quoted
from headrace.errors import SinkFailed

if TYPE_CHECKING:
    import psycopg

EPOCHS_TABLE: Final = "headrace_epochs"
"""Stands in the schema of the table, and says which epoch of an output is the newest in there."""

_FITS: Final[dict[Kind, tuple[str, ...]]] = {
    "int": ("int8", "int4", "int2", "numeric"),
    "float": ("float8", "numeric"),
    "bool": ("bool",),
    "text": ("text", "varchar", "citext"),
    "bytes": ("bytea",),
    "moment": ("timestamptz", "timestamp"),
    "span": ("interval",),
    "date": ("date",),
    "clock": ("time",),
    "decimal": ("numeric",),
    "uuid": ("uuid", "text", "varchar"),
    "json": ("jsonb", "json"),
}
"""Types of a column that is there already and takes every such value, or refuses it aloud; a column of single
precision would take it and lose digits."""

_COLUMNS: Final = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(b.typname, t.typname), coalesce(e.typname, ''),
       coalesce(b.typtype, t.typtype) = 'e', a.attnotnull OR t.typnotnull, a.atthasdef OR a.attidentity <> '',
       a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type b ON b.oid = t.typbasetype AND t.typtype = 'd'
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE: Final = """
SELECT array_agg(a.attname::text)
FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
  AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid
"""


class _TableColumn(NamedTuple):
    """A column of a table that is there."""

    name: str
    shown: str
    type: str
    item: str
    is_enum: bool
    not_null: bool
    filled: bool
    """Whether it gets a value where none is given."""
    computed: bool
    """Whether it takes none."""


class PostgresTarget(NamedTuple):
    """A table, as the user named it."""

    name: tuple[str, ...]
    where: str

    @property
    def sql(self) -> str:
        return ".".join(map(quoted, self.name))

    def beside(self, name: str) -> PostgresTarget:
        """Another table of the same schema."""
        return self._replace(name=(*self.name[:-1], name))


def create_statement(target: PostgresTarget, columns: Sequence[TableColumn], key: Sequence[str]) -> str:
    """The table as this sink would make it."""
    lines = [f"{quoted(c.name)} {c.ddl}" + ("" if c.nullable else " NOT NULL") for c in columns]
    if key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
    inside = ",\n    ".join(lines)
    return f"CREATE TABLE {target.sql} (\n    {inside}\n)"


def epochs_statement(target: PostgresTarget) -> str:
    """The table that says which epoch is the newest, as this sink would make it."""
    return (
        f"CREATE TABLE {target.beside(EPOCHS_TABLE).sql} (job text, output text, timeline bigint NOT NULL, "
        "epoch bigint NOT NULL, released_at timestamptz NOT NULL, PRIMARY KEY (job, output))"
    )


def prepare_table(
    connection: psycopg.Connection[Any],
    target: PostgresTarget,
    columns: Sequence[TableColumn],
    key: Sequence[str],
    *,
    create: bool,
    epochs: bool,
) -> bool:
    """Makes what is missing, where it may, and compares what is there. Raises SinkFailed.

    Returns whether all columns read the binary form of their values.
    """
    with connection.transaction():
        # Two jobs that start together must not both find that the table is missing.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (zlib.crc32(EPOCHS_TABLE.encode()),))
        if _id_of(connection, target) is None:
            _make(connection, target, create_statement(target, columns, key), create=create)
        table = _id_of(connection, target)
        found = _read_columns(connection, table)
        differences = _differences(connection, table, found, columns, key)
        if differences:
            raise SinkFailed(
                f"the table {'.'.join(target.name)} does not fit the rows",
                where=target.where,
                expected=f"a table as from\n{create_statement(target, columns, key)}",
                found="\n".join(f"- {each}" for each in differences),
                next_move="alter the table, select other columns before writing, or name a table that is not there yet",
            )
        if epochs and _id_of(connection, target.beside(EPOCHS_TABLE)) is None:
            _make(connection, target.beside(EPOCHS_TABLE), epochs_statement(target), create=create)
    return all(_reads_binary(column, found[column.name]) for column in columns)


def prepare_beside(
    connection: psycopg.Connection[Any], tables: Sequence[tuple[PostgresTarget, str]], *, create: bool
) -> None:
    """Makes tables of ours that are missing, each by its statement, where it may. Raises SinkFailed."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (zlib.crc32(EPOCHS_TABLE.encode()),))
        for target, statement in tables:
            if _id_of(connection, target) is None:
                _make(connection, target, statement, create=create)


def writable_columns(connection: psycopg.Connection[Any], target: PostgresTarget) -> list[str]:
    """The columns of a table that is there, but for those that it computes itself."""
    found = _read_columns(connection, _id_of(connection, target))
    return [each.name for each in found.values() if not each.computed]


def _make(connection: psycopg.Connection[Any], target: PostgresTarget, statement: str, *, create: bool) -> None:
    if not create:
        raise SinkFailed(
            f"there is no table {'.'.join(target.name)}",
            where=target.where,
            expected="a table that is there, because of create=False",
            found="none of this name in the database",
            next_move=f"create it, or leave create= out:\n{statement}",
        )
    connection.execute(statement)


def _id_of(connection: psycopg.Connection[Any], target: PostgresTarget) -> int | None:
    found = connection.execute("SELECT to_regclass(%s)::oid::bigint", (target.sql,)).fetchone()
    assert found is not None
    return None if found[0] is None else int(found[0])


def _read_columns(connection: psycopg.Connection[Any], table: int | None) -> dict[str, _TableColumn]:
    return {row[0]: _TableColumn(*row) for row in connection.execute(_COLUMNS, (table,)).fetchall()}


def _differences(
    connection: psycopg.Connection[Any],
    table: int | None,
    found: dict[str, _TableColumn],
    columns: Sequence[TableColumn],
    key: Sequence[str],
) -> list[str]:
    kind = connection.execute("SELECT relkind FROM pg_class WHERE oid = %s", (table,)).fetchone()
    if kind is None or kind[0] not in ("r", "p", b"r", b"p"):
        return ["it is no table, and rows can be copied into tables only"]
    told = [each for column in columns for each in _column_differences(column, found.get(column.name))]
    ours = {column.name for column in columns}
    told += [
        f"{quoted(each.name)} {each.shown} is NOT NULL and has no default, and rows have no such field"
        for each in found.values()
        if each.name not in ours and each.not_null and not each.filled and not each.computed
    ]
    unique = [set(row[0]) for row in connection.execute(_UNIQUE, (table,)).fetchall()]
    if key and set(key) <= found.keys() and set(key) not in unique:
        told.append(f"no unique index on ({', '.join(map(quoted, key))}), which is what key= needs")
    return told


def _column_differences(column: TableColumn, found: _TableColumn | None) -> list[str]:
    name = quoted(column.name)
    if found is None:
        return [f"{name} {column.ddl} is missing"]
    if found.computed:
        return [f"{name} is computed by the table and takes no value"]
    told = []
    if not _fits(column, found):
        told.append(f"{name} is {found.shown}, rows have {column.ddl}")
    if column.nullable and found.not_null:
        told.append(f"{name} is NOT NULL, rows may have none")
    return told


def _fits(column: TableColumn, found: _TableColumn) -> bool:
    if column.array:
        return found.item in _FITS[column.kind]
    return found.type in _FITS[column.kind] or (column.kind == "text" and found.is_enum)


def _reads_binary(column: TableColumn, found: _TableColumn) -> bool:
    types = FITS_BINARY[column.kind]
    if column.array:
        # An array says the type of its items in its bytes, and takes no other.
        return found.item == types[0]
    return found.type in types or (column.kind == "text" and found.is_enum)
