"""Values of state in columns that somebody gives: checked against the declared type, and encoded as it is stored.

A value stands in one column, ``value``, or, where it is a Record, field by field in columns of their own, as exports
write them. Times may be times, numbers of microseconds or ISO text; what no column holds well may be JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.errors import ProgramError
from headrace.model.time_shape import TIMESTAMP, TimeShape, time_writer, timestamps_of
from headrace.model.type_json import annotation_of, type_in_words, value_encoder
from headrace.model.type_shape import TypeShape
from headrace.read.columns import EXPIRES_AT, IS_JSON

VALUE: Final = "value"
_CONTAINERS: Final = frozenset({"record", "list", "set", "map", "tuple"})
_PLAIN: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "int": pa.types.is_integer,
    "float": pa.types.is_floating,
    "bool": pa.types.is_boolean,
    "str": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    "bytes": lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
}
"""Kinds of types whose columns need no second look."""
_encode: Final = msgspec.msgpack.Encoder().encode


class ValueColumns:
    """How the values of a state are read off columns."""

    def __init__(self, where: str, shape: TypeShape | None, times: TimeShape | None) -> None:
        self.where = where
        self.shape = shape
        self.times = times
        self._encoder = value_encoder(shape, times)
        self._listed: Any = list[Any] if shape is None else list[annotation_of(shape)]  # type: ignore[misc]

    def encode(self, batch: pa.RecordBatch, beside: Collection[str], first_row: int) -> pa.BinaryArray:
        """The stored value of each row. ``beside``: columns that are none of it."""
        if VALUE in batch.schema.names:
            field = batch.schema.field(VALUE)
            if quick := self._plain_column(batch.column(VALUE), field):
                return quick
            return self.encode_all(self.plain(batch.column(VALUE), field, self.shape, self.times), first_row)
        return self.encode_all(self._rows(batch, beside), first_row)

    def _plain_column(self, column: pa.Array, field: pa.Field) -> pa.BinaryArray | None:
        shape = self.shape
        if shape is None or shape.limits or self.times is not None or column.null_count or field.metadata == IS_JSON:
            return None
        fits = _PLAIN.get(shape.kind)
        if fits is None or not fits(column.type) or pa.types.is_uint64(column.type):
            return None
        return pa.array(list(map(_encode, column.to_pylist())), pa.binary())

    def _rows(self, batch: pa.RecordBatch, beside: Collection[str]) -> list[Any]:
        """Records, or mappings with names, that are spread over columns."""
        fields = self._fields
        if fields is None:
            raise ProgramError(
                "no column holds the values",
                where=self.where,
                expected=f"a column {VALUE!r} of {type_in_words(self.shape)}",
                found=", ".join(batch.schema.names),
                next_move=f"rename the column to {VALUE!r}",
            )
        names = [name for name in batch.schema.names if name not in beside and name != EXPIRES_AT]
        # A field that is called like the key is there under its own name, or only as the key.
        names += [name for name in beside if name in fields and f"{VALUE}.{name}" not in names]
        columns = []
        for name in names:
            shown = name.removeprefix(f"{VALUE}.")
            shape = fields.get(shown) if fields or self.shape is None else self.shape.items
            column = self.plain(batch.column(name), batch.schema.field(name), shape, _times_in(self.times, shown))
            columns.append((shown, column))
        if not columns:
            return [{} for _ in range(batch.num_rows)]
        inner = [shown for shown, _ in columns]
        rows = [dict(zip(inner, row)) for row in zip(*(column for _, column in columns))]
        return without_absent(rows, self.shape) if any(batch.column(name).null_count for name in names) else rows

    @property
    def _fields(self) -> dict[str, TypeShape] | None:
        """The fields of the Records that values are; of mappings none; None where values are neither."""
        if _is_map(self.shape):
            return {}
        records = _records_of(self.shape)
        return {each.stored_name: each.type for record in records for each in record.fields} if records else None

    def plain(self, column: pa.Array, field: pa.Field, shape: TypeShape | None, times: TimeShape | None) -> list[Any]:
        """A column as plain Python, its times as they are stored."""
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_timestamp(column.type) and times is not None and times.time == TIMESTAMP:
            numbers: list[Any] = _microseconds(column).to_pylist()
            return numbers
        values: list[Any] = column.to_pylist()
        if field.metadata == IS_JSON or (_is_container(shape) and _is_text(column.type)):
            values = [None if value is None else msgspec.json.decode(value) for value in values]
        if times is not None and pa.types.is_nested(column.type):
            replace = time_writer(timestamps_of(times), int)
            values = values if replace is None else list(map(replace, values))
        present = _present_parts(shape) if pa.types.is_nested(column.type) else None
        return values if present is None else list(map(present, values))

    def encode_all(self, values: Sequence[Any], first_row: int) -> pa.BinaryArray:
        """Plain values as they are stored: all at once, or where one does not fit so, one by one."""
        try:
            read = msgspec.convert(values, self._listed, str_keys=True)
        except (ValueError, OverflowError, TypeError, RecursionError):
            return self._encode_each(values, first_row)
        return pa.array(list(map(_encode, read)), pa.binary())

    def _encode_each(self, values: Sequence[Any], first_row: int) -> pa.BinaryArray:
        encode = self._encoder
        out: list[bytes] = []
        try:
            for value in values:
                out.append(encode(value))
        except (ValueError, msgspec.MsgspecError) as error:
            row = len(out)
            raise ProgramError(
                "a value does not fit the type that the program declares",
                where=f"{self.where}, row {first_row + row:,}",
                expected=_in_words(self.shape, self.times),
                found=f"{error}: {values[row]!r:.200}",
                next_move="cast or rename the column, or leave such rows out",
            ) from error
        return pa.array(out, pa.binary())


def without_absent(rows: Sequence[Any], shape: TypeShape | None) -> list[Any]:
    """Records without the fields that are null where they cannot be: columns have nulls where a value has no field."""
    records = _records_of(shape)
    if not records:
        return [None if row is None else _some_entries(row) for row in rows]
    nullable = [_nullable_fields(record) for record in records]
    return [None if row is None else _without(row, nullable[_case_of(row, records)]) for row in rows]


def _some_entries(row: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in row.items() if each is not None}


def _nullable_fields(record: TypeShape) -> set[str]:
    return {each.stored_name for each in record.fields if each.type.optional}


def _without(row: dict[str, Any], nullable: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None or name in nullable}


Present = Callable[[Any], Any]


def _present_parts(shape: TypeShape | None) -> Present | None:
    """What takes the nulls of absent fields and entries out of a value, also inside of it; None: there are none.

    Mappings of many rows are often one struct, with the names of all of them. A map of Arrow is a list of pairs.
    """
    if shape is None:
        return None
    if records := _records_of(shape):
        cases = [(_nullable_fields(record), _present_fields(record)) for record in records]
        return lambda value: (
            value if not isinstance(value, dict) else _present_record(value, *cases[_case_of(value, records)])
        )
    bare = next((each for each in shape.members if each.kind in _CONTAINERS), shape)
    part = _present_parts(bare.items)
    if bare.kind == "map":
        return lambda value: _present_entries(value, part)
    if bare.kind not in ("list", "set") or part is None:
        return None
    return lambda value: [part(each) for each in value] if isinstance(value, list) else value


def _present_fields(record: TypeShape) -> dict[str, Present]:
    parts = {each.stored_name: _present_parts(each.type) for each in record.fields}
    return {name: part for name, part in parts.items() if part is not None}


def _present_record(value: dict[str, Any], nullable: Collection[str], parts: dict[str, Present]) -> dict[str, Any]:
    return {name: parts[name](each) if name in parts else each for name, each in _without(value, nullable).items()}


def _present_entries(value: Any, part: Present | None) -> Any:
    if isinstance(value, list):
        value = dict(value)
    elif isinstance(value, dict):
        value = _some_entries(value)
    if part is None or not isinstance(value, dict):
        return value
    return {name: part(each) for name, each in value.items()}


def _records_of(shape: TypeShape | None) -> list[TypeShape]:
    """The Record that a type is, or all of its union; none where it may be anything else."""
    if shape is None:
        return []
    members = [each for each in shape.members if each.kind != "none"] if shape.kind == "union" else [shape]
    return members if all(each.kind == "record" for each in members) else []


def _case_of(row: dict[str, Any], records: Sequence[TypeShape]) -> int:
    """Which Record of a union a row is, by its tag."""
    tags = (record.tag for record in records)
    return next((at for at, tag in enumerate(tags) if tag is not None and row.get(tag[0]) == tag[1]), 0)


def _times_in(shape: TimeShape | None, name: str) -> TimeShape | None:
    """Where the times of a field are, or of the values of a mapping."""
    if shape is None:
        return None
    found = [each.fields.get(name) for each in (shape, *shape.cases.values())]
    return next((each for each in found if each is not None), shape.items)


def _microseconds(column: pa.Array) -> pa.Int64Array:
    return column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())


def _in_words(shape: TypeShape | None, times: TimeShape | None) -> str:
    return "Timestamp: a time, microseconds or ISO text" if times is not None and times.time else type_in_words(shape)


def _is_container(shape: TypeShape | None) -> bool:
    if shape is None:
        return False
    if shape.kind == "union":
        kinds = {member.kind for member in shape.members}
        return bool(kinds & _CONTAINERS) and "str" not in kinds
    return shape.kind in _CONTAINERS


def _is_map(shape: TypeShape | None) -> bool:
    return shape is not None and shape.kind == "map"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def read_times(column: pa.Array, where: str, name: str, first_row: int) -> pa.Int64Array:
    """A column of times, as microseconds: times, numbers of microseconds, or ISO text."""
    from headrace.model.time import parse_time

    if pa.types.is_timestamp(column.type):
        return _microseconds(column)
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        return column.cast(pa.int64())
    times: list[int | None] = []
    for row, value in enumerate(column.to_pylist()):
        try:
            times.append(None if value is None else parse_time(value))
        except (ProgramError, TypeError, ValueError, AttributeError) as error:
            raise ProgramError(
                "this is no time",
                where=f"{where}, row {first_row + row:,}, column {name}",
                expected="a timestamp, microseconds since 1970, or ISO text",
                found=repr(value),
                next_move="cast the column",
            ) from error
    return pa.array(times, pa.int64())
