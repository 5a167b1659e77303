"""Records inside of a field, as Spark reads them: what is absent in one takes its default, or makes the row bad.

Spark's readers know no defaults, and put null in the place of whatever is absent, at any depth. The SQL made here
walks over the records of a field (itself, in its lists, in its dictionaries) as `headrace.model.rows` does for the
fields of a row. A field without records and without times inside needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import pyarrow as pa

from headrace.model.columns import Column, ListColumn, MapColumn, StructColumn
from headrace.model.shapes import MISSING, FieldShape, column_of, field_shapes, quoted, spark_type, split_optional
from headrace.sources.sql import literal, text


class Nested(NamedTuple):
    """How a field with something inside is read."""

    ddl: str
    """The type to parse it with."""
    fill: Callable[[str], str]
    """SQL of the parsed field → SQL of the field as its type says."""
    bad: Callable[[str], str | None]
    """SQL of the parsed field → condition under which it is bad, which is never null. None: it is always good."""
    changes: bool = False
    """Whether `fill` makes something else of it."""


def nested_of(annotation: Any, *, json: bool) -> Nested | None:
    """None where what Spark reads is right as it is. `json`: names are those of JSON, and times are text."""
    column = column_of(annotation)
    if column.packed or not pa.types.is_nested(column.arrow):
        return None
    found = _read(annotation, column, json, 0)
    return found if found.changes or found.bad("field") is not None else None


def _read(annotation: Any, column: Column, json: bool, depth: int) -> Nested:
    bare, _ = split_optional(annotation)
    if isinstance(column, StructColumn):
        return _read_record(field_shapes(bare), column, json, depth)
    if isinstance(column, ListColumn):
        (item,) = {part for part in get_args(bare) if part is not Ellipsis}
        return _read_list(_read(item, column.item, json, depth + 1), depth)
    if isinstance(column, MapColumn):
        inner = _read(get_args(bare)[1], column.value, json, depth + 1)
        return _read_map(inner, spark_type(column.arrow.key_type), depth)
    if json and pa.types.is_timestamp(column.arrow):
        # As text, so that a number is not taken for seconds.
        return Nested(
            "STRING",
            lambda given: f"try_cast({given} AS TIMESTAMP)",
            lambda given: f"({given} IS NOT NULL AND try_cast({given} AS TIMESTAMP) IS NULL)",
            changes=True,
        )
    return Nested(spark_type(column.arrow), lambda given: given, lambda _: None)


def _read_record(fields: tuple[FieldShape, ...], column: StructColumn, json: bool, depth: int) -> Nested:
    names = {field.name: quoted(field.encode_name if json else field.name) for field in fields}
    inner = {field.name: _read(field.type, column.parts[field.name], json, depth) for field in fields}
    defaults = {field.name: _default(field) for field in fields}
    renamed = json and any(field.encode_name != field.name for field in fields)
    changes = renamed or any(part.changes or defaults[name] is not None for name, part in inner.items())

    def fill(given: str) -> str:
        if not changes:
            return given
        made = []
        for field in fields:
            value, default = inner[field.name].fill(f"{given}.{names[field.name]}"), defaults[field.name]
            if default is not None:
                value = f"coalesce({value}, {literal(default, column.parts[field.name].arrow)})"
            made.append(f"{text(field.name)}, {value}")
        return f"CASE WHEN {given} IS NOT NULL THEN named_struct({', '.join(made)}) END"

    def bad(given: str) -> str | None:
        conditions = []
        for field in fields:
            part = f"{given}.{names[field.name]}"
            wrong = inner[field.name].bad(part)
            conditions += [f"{part} IS NULL"] * field.required + [wrong] * (wrong is not None)
        return f"({given} IS NOT NULL AND ({' OR '.join(map(str, conditions))}))" if conditions else None

    ddl = ", ".join(f"{names[name]}: {part.ddl}" for name, part in inner.items())
    return Nested(f"STRUCT<{ddl}>", fill, bad, changes)


def _default(field: FieldShape) -> Any:
    """What stands in for an absent value; None where nothing does."""
    default = field.factory() if field.factory is not None else field.default
    return None if default is MISSING else default


def _read_list(item: Nested, depth: int) -> Nested:
    each = f"item{depth}"

    def bad(given: str) -> str | None:
        wrong = item.bad(each)
        return None if wrong is None else f"coalesce(exists({given}, {each} -> {wrong}), false)"

    def fill(given: str) -> str:
        return f"transform({given}, {each} -> {item.fill(each)})" if item.changes else given

    return Nested(f"ARRAY<{item.ddl}>", fill, bad, item.changes)


def _read_map(value: Nested, key: str, depth: int) -> Nested:
    each, name = f"item{depth}", f"name{depth}"

    def bad(given: str) -> str | None:
        wrong = value.bad(each)
        return None if wrong is None else f"coalesce(exists(map_values({given}), {each} -> {wrong}), false)"

    def fill(given: str) -> str:
        return f"transform_values({given}, ({name}, {each}) -> {value.fill(each)})" if value.changes else given

    return Nested(f"MAP<{key}, {value.ddl}>", fill, bad, value.changes)
