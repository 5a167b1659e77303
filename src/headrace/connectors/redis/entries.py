"""Entries of a Redis stream as rows: their fields one by one, or one field that holds a JSON document.

An entry's fields are text. A field of the row's type is made of the entry's field of the same name: text stays text,
bytes stay bytes, numbers, booleans, dates and times are read from text, everything with parts is read as JSON. An entry
that gives no row is a bad row, in its place between the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from headrace.connectors.redis.positions import read_id
from headrace.connectors.source_contract import BadRows
from headrace.errors import BadRow, HeadraceError
from headrace.model.jsonrows import JsonForm
from headrace.model.shapes import MISSING, FieldShape, field_shapes, split_optional
from headrace.model.time import Timestamp, format_time, parse_time
from headrace.model.values import type_name

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

Entry = tuple[bytes, dict[bytes, bytes]]

_UNFIT: Final = (HeadraceError, msgspec.MsgspecError, ValueError, OverflowError)
"""What reading text raises that does not say what it should."""


@dataclass(frozen=True)
class EntryFields:
    """Which part of an entry goes where."""

    payload: str | None = None
    """Field that holds the whole row as JSON; None: each field of the row has a field of its own."""
    id_as: str | None = None
    """Field of the row that takes the entry's id."""
    time_as: str | None = None
    """Field of the row that takes the time in the entry's id."""
    stream_as: str | None = None
    """Field of the row that takes the stream's name."""

    @property
    def field_names(self) -> list[str]:
        """Fields of the row that do not come from the entry's fields."""
        return [name for name in (self.id_as, self.time_as, self.stream_as) if name is not None]


class EntryRows:
    """Makes rows of entries."""

    def __init__(self, codec: RowCodec, fields: EntryFields) -> None:
        self._codec = codec
        self._fields = fields
        self._encoded = {name: codec.encoded_names[name] for name in fields.field_names}
        self._parts: list[tuple[FieldShape, bytes, Callable[[bytes], Any]]] = []
        if fields.payload is None:
            own = [shape for shape in field_shapes(codec.type) if shape.name not in fields.field_names]
            self._parts = [(shape, shape.encode_name.encode(), text_reader(shape.type)) for shape in own]
        self._as_datetime = fields.time_as is not None and not _is_timestamp(codec.annotations[fields.time_as])

    def batches(self, stream: str, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch | BadRows]:
        """The rows of a page of entries, in their order."""
        make = self._from_fields if self._fields.payload is None else self._from_payload
        rows: list[Any] = []
        first = 0
        for place, entry in enumerate(entries):
            try:
                rows.append(make(stream, *entry))
            except _UNFIT as error:
                yield from self._columns(stream, entries[first:place], rows)
                yield BadRows([_bad_entry_text(stream, entry, _reason(error))])
                rows, first = [], place + 1
        yield from self._columns(stream, entries[first:], rows)

    def _columns(self, stream: str, entries: Sequence[Entry], rows: list[Any]) -> Iterator[pa.RecordBatch | BadRows]:
        try:
            columns = self._codec.to_arrays(rows)
        except BadRow as error:
            # A value of the right type that its column cannot hold, as a number of more than 64 bits.
            if len(rows) == 1:
                yield BadRows([_bad_entry_text(stream, entries[0], f"{error.what}: {error.found}")])
                return
            for entry, row in zip(entries, rows, strict=True):
                yield from self._columns(stream, [entry], [row])
            return
        if rows:
            yield pa.RecordBatch.from_arrays(columns, schema=self._codec.schema)

    def _from_fields(self, stream: str, entry: bytes, fields: dict[bytes, bytes]) -> Any:
        values = self._id_fields(stream, entry)
        for shape, name, read in self._parts:
            given = fields.get(name)
            if given is None:
                if shape.required:
                    raise BadRow(f"the entry has no field {name.decode()!r}")
                if shape.default is MISSING and shape.factory is None:
                    values[shape.name] = None
                continue
            try:
                values[shape.name] = read(given)
            except _UNFIT as error:
                raise BadRow(f"{shape.name} is no {type_name(shape.type)}: {_reason(error)}") from error
        return self._codec.type(**values)

    def _from_payload(self, stream: str, entry: bytes, fields: dict[bytes, bytes]) -> Any:
        assert self._fields.payload is not None
        given = fields.get(self._fields.payload.encode())
        if given is None:
            raise BadRow(f"the entry has no field {self._fields.payload!r}")
        if self._encoded:
            document = msgspec.json.decode(given, type=dict[str, msgspec.Raw])
            for name, value in self._id_fields(stream, entry, times_as_text=True).items():
                document[self._encoded[name]] = msgspec.Raw(msgspec.json.encode(value))
            given = msgspec.json.encode(document)
        return self._codec.from_json(given)

    def _id_fields(self, stream: str, entry: bytes, *, times_as_text: bool = False) -> dict[str, Any]:
        """What the row takes from the entry's id and place."""
        fields, values = self._fields, dict[str, Any]()
        if fields.id_as is not None:
            values[fields.id_as] = entry.decode()
        if fields.stream_as is not None:
            values[fields.stream_as] = stream
        if fields.time_as is not None:
            at = read_id(entry)[0] * 1000
            values[fields.time_as] = format_time(at) if times_as_text else _datetime(at) if self._as_datetime else at
        return values


def text_reader(annotation: Any) -> Callable[[bytes], Any]:
    """How the text of an entry's field becomes a value of this type."""
    bare, _ = split_optional(annotation)
    if bare is bytes:
        return bytes
    if annotation in (str, str | None):
        return bytes.decode
    if bare is Timestamp:
        return lambda given: parse_time(given.decode())
    if _has_parts(bare):
        return JsonForm(annotation).decode
    return lambda given: msgspec.convert(given.decode(), annotation, strict=False)


def _has_parts(bare: Any) -> bool:
    kind = msgspec.inspect.type_info(bare)
    plain = (
        msgspec.inspect.IntType, msgspec.inspect.FloatType, msgspec.inspect.BoolType, msgspec.inspect.StrType,
        msgspec.inspect.DateTimeType, msgspec.inspect.DateType, msgspec.inspect.TimeType, msgspec.inspect.DecimalType,
        msgspec.inspect.UUIDType, msgspec.inspect.EnumType, msgspec.inspect.LiteralType, msgspec.inspect.TimeDeltaType,
    )  # fmt: skip
    return not isinstance(kind, plain)


def _is_timestamp(annotation: Any) -> bool:
    return split_optional(annotation)[0] is Timestamp


def _datetime(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def _bad_entry_text(stream: str, entry: Entry, reason: str) -> str:
    shown = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in entry[1].items()}
    return BadRows.text(f"stream {stream}, entry {entry[0].decode()}", msgspec.json.encode(shown).decode(), reason)


def _reason(error: Exception) -> str:
    if isinstance(error, BadRow) and error.__cause__ is not None and error.what.startswith("this is no "):
        return str(error.__cause__)
    if isinstance(error, HeadraceError):
        return error.what
    return str(error)
