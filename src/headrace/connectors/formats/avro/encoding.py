"""Rows into Avro: the fields of a row type and a schema, compiled into what writes columns.

The schema may be one that others gave (the newest of a subject in a registry, a file): each of its fields comes from
the field of that name, or from its own default. A field of the rows that it has no place for is refused when the
program starts, because it would be lost; a value that it cannot say (no symbol of an enum, too many digits) fails the
epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats import pieces
from headrace.connectors.formats.avro.schema import AvroField, AvroType
from headrace.connectors.formats.fields import TreeField
from headrace.connectors.formats.misfits import SchemaMisfit, UnfitValue

Write = Callable[[pa.Array], pa.Array]
"""Writes a column without nulls as pieces."""

_END: Final = b"\x00"
_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


def compile_messages(schema: AvroType, fields: Sequence[TreeField]) -> Callable[[Sequence[pa.Array], int], pa.Array]:
    """What writes rows, given as the columns of these fields and their number."""
    if schema.kind != "record":
        raise SchemaMisfit(f"the schema is {schema.says}, not a record")
    steps = _steps(schema, fields)

    def write(columns: Sequence[pa.Array], count: int) -> pa.Array:
        return pieces.joined(*(step(columns, count) for step in steps)) if steps else pieces.constant(b"", count)

    return write


def _steps(schema: AvroType, fields: Sequence[TreeField]) -> list[Callable[[Sequence[pa.Array], int], pa.Array]]:
    place = {field.name: i for i, field in enumerate(fields)}
    sources = [_source(each, place) for each in schema.fields]
    left = [field.path for i, field in enumerate(fields) if i not in sources]
    if left:
        raise SchemaMisfit(f"{schema.says} has no field {', '.join(left)}")
    steps: list[Callable[[Sequence[pa.Array], int], pa.Array]] = []
    for each, at in zip(schema.fields, sources):
        if at is None:
            steps.append(_defaulted(schema, each))
        else:
            steps.append(_stepped(at, _nullable(each.type, fields[at])))
    return steps


def _source(field: AvroField, place: dict[str, int]) -> int | None:
    return next((place[name] for name in (field.name, *field.aliases) if name in place), None)


def _stepped(at: int, write: Write) -> Callable[[Sequence[pa.Array], int], pa.Array]:
    return lambda columns, count: write(columns[at])


def _defaulted(schema: AvroType, field: AvroField) -> Callable[[Sequence[pa.Array], int], pa.Array]:
    if not field.has_default:
        raise SchemaMisfit(f"the rows have no field {field.name}, which {schema.says} requires")
    piece = default_bytes(field.type, field.default, field.name)
    return lambda columns, count: pieces.constant(piece, count)


def default_bytes(schema: AvroType, value: Any, name: str) -> bytes:
    """A default of a schema, as a message holds it."""
    kind = schema.kind
    if kind == "union":
        return _END + default_bytes(schema.inner[0], value, name)
    if kind == "null":
        return b""
    if kind == "boolean":
        return b"\x01" if value else b"\x00"
    if kind in ("int", "long"):
        return _long(int(value))
    if kind in ("float", "double"):
        return np.array([value], "<f4" if kind == "float" else "<f8").tobytes()
    if kind in ("bytes", "string", "fixed"):
        content = str(value).encode("utf-8" if kind == "string" else "latin-1")
        return content if kind == "fixed" else _long(len(content)) + content
    if kind == "enum":
        return _long(schema.symbols.index(value))
    if kind == "record":
        told = ((each, value.get(each.name, each.default)) for each in schema.fields)
        return b"".join(default_bytes(each.type, said, f"{name}.{each.name}") for each, said in told)
    if value:
        raise SchemaMisfit(f"the rows have no field {name}, whose default is {value!r}")
    return _END


def _long(value: int) -> bytes:
    encoded: bytes = pieces.longs(np.array([value], np.int64))[0].as_py()
    return encoded


def _nullable(schema: AvroType, field: TreeField) -> Write:
    """Writes a column that may hold nulls."""
    if schema.kind != "union":
        write = _writer(schema, field)
        return lambda column: write(_without_nulls(column, field))
    null = next((i for i, each in enumerate(schema.inner) if each.kind == "null"), None)
    misfit: SchemaMisfit | None = None
    for number, branch in enumerate(schema.inner):
        if branch.kind == "null":
            continue
        try:
            return _branch_writer(number, null, _writer(branch, field), field)
        except SchemaMisfit as error:
            misfit = misfit or error
    raise misfit or SchemaMisfit(f"{field.path} is {field.says}, and the schema says null")


def _branch_writer(number: int, null: int | None, write: Write, field: TreeField) -> Write:
    begin, absent = _long(number), _long(null or 0)

    def branch(column: pa.Array) -> pa.Array:
        if null is None:
            column = _without_nulls(column, field)
        there = column.drop_null() if column.null_count else column
        written = pieces.joined(pieces.constant(begin, len(there)), write(there))
        return pieces.where_valid(column, written, absent)

    return branch


def _without_nulls(column: pa.Array, field: TreeField) -> pa.Array:
    if not column.null_count:
        return column
    if field.default is not None:
        there = np.asarray(column.is_valid())
        at = np.where(there, np.arange(len(column)), len(column))
        return pa.concat_arrays([column, field.default]).take(pa.array(at))
    raise UnfitValue(f"{field.path} is absent in a row, and the schema has no null there")


def _misfit(schema: AvroType, field: TreeField) -> SchemaMisfit:
    return SchemaMisfit(f"{field.path} is {field.says}, which {schema.says} cannot say")


def _writer(schema: AvroType, field: TreeField) -> Write:
    write = _nested(schema, field) if field.parts else _plain(schema, field)
    if write is None:
        raise _misfit(schema, field)
    return write


def _nested(schema: AvroType, field: TreeField) -> Write | None:
    kinds, kind = pa.types, field.kind
    if schema.kind == "record" and kinds.is_struct(kind):
        write = compile_messages(schema, field.parts)
        return lambda column: write(column.flatten(), len(column))
    if schema.kind == "array" and kinds.is_list(kind):
        item = _nullable(schema.inner[0], field.parts[0])
        return lambda column: _blocks(column, item(pieces.items_of(column, column.values)))
    if schema.kind == "map" and kinds.is_map(kind):
        value = _nullable(schema.inner[0], field.parts[1])

        def entries(column: pa.Array) -> pa.Array:
            keys, items = (pieces.items_of(column, each) for each in (column.keys, column.items))
            return _blocks(column, pieces.joined(_sized(keys.cast(pa.binary())), value(items)))

        return entries
    return None


def _blocks(lists: pa.Array, items: pa.Array) -> pa.Array:
    """One block per list, without its size, and the end."""
    counts = pieces.counts_of(lists)
    begun = pieces.where_valid(pa.array(counts, mask=counts == 0), pieces.longs(counts[counts > 0]), b"")
    return pieces.joined(begun, pieces.by_list(lists, items), pieces.constant(_END, len(lists)))


def _sized(values: pa.Array) -> pa.Array:
    """Each piece behind its length."""
    return pieces.joined(pieces.longs(pieces.sizes_of(values)), values)


def _plain(schema: AvroType, field: TreeField) -> Write | None:
    kinds, kind, said = pa.types, field.kind, schema.kind
    if kinds.is_boolean(kind) and said == "boolean":
        return lambda column: pieces.fixed(np.asarray(column.cast(pa.uint8())))
    if kinds.is_timestamp(kind) and said == "long" and "timestamp-" in schema.logical:
        return _times(schema)
    if kinds.is_date(kind) and said == "int":
        return lambda column: pieces.longs(np.asarray(column.view(pa.int32())).astype(np.int64))
    if kinds.is_integer(kind) and said in ("int", "long"):
        return _integers(schema, field)
    if kinds.is_integer(kind) and said == "double":
        return lambda column: pieces.fixed(np.asarray(column.cast(pa.float64())))
    if kinds.is_floating(kind) and said in ("float", "double"):
        native = "<f4" if said == "float" else "<f8"
        return lambda column: pieces.fixed(np.asarray(column).astype(native))
    if kinds.is_decimal(kind) and schema.logical == "decimal":
        return _decimals(schema, field)
    if kinds.is_string(kind):
        return _texts(schema, field)
    if kinds.is_binary(kind):
        return _bytes(schema, field)
    return None


def _times(schema: AvroType) -> Write | None:
    per_second = _PER_SECOND.get(schema.logical.rpartition("-")[2])
    if per_second is None:
        return None

    def write(column: pa.Array) -> pa.Array:
        micros = np.asarray(column.cast(pa.timestamp("us", "UTC")).view(pa.int64()))
        if per_second > 1_000_000:
            return pieces.longs(micros * (per_second // 1_000_000))
        return pieces.longs(micros // (1_000_000 // per_second))

    return write


def _integers(schema: AvroType, field: TreeField) -> Write:
    narrow = schema.kind == "int"

    def write(column: pa.Array) -> pa.Array:
        values = np.asarray(column.cast(pa.int64()))
        if narrow and len(values) and (values != values.astype(np.int32)).any():
            wrong = values[values != values.astype(np.int32)][0]
            raise UnfitValue(f"{field.path} is {wrong}, and the schema says int, which has 32 bits")
        return pieces.longs(values)

    return write


def _decimals(schema: AvroType, field: TreeField) -> Write | None:
    if schema.kind not in ("bytes", "fixed"):
        return None
    kind = pa.decimal128(38, schema.scale)

    def write(column: pa.Array) -> pa.Array:
        try:
            exact = column.cast(kind).cast(pa.decimal128(schema.precision or 38, schema.scale))
        except pa.ArrowInvalid as error:
            digits = f"{schema.precision} digits, {schema.scale} of them behind the point"
            raise UnfitValue(f"{field.path} has a value that {digits} cannot say") from error
        values = pieces.decimals(exact.cast(kind))
        return _sized(values) if schema.kind == "bytes" else _widened(values, schema.size, field)

    return write


def _widened(values: pa.Array, size: int, field: TreeField) -> pa.Array:
    made = [int.from_bytes(each, "big", signed=True) for each in values.to_pylist()]
    try:
        return pa.array([each.to_bytes(size, "big", signed=True) for each in made], pa.binary())
    except OverflowError as error:
        raise UnfitValue(f"{field.path} has a value that {size} bytes cannot hold") from error


def _texts(schema: AvroType, field: TreeField) -> Write | None:
    if schema.kind == "enum":
        symbols = pa.array(schema.symbols, pa.string())

        def write(column: pa.Array) -> pa.Array:
            index = pc.index_in(column, symbols)
            if index.null_count:
                wrong = column.filter(index.is_null())[0].as_py()
                raise UnfitValue(f"{field.path} is {wrong!r}, no symbol of {schema.says}")
            return pieces.longs(np.asarray(index).astype(np.int64))

        return write
    if schema.kind == "fixed" and schema.logical == "uuid":
        return lambda column: pa.array([UUID(each).bytes for each in column.to_pylist()], pa.binary())
    if schema.kind not in ("string", "bytes") or schema.logical == "decimal":
        return None
    return lambda column: _sized(column.cast(pa.binary()))


def _bytes(schema: AvroType, field: TreeField) -> Write | None:
    if schema.kind == "bytes" and schema.logical != "decimal":
        return _sized
    if schema.kind != "fixed":
        return None

    def write(column: pa.Array) -> pa.Array:
        sizes = pieces.sizes_of(column)
        if (sizes != schema.size).any():
            raise UnfitValue(
                f"{field.path} has {sizes[sizes != schema.size][0]} bytes, {schema.says} has {schema.size}"
            )
        return column

    return write
