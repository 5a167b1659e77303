"""What a row type asks of a message: its fields as a tree, with their columns, names, defaults and what may be absent.

Both formats, in both directions, go by this tree. It is made of the row codec, so a message means the same values that
JSON would: a field that is absent or null takes its default, and makes the row a bad one where it has none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import ProgramError
from headrace.model.columns import Column, ListColumn, MapColumn, StructColumn
from headrace.model.fields import former_names
from headrace.model.shapes import FieldShape, field_shapes, split_optional
from headrace.model.values import type_name

if TYPE_CHECKING:
    from headrace.connectors.formats.cursor import Cursor
    from headrace.model.rows import RowCodec


@dataclass(frozen=True)
class TreeField:
    """A field of a row, an item of a list, or a key or value of a map."""

    path: str
    """For people: ``shop.items``."""
    name: str
    """The name in messages."""
    former: tuple[str, ...]
    """Names that it had before, the newest first."""
    kind: pa.DataType
    annotation: Any
    """The type that was declared, without None."""
    optional: bool
    default: pa.Array | None
    """One value that stands in for null; None: there is none."""
    parts: tuple[TreeField, ...] = ()
    """Of a record its fields, of a list its items, of a map its keys and its values."""

    @property
    def required(self) -> bool:
        return not self.optional and self.default is None

    @property
    def says(self) -> str:
        """The declared type, for people."""
        return type_name(self.annotation)

    def complete(self, column: pa.Array, cursor: Cursor) -> pa.Array:
        """The column with its default in place of null; a null that must not be makes its message bad."""
        if not column.null_count:
            return column
        if self.default is not None:
            at = np.where(np.asarray(column.is_null()), len(column), np.arange(len(column)))
            return pa.concat_arrays([column, self.default]).take(pa.array(at))
        if not self.optional:
            cursor.fail(np.asarray(column.is_null()) & ~cursor.lost, f"{self.path} is missing")
        return column


def row_fields(codec: RowCodec, names: Collection[str], format: str, where: str) -> tuple[TreeField, ...]:
    """The tree of these fields of a row type. Raises ProgramError for what neither format can say."""
    former = former_names(codec.type)
    fields = []
    for name in codec.schema.names:
        if name not in names:
            continue
        annotation, column = codec.annotations[name], codec.columns[name]
        if annotation is None:
            raise _unsayable(name, format, where, "a union of Records")
        default = codec.defaults.get(name)
        filled = None if default is None else column.encode([default])
        tree = _tree(name, annotation, column, format, where)
        fields.append(_named(tree, codec.encoded_names[name], former.get(name, ()), filled))
    return tuple(fields)


def _named(tree: TreeField, name: str, former: tuple[str, ...], default: pa.Array | None) -> TreeField:
    return replace(tree, name=name, former=former, default=default)


def _tree(path: str, annotation: Any, column: Column, format: str, where: str) -> TreeField:
    bare, optional = split_optional(annotation)
    if column.packed:
        raise _unsayable(path, format, where, f"{type_name(annotation)}, which columns cannot say")
    parts: tuple[TreeField, ...] = ()
    if isinstance(column, StructColumn):
        former = former_names(bare)
        parts = tuple(_record_part(path, shape, former, column, format, where) for shape in field_shapes(bare))
    elif isinstance(column, ListColumn):
        item = next(arg for arg in bare.__args__ if arg is not Ellipsis)
        parts = (_tree(f"{path}[]", item, column.item, format, where),)
    elif isinstance(column, MapColumn):
        if not pa.types.is_string(column.key.arrow):
            raise _unsayable(path, format, where, "a map whose keys are not text")
        key, value = bare.__args__
        parts = (
            _tree(f"{path} key", key, column.key, format, where),
            _tree(f"{path}{{}}", value, column.value, format, where),
        )
    return TreeField(path, path, (), column.arrow, bare, optional, None, parts)


def _record_part(
    path: str, shape: FieldShape, former: dict[str, tuple[str, ...]], column: StructColumn, format: str, where: str
) -> TreeField:
    inner = column.parts[shape.name]
    value = shape.factory() if shape.factory is not None else shape.default
    filled = None if value is msgspec.NODEFAULT or value is None else inner.encode([value])
    tree = _tree(f"{path}.{shape.name}", shape.type, inner, format, where)
    return _named(tree, shape.encode_name, former.get(shape.name, ()), filled)


def _unsayable(path: str, format: str, where: str, found: str) -> ProgramError:
    return ProgramError(
        f"field {path} cannot be written or read as {format}",
        where=where,
        expected="text, numbers, booleans, bytes, times, enums, and lists, maps with text as keys, and records of them",
        found=found,
        next_move='give the field another type, or use format="json"',
    )


def struct_of(field: TreeField, columns: list[pa.Array]) -> pa.Array:
    """The columns of a record's fields as one column."""
    return pa.StructArray.from_arrays(columns, fields=list(field.kind))


def is_enumeration(field: TreeField) -> bool:
    """Whether the declared type is an Enum whose values are text."""
    return isinstance(field.annotation, type) and issubclass(field.annotation, Enum) and pa.types.is_string(field.kind)
