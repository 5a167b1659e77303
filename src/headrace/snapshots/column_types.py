"""The columns that a stored type becomes as part of a table: their names, their Arrow types, how values get there.

A manifest says the type of a state (`TypeShape`) and where its times are (`TimeShape`), so a table has columns before a
row of it was read. What columnar types cannot say (maps, tuples, unions, records inside of themselves) is a column of
JSON text, as it is in exports (`headrace.read.columns`).

What this module deliberately does not do: read anything, or know kinds of tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, get_args, get_origin
from uuid import UUID

import msgspec
import pyarrow as pa

from headrace.model.columns import DECIMAL, TIMESTAMP
from headrace.model.time import Timestamp, format_time
from headrace.model.time_shape import TimeShape, time_writer
from headrace.model.type_shape import TypeShape
from headrace.read.columns import IS_JSON, json_text

Convert = Callable[[Any], Any]
"""A stored value, which is not None, as Arrow takes it."""

_PLAIN: Final[dict[str, pa.DataType]] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
    "bytes": pa.binary(),
    "datetime": TIMESTAMP,
    "date": pa.date32(),
    "time": pa.string(),
    "timedelta": pa.string(),
    "decimal": DECIMAL,
    "uuid": pa.string(),
}
_KEY_TYPES: Final[dict[Any, pa.DataType]] = {
    str: pa.string(),
    bytes: pa.binary(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    Timestamp: TIMESTAMP,
    datetime: TIMESTAMP,
    date: pa.date32(),
    Decimal: DECIMAL,
    UUID: pa.string(),
}


@dataclass(frozen=True)
class ColumnType:
    """What values of one column are."""

    arrow: pa.DataType
    convert: Convert | None = None
    """None: they are taken as they are."""
    json: bool = False

    def field(self, name: str) -> pa.Field:
        return pa.field(name, self.arrow, metadata=IS_JSON if self.json else None)

    def column(self, values: Sequence[Any]) -> pa.Array:
        """Stored values as a column, null where they are None."""
        convert = self.convert
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        return pa.array(values, self.arrow)


def json_type(times: TimeShape | None = None) -> ColumnType:
    """Anything at all, as JSON text with its times as ISO text."""
    write = time_writer(times, format_time)
    return ColumnType(pa.string(), json_text if write is None else lambda value: json_text(write(value)), json=True)


def column_type(shape: TypeShape | None, times: TimeShape | None = None) -> ColumnType:
    """What a stored type is as a column; JSON text where columns cannot say it."""
    return json_type(times) if shape is None else _column_type(shape, times) or json_type(times)


def _column_type(shape: TypeShape, times: TimeShape | None) -> ColumnType | None:
    if times is not None and times.time:
        return ColumnType(TIMESTAMP, time_writer(times, int))
    if shape.kind in _PLAIN:
        return ColumnType(_PLAIN[shape.kind], _CONVERT.get(shape.kind))
    match shape.kind:
        case "none":
            return ColumnType(pa.string())
        case "union":
            return _union_type(shape, times)
        case "choice":
            return _choice_type(shape)
        case "list" | "set" if shape.items is not None:
            item = _column_type(shape.items, None if times is None else times.items)
            return None if item is None else _list_type(item)
        case "record" if not shape.positional and shape.tag is None and shape.fields:
            return _struct_type(shape, times)
    return None


def _union_type(shape: TypeShape, times: TimeShape | None) -> ColumnType | None:
    members = [member for member in shape.members if member.kind != "none"]
    if len(members) == 1:
        return _column_type(members[0], times)
    numbers = {member.kind for member in members} == {"int", "float"}
    return ColumnType(pa.float64(), float) if numbers and times is None else None


def _choice_type(shape: TypeShape) -> ColumnType | None:
    kinds = {type(value) for value in shape.values if value is not None}
    if kinds == {str}:
        return ColumnType(pa.string())
    return ColumnType(pa.int64()) if kinds == {int} else None


def _list_type(item: ColumnType) -> ColumnType:
    if item.convert is None:
        return ColumnType(pa.list_(item.arrow))
    convert = item.convert
    return ColumnType(
        pa.list_(item.arrow), lambda values: [None if value is None else convert(value) for value in values]
    )


def _struct_type(shape: TypeShape, times: TimeShape | None) -> ColumnType | None:
    parts: list[tuple[str, str, ColumnType, Any]] = []
    for field in shape.fields:
        inner = None if times is None else times.fields.get(field.stored_name)
        part = _column_type(field.type, inner) or json_type(inner)
        parts.append((field.name, field.stored_name, part, default_of(field.default)))

    def convert(value: Any) -> dict[str, Any]:
        made = {}
        for name, stored, part, default in parts:
            each = value.get(stored, default)
            made[name] = each if each is None or part.convert is None else part.convert(each)
        return made

    return ColumnType(pa.struct([part.field(name) for name, _, part, _ in parts]), convert)


def default_of(default: str | None) -> Any:
    """What stands for a field that a value lacks; None where the manifest has no value for it, only words."""
    if default is None:
        return None
    try:
        return msgspec.json.decode(default)
    except msgspec.DecodeError:
        return None


def _as_date(value: Any) -> Any:
    return date.fromisoformat(value) if isinstance(value, str) else value


def _as_decimal(value: Any) -> Any:
    # More digits than a column has would be refused by Arrow for the whole column.
    exact = value if isinstance(value, Decimal) else Decimal(value)
    return exact.quantize(_DECIMAL_UNIT) if int(exact.as_tuple().exponent) < -DECIMAL.scale else exact


def _as_datetime(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


_DECIMAL_UNIT: Final = Decimal(1).scaleb(-DECIMAL.scale)
_CONVERT: Final[dict[str, Convert]] = {
    "date": _as_date,
    "decimal": _as_decimal,
    "datetime": _as_datetime,
    "uuid": str,
    "time": str,
    "timedelta": str,
}


# --- keys


def key_types(annotation: Any, shape: TypeShape | None, times: TimeShape | None) -> list[ColumnType]:
    """What the parts of keys are as columns.

    ``shape``: as the manifest has it; ``annotation``: as stored keys tell it, times included, where it has nothing.
    """
    if shape is None:
        parts = get_args(annotation) if get_origin(annotation) is tuple else (annotation,)
        return [ColumnType(_KEY_TYPES[each]) if each in _KEY_TYPES else json_type() for each in parts]
    if shape.kind != "tuple":
        return [_key_type(shape, times)]
    places = {} if times is None else times.places
    return [_key_type(each, places.get(place)) for place, each in enumerate(shape.places)]


def _key_type(shape: TypeShape, times: TimeShape | None) -> ColumnType:
    """Keys come back from their bytes as plain values, spans among them as numbers."""
    members = [member for member in shape.members if member.kind != "none"]
    if len(members) == 1:
        return _key_type(members[0], times)
    if shape.kind == "timedelta":
        return ColumnType(pa.int64())
    return column_type(shape, times)
