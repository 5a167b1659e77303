"""Keys of state in columns that somebody gives: found by their names, checked against the step's type, and encoded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, get_args
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError, ProgramError
from headrace.model.key_bytes import NULL_KEY, part_types, plain_type
from headrace.model.key_text import parse_key_text
from headrace.model.keys import encode_columns, encode_key
from headrace.model.values import type_name
from headrace.read.columns import IS_JSON

KEY: Final = "key"
_TAGS: Final[dict[type, bytes]] = {
    bool: b"b", str: b"s", UUID: b"s", int: b"i", datetime: b"i", timedelta: b"i", bytes: b"y", date: b"d",
    float: b"f", Decimal: b"m",
}  # fmt: skip


class KeyColumns:
    """Where the key of a state stands among its columns."""

    def __init__(self, where: str, annotation: Any, named: Sequence[str] = ()) -> None:
        """``named``: the columns of a key that has parts, or another name than ``key``."""
        self.where = where
        self.annotation = annotation
        self.named = tuple(named)

    def names_in(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns that hold the key."""
        if KEY in schema.names:
            return (KEY,)
        if self.named and all(name in schema.names for name in self.named):
            return self.named
        wanted = f"a column {KEY!r}" + (f", or {' and '.join(map(repr, self.named))}" if self.named else "")
        raise ProgramError(
            "no column holds the keys",
            where=self.where,
            expected=wanted,
            found=", ".join(schema.names) or "no columns",
            next_move="rename the column, or select it as `key`",
        )

    def encode(self, batch: pa.RecordBatch, first_row: int) -> pa.BinaryArray:
        """The encoded key of each row. ``first_row``: how many rows came before, for messages."""
        names = self.names_in(batch.schema)
        columns = [batch.column(name) for name in names]
        if len(columns) == 1 and pa.types.is_struct(columns[0].type):
            columns = columns[0].flatten()
        elif len(columns) == 1 and pa.types.is_list(columns[0].type):
            return self._encode_lists(columns[0].to_pylist(), first_row)
        elif len(columns) == 1 and batch.schema.field(names[0]).metadata == IS_JSON:
            return self._encode_json([msgspec.json.decode(text) for text in columns[0].to_pylist()], first_row)
        count = len(columns)
        kinds = [self.annotation] if count == 1 else part_types(self.annotation, count)
        shown = names if len(names) == count else [f"{names[0]}[{i}]" for i in range(count)]
        parts = [self._part(*part, first_row) for part in zip(columns, kinds, shown)]
        return encode_columns(parts)

    def _part(self, column: pa.Array, annotation: Any, name: str, first_row: int) -> pa.Array:
        """One part of the key, as a column of its type."""
        kind = plain_type(annotation)
        tag = _tag_of(kind)
        if tag is None:
            return column
        if tag == b"f" and pa.types.is_integer(column.type):
            column = column.cast(pa.float64())
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)) and tag != b"s":
            return self._read_text(column, annotation, name, first_row)
        allowed = [tag, NULL_KEY] if _allows_none(annotation) else [tag]
        fits = pc.is_in(pc.binary_slice(encode_columns([column]), 0, 1), pa.array(allowed, pa.binary()))
        if fits.false_count:
            row = int(pc.index(fits, False).as_py())
            value = column[row].as_py()
            raise self._misfit(name, first_row + row, annotation, f"{value!r:.80} ({type(value).__name__})")
        return column

    def _read_text(self, column: pa.Array, annotation: Any, name: str, first_row: int) -> pa.Array:
        """Keys that stand there as text, such as times in JSON lines."""
        values = []
        for row, text in enumerate(column.to_pylist()):
            try:
                values.append(None if text is None else parse_key_text(text, annotation))
            except HeadraceError:
                raise self._misfit(name, first_row + row, annotation, repr(text)) from None
        return pa.array([None if value is None else _column_value(value) for value in values])

    def _encode_json(self, keys: Sequence[Any], first_row: int) -> pa.BinaryArray:
        """Keys whose JSON has no common type: lists of parts, numbers beside the words for those that are none."""
        if any(isinstance(key, list) for key in keys):
            return self._encode_lists(keys, first_row)
        encoded = []
        for row, key in enumerate(keys):
            try:
                value = _read_part(key, self.annotation)
                encoded.append(encode_key(float(value) if plain_type(self.annotation) is float else value))
            except (HeadraceError, TypeError, ValueError):
                raise self._misfit(KEY, first_row + row, self.annotation, repr(key)) from None
        return pa.array(encoded, pa.binary())

    def _encode_lists(self, keys: Sequence[Any], first_row: int) -> pa.BinaryArray:
        """Keys that are lists of their parts."""
        encoded = []
        for row, parts in enumerate(keys):
            kinds = part_types(self.annotation, len(parts or ()))
            try:
                encoded.append(encode_key(tuple(map(_read_part, parts, kinds))))
            except (HeadraceError, TypeError):
                raise self._misfit(KEY, first_row + row, self.annotation, repr(parts)) from None
        return pa.array(encoded, pa.binary())

    def _misfit(self, name: str, row: int, annotation: Any, found: str) -> ProgramError:
        return ProgramError(
            "a key does not fit the type of the step's keys",
            where=f"{self.where}, row {row:,}, column {name}",
            expected=type_name(annotation),
            found=found,
            next_move="cast the column, or leave such rows out",
        )


def _read_part(part: Any, annotation: Any) -> Any:
    is_text = isinstance(part, str) and _tag_of(plain_type(annotation)) not in (None, b"s")
    return parse_key_text(part, annotation) if is_text else part


def _column_value(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else str(value) if isinstance(value, UUID) else value


def _tag_of(kind: Any) -> bytes | None:
    """How the bytes of a key of this type begin; None where that is not said."""
    if not isinstance(kind, type):
        return None
    if issubclass(kind, Enum):
        tags = {encode_key(member)[:1] for member in kind}
        return tags.pop() if len(tags) == 1 else None
    return next((tag for each, tag in _TAGS.items() if issubclass(kind, each)), None)


def _allows_none(annotation: Any) -> bool:
    return annotation is None or annotation is Any or type(None) in get_args(annotation)
