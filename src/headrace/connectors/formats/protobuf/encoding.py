"""Rows into Protobuf: the fields of a row type and a message type, compiled into what writes columns.

Fields are written in the order of their numbers, numbers of a list packed where the type says so, and zero not at all
where the type cannot tell it from nothing: the bytes are those of other writers. A field of the rows that the type does
not have is refused when the program starts, because it would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats import pieces
from headrace.connectors.formats.fields import TreeField
from headrace.connectors.formats.misfits import SchemaMisfit, UnfitValue
from headrace.connectors.formats.protobuf.decoding import FIXED, wire_of
from headrace.connectors.formats.protobuf.schema import DURATION, TIMESTAMP, ProtoField, ProtoMessage, is_span
from headrace.connectors.text import value_texts

Write = Callable[[pa.Array], pa.Array]
"""Writes a column without nulls as pieces."""

_SIZED: Final = 2
_MICROS: Final = 1_000_000
_RANGES: Final = {
    "int32": (-(2**31), 2**31 - 1), "sint32": (-(2**31), 2**31 - 1), "sfixed32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1), "fixed32": (0, 2**32 - 1), "uint64": (0, 2**63 - 1), "fixed64": (0, 2**63 - 1),
}  # fmt: skip
_PARTS: Final = (ProtoField(1, "seconds", "int64"), ProtoField(2, "nanos", "int32"))


def compile_messages(
    message: ProtoMessage, fields: Sequence[TreeField]
) -> Callable[[Sequence[pa.Array], int], pa.Array]:
    """What writes rows, given as the columns of these fields and their number."""
    by_name = {name: at for at, tree in enumerate(fields) for name in (*tree.former, tree.name)}
    steps: list[tuple[int, Write]] = []
    for each in message.fields:
        at = by_name.get(each.name)
        if at is not None:
            steps.append((at, _field_writer(each, fields[at])))
        elif each.required:
            raise SchemaMisfit(f"the rows have no field {each.name}, which message {message.name} requires")
    left = [tree.path for at, tree in enumerate(fields) if at not in {place for place, _ in steps}]
    if left:
        raise SchemaMisfit(f"message {message.name} has no field {', '.join(left)}")

    def write(columns: Sequence[pa.Array], count: int) -> pa.Array:
        if not steps:
            return pieces.constant(b"", count)
        return pieces.joined(*(step(columns[at]) for at, step in steps))

    return write


def _field_writer(writer: ProtoField, tree: TreeField) -> Write:
    kinds, kind = pa.types, tree.kind
    if writer.is_map and kinds.is_map(kind):
        return _map(writer, tree)
    if writer.repeated and not writer.is_map and kinds.is_list(kind):
        return _list(writer, tree)
    if writer.repeated:
        raise _misfit(writer, tree)
    write = _tagged(writer, tree)
    zero = None if writer.presence else _zero_test(writer)

    def single(column: pa.Array) -> pa.Array:
        if column.null_count and tree.default is not None:
            column = _filled(column, tree.default)
        if column.null_count and (writer.required or zero is not None):
            raise UnfitValue(f"{tree.path} is absent in a row, and message types without optional cannot say so")
        if zero is not None:
            column = pc.if_else(zero(column), None, column) if not kinds.is_struct(kind) else column
        there = column.drop_null() if column.null_count else column
        return pieces.where_valid(column, write(there), b"")

    return single


def _filled(column: pa.Array, default: pa.Array) -> pa.Array:
    at = np.where(np.asarray(column.is_valid()), np.arange(len(column)), len(column))
    return pa.concat_arrays([column, default]).take(pa.array(at))


def _misfit(writer: ProtoField, tree: TreeField) -> SchemaMisfit:
    return SchemaMisfit(f"{tree.path} is {tree.says}, which {writer.says} cannot say")


def _zero_test(writer: ProtoField) -> Callable[[pa.Array], pa.Array]:
    """Which values a message does not need to say."""
    if writer.kind in ("string", "bytes"):
        return _is_empty
    if writer.kind == "enum":
        first = writer.symbols.get(0)
        return lambda column: pc.equal(column, first if pa.types.is_string(column.type) else 0)
    if writer.kind in ("double", "float"):
        # The negative zero is said.
        return lambda column: pa.array(np.asarray(column.cast(pa.float64())).view(np.int64) == 0)
    return lambda column: pc.equal(column.cast(pa.int64()), 0)


def _is_empty(column: pa.Array) -> pa.Array:
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return pa.array(np.zeros(len(column), np.bool_))
    return pc.equal(pc.binary_length(column), 0)


def _tag(number: int, wire: int) -> bytes:
    tag: bytes = pieces.varints(np.array([number << 3 | wire], np.uint64))[0].as_py()
    return tag


def _tagged(writer: ProtoField, tree: TreeField) -> Write:
    """Values, each behind its tag."""
    wire = wire_of(writer.kind)
    tag, write = _tag(writer.number, wire), _writer(writer, tree)
    if wire != _SIZED:
        return lambda column: pieces.joined(pieces.constant(tag, len(column)), write(column))

    def sized(column: pa.Array) -> pa.Array:
        content = write(column)
        return pieces.joined(pieces.constant(tag, len(column)), _length(content), content)

    return sized


def _length(content: pa.Array) -> pa.Array:
    return pieces.varints(pieces.sizes_of(content).astype(np.uint64))


def _list(writer: ProtoField, tree: TreeField) -> Write:
    item = tree.parts[0]
    _refuse_nulls(tree, item)
    if writer.packed:
        tag, write = _tag(writer.number, _SIZED), _writer(writer, item)
    else:
        tag, write = b"", _tagged(writer, item)

    def lists(column: pa.Array) -> pa.Array:
        column = _without_null(column, tree)
        content = pieces.by_list(column, write(_whole(pieces.items_of(column, column.values), item)))
        if not writer.packed:
            return content
        some = pieces.counts_of(column) > 0
        there = content.filter(pa.array(some))
        whole = pieces.joined(pieces.constant(tag, len(there)), _length(there), there)
        return pieces.where_valid(pa.array(some, mask=~some), whole, b"")

    return lists


def _refuse_nulls(tree: TreeField, item: TreeField) -> None:
    if tree.optional or item.optional:
        where = tree.path if tree.optional else item.path
        raise SchemaMisfit(f"{where} may be None, and Protobuf has no such lists, maps or items")


def _without_null(column: pa.Array, tree: TreeField) -> pa.Array:
    if column.null_count and tree.default is not None:
        return _filled(column, tree.default)
    return _whole(column, tree)


def _whole(column: pa.Array, tree: TreeField) -> pa.Array:
    if column.null_count:
        raise UnfitValue(f"{tree.path} is absent in a row, and Protobuf cannot say so")
    return column


def _map(writer: ProtoField, tree: TreeField) -> Write:
    entry = writer.message
    assert entry is not None
    _refuse_nulls(tree, tree.parts[1])
    key, value = (_tagged(field, part) for field, part in zip(entry.fields, tree.parts))
    tag = _tag(writer.number, _SIZED)

    def maps(column: pa.Array) -> pa.Array:
        column = _without_null(column, tree)
        keys, items = (pieces.items_of(column, each) for each in (column.keys, column.items))
        pairs = pieces.joined(key(keys), value(_whole(items, tree.parts[1])))
        tagged = pieces.joined(pieces.constant(tag, len(pairs)), _length(pairs), pairs)
        return pieces.by_list(column, tagged)

    return maps


# --- values


def _writer(writer: ProtoField, tree: TreeField) -> Write:
    write = _of_message(writer, tree) if writer.message is not None else _scalar(writer, tree)
    if write is None:
        raise _misfit(writer, tree)
    return write


def _of_message(writer: ProtoField, tree: TreeField) -> Write | None:
    message, kind = writer.message, tree.kind
    assert message is not None
    if message.name == TIMESTAMP and pa.types.is_timestamp(kind):
        return lambda column: _moments(np.asarray(column.cast(pa.timestamp("us", "UTC")).view(pa.int64())), floor=True)
    if message.name == DURATION and is_span(tree):
        return lambda column: _moments(np.asarray(column), floor=False)
    if message.wrapped is not None and not tree.parts:
        inner = TreeField(tree.path, message.wrapped.name, (), kind, tree.annotation, False, None)
        wrapped = compile_messages(message, [inner])
        return lambda column: wrapped([column], len(column))
    if pa.types.is_struct(kind):
        write = compile_messages(message, tree.parts)
        return lambda column: write(column.flatten(), len(column))
    return None


def _moments(micros: np.ndarray[tuple[int], np.dtype[np.int64]], *, floor: bool) -> pa.Array:
    """Seconds and nanoseconds; those of a span have its sign, those of a time are never negative."""
    seconds = micros // _MICROS
    if not floor:
        seconds = np.where((micros < 0) & (micros % _MICROS != 0), seconds + 1, seconds)
    nanos = (micros - seconds * _MICROS) * 1000
    return pieces.joined(*(_number_field(field, values) for field, values in zip(_PARTS, (seconds, nanos))))


def _number_field(field: ProtoField, values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    some = values != 0
    there = pieces.varints(values[some].view(np.uint64))
    tagged = pieces.joined(pieces.constant(_tag(field.number, 0), len(there)), there)
    return pieces.where_valid(pa.array(some, mask=~some), tagged, b"")


def _scalar(writer: ProtoField, tree: TreeField) -> Write | None:
    kinds, kind = pa.types, tree.kind
    if writer.kind == "bool" and kinds.is_boolean(kind):
        return lambda column: pieces.fixed(np.asarray(column.cast(pa.uint8())))
    if writer.kind == "enum" and kinds.is_string(kind):
        return _symbols(writer, tree)
    if writer.kind in ("double", "float") and (kinds.is_floating(kind) or kinds.is_integer(kind)):
        native = FIXED[writer.kind]
        return lambda column: pieces.fixed(np.asarray(column.cast(pa.float64())).astype(native))
    if kinds.is_integer(kind) and writer.kind not in ("string", "bytes", "bool") and not is_span(tree):
        return _integers(writer, tree)
    if writer.kind == "bytes" and kinds.is_binary(kind):
        return lambda column: column
    if writer.kind == "string" and (kinds.is_string(kind) or kinds.is_decimal(kind) or kinds.is_date(kind)):
        return lambda column: value_texts(column).cast(pa.binary())
    return None


def _integers(writer: ProtoField, tree: TreeField) -> Write:
    low, high = _RANGES.get(writer.kind, (-(2**63), 2**63 - 1))

    def write(column: pa.Array) -> pa.Array:
        values = np.asarray(column.cast(pa.int64()))
        wrong = (values < low) | (values > high)
        if wrong.any():
            raise UnfitValue(f"{tree.path} is {values[wrong][0]}, which {writer.kind} cannot hold")
        if writer.kind in FIXED:
            return pieces.fixed(values.astype(FIXED[writer.kind]))
        return pieces.longs(values) if writer.kind.startswith("sint") else pieces.varints(values.view(np.uint64))

    return write


def _symbols(writer: ProtoField, tree: TreeField) -> Write:
    names = pa.array(list(writer.symbols.values()), pa.string())
    numbers = np.array(list(writer.symbols), np.int64)

    def write(column: pa.Array) -> pa.Array:
        index = pc.index_in(column, names)
        if index.null_count:
            wrong = column.filter(index.is_null())[0].as_py()
            raise UnfitValue(f"{tree.path} is {wrong!r}, no value of the enum of {writer.name}")
        return pieces.varints(numbers[np.asarray(index)].view(np.uint64))

    return write
