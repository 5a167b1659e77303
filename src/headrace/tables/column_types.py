"""Types of columns in DDL: what each means as the annotation of a field.

Integers of every width are BIGINT, FLOAT is DOUBLE, and times are points in time, in microseconds: these are the types
that rows travel in. Lengths and precisions are read and not enforced.
"""

from __future__ import annotations

from datetime import date
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from headrace.model.record import row_type
from headrace.model.time import Timestamp
from headrace.tables.words import Words

_PLAIN: Final[dict[str, Any]] = {
    **dict.fromkeys(("BOOLEAN", "BOOL"), bool),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "LONG"), int),
    **dict.fromkeys(("FLOAT", "REAL", "DOUBLE"), float),
    **dict.fromkeys(("DECIMAL", "NUMERIC", "DEC"), Decimal),
    **dict.fromkeys(("CHAR", "VARCHAR", "STRING", "TEXT"), str),
    **dict.fromkeys(("BINARY", "VARBINARY", "BYTES"), bytes),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ", "DATETIME"), Timestamp),
    "DATE": date,
    "TIME": time_of_day,
    "UUID": UUID,
}
_NESTED: Final = ("ARRAY", "MAP", "ROW", "STRUCT")
TYPES: Final = (*_PLAIN, *_NESTED)
_REFUSED: Final = {
    "MULTISET": "an ARRAY holds the same values; or MAP<T, BIGINT> with how often each is there",
    "INTERVAL": "keep a BIGINT of microseconds, and compute with INTERVAL in expressions",
    "VARIANT": "read the JSON text as a STRING, and get_json_object from it",
    "JSON": "read the JSON text as a STRING, and get_json_object from it",
}


def read_type(words: Words, name: str) -> Any:
    """The annotation of a type that comes next; ``name`` is that of the column, after which nested rows are called.

    The annotation has None in it unless NOT NULL stands behind the type.
    """
    at = words.offset
    written = words.name("a type").upper()
    if written in _REFUSED:
        raise words.error(f"columns cannot be of type {written}", at, next_move=_REFUSED[written])
    if written in _NESTED:
        found = _nested(words, written, name)
    elif written in _PLAIN:
        found = _PLAIN[written]
        _skip_details(words, written)
    else:
        raise words.error(
            f"there is no type {written}", at, expected="a type of SQL: BIGINT, DOUBLE, STRING, TIMESTAMP(3), …",
            known=TYPES, name=written, next_move="see Types in the guide SQL programs",
        )  # fmt: skip
    while words.accept("ARRAY"):
        found = _list_of(found | None)
    if words.accept("NOT", "NULL"):
        return found
    words.accept("NULL")
    return found | None


def _skip_details(words: Words, written: str) -> None:
    """Length, precision and zone."""
    if words.accept("("):
        words.number("a number")
        if words.accept(","):
            words.number("a number")
        words.expect(")")
    if written == "DOUBLE":
        words.accept("PRECISION")
    if written in ("TIMESTAMP", "TIME"):
        for zone in (("WITH", "LOCAL"), ("WITHOUT",), ("WITH",)):
            if words.accept(*zone, "TIME", "ZONE"):
                break


def _nested(words: Words, written: str, name: str) -> Any:
    if written in ("ROW", "STRUCT"):
        return _row(words, name)
    words.expect("<")
    first: Any = read_type(words, name)
    if written == "ARRAY":
        words.expect(">")
        return _list_of(first)
    words.expect(",")
    second: Any = read_type(words, name)
    words.expect(">")
    return dict.__class_getitem__((_required(first), second))


def _row(words: Words, name: str) -> Any:
    closing = ")" if words.accept("(") else ">"
    if closing == ">":
        words.expect("<")
    fields: dict[str, Any] = {}
    while True:
        field = words.name("the name of a field")
        words.accept(":")
        fields[field] = read_type(words, f"{name}_{field}")
        if words.is_literal:
            words.literal("a comment")
        if not words.accept(","):
            break
    words.expect(closing)
    return row_type(type_name_of(name), fields, optional=True)


def _list_of(item: Any) -> Any:
    return list.__class_getitem__(item)


def _required(annotation: Any) -> Any:
    from headrace.model.shapes import split_optional

    return split_optional(annotation)[0]


def type_name_of(name: str) -> str:
    """The name of the row type of a table or column.

    >>> type_name_of("room_sensors")
    'RoomSensors'
    """
    return "".join(part[:1].upper() + part[1:] for part in name.replace("$", "_").split("_")) or "Row"
