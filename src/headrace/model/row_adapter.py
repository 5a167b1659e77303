"""Rows in columns, of an older type, made rows of the newest: those that joins keep, and those that wait for an epoch.

Fields that were added, removed, renamed or widened are columns that come, go, take another name, or are cast. Any
other change goes row by row, through plain values, as values of states do: what MessagePack would hold of them
(`headrace.model.type_adapt` takes those), for whoever knows a type by its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError, StoreError
from headrace.model.columns import as_int64, shortest_decimal
from headrace.model.migrations import FunctionRaised
from headrace.model.rows import VALUE, RowCodec, codec_of
from headrace.model.type_adapt import same_value
from headrace.model.type_change import TypeChange
from headrace.model.type_pairs import members_of, pair_fields
from headrace.model.type_shape import TypeShape, nameless
from headrace.model.values import value_codec


class RowAdapter:
    """Makes rows of one older type rows of the newest, column by column where that is enough."""

    def __init__(
        self, where: str, types: Sequence[TypeShape | None], change: TypeChange, annotation: Any, *, prefix: str = ""
    ) -> None:
        """``types``: all that the rows had, the oldest first. ``annotation``: their Python type now.

        ``prefix``: stands before the names of fields. Columns that are no fields are left alone.
        """
        old, new = types[0], types[-1]
        assert old is not None and new is not None, "rows whose type is not known are read by their names"
        self._where = where
        self._old = old
        self._adapt = change.adapt or same_value
        self._prefix = prefix
        self._codec: RowCodec = codec_of(annotation)
        self._fields = frozenset(_field_names(old))
        self._sources = _columns_between(old, new) if len(types) == 2 and change.kind == "reads" else None

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows."""
        columns = {name: rows.column(self._prefix + name) for name in self._fields if self._holds(rows.schema, name)}
        made = self._by_column(columns, rows.num_rows) if self._sources is not None else self._by_row(columns, rows)
        others = [rows.column(field.name) for field in rows.schema if not self._is_field(field.name)]
        return pa.RecordBatch.from_arrays([*others, *made], schema=self.schema(rows.schema))

    def schema(self, stored: pa.Schema) -> pa.Schema:
        """The columns that rows have then."""
        others = [field for field in stored if not self._is_field(field.name)]
        return pa.schema(
            [*others, *(field.with_name(self._prefix + field.name) for field in self._codec.schema)], stored.metadata
        )

    def _holds(self, schema: pa.Schema, name: str) -> bool:
        return self._prefix + name in schema.names

    def _is_field(self, column: str) -> bool:
        return column.startswith(self._prefix) and column.removeprefix(self._prefix) in self._fields

    def _by_column(self, columns: Mapping[str, pa.Array], rows: int) -> list[pa.Array]:
        assert self._sources is not None
        made: list[pa.Array] = []
        for field in self._codec.schema:
            source = self._sources.get(field.name)
            if source is None or source not in columns:
                default = self._codec.columns[field.name].encode([self._codec.defaults.get(field.name)])
                made.append(default.take(pa.array([0] * rows, pa.int64())))
                continue
            try:
                made.append(columns[source].cast(field.type))
            except pa.ArrowException as error:
                raise self._misfit(f"column {source!r}: {error}") from error
        return made

    def _by_row(self, columns: Mapping[str, pa.Array], rows: pa.RecordBatch) -> list[pa.Array]:
        adapt = self._adapt
        try:
            values = [adapt(value) for value in plain_rows(columns, rows.num_rows, self._old)]
            return self._codec.to_arrays(typed_rows(values, self._codec.type))
        except FunctionRaised as failed:
            raise failed.store_error(self._where) from failed.error
        except (HeadraceError, msgspec.MsgspecError, TypeError, ValueError, OverflowError, LookupError) as error:
            raise self._misfit(error.found if isinstance(error, HeadraceError) else str(error)) from error

    def _misfit(self, found: str) -> StoreError:
        return StoreError(
            "a stored row cannot be read as the type that its rows have now",
            where=self._where,
            expected="values that the new type can hold; whole numbers up to 2**53 where int became float",
            found=found,
            next_move="say with hr.migrate what becomes of such rows, or take the old type back",
        )


def _field_names(shape: TypeShape) -> list[str]:
    """The columns of rows of a type."""
    records = [each for each in members_of(shape) if each.kind == "record"]
    if not records or len(records) < len(members_of(shape)):
        return [VALUE]
    tags = [] if shape.kind == "record" else [each.tag[0] for each in records if each.tag is not None]
    return [*dict.fromkeys([*tags, *(field.name for each in records for field in each.fields)])]


def _columns_between(old: TypeShape, new: TypeShape) -> Mapping[str, str | None] | None:
    """Field → the field of the old type that its column is taken from; None: columns alone do not lead there."""
    if old.kind != "record" or new.kind != "record":
        return None
    sources: dict[str, str | None] = {}
    for field, source in pair_fields(old, new):
        if source is not None and not _casts(source.type, field.type):
            return None
        sources[field.name] = None if source is None else source.name
    return sources


def _casts(old: TypeShape, new: TypeShape) -> bool:
    """Whether a column of the one type is cast to one of the other."""
    if nameless(old) == nameless(new) or (old.kind == "int" and new.kind == "float"):
        return True
    members = [member for member in new.members if member.kind != "none"]
    return new.optional and len(members) == 1 and _casts(old, members[0])


# --- rows as plain values


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
