"""Rows out of Avro: a writer's schema and the fields of a row type, compiled into what reads columns.

Resolution follows Avro's own rules (by name, then by former names; numbers widen; text and bytes are one another;
branches of unions one by one), plus what a Python type asks: a `Timestamp` takes a logical timestamp of any unit, and
never a bare number, which has no unit. Fields that the row type does not have are passed over. A schema that can give
no row of the type at all is a `SchemaMisfit` when it is compiled; a value that does not fit makes its message bad.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.avro.blocks import blocks_of, number_size, offsets_of, pass_numbers, read_blocks
from headrace.connectors.formats.avro.schema import AvroField, AvroType
from headrace.connectors.formats.cursor import Cursor, Ints, scattered
from headrace.connectors.formats.fields import TreeField, struct_of
from headrace.connectors.formats.misfits import SchemaMisfit
from headrace.connectors.formats.values import (
    check_text,
    date_column,
    decimal_column,
    parsed_column,
    time_column,
    time_of_day_column,
)

Read = Callable[[Cursor], pa.Array]
"""Reads the next value of each message, as a column of the wanted type."""
Skip = Callable[[Cursor], None]

_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


def compile_rows(writer: AvroType, fields: Sequence[TreeField]) -> Callable[[Cursor], list[pa.Array]]:
    """What reads these fields out of messages that are records of the writer's schema."""
    branches = writer.inner if writer.kind == "union" else [writer]
    if len(branches) != 1 or branches[0].kind != "record":
        raise SchemaMisfit(f"its schema is {writer.says}, not a record")
    read = _record_reader(branches[0], fields)
    within_union = writer.kind == "union"

    def rows(cursor: Cursor) -> list[pa.Array]:
        if within_union:
            cursor.fail(cursor.longs() != 0, "it takes a branch that its schema does not have")
        return read(cursor)

    return rows


def _record_reader(writer: AvroType, fields: Sequence[TreeField]) -> Callable[[Cursor], list[pa.Array]]:
    sources = [_writer_field(writer, field) for field in fields]
    place = {source.name: i for i, source in enumerate(sources) if source is not None}
    absent = [(i, field) for i, (field, source) in enumerate(zip(fields, sources)) if source is None]
    lacking = [field.path for _, field in absent if field.required]
    if lacking:
        raise SchemaMisfit(f"{writer.says} has no field {', '.join(lacking)}")
    steps: list[tuple[int | None, Any]] = []
    for each in writer.fields:
        at = place.get(each.name)
        steps.append((at, _skipper(each.type, {}) if at is None else _reader(each.type, fields[at])))

    def read(cursor: Cursor) -> list[pa.Array]:
        columns: list[Any] = [None] * len(fields)
        for at, step in steps:
            if at is None:
                step(cursor)
            else:
                columns[at] = fields[at].complete(step(cursor), cursor)
        for at, field in absent:
            columns[at] = field.complete(pa.nulls(len(cursor), field.kind), cursor)
        return columns

    return read


def _writer_field(writer: AvroType, field: TreeField) -> AvroField | None:
    by_name = {each.name: each for each in writer.fields}
    return next((by_name[name] for name in (field.name, *field.former) if name in by_name), None)


def _reader(writer: AvroType, field: TreeField) -> Read:
    if writer.kind == "union":
        return _union_reader(writer, field)
    if writer.kind == "null":
        return lambda cursor: pa.nulls(len(cursor), field.kind)
    read = _record(writer, field) or _list(writer, field) or _map(writer, field) or _plain(writer, field)
    if read is None:
        raise _misfit(writer, field)
    return read


def _misfit(writer: AvroType, field: TreeField) -> SchemaMisfit:
    hint = ""
    if pa.types.is_timestamp(field.kind) and writer.kind == "long":
        hint = ", a number without a unit (logicalType timestamp-millis or -micros)"
    return SchemaMisfit(f"{field.path} is {writer.says}{hint}, which does not become {field.says}")


def _union_reader(writer: AvroType, field: TreeField) -> Read:
    readers: list[Read | None] = []
    misfits: list[str] = []
    for branch in writer.inner:
        try:
            readers.append(None if branch.kind == "null" else _reader(branch, field))
        except SchemaMisfit as error:
            misfits.append(str(error))
            readers.append(_refuser(str(error), field, _skipper(branch, {})))
    if misfits and len(misfits) == sum(branch.kind != "null" for branch in writer.inner):
        raise SchemaMisfit(misfits[0])

    def read(cursor: Cursor) -> pa.Array:
        branch = cursor.longs()
        cursor.fail((branch < 0) | (branch >= len(readers)), "it takes a branch that its schema does not have")
        parts: list[tuple[Ints, pa.Array]] = []
        for number, inner in enumerate(readers):
            which = np.flatnonzero((branch == number) & ~cursor.lost)
            if inner is None or not len(which):
                continue
            if len(which) == len(cursor):
                return inner(cursor)
            part = cursor.subset(which)
            parts.append((which, inner(part)))
            cursor.rejoin(which, part)
        return scattered(parts, len(cursor), field.kind)

    return read


def _refuser(reason: str, field: TreeField, skip: Skip) -> Read:
    def read(cursor: Cursor) -> pa.Array:
        cursor.fail(np.ones(len(cursor), np.bool_), reason)
        return pa.nulls(len(cursor), field.kind)

    return read


def _record(writer: AvroType, field: TreeField) -> Read | None:
    if writer.kind != "record" or not pa.types.is_struct(field.kind):
        return None
    read = _record_reader(writer, field.parts)
    return lambda cursor: struct_of(field, read(cursor))


def _list(writer: AvroType, field: TreeField) -> Read | None:
    if writer.kind != "array" or not pa.types.is_list(field.kind):
        return None
    item = field.parts[0]
    inner, size = _reader(writer.inner[0], item), number_size(writer.inner[0])

    def read(cursor: Cursor) -> pa.Array:
        lengths, items = read_blocks(cursor, lambda part: item.complete(inner(part), part), item.kind, size)
        return pa.ListArray.from_arrays(offsets_of(lengths), items, type=field.kind)

    return read


def _map(writer: AvroType, field: TreeField) -> Read | None:
    if writer.kind != "map" or not pa.types.is_map(field.kind):
        return None
    value = field.parts[1]
    inner = _reader(writer.inner[0], value)
    pair = pa.struct([pa.field("key", pa.string()), pa.field("value", value.kind)])

    def read_pair(cursor: Cursor) -> pa.Array:
        key = check_text(cursor.slices(cursor.longs()), cursor, f"{field.path} has a key that")
        return pa.StructArray.from_arrays([key, value.complete(inner(cursor), cursor)], fields=list(pair))

    def read(cursor: Cursor) -> pa.Array:
        lengths, items = read_blocks(cursor, read_pair, pair, None)
        return pa.MapArray.from_arrays(offsets_of(lengths), items.field(0), items.field(1), type=field.kind)

    return read


# --- values without parts


def _plain(writer: AvroType, field: TreeField) -> Read | None:
    kinds, kind = pa.types, field.kind
    if writer.kind == "boolean" and kinds.is_boolean(kind):
        return _read_booleans
    if writer.kind in ("int", "long"):
        return _integers(writer, field)
    if writer.kind in ("float", "double"):
        size, native = (4, "<f4") if writer.kind == "float" else (8, "<f8")
        if kinds.is_floating(kind):
            return lambda cursor: pa.array(cursor.fixed(size).view(native)[:, 0].astype(np.float64))
        return None
    if writer.kind == "enum" and kinds.is_string(kind):
        return _symbols(writer, field)
    if writer.kind in ("bytes", "string", "fixed"):
        return _bytes(writer, field)
    return None


def _read_booleans(cursor: Cursor) -> pa.Array:
    values = cursor.fixed(1)[:, 0]
    cursor.fail(values > 1, "a boolean in it is neither 0 nor 1")
    return pa.array(values != 0)


def _integers(writer: AvroType, field: TreeField) -> Read | None:
    kinds, kind, logical = pa.types, field.kind, writer.logical
    if kinds.is_timestamp(kind) and "timestamp-" in logical:
        per_second = _PER_SECOND.get(logical.rpartition("-")[2], 0)
        return (lambda cursor: time_column(cursor, cursor.longs(), per_second, field)) if per_second else None
    if kinds.is_date(kind) and logical == "date":
        return lambda cursor: date_column(cursor, cursor.longs())
    if kinds.is_string(kind) and logical in ("time-millis", "time-micros"):
        per_second = _PER_SECOND[logical.removeprefix("time-")]
        return lambda cursor: time_of_day_column(cursor, cursor.longs(), per_second)
    if kinds.is_integer(kind):
        return lambda cursor: pa.array(cursor.longs())
    if kinds.is_floating(kind) and not logical:
        return lambda cursor: pa.array(cursor.longs().astype(np.float64))
    if kinds.is_decimal(kind) and not logical:
        return lambda cursor: parsed_column(pa.array(cursor.longs()).cast(pa.string()), field, cursor)
    return None


def _symbols(writer: AvroType, field: TreeField) -> Read:
    symbols = pa.array(writer.symbols, pa.string())

    def read(cursor: Cursor) -> pa.Array:
        index = cursor.longs()
        cursor.fail((index < 0) | (index >= len(symbols)), f"{field.path} is no symbol of its enum")
        named = symbols.take(pa.array(np.where(cursor.lost, 0, index)))
        return parsed_column(named, field, cursor)

    return read


def _bytes(writer: AvroType, field: TreeField) -> Read | None:
    kinds, kind = pa.types, field.kind

    def content(cursor: Cursor) -> pa.Array:
        sizes = np.full(len(cursor), writer.size, np.int64) if writer.kind == "fixed" else cursor.longs()
        return cursor.slices(sizes)

    if writer.logical == "decimal" and kinds.is_decimal(kind):
        if writer.scale > kind.scale:
            raise SchemaMisfit(f"{field.path} has {writer.scale} digits behind the point; a Decimal has {kind.scale}")
        return lambda cursor: decimal_column(content(cursor), writer.scale, field, cursor)
    if writer.kind == "fixed" and writer.logical == "uuid" and kinds.is_string(kind):
        return lambda cursor: _uuid_texts(content(cursor))
    if kinds.is_binary(kind):
        return content
    if writer.kind == "fixed" or writer.logical == "decimal":
        return None
    if kinds.is_string(kind):
        return lambda cursor: parsed_column(check_text(content(cursor), cursor, field.path), field, cursor)
    if writer.kind == "string" and (kinds.is_decimal(kind) or kinds.is_date(kind)):
        return lambda cursor: parsed_column(check_text(content(cursor), cursor, field.path), field, cursor)
    return None


def _uuid_texts(values: pa.Array) -> pa.Array:
    return pa.array([str(UUID(bytes=each)) if len(each) == 16 else None for each in values.to_pylist()], pa.string())


# --- what the row type does not have


def _skipper(writer: AvroType, begun: dict[int, Skip]) -> Skip:
    """Passes over a value. A type that contains itself is met again while it is being compiled."""
    known = begun.get(id(writer))
    if known is not None:
        return known
    if writer.kind not in ("record", "union", "array", "map"):
        return _plain_skipper(writer)
    size = number_size(writer.inner[0]) if writer.kind == "array" else None
    if size is not None:
        return partial(pass_numbers, size=size)
    steps: list[Skip] = []
    kind = writer.kind

    def skip(cursor: Cursor) -> None:
        if kind == "record":
            for step in steps:
                step(cursor)
        elif kind == "union":
            _skip_branches(cursor, steps)
        else:
            for _, part in blocks_of(cursor):
                if kind == "map":
                    part.advance(part.longs())
                steps[0](part)

    begun[id(writer)] = skip
    inner = [each.type for each in writer.fields] if kind == "record" else writer.inner
    steps += [_skipper(each, begun) for each in inner]
    return skip


def _skip_branches(cursor: Cursor, steps: Sequence[Skip]) -> None:
    branch = cursor.longs()
    cursor.fail((branch < 0) | (branch >= len(steps)), "it takes a branch that its schema does not have")
    for number, step in enumerate(steps):
        which = np.flatnonzero((branch == number) & ~cursor.lost)
        if len(which):
            part = cursor.subset(which)
            step(part)
            cursor.rejoin(which, part)


def _plain_skipper(writer: AvroType) -> Skip:
    size = {"null": 0, "boolean": 1, "float": 4, "double": 8, "fixed": writer.size}.get(writer.kind)

    def skip(cursor: Cursor) -> None:
        if size is not None:
            cursor.advance(size)
        elif writer.kind in ("bytes", "string"):
            cursor.advance(cursor.longs())
        else:
            cursor.varints()

    return skip
