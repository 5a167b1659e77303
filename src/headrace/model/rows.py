"""Rows as objects and rows as columns: one codec per row type, made once and kept.

This is the hot path between Arrow and users' functions, so it works a column at a time and touches single rows only
where a type needs it. A row type is a Record (or any Struct or dataclass), a union of tagged Records, or a plain value,
which travels as one column named ``value``. Columns carry the Python names of fields; `encoded_names` has the names
that JSON uses where a Record renames them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import BadRow, ProgramError
from headrace.model.columns import Column, getter
from headrace.model.jsonrows import JsonForm
from headrace.model.nearest import did_you_mean
from headrace.model.shapes import (
    FieldShape,
    builder,
    column_of,
    field_shapes,
    is_record_class,
    quoted,
    spark_type,
    split_optional,
    strip,
    union_members,
)
from headrace.model.values import check_storable, type_name

VALUE: Final = "value"
"""Name of the only column of a stream of plain values."""


class RowCodec:
    """Both directions between objects of one type and columns. Get one from `codec_of`."""

    type: Any
    schema: pa.Schema
    required: tuple[str, ...]
    defaults: dict[str, Any]
    encoded_names: dict[str, str]
    annotations: dict[str, Any]
    """Python type of each column; with None for the fields of a union's members."""

    def __init__(self, row_type: Any, columns: dict[str, Column]) -> None:
        self.type = row_type
        self.columns = columns
        self.schema = pa.schema([column.field(name) for name, column in columns.items()])
        self._positions = {name: i for i, name in enumerate(columns)}
        self._json: JsonForm | None = None

    @property
    def names(self) -> list[str]:
        return list(self._positions)

    @property
    def spark_ddl(self) -> str:
        """The columns as Spark DDL text."""
        return ", ".join(f"{quoted(name)} {spark_type(column.arrow)}" for name, column in self.columns.items())

    def index(self, name: str, *, where: str = "") -> int:
        """The position of a column; an unknown one is a ProgramError that suggests the nearest names."""
        position = self._positions.get(name)
        if position is None:
            raise ProgramError(
                f"{type_name(self.type)} has no column {name!r}",
                where=where,
                expected=f"one of {', '.join(self._positions)}",
                found=repr(name),
                next_move=did_you_mean(name, self._positions, f"add a field to {type_name(self.type)}"),
            )
        return position

    def to_objects(self, columns: Sequence[pa.Array]) -> list[Any]:
        """One object per row. A null where a value is required is a BadRow; use `bad_rows` to part them first."""
        raise NotImplementedError

    def to_arrays(self, objects: Sequence[Any]) -> list[pa.Array]:
        """One column per field of the schema. An object that does not fit is a BadRow that names the field."""
        raise NotImplementedError

    def bad_rows(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
        """Which rows lack a required value; None when all are complete, which costs nothing to find out."""
        raise NotImplementedError

    def to_json(self, objects: Iterable[Any]) -> Iterator[bytes]:
        """One JSON document per object, times as ISO text."""
        return self._json_form.encode(objects)

    def from_json(self, line: bytes) -> Any:
        """The object that a JSON document says; a BadRow when it does not fit the type."""
        try:
            return self._json_form.decode(line)
        except (msgspec.MsgspecError, ProgramError, ValueError) as error:
            raise BadRow(
                f"this is no {type_name(self.type)}", found=f"{error}: {line[:200].decode(errors='replace')}"
            ) from error

    @property
    def _json_form(self) -> JsonForm:
        if self._json is None:
            self._json = JsonForm(self.type)
        return self._json

    def __reduce__(self) -> Any:
        # A codec is made again where it is needed: it follows from the type.
        return codec_of, (self.type,)

    def __repr__(self) -> str:
        return f"RowCodec({type_name(self.type)})"


class _RecordCodec(RowCodec):
    """Rows of one class with named fields."""

    def __init__(self, cls: Any, fields: Sequence[FieldShape]) -> None:
        super().__init__(cls, {field.name: column_of(field.type) for field in fields})
        self.fields = tuple(fields)
        self.required = tuple(field.name for field in fields if field.required)
        self.defaults = {field.name: _default(field) for field in fields if not field.required}
        self.encoded_names = {field.name: field.encode_name for field in fields}
        self.annotations = {field.name: field.type for field in fields}
        self._build = builder(cls, self.names)
        self._decoders = [column.decode for column in self.columns.values()]
        self._encoders = [(getter(name), column.encode) for name, column in self.columns.items()]
        self._required_at = [self._positions[name] for name in self.required]
        #: Positions whose nulls become a default. None as the default of an Optional needs no work.
        self._filled = [(i, f) for i, f in enumerate(fields) if not f.required and not split_optional(f.type)[1]]

    def to_objects(self, columns: Sequence[pa.Array]) -> list[Any]:
        for position in self._required_at:
            if columns[position].null_count:
                raise self._missing(columns, position)
        lists = [decode(column) for decode, column in zip(self._decoders, columns)]
        for position, field in self._filled:
            if columns[position].null_count:
                lists[position] = [_default(field) if value is None else value for value in lists[position]]
        return list(map(self._build, *lists))

    def to_arrays(self, objects: Sequence[Any]) -> list[pa.Array]:
        try:
            return [encode(get(objects)) for get, encode in self._encoders]
        except Exception as error:
            raise self._misfit(objects, error) from error

    def bad_rows(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
        bad: npt.NDArray[np.bool_] | None = None
        for position in self._required_at:
            if columns[position].null_count:
                nulls: npt.NDArray[np.bool_] = columns[position].is_null().to_numpy(zero_copy_only=False)
                bad = nulls if bad is None else bad | nulls
        return bad

    def _missing(self, columns: Sequence[pa.Array], position: int) -> BadRow:
        field = self.fields[position]
        row = columns[position].is_null().to_pylist().index(True)
        shown = {name: column[row].as_py() for name, column in zip(self.names, columns)}
        return BadRow(
            f"a row has no value for {field.name!r} of {type_name(self.type)}",
            expected=f"{field.name}: {type_name(field.type)}",
            found=str(shown),
            next_move=f"give {field.name!r} a default or type it {type_name(field.type)} | None, or drop such rows",
        )

    def _misfit(self, objects: Sequence[Any], error: Exception) -> BadRow:
        """Look again, slowly, for the first object and field to blame."""
        for row in objects:
            for field, (get, encode) in zip(self.fields, self._encoders):
                try:
                    encode(get([row]))
                except Exception as cause:
                    return BadRow(
                        f"a row does not fit {type_name(self.type)}",
                        expected=f"{field.name}: {type_name(field.type)}",
                        found=f"{row!r} ({cause})",
                        next_move="return objects of the declared output type",
                    )
        return BadRow(f"rows do not fit {type_name(self.type)}", found=str(error))


class _ValueRowCodec(RowCodec):
    """Rows that are plain values: one column."""

    def __init__(self, annotation: Any) -> None:
        super().__init__(annotation, {VALUE: column_of(annotation)})
        self._optional = split_optional(annotation)[1]
        self.required = () if self._optional else (VALUE,)
        self.defaults = {VALUE: None} if self._optional else {}
        self.encoded_names = {VALUE: VALUE}
        self.annotations = {VALUE: annotation}
        self._column = self.columns[VALUE]

    def to_objects(self, columns: Sequence[pa.Array]) -> list[Any]:
        if columns[0].null_count and not self._optional:
            raise BadRow("a row has no value", expected=type_name(self.type), found="null")
        return self._column.decode(columns[0])

    def to_arrays(self, objects: Sequence[Any]) -> list[pa.Array]:
        try:
            return [self._column.encode(objects)]
        except Exception as error:
            raise BadRow("a row has the wrong type", expected=type_name(self.type), found=str(error)) from error

    def bad_rows(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
        if self._optional or not columns[0].null_count:
            return None
        return columns[0].is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


class _UnionCodec(RowCodec):
    """Rows of several tagged Records: a column for the tag, and the fields of all of them side by side."""

    def __init__(self, union: Any, members: Sequence[Any]) -> None:
        self.tag_field = _common_tag_field(union, members)
        self.variants = {member.__struct_config__.tag: _RecordCodec(member, field_shapes(member)) for member in members}
        tag = next(iter(self.variants))
        columns = {self.tag_field: column_of(type(tag))}
        for variant in self.variants.values():
            for name, column in variant.columns.items():
                if columns.setdefault(name, column).arrow != column.arrow:
                    raise ProgramError(
                        f"the members of a union disagree about {name!r}",
                        expected="one type per field name, because the fields become columns side by side",
                        found=" and ".join(
                            f"{v.type.__name__}.{name}: {v.columns[name].arrow}"
                            for v in self.variants.values()
                            if name in v.columns
                        ),
                        next_move=f"rename one of the fields, or give both the same type ({type_name(union)})",
                    )
        super().__init__(union, columns)
        self.required = (self.tag_field,)
        self.defaults = {}
        self.encoded_names = {self.tag_field: self.tag_field}
        self.annotations = {self.tag_field: type(tag)}
        for variant in self.variants.values():
            self.encoded_names.update(variant.encoded_names)
            self.annotations.update({name: each | None for name, each in variant.annotations.items()})
        self._tags = {variant.type: tag for tag, variant in self.variants.items()}

    def to_objects(self, columns: Sequence[pa.Array]) -> list[Any]:
        out: list[Any] = [None] * len(columns[0])
        for tag, rows in self._by_tag(columns[0]).items():
            variant = self._variant(tag)
            picked = pa.array(rows)
            parts = [columns[self._positions[name]].take(picked) for name in variant.columns]
            objects = variant.to_objects(parts) if parts else [variant.type() for _ in rows]
            for row, built in zip(rows, objects):
                out[row] = built
        return out

    def to_arrays(self, objects: Sequence[Any]) -> list[pa.Array]:
        rows_of: dict[Any, list[int]] = {}
        for row, each in enumerate(objects):
            rows_of.setdefault(type(each), []).append(row)
        order: list[int] = []
        pieces: list[list[pa.Array]] = [[] for _ in self.columns]
        for cls, rows in rows_of.items():
            if cls not in self._tags:
                raise BadRow(
                    "a row has the wrong type",
                    expected=type_name(self.type),
                    found=repr(objects[rows[0]]),
                    next_move="return objects of the declared output type",
                )
            order.extend(rows)
            self._add_pieces(pieces, cls, [objects[row] for row in rows])
        if not order:
            return [pa.array([], type=column.arrow) for column in self.columns.values()]
        back = pa.array(np.argsort(np.array(order)))
        return [pa.concat_arrays(piece).take(back) for piece in pieces]

    def _add_pieces(self, pieces: list[list[pa.Array]], cls: Any, objects: list[Any]) -> None:
        variant = self.variants[self._tags[cls]]
        arrays = dict(zip(variant.names, variant.to_arrays(objects)))
        tag_column = self.columns[self.tag_field]
        arrays[self.tag_field] = tag_column.encode([self._tags[cls]] * len(objects))
        for piece, (name, column) in zip(pieces, self.columns.items()):
            piece.append(arrays[name] if name in arrays else pa.nulls(len(objects), column.arrow))

    def bad_rows(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
        bad = np.zeros(len(columns[0]), dtype=np.bool_)
        for tag, rows in self._by_tag(columns[0]).items():
            if tag not in self.variants:
                bad[rows] = True
                continue
            variant, picked = self.variants[tag], pa.array(rows)
            found = variant.bad_rows([columns[self._positions[name]].take(picked) for name in variant.columns])
            if found is not None:
                bad[np.array(rows)[found]] = True
        return bad if bad.any() else None

    def _by_tag(self, tags: pa.Array) -> dict[Any, list[int]]:
        rows: dict[Any, list[int]] = {}
        for row, tag in enumerate(tags.to_pylist()):
            rows.setdefault(tag, []).append(row)
        return rows

    def _variant(self, tag: Any) -> _RecordCodec:
        if tag not in self.variants:
            raise BadRow(
                f"a row is no member of {type_name(self.type)}",
                expected=f"{self.tag_field} is one of {', '.join(map(repr, self.variants))}",
                found=repr(tag),
                next_move="add the member to the union, or drop such rows",
            )
        return self.variants[tag]


def _default(field: FieldShape) -> Any:
    if field.factory is not None:
        return field.factory()
    return None if field.default is msgspec.NODEFAULT else field.default


def _common_tag_field(union: Any, members: Sequence[Any]) -> str:
    fields = {
        member.__struct_config__.tag_field if isinstance(member, type) and issubclass(member, msgspec.Struct) else None
        for member in members
    }
    tag_field = fields.pop() if len(fields) == 1 else None
    if tag_field is None:
        raise ProgramError(
            "the members of a union cannot be told apart",
            expected="Records that are declared with tag=True and one tag field",
            found=type_name(union),
            next_move="declare each member as class Click(hr.Record, tag=True): …",
        )
    return tag_field


_codecs: dict[Any, RowCodec] = {}


def codec_of(row_type: Any, *, where: str = "") -> RowCodec:
    """The codec of a row type; a type that cannot travel is a ProgramError.

    >>> from headrace.model.record import Record
    >>> class Impression(Record):
    ...     tweet: str
    ...     n: int = 1
    >>> codec = codec_of(Impression)
    >>> columns = codec.to_arrays([Impression("a"), Impression("b", 2)])
    >>> codec.to_objects(columns)
    [Impression(tweet='a', n=1), Impression(tweet='b', n=2)]
    >>> codec.spark_ddl
    '`tweet` STRING, `n` BIGINT'
    """
    try:
        known = _codecs.get(row_type)
        if known is None:
            known = _codecs[row_type] = _make_codec(row_type)
        return known
    except ProgramError as error:
        error.where = error.where or where
        raise


def _make_codec(row_type: Any) -> RowCodec:
    bare = strip(row_type)
    check_storable(bare, what=f"rows of {type_name(bare)}")
    members = union_members(bare)
    if members and all(is_record_class(member) for member in members):
        return _UnionCodec(bare, members)
    if not is_record_class(bare):
        return _ValueRowCodec(bare)
    fields = field_shapes(bare)
    _check_fields(bare, fields)
    return _RecordCodec(bare, fields)


def _check_fields(cls: Any, fields: Sequence[FieldShape]) -> None:
    if not fields:
        raise ProgramError(f"{type_name(cls)} has no fields, so it has no columns", next_move="declare a field")
    folded: dict[str, str] = {}
    for field in fields:
        other = folded.setdefault(field.name.casefold(), field.name)
        if other != field.name:
            raise ProgramError(
                f"{type_name(cls)} has two fields that differ in case only",
                expected="names that differ without their case, because SQL ignores it",
                found=f"{other} and {field.name}",
                next_move="rename one of them",
            )
