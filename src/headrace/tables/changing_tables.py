"""Tables of DDL whose rows replace each other and go: changes as Debezium writes them, and topics of upserts.

Both need a PRIMARY KEY, by which rows are known. Their source brings what came, a step behind it, which keeps the row
of each key, makes a changelog of the rows of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.dataflow.stream import Stream
from headrace.model.record import row_type
from headrace.model.shapes import column_of, spark_type, split_optional
from headrace.sql.expr import quote_name
from headrace.tables.column_types import type_name_of
from headrace.tables.options import plain_value

if TYPE_CHECKING:
    from headrace.tables.declared import DeclaredTable

DEBEZIUM: Final = "debezium-json"
UPSERT_KAFKA: Final = "upsert-kafka"
MESSAGE_KEY: Final = "message_key"
MESSAGE_VALUE: Final = "message_value"
_GOES: Final = "goes"
_FORMATS: Final = ("format", "value.format")


def reads_envelopes(table: DeclaredTable) -> bool:
    """Whether the rows of a source are changes as Debezium writes them."""
    given = (table.statement.options.get(name) for name in _FORMATS)
    return any(each is not None and str(plain_value(each.value)) == DEBEZIUM for each in given)


def changing(table: DeclaredTable) -> bool:
    """Whether what is read of a table are changes of its rows."""
    return table.connector == UPSERT_KAFKA or reads_envelopes(table)


def incoming_type(table: DeclaredTable, row: Any) -> Any:
    """The type of what comes in. ``row``: that of the rows of the table."""
    loose = {name: annotation | None for name, annotation in table.physical.items()}
    name = type_name_of(table.name)
    if reads_envelopes(table):
        # What is there of the row before may be its key alone.
        before = row_type(f"{name}Before", loose, optional=True)
        fields = {"before": before | None, "after": row | None, "op": str | None}
        return row_type(f"{name}Change", fields, optional=True)
    return row_type(f"{name}Message", {**loose, MESSAGE_KEY: str | None, MESSAGE_VALUE: bytes | None}, optional=True)


def incoming_time(table: DeclaredTable, time: str | None) -> str | None:
    """The event time of what comes in; ``time``: that of rows of the table."""
    if time is None or not reads_envelopes(table):
        return time
    return f"coalesce(after.{time}, before.{time})"


def check_changing(table: DeclaredTable) -> None:
    """What a table has to say for its rows to be known by their changes."""
    if not table.primary_key:
        raise table.error(
            f"rows of {table.name!r} replace each other, and nothing says by what",
            expected="PRIMARY KEY (id) NOT ENFORCED",
        )
    for column in table.statement.columns:
        said = "computed" if column.computed is not None else "METADATA" if column.metadata is not None else ""
        if said:
            raise table.error_at(
                f"a table of changes has no {said} columns", column.at, expected="columns of its rows",
                next_move="compute them in a view; parts of messages are those of a table that reads each message",
            )  # fmt: skip


def rows_by_key(table: DeclaredTable, incoming: Stream[Any], row: Any) -> Stream[Any]:
    """The rows of a table, as a changelog, of what came in."""
    low = table.name.lower()
    keys = [table.declared_name(name) for name in table.primary_key]
    if reads_envelopes(table):
        return incoming.debezium(row, key=keys).named(f"{low}_by_key")
    texts = {name: quote_name(name) for name in table.physical}
    for name in keys:
        kind = spark_type(column_of(split_optional(table.physical[name])[0]).arrow)
        key = f"get_json_object({MESSAGE_KEY}, '$.{name}')" if _json_key(table) else MESSAGE_KEY
        texts[name] = f"coalesce({quote_name(name)}, CAST({key} AS {kind}))"
    types = {name: annotation if name in keys else annotation | None for name, annotation in table.physical.items()}
    keyed = incoming.select(
        row_type(f"{type_name_of(table.name)}Upsert", {**types, _GOES: bool}, optional=True),
        **texts, **{_GOES: f"{MESSAGE_VALUE} IS NULL"},
    )  # fmt: skip
    kept = keyed.key_by(*keys).upserts(deleted=_GOES).named(f"{low}_by_key")
    return kept.select(row, **{name: quote_name(name) for name in table.physical})


def _json_key(table: DeclaredTable) -> bool:
    """Whether the key of a message is a JSON object with the columns of the primary key."""
    given = table.statement.options.get("key.format")
    said = "raw" if given is None else str(plain_value(given.value)).lower()
    if said not in ("raw", "json") or (said == "raw" and len(table.primary_key) > 1):
        raise table.option_error(
            "key.format", "the key of a message is not known so", said if given is not None else "",
            "'json', an object with the columns of the primary key; or 'raw', its one column as text",
        )  # fmt: skip
    return said == "json"
