"""How Spark makes rows of the columns of a source: SQL text for fields, defaults and bad rows, and numbered offsets.

The SQL is for a session in ANSI mode with the time zone UTC; nothing is evaluated here. `FieldReads` collects, field by
field, the casts and the reasons that make a row bad. They are computed once per row, in a projection of their own
(`SparkRead.prepare`), because later expressions name them several times. Spark knows no defaults and puts null for
whatever is absent, at any depth. So records inside of a field, of its lists and of its dictionaries are walked by SQL
as `headrace.model.rows` does for the fields of a row.

`position` and `slice_range` are the offsets of sources that are one numbered sequence: ``{"i": n}`` means that rows 0 …
n − 1 were read. The sequence may be cut into slices so that several cores read it. All slices have one split id.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import msgspec
import pyarrow as pa

from headrace.connectors.source_contract import Offset, SparkRead, Split
from headrace.errors import ProgramError
from headrace.model.columns import Column, ListColumn, MapColumn, StructColumn
from headrace.model.shapes import MISSING, FieldShape, column_of, field_shapes, quoted, spark_type, split_optional
from headrace.model.time import timestamp

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


BATCH_ROWS: Final = 50_000
"""Rows of one Arrow batch on its way to Spark."""


def position(offset: Offset) -> int:
    return int(offset["i"])


def slice_range(start: int, stop: int, partitions: int) -> list[Split]:
    """Up to `partitions` slices of nearly equal length that follow each other; none of them is empty.

    >>> [(s.start["i"], s.end["i"]) for s in slice_range(10, 15, 2)]
    [(10, 12), (12, 15)]
    >>> slice_range(3, 3, 2)
    []
    """
    count = max(0, stop - start)
    slices = min(partitions, count)
    edges = [start + count * n // slices for n in range(slices + 1)] if slices else []
    return [Split("", {"i": a}, {"i": b}) for a, b in pairwise(edges)]


def check_positive(name: str, value: int | None, where: str) -> int | None:
    """The value, if it is a whole number of at least 1 or None."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ProgramError(
        f"{name} cannot be {value!r}",
        where=where,
        expected="a whole number of at least 1",
        found=repr(value),
        next_move=f"leave {name} out for the default",
    )


def text(value: str) -> str:
    r"""A string literal.

    >>> text("it's")
    "'it\\'s'"
    """
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literal(value: Any, kind: pa.DataType) -> str:
    """A default value of a field as SQL of the field's type."""
    wanted = spark_type(kind)
    if value is None:
        return f"CAST(NULL AS {wanted})"
    if isinstance(value, Enum):
        value = value.value
    if pa.types.is_timestamp(kind):
        us = timestamp(value) if isinstance(value, datetime) else value
        return f"timestamp_micros({int(us)}L)"
    if isinstance(value, timedelta):
        return f"{value // timedelta(microseconds=1)}L"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (bytes, bytearray)):
        return f"unbase64('{base64.b64encode(value).decode()}')"
    if pa.types.is_nested(kind):
        return f"from_json({text(msgspec.json.encode(value).decode())}, {text(wanted)})"
    if isinstance(value, (int, float, Decimal, date)):
        return f"CAST('{value}' AS {wanted})"
    return f"CAST({text(str(value))} AS {wanted})"


def or_default(expression: str, name: str, codec: RowCodec) -> str:
    """The expression, or the field's default where it is null and the field has one."""
    default = codec.defaults.get(name)
    if name in codec.required or default is None:
        return expression
    column = codec.columns[name]
    if column.packed:
        default = column.encode([default])[0].as_py()
    return f"coalesce({expression}, {literal(default, codec.schema.field(name).type)})"


def any_of(conditions: Iterable[str]) -> str | None:
    """True where one of the conditions is; the conditions are never null. None when there are none."""
    text_of = " OR ".join(f"({condition})" for condition in conditions)
    return text_of or None


def first_reason(reasons: Mapping[str, str]) -> str:
    """The text of the first condition that is true: condition → SQL expression of its reason."""
    cases = " ".join(f"WHEN {condition} THEN {reason}" for condition, reason in reasons.items())
    return f"CASE {cases} END" if cases else "CAST(NULL AS STRING)"


def bad_row_json(file: str, raw_text: str, reason: str) -> str:
    """What the engine is told of a bad row: JSON text of three strings."""
    return f"to_json(named_struct('file', {file}, 'text', {raw_text}, 'reason', {reason}))"


def missing_reasons(columns: Mapping[str, str], codec: RowCodec) -> dict[str, str]:
    """Condition → reason for each field that may not be null, given the expressions of the fields."""
    required = [name for name in codec.required if name in columns]
    return {f"{columns[name]} IS NULL": text(f"{name} is missing") for name in required}


class NestedField(NamedTuple):
    """How a field with something inside is read."""

    ddl: str
    """The type to parse it with."""
    fill: Callable[[str], str]
    """SQL of the parsed field → SQL of the field as its type says."""
    bad: Callable[[str], str | None]
    """SQL of the parsed field → condition under which it is bad, which is never null. None: it is always good."""
    changes: bool = False
    """Whether `fill` makes something else of it."""


def nested_of(annotation: Any, *, json: bool) -> NestedField | None:
    """None where what Spark reads is right as it is. `json`: names are those of JSON, and times are text."""
    column = column_of(annotation)
    if column.packed or not pa.types.is_nested(column.arrow):
        return None
    found = _read(annotation, column, json, 0)
    return found if found.changes or found.bad("field") is not None else None


def _read(annotation: Any, column: Column, json: bool, depth: int) -> NestedField:
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
        return NestedField(
            "STRING",
            lambda given: f"try_cast({given} AS TIMESTAMP)",
            lambda given: f"({given} IS NOT NULL AND try_cast({given} AS TIMESTAMP) IS NULL)",
            changes=True,
        )
    return NestedField(spark_type(column.arrow), lambda given: given, lambda _: None)


def _read_record(fields: tuple[FieldShape, ...], column: StructColumn, json: bool, depth: int) -> NestedField:
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
    return NestedField(f"STRUCT<{ddl}>", fill, bad, changes)


def _default(field: FieldShape) -> Any:
    """What stands in for an absent value; None where nothing does."""
    default = field.factory() if field.factory is not None else field.default
    return None if default is MISSING else default


def _read_list(item: NestedField, depth: int) -> NestedField:
    each = f"item{depth}"

    def bad(given: str) -> str | None:
        wrong = item.bad(each)
        return None if wrong is None else f"coalesce(exists({given}, {each} -> {wrong}), false)"

    def fill(given: str) -> str:
        return f"transform({given}, {each} -> {item.fill(each)})" if item.changes else given

    return NestedField(f"ARRAY<{item.ddl}>", fill, bad, item.changes)


def _read_map(value: NestedField, key: str, depth: int) -> NestedField:
    each, name = f"item{depth}", f"name{depth}"

    def bad(given: str) -> str | None:
        wrong = value.bad(each)
        return None if wrong is None else f"coalesce(exists(map_values({given}), {each} -> {wrong}), false)"

    def fill(given: str) -> str:
        return f"transform_values({given}, ({name}, {each}) -> {value.fill(each)})" if value.changes else given

    return NestedField(f"MAP<{key}, {value.ddl}>", fill, bad, value.changes)


IS_BAD: Final = "__is_bad"
NO_JSON: Final = "not a JSON object, or a value of another type"


class FieldReads:
    """Call `take`, `cast` or `take_json` once per field of the codec that Spark reads, then `read`."""

    def __init__(self, codec: RowCodec, prepare: tuple[str, ...] = ()) -> None:
        self.codec = codec
        self.reasons: dict[str, str] = {}
        """Condition under which a row is bad → SQL of the reason. The first that holds is told."""
        self.made: list[str] = []
        """Names of the casts that `prepare` adds to the source's columns."""
        self._prepare = list(prepare)
        self._columns: dict[str, str] = {}
        self._values: dict[str, str] = {}

    def take(self, field: pa.Field, value: str) -> None:
        """The field is this expression, which costs nothing to evaluate again."""
        self._values[field.name] = value
        self._columns[field.name] = or_default(value, field.name, self.codec)

    def take_parsed(self, field: pa.Field, given: str, *, json: bool) -> str:
        """The field is what Spark parsed, with what is absent inside of it filled in. Returns the type to parse."""
        inner = nested_of(self.codec.annotations[field.name], json=json)
        if inner is None:
            self.take(field, given)
            return spark_type(field.type)
        if (wrong := inner.bad(given)) is not None:
            self.reasons[wrong] = text(f"{field.name} lacks a field, or has a time that is not an ISO time")
        if inner.changes:
            # A default is never null, and Spark puts that into the type, which has to be the same for all sources.
            filled = f"CAST({inner.fill(given)} AS {spark_type(field.type)})"
            given = self._prepare_name(f"__{field.name}_filled", filled)
        self.take(field, given)
        return inner.ddl

    def _prepare_name(self, name: str, value: str) -> str:
        """The name under which an expression can be used often, and is computed once."""
        self.made.append(quoted(name))
        self._prepare.append(f"{value} AS {quoted(name)}")
        return quoted(name)

    def cast(self, field: pa.Field, given: str, value: str) -> None:
        """The field is what `value` makes of `given`; a value that it makes nothing of is bad."""
        name = self._prepare_name(f"__{field.name}", value)
        shown = text(f"{field.name} is not {_in_words(field.type)}: ")
        self.reasons[f"({given}) IS NOT NULL AND {name} IS NULL"] = f"concat({shown}, CAST({given} AS STRING))"
        self.take_parsed(field, name, json=False)

    def take_json(self, names: Iterable[str], *, corrupt: str, within: str = "") -> str:
        """These fields are read from JSON by Spark's parser: columns, or members of the struct `within`.

        Returns the DDL to parse with; `corrupt` is the column that holds the text of what could not be parsed.
        Timestamps come as text, so that a number is not taken for seconds.
        """
        holder = f"{within}." if within else ""
        self.reasons[f"{holder}{corrupt} IS NOT NULL"] = text(NO_JSON)
        ddl = []
        for name in names:
            field, key = self.codec.schema.field(name), quoted(self.codec.encoded_names[name])
            if pa.types.is_timestamp(field.type):
                ddl.append(f"{key} STRING")
                self.cast(field, holder + key, f"try_cast({holder}{key} AS TIMESTAMP)")
            else:
                ddl.append(f"{key} {self.take_parsed(field, holder + key, json=True)}")
        return ", ".join([*ddl, f"{corrupt} STRING"])

    def prepare_first(self, expression: str) -> None:
        """Something that the casts are made of, as ``expression AS name``."""
        self._prepare.insert(0, expression)

    def read(
        self,
        format: str,
        path: str | None,
        options: Mapping[str, str],
        schema_ddl: str | None,
        *,
        raw: tuple[str, str],
    ) -> SparkRead:
        """`raw` is SQL of the place a bad row came from, and of its text."""
        reasons = self.reasons | missing_reasons(self._values, self.codec)
        bad = any_of(reasons)
        prepare = self._prepare if bad is None else [*self._prepare, f"{bad} AS {IS_BAD}"]
        return SparkRead(
            format=format,
            options=dict(options),
            schema_ddl=schema_ddl,
            load_path=path,
            prepare=tuple(prepare),
            columns={name: self._columns[name] for name in self.codec.schema.names if name in self._columns},
            bad=None if bad is None else IS_BAD,
            raw=None if bad is None else bad_row_json(*raw, first_reason(reasons)),
        )


def _in_words(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "an ISO time"
    if pa.types.is_binary(kind):
        return "base64"
    if pa.types.is_string(kind):
        return "UTF-8 text"
    return spark_type(kind)
