"""From annotations to columns and back: the table of types that rows can be made of.

| annotation | Arrow | Spark |
|---|---|---|
| ``int`` ``float`` ``bool`` | int64, float64, bool | BIGINT DOUBLE BOOLEAN |
| ``str`` ``bytes`` | string, binary | STRING BINARY |
| ``Timestamp`` ``datetime`` | timestamp[us, UTC] | TIMESTAMP |
| ``Duration`` ``timedelta`` | int64, microseconds | BIGINT |
| ``date`` ``Decimal`` | date32, decimal128(38, 18) | DATE DECIMAL(38,18) |
| ``UUID`` ``time`` | string | STRING |
| ``Enum`` ``Literal`` | the type of their values | the same |
| ``list`` ``set`` ``tuple[T, ...]`` ``dict`` | list, map | ARRAY MAP |
| nested Record, Struct, dataclass | struct | STRUCT |
| anything else | binary, MessagePack | BINARY |
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, Literal, NamedTuple, NewType, Union, get_args, get_origin
from uuid import UUID

import msgspec
import pyarrow as pa
from msgspec import structs

from headrace.errors import ProgramError
from headrace.model.columns import (
    DECIMAL,
    TIMESTAMP,
    Column,
    DateColumn,
    IntColumn,
    ListColumn,
    MapColumn,
    MappedColumn,
    PackedColumn,
    StructColumn,
    TimeColumn,
    datetime_column,
    decimal_column,
    timedelta_column,
)
from headrace.model.hints import class_hints, settle_type
from headrace.model.time import Duration, Timestamp

MISSING: Final = msgspec.NODEFAULT


class FieldShape(NamedTuple):
    """One field of a record class."""

    name: str
    encode_name: str
    type: Any
    default: Any
    """MISSING, or what stands in for an absent value."""
    factory: Callable[[], Any] | None

    @property
    def required(self) -> bool:
        return self.default is MISSING and self.factory is None and not split_optional(self.type)[1]


def strip(annotation: Any) -> Any:
    """The annotation without Annotated, and with a user's NewType replaced by what it stands for."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType) and not is_time(annotation):
            annotation = annotation.__supertype__
        else:
            return annotation


def is_time(annotation: Any) -> bool:
    """Whether this is our Timestamp or Duration, which are NewTypes too."""
    return annotation is Timestamp or annotation is Duration


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """The annotation without None, and whether None was part of it."""
    annotation = strip(annotation)
    members = union_members(annotation)
    if not members or types.NoneType not in members:
        return annotation, annotation is Any or annotation is object or annotation is None
    rest = [member for member in members if member is not types.NoneType]
    bare = strip(rest[0]) if len(rest) == 1 else reduce(or_, rest)
    return bare, True


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; empty for anything else."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()


def is_record_class(annotation: Any) -> bool:
    """Whether values of this class are rows of named fields: a Struct (so also a Record) or a dataclass."""
    origin = get_origin(annotation) or annotation
    return isinstance(origin, type) and (issubclass(origin, msgspec.Struct) or dataclasses.is_dataclass(origin))


def field_shapes(cls: Any) -> tuple[FieldShape, ...]:
    """The fields of a record class, with their annotations resolved."""
    settle_type(cls)
    try:
        if issubclass(get_origin(cls) or cls, msgspec.Struct):
            return tuple(_struct_field(info) for info in structs.fields(cls))
        hints = class_hints(cls)
        return tuple(_dataclass_field(info, hints) for info in dataclasses.fields(cls) if info.init)
    except NameError as error:
        raise ProgramError(
            f"an annotation of {cls.__name__} contains an unknown name",
            found=str(error),
            next_move="define or import the name where the class is defined",
        ) from error


def _struct_field(info: structs.FieldInfo) -> FieldShape:
    factory = None if info.default_factory is MISSING else info.default_factory
    return FieldShape(info.name, info.encode_name, info.type, info.default, factory)


def _dataclass_field(info: dataclasses.Field[Any], hints: Mapping[str, Any]) -> FieldShape:
    default = MISSING if info.default is dataclasses.MISSING else info.default
    factory = None if info.default_factory is dataclasses.MISSING else info.default_factory
    return FieldShape(info.name, info.name, hints[info.name], default, factory)


def builder(cls: Any, names: Sequence[str]) -> Callable[..., Any]:
    """What makes an object from its fields in order; the class itself unless some fields are keyword-only."""
    origin = get_origin(cls) or cls
    parameters = inspect.signature(origin).parameters
    keyword_only = [name for name in names if parameters[name].kind is inspect.Parameter.KEYWORD_ONLY]
    if not keyword_only and [name for name in parameters if name in names] == list(names):
        return origin  # type: ignore[no-any-return]
    arguments = ", ".join(names)
    given = ", ".join(f"{name}={name}" for name in names)
    return eval(f"lambda {arguments}: cls({given})", {"cls": origin})  # type: ignore[no-any-return]


_PLAIN: Final[dict[Any, Callable[[], Column]]] = {
    int: IntColumn,
    float: lambda: Column(pa.float64()),
    bool: lambda: Column(pa.bool_()),
    str: lambda: Column(pa.string()),
    bytes: lambda: Column(pa.binary()),
    Timestamp: TimeColumn,
    Duration: IntColumn,
    datetime: datetime_column,
    timedelta: timedelta_column,
    date: DateColumn,
    time: lambda: MappedColumn(Column(pa.string()), time.isoformat, time.fromisoformat),
    Decimal: decimal_column,
    UUID: lambda: MappedColumn(Column(pa.string()), str, UUID),
}
_SEQUENCES: Final[dict[Any, Callable[[list[Any]], Any] | None]] = {
    list: None,
    Sequence: None,
    MutableSequence: None,
    set: set,
    AbstractSet: set,
    frozenset: frozenset,
    tuple: tuple,
}
_MAPPINGS: Final = (dict, Mapping, MutableMapping)


def column_of(annotation: Any, _open: frozenset[Any] = frozenset()) -> Column:
    """The column that holds values of this annotation."""
    bare, _ = split_optional(annotation)
    if isinstance(bare, type | NewType) and bare in _PLAIN:
        return _PLAIN[bare]()
    column = _values_column(bare) or _container_column(bare, _open) or _record_column(bare, _open)
    return column or PackedColumn(annotation)


def _values_column(bare: Any) -> Column | None:
    """Enums and Literals, where all values have one plain type; and numbers of either kind."""
    if set(union_members(bare)) == {int, float}:
        return Column(pa.float64())
    if isinstance(bare, type) and issubclass(bare, Enum):
        inner = _common(member.value for member in bare)
        return inner and MappedColumn(inner, lambda member: member.value, bare)
    if get_origin(bare) is Literal:
        return _common(get_args(bare))
    return None


def _common(values: Any) -> Column | None:
    kinds = {type(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return _PLAIN[kind]() if kind in (str, int, float, bool, bytes) else None


def _container_column(bare: Any, opened: frozenset[Any]) -> Column | None:
    origin, parts = get_origin(bare), get_args(bare)
    if origin in _MAPPINGS and len(parts) == 2:
        key = column_of(parts[0], opened)
        nullable = split_optional(parts[0])[1]
        simple = not nullable and not key.packed and not pa.types.is_nested(key.arrow)
        return MapColumn(key, column_of(parts[1], opened)) if simple else None
    if origin not in _SEQUENCES or not parts:
        return None
    items = {part for part in parts if part is not Ellipsis}
    if len(items) != 1:
        return None  # A tuple with a type per place has no column type; it is packed.
    return ListColumn(column_of(items.pop(), opened), _SEQUENCES[origin])


def _record_column(bare: Any, opened: frozenset[Any]) -> Column | None:
    if not is_record_class(bare) or bare in opened:
        return None
    fields = field_shapes(bare)
    if not fields or _reaches(bare, bare, set()):
        return None
    parts = {field.name: column_of(field.type, opened | {bare}) for field in fields}
    return StructColumn(builder(bare, list(parts)), parts)


def _reaches(annotation: Any, goal: Any, seen: set[Any]) -> bool:
    """Whether a record class contains itself, directly or through others."""
    for part in get_args(annotation):
        if part is goal or _reaches(part, goal, seen):
            return True
    if not is_record_class(annotation) or annotation in seen:
        return False
    seen.add(annotation)
    return any(field.type is goal or _reaches(field.type, goal, seen) for field in field_shapes(annotation))


def spark_type(arrow: pa.DataType) -> str:
    """An Arrow type of ours as Spark DDL text."""
    if arrow in _SPARK:
        return _SPARK[arrow]
    if pa.types.is_list(arrow):
        return f"ARRAY<{spark_type(arrow.value_type)}>"
    if pa.types.is_map(arrow):
        return f"MAP<{spark_type(arrow.key_type)}, {spark_type(arrow.item_type)}>"
    if pa.types.is_struct(arrow):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {spark_type(field.type)}' for field in arrow)}>"
    raise AssertionError(f"no Spark type for {arrow}")


_SPARK: Final = {
    pa.int64(): "BIGINT",
    pa.int32(): "INT",
    pa.int16(): "SMALLINT",
    pa.int8(): "TINYINT",
    pa.float64(): "DOUBLE",
    pa.float32(): "FLOAT",
    pa.bool_(): "BOOLEAN",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    TIMESTAMP: "TIMESTAMP",
    pa.date32(): "DATE",
    DECIMAL: "DECIMAL(38,18)",
}


def quoted(name: str) -> str:
    """A column name as Spark text reads it back, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def annotation_of(arrow: pa.DataType) -> Any:
    """The annotation of a column that SQL made: what a `Row` declares for it. SQL can always say null."""
    return _bare_annotation(arrow) | None


def _bare_annotation(arrow: pa.DataType) -> Any:
    kinds = pa.types
    for test, annotation in (
        (kinds.is_boolean, bool),
        (kinds.is_integer, int),
        (kinds.is_floating, float),
        (kinds.is_decimal, Decimal),
        (kinds.is_timestamp, Timestamp),
        (kinds.is_date, date),
        (kinds.is_binary, bytes),
        (kinds.is_large_binary, bytes),
        (kinds.is_string, str),
        (kinds.is_large_string, str),
    ):
        if test(arrow):
            return annotation
    if kinds.is_map(arrow):
        return dict[_bare_annotation(arrow.key_type), annotation_of(arrow.item_type)]  # type: ignore[misc]
    if kinds.is_list(arrow) or kinds.is_large_list(arrow):
        return list[annotation_of(arrow.value_type)]  # type: ignore[misc]
    raise ProgramError(
        "a column has a type that rows cannot carry",
        expected="numbers, text, bytes, booleans, dates, timestamps, decimals, arrays and maps",
        found=str(arrow),
        next_move="cast it in the expression, or give a Record type that names the columns",
    )
