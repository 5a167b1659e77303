"""Rows out of Protobuf: a writer's message type and the fields of a row type, compiled into what reads columns.

All messages take a step together: each reads the tag of its next field, and those with the same tag read its value as
one column. Writers put fields in the order of their numbers, so a step mostly has one tag. Values are collected by
field, and the last one of a field counts; messages within messages are read at the end, all of a field together.
Fields that the row type or the writer's type does not know are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.cursor import Cursor, Ints, scattered, zigzag_decoded
from headrace.connectors.formats.fields import TreeField, struct_of
from headrace.connectors.formats.misfits import SchemaMisfit
from headrace.connectors.formats.protobuf.schema import DURATION, TIMESTAMP, ProtoField, ProtoMessage, is_span
from headrace.connectors.formats.values import check_text, parsed_column, time_column

_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5
FIXED: Final = {
    "double": "<f8", "float": "<f4", "fixed64": "<u8", "sfixed64": "<i8", "fixed32": "<u4", "sfixed32": "<i4",
}  # fmt: skip
_MICROS: Final = 1_000_000

Finish = Callable[[list[tuple[Ints, pa.Array]], "list[tuple[Ints, Cursor]]", Cursor], pa.Array]
"""What was collected of a field (messages and values, or messages and the windows of inner messages), as a column."""


@dataclass
class _Slot:
    """A field of the writer that fills one of the row type."""

    writer: ProtoField
    finish: Finish
    values: list[tuple[Ints, pa.Array]] = field(default_factory=list)
    windows: list[tuple[Ints, Cursor]] = field(default_factory=list)


def compile_rows(writer: ProtoMessage, fields: Sequence[TreeField]) -> Callable[[Cursor], list[pa.Array]]:
    """What reads these fields out of messages of the writer's type."""
    sources = [_writer_field(writer, each) for each in fields]
    lacking = [each.path for each, source in zip(fields, sources) if source is None and each.required]
    if lacking:
        raise SchemaMisfit(f"message {writer.name} has no field {', '.join(lacking)}")
    finishers = [None if source is None else _finisher(source, each) for each, source in zip(fields, sources)]

    def read(cursor: Cursor) -> list[pa.Array]:
        slots = [
            None if source is None or finish is None else _Slot(source, finish)
            for source, finish in zip(sources, finishers)
        ]
        _collect(cursor, {slot.writer.number: slot for slot in slots if slot is not None})
        columns = []
        for each, slot in zip(fields, slots):
            if slot is None:
                column = pa.nulls(len(cursor), each.kind)
            else:
                column = slot.finish(slot.values, slot.windows, cursor)
            columns.append(each.complete(column, cursor))
        return columns

    return read


def _writer_field(writer: ProtoMessage, tree: TreeField) -> ProtoField | None:
    by_name = {each.name: each for each in writer.fields}
    return next((by_name[name] for name in (tree.name, *tree.former) if name in by_name), None)


# --- one step after the other


def _collect(cursor: Cursor, slots: dict[int, _Slot]) -> None:
    while True:
        alive = np.flatnonzero((cursor.at < cursor.ends) & ~cursor.lost)
        if not len(alive):
            return
        part = cursor.subset(alive)
        tags = part.varints()
        for tag in tags[:1] if (tags == tags[0]).all() else np.unique(tags):
            which = np.flatnonzero((tags == tag) & ~part.lost)
            if len(which):
                some = part.subset(which)
                _take(int(tag), some, alive[which], slots)
                part.rejoin(which, some)
        cursor.rejoin(alive, part)


def _take(tag: int, cursor: Cursor, rows: Ints, slots: dict[int, _Slot]) -> None:
    """The value behind a tag, of all messages that have this tag now."""
    number, wire = tag >> 3, tag & 7
    slot = slots.get(number)
    if slot is None or number == 0:
        _skip(number, wire, cursor)
        return
    writer = slot.writer
    if wire == _SIZED and writer.repeated and wire_of(writer.kind) != _SIZED:
        _take_packed(slot, cursor, rows)
    elif wire != wire_of(writer.kind):
        cursor.fail(np.ones(len(cursor), np.bool_), f"{writer.name} is not written as {writer.kind}")
    elif writer.kind == "message":
        slot.windows.append((rows, cursor.window(_lengths(cursor))))
    else:
        slot.values.append((rows, _scalar(writer.kind, cursor)))


def _take_packed(slot: _Slot, cursor: Cursor, rows: Ints) -> None:
    native = FIXED.get(slot.writer.kind)
    size = 0 if native is None else np.dtype(native).itemsize
    sizes = _lengths(cursor)
    window = cursor.window(sizes)
    stops = cursor.faults.stops(cursor.data)
    if size:
        counts = (window.ends - window.at) // size
    else:
        counts = np.searchsorted(stops, window.ends) - np.searchsorted(stops, window.at)
    items, owners = window.numbers(counts, size)
    slot.values.append((rows[owners], _scalar(slot.writer.kind, items)))
    window.hand_back(items, owners)
    window.finish()
    cursor.hand_back(window, np.arange(len(cursor)))


def _lengths(cursor: Cursor) -> Ints:
    sizes = cursor.varints()
    return np.minimum(sizes, np.uint64(2**62)).astype(np.int64)


def _skip(number: int, wire: int, cursor: Cursor) -> None:
    if number == 0 or wire not in (_VARINT, _EIGHT, _SIZED, _FOUR):
        cursor.fail(np.ones(len(cursor), np.bool_), "a field in it has no number, or is a group")
    elif wire == _VARINT:
        cursor.varints()
    elif wire == _SIZED:
        cursor.advance(_lengths(cursor))
    else:
        cursor.advance(8 if wire == _EIGHT else 4)


def wire_of(kind: str) -> int:
    if kind in FIXED:
        return _EIGHT if FIXED[kind].endswith("8") else _FOUR
    return _SIZED if kind in ("string", "bytes", "message") else _VARINT


def _scalar(kind: str, cursor: Cursor) -> pa.Array:
    """Numbers as 64 bits of the kind that they are, text as bytes."""
    if kind in ("string", "bytes"):
        return cursor.slices(_lengths(cursor))
    if kind in FIXED:
        native = np.dtype(FIXED[kind])
        values = cursor.fixed(native.itemsize).view(native)[:, 0]
        if kind == "fixed64":
            return _unsigned(values.astype(np.uint64), cursor)
        return pa.array(values.astype(np.float64 if native.kind == "f" else np.int64))
    values = cursor.varints()
    if kind == "bool":
        return pa.array(values != 0)
    if kind == "uint64":
        return _unsigned(values, cursor)
    if kind in ("sint32", "sint64"):
        return pa.array(zigzag_decoded(values))
    if kind == "uint32":
        return pa.array((values & np.uint64(0xFFFFFFFF)).astype(np.int64))
    signed = values.view(np.int64)
    return pa.array(signed.astype(np.int32).astype(np.int64) if kind in ("int32", "enum") else signed)


def _unsigned(values: np.ndarray[tuple[int], np.dtype[np.uint64]], cursor: Cursor) -> pa.Array:
    cursor.fail((values >> np.uint64(63)) != 0, "a number in it is larger than 64 bits with a sign hold")
    return pa.array(np.where(cursor.lost, np.uint64(0), values).view(np.int64))


# --- what was collected, as columns


def _finisher(writer: ProtoField, tree: TreeField) -> Finish:
    kinds, kind = pa.types, tree.kind
    if writer.is_map and kinds.is_map(kind):
        return _map(writer, tree)
    if writer.repeated and not writer.is_map and kinds.is_list(kind):
        return _list(writer, tree)
    if writer.repeated:
        raise _misfit(writer, tree)
    single = _values(writer, tree)
    zero = None if writer.presence else _zero(writer, tree)

    def finish(values: list[tuple[Ints, pa.Array]], windows: list[tuple[Ints, Cursor]], cursor: Cursor) -> pa.Array:
        count = len(cursor)
        places, column = single(values, windows, cursor)
        if len(places) == count and (places == np.arange(count)).all():
            return column
        found = scattered([(places, column)], count, kind)
        return found if zero is None or not found.null_count else _filled(found, zero, cursor)

    return finish


def _misfit(writer: ProtoField, tree: TreeField) -> SchemaMisfit:
    return SchemaMisfit(f"{tree.path} is {writer.says}, which does not become {tree.says}")


def _filled(column: pa.Array, zero: pa.Array, cursor: Cursor) -> pa.Array:
    at = np.where(np.asarray(column.is_null()), len(column), np.arange(len(column)))
    return pa.concat_arrays([column, zero]).take(pa.array(at))


def _zero(writer: ProtoField, tree: TreeField) -> pa.Array | None:
    """What is meant by nothing: zero, or the empty text. Text that stands for something else is absent then."""
    kinds, kind = pa.types, tree.kind
    if writer.kind == "enum" and kinds.is_string(kind):
        return pa.array([writer.symbols[0]], kind) if 0 in writer.symbols else None
    if kinds.is_string(kind):
        return pa.array([""]) if tree.annotation is str else None
    if kinds.is_binary(kind):
        return pa.array([b""], pa.binary())
    if kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind):
        return pa.array([0], pa.int8()).cast(kind)
    return None


Values = Callable[[list[tuple[Ints, pa.Array]], "list[tuple[Ints, Cursor]]", Cursor], tuple[Ints, pa.Array]]
"""All values that were collected, of the wanted type, and which message each is of; in the order they were written."""


def _values(writer: ProtoField, tree: TreeField) -> Values:
    if writer.message is not None:
        return _messages(writer, writer.message, tree)
    convert = _conversion(writer, tree)

    def read(
        values: list[tuple[Ints, pa.Array]], windows: list[tuple[Ints, Cursor]], cursor: Cursor
    ) -> tuple[Ints, pa.Array]:
        if not values:
            return np.empty(0, np.int64), pa.nulls(0, tree.kind)
        rows = np.concatenate([rows for rows, _ in values])
        together = values[0][1] if len(values) == 1 else pa.concat_arrays([each for _, each in values])
        # Judged as messages of their own, so that a value which does not fit is told of the message that it is in.
        judge = Cursor(cursor.data, cursor.at[rows], cursor.ends[rows], cursor.rows[rows], cursor.faults)
        column = convert(together, judge)
        cursor.hand_back(judge, rows)
        return rows, column

    return read


def _conversion(writer: ProtoField, tree: TreeField) -> Callable[[pa.Array, Cursor], pa.Array]:
    kinds, kind = pa.types, tree.kind
    numeric = wire_of(writer.kind) != _SIZED and writer.kind not in ("bool", "double", "float")
    if writer.kind == "bool" and kinds.is_boolean(kind):
        return lambda column, cursor: column
    if writer.kind == "bytes" and kinds.is_binary(kind):
        return lambda column, cursor: column
    if writer.kind == "enum" and kinds.is_string(kind):
        return _names(writer, tree)
    if numeric and kinds.is_integer(kind) and not is_span(tree):
        return lambda column, cursor: column
    if (numeric or writer.kind in ("double", "float")) and kinds.is_floating(kind):
        return lambda column, cursor: pa.array(np.asarray(column).astype(np.float64))
    if numeric and kinds.is_decimal(kind):
        return lambda column, cursor: parsed_column(column.cast(pa.string()), tree, cursor)
    texts = kinds.is_string(kind) or kinds.is_decimal(kind) or kinds.is_date(kind)
    if writer.kind == "string" and (texts or kinds.is_binary(kind)):
        return _texts(tree)
    raise _misfit(writer, tree)


def _names(writer: ProtoField, tree: TreeField) -> Callable[[pa.Array, Cursor], pa.Array]:
    numbers = np.array(sorted(writer.symbols), np.int64)
    names = pa.array([writer.symbols[number] for number in numbers.tolist()], pa.string())

    def read(column: pa.Array, cursor: Cursor) -> pa.Array:
        values = np.asarray(column)
        at = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
        cursor.fail(numbers[at] != values, f"{tree.path} is no value of its enum")
        return parsed_column(names.take(pa.array(at)), tree, cursor)

    return read


def _texts(tree: TreeField) -> Callable[[pa.Array, Cursor], pa.Array]:
    if pa.types.is_binary(tree.kind):
        return lambda column, cursor: column
    return lambda column, cursor: parsed_column(check_text(column, cursor, tree.path), tree, cursor)


def _messages(writer: ProtoField, message: ProtoMessage, tree: TreeField) -> Values:
    inner = _message_reader(writer, message, tree)

    def read(
        values: list[tuple[Ints, pa.Array]], windows: list[tuple[Ints, Cursor]], cursor: Cursor
    ) -> tuple[Ints, pa.Array]:
        if not windows:
            return np.empty(0, np.int64), pa.nulls(0, tree.kind)
        rows = np.concatenate([rows for rows, _ in windows])
        if not writer.repeated and len(windows) > 1:
            twice = np.flatnonzero(np.bincount(rows, minlength=len(cursor)) > 1)
            # To be put together field by field; writers that do this have not been met.
            cursor.fail(np.isin(np.arange(len(cursor)), twice), f"{tree.path} is there twice")
        part = Cursor(
            cursor.data,
            np.concatenate([each.at for _, each in windows]),
            np.concatenate([each.ends for _, each in windows]),
            cursor.rows[rows],
            cursor.faults,
        )
        column = inner(part)
        cursor.hand_back(part, rows)
        return rows, column

    return read


def _message_reader(writer: ProtoField, message: ProtoMessage, tree: TreeField) -> Callable[[Cursor], pa.Array]:
    kinds, kind = pa.types, tree.kind
    if message.name == TIMESTAMP and kinds.is_timestamp(kind):
        return lambda cursor: time_column(cursor, _seconds_and_nanos(cursor), _MICROS, tree)
    if message.name == DURATION and kinds.is_integer(kind):
        return lambda cursor: pa.array(_seconds_and_nanos(cursor))
    if message.wrapped is not None and not tree.parts:
        read = compile_rows(message, [_unwrapped(tree, message.wrapped.name)])
        return lambda cursor: read(cursor)[0]
    if not kinds.is_struct(kind):
        raise _misfit(writer, tree)
    fields = compile_rows(message, tree.parts)
    return lambda cursor: struct_of(tree, fields(cursor))


def _unwrapped(tree: TreeField, name: str) -> TreeField:
    return TreeField(tree.path, name, (), tree.kind, tree.annotation, tree.optional, tree.default)


_PAIR: Final = [
    TreeField("seconds", "seconds", (), pa.int64(), int, False, None),
    TreeField("nanos", "nanos", (), pa.int64(), int, False, None),
]
_PARTS: Final = ProtoMessage("", [ProtoField(1, "seconds", "int64"), ProtoField(2, "nanos", "int32")])


def _seconds_and_nanos(cursor: Cursor) -> Ints:
    """Microseconds. What is finer is cut off."""
    seconds, nanos = (np.asarray(each) for each in compile_rows(_PARTS, _PAIR)(cursor))
    cursor.fail(np.abs(seconds) > np.iinfo(np.int64).max // _MICROS - 1, "a time in it lies beyond all years")
    micros: Ints = np.where(cursor.lost, 0, seconds) * _MICROS + nanos // 1000
    return micros


def _by_row(rows: Ints, column: pa.Array, count: int) -> tuple[pa.Array, pa.Array]:
    """Where the values of each message begin, and the values in the order of messages."""
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    if len(rows) and (np.diff(rows) < 0).any():
        column = column.take(pa.array(np.argsort(rows, kind="stable")))
    return pa.array(offsets), column


def _list(writer: ProtoField, tree: TreeField) -> Finish:
    item = tree.parts[0]
    read = _values(writer, item)

    def finish(values: list[tuple[Ints, pa.Array]], windows: list[tuple[Ints, Cursor]], cursor: Cursor) -> pa.Array:
        offsets, items = _by_row(*read(values, windows, cursor), len(cursor))
        return pa.ListArray.from_arrays(offsets, items, type=tree.kind)

    return finish


def _map(writer: ProtoField, tree: TreeField) -> Finish:
    entry = writer.message
    assert entry is not None
    key, value = (TreeField(part.path, name, (), part.kind, part.annotation, part.optional, None, part.parts)
                  for name, part in zip(("key", "value"), tree.parts))  # fmt: skip
    pair = pa.struct([pa.field("key", key.kind), pa.field("value", value.kind)])
    both = TreeField(tree.path, tree.name, (), pair, tree.annotation, False, None, (key, value))
    # A value that is not there is zero, also where it is a message.
    read = _values(ProtoField(writer.number, writer.name, "message", True, message=_always(entry)), both)

    def finish(values: list[tuple[Ints, pa.Array]], windows: list[tuple[Ints, Cursor]], cursor: Cursor) -> pa.Array:
        offsets, items = _by_row(*read(values, windows, cursor), len(cursor))
        return pa.MapArray.from_arrays(offsets, items.field(0), items.field(1), type=tree.kind)

    return finish


def _always(entry: ProtoMessage) -> ProtoMessage:
    """A pair of a map, whose parts mean zero where they are not there."""
    fields = [
        ProtoField(each.number, each.name, each.kind, message=each.message, symbols=each.symbols)
        for each in entry.fields
    ]
    return ProtoMessage(entry.name, fields, is_entry=True)
