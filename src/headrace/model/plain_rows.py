"""Rows in columns as plain values: what MessagePack would hold of them, for whoever knows their type by its shape.

It is the way of rows whose type has changed so much that their columns do not fit any more
(`headrace.model.type_adapt` takes plain values). Columns are as `headrace.model.shapes` lays them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.model.columns import as_int64, shortest_decimal
from headrace.model.type_shape import TypeShape
from headrace.model.values import value_codec

_VALUE: Final = "value"
"""The one column of rows that are plain values."""
_DECODER: Final = msgspec.msgpack.Decoder()
_ENCODER: Final = msgspec.msgpack.Encoder()


def plain_rows(columns: Mapping[str, pa.Array], rows: int, shape: TypeShape) -> list[Any]:
    """Rows of a type, given their columns by the names of its fields."""
    if shape.kind == "record":
        return _records(columns, rows, shape)
    members = [each for each in shape.members if each.kind == "record" and each.tag is not None]
    if shape.kind == "union" and members and len(members) == len(shape.members):
        return _tagged_records(columns, rows, members)
    return plain_values(columns[_VALUE], shape)


def typed_rows(values: list[Any], annotation: Any) -> list[Any]:
    """Plain values as objects of a type; raises what msgspec raises where they do not fit."""
    decode = value_codec(annotation).decode
    return [decode(_ENCODER.encode(value)) for value in values]


def plain_values(array: pa.Array, shape: TypeShape) -> list[Any]:
    """The values of a column, None where it is null."""
    bare = _without_none(shape)
    if pa.types.is_binary(array.type) and bare.kind != "bytes":
        return [None if raw is None else _DECODER.decode(raw) for raw in array.to_pylist()]
    if pa.types.is_struct(array.type):
        parts = dict(zip((field.name for field in array.type), array.flatten()))
        there = array.is_valid().to_pylist()
        return [each if here else None for here, each in zip(there, _records(parts, len(array), bare))]
    if pa.types.is_map(array.type) and bare.keys is not None and bare.items is not None:
        keys, items = plain_values(array.keys, bare.keys), plain_values(array.items, bare.items)
        return _cut(array, lambda start, end: dict(zip(keys[start:end], items[start:end])))
    if pa.types.is_list(array.type) and bare.items is not None:
        values = plain_values(array.values, bare.items)
        return _cut(array, lambda start, end: values[start:end])
    return _scalars(array, bare)


_SCALARS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "timedelta": lambda us: timedelta(microseconds=us),
    "decimal": shortest_decimal,
}


def _scalars(array: pa.Array, shape: TypeShape) -> list[Any]:
    if pa.types.is_timestamp(array.type) and shape.kind != "datetime":
        array = as_int64(array)
    values: list[Any] = array.to_pylist()
    of = _SCALARS.get(shape.kind)
    return values if of is None else [None if value is None else of(value) for value in values]


def _cut(array: Any, part: Callable[[int, int], Any]) -> list[Any]:
    bounds = array.offsets.to_pylist()
    there = array.is_valid().to_pylist()
    return [part(bounds[i], bounds[i + 1]) if here else None for i, here in enumerate(there)]


def _records(columns: Mapping[str, pa.Array], rows: int, shape: TypeShape) -> list[Any]:
    made: list[dict[str, Any]] = [{} if shape.tag is None else {shape.tag[0]: shape.tag[1]} for _ in range(rows)]
    for field in shape.fields:
        if field.name not in columns:
            continue
        name, optional = field.stored_name, field.type.optional
        for record, value in zip(made, plain_values(columns[field.name], field.type)):
            # A null where None is no value: there was none, and the default stands for it.
            if value is not None or optional:
                record[name] = value
    if not shape.positional:
        return made
    first = () if shape.tag is None else (shape.tag[1],)
    return [[*first, *(record[field.stored_name] for field in shape.fields)] for record in made]


def _tagged_records(columns: Mapping[str, pa.Array], rows: int, members: list[TypeShape]) -> list[Any]:
    [tag_field] = {member.tag[0] for member in members if member.tag is not None}
    tags = columns[tag_field].to_pylist()
    made: list[Any] = [None] * rows
    for member in members:
        assert member.tag is not None
        mine = [i for i, tag in enumerate(tags) if tag == member.tag[1]]
        if mine:
            picked = {name: column.take(pa.array(mine)) for name, column in columns.items()}
            for row, record in zip(mine, _records(picked, len(mine), member)):
                made[row] = record
    return made


def _without_none(shape: TypeShape) -> TypeShape:
    members = [member for member in shape.members if member.kind != "none"]
    return members[0] if len(members) == 1 else shape
