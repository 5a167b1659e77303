"""From a Kafka message to a row: which field comes from which part of the message, as SQL that Spark evaluates.

A field comes from a part of the message that was named for it (`MessageParts`), or from the value: a JSON object has a
member for each of the other fields, a text or bytes fill the only other one. A message from which no row can be made is
a bad row, told with its topic, partition and offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa

from headrace.connectors.files.reads import check_fields
from headrace.connectors.formats.binary import BINARY
from headrace.connectors.reading import NO_JSON, FieldReads, text
from headrace.connectors.source_contract import BadInput, SparkRead
from headrace.errors import HeadraceError, ProgramError
from headrace.model.rows import codec_of
from headrace.model.shapes import spark_type

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

Format = Literal["json", "text", "bytes", "avro", "protobuf"]
Tombstones = Literal["skip", "keep", "error"]

_JSON: Final = "__json"
_CORRUPT: Final = "__corrupt"
WHERE: Final = (
    "concat('topic ', topic, ', partition ', CAST(`partition` AS STRING), ', offset ', CAST(`offset` AS STRING))"
)
_TEXT: Final = "coalesce(try_validate_utf8(CAST(`value` AS STRING)), concat('base64:', base64(`value`)), '')"
_HAS_ID: Final = "startswith(`value`, X'00')"
_BEHIND_ID: Final = f"IF({_HAS_ID}, substring(`value`, 6), `value`)"
_NO_ID: Final = "it does not begin as messages with a schema id do"
_SPLIT: Final = "concat(topic, '-', CAST(`partition` AS STRING))"


class MessageParts(NamedTuple):
    """Which field takes which part of a message; None: no field does."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    topic: str | None = None
    partition: str | None = None
    offset: str | None = None
    headers: str | Mapping[str, str] | None = None
    """The field for all headers, or header → field."""

    def by_field(self) -> list[tuple[str, str]]:
        """Field and part, in a fixed order; a single header is ``header NAME``."""
        plain = [(field, part) for part, field in self._asdict().items() if isinstance(field, str)]
        single = self.headers.items() if isinstance(self.headers, Mapping) else ()
        return [*plain, *((field, f"header {name}") for name, field in single)]


def field_name(field: Any, part: str, where: str) -> str:
    """A field by its name, or as the Record's own: ``"user"`` or ``Click.user``."""
    if isinstance(field, MemberDescriptorType):
        return field.__name__
    if isinstance(field, str) and field:
        return field
    raise ProgramError(
        f"{part}= takes a field of the row type",
        where=where,
        expected=f'a name or a field: {part}="user", {part}=Click.user',
        found=repr(field),
        next_move=f"say which field takes the {part} of a message",
    )


def place_value(codec: RowCodec, parts: MessageParts, format: Format, where: str) -> MessageParts:
    """The parts, checked against the row type; for text and bytes with the field that takes the value."""
    seen: dict[str, str] = {}
    for field, part in parts.by_field():
        codec.index(field, where=where)
        if field in seen:
            raise ProgramError(
                f"field {field} cannot take two parts of a message",
                where=where,
                expected="a field for each part",
                found=f"{seen[field]} and {part}",
                next_move="give one of them another field",
            )
        seen[field] = part
        _check_type(codec, field, part, where)
    rest = [name for name in codec.schema.names if name not in seen]
    if format == "json":
        check_fields(codec, "json", where, rest)
        return parts
    if format in BINARY:
        return parts
    if parts.value is None and len(rest) > 1:
        raise ProgramError(
            f"the value of a message is one {'text' if format == 'text' else 'run of bytes'}, "
            f"and {len(rest)} fields could take it",
            where=where,
            expected="one field beside those for key, headers and the like",
            found=", ".join(rest),
            next_move=f'name it: value="{rest[0]}"; the others then take their defaults',
        )
    if parts.value is None and rest:
        _check_type(codec, rest[0], "bytes" if format == "bytes" else "value", where)
        return parts._replace(value=rest[0])
    return parts


_WANTED: Final = {
    "timestamp": ("hr.Timestamp or datetime", pa.types.is_timestamp),
    "topic": ("str", pa.types.is_string),
    "partition": ("int", pa.types.is_integer),
    "offset": ("int", pa.types.is_integer),
    "bytes": ("bytes", pa.types.is_binary),
    "headers": ("dict[str, str] or dict[str, bytes]", pa.types.is_map),
}


def _check_type(codec: RowCodec, field: str, part: str, where: str) -> None:
    column = codec.schema.field(field)
    wanted, fits = _WANTED.get(part, ("text, a number, a time or bytes", lambda kind: not pa.types.is_nested(kind)))
    packed = (column.metadata or {}).get(b"headrace") == b"msgpack"
    good = fits(column.type) and not packed
    if good and part == "headers":
        good = pa.types.is_string(column.type.key_type) and (
            pa.types.is_string(column.type.item_type) or pa.types.is_binary(column.type.item_type)
        )
    if not good:
        raise ProgramError(
            f"field {field} cannot take the {'value' if part == 'bytes' else part} of a message",
            where=where,
            expected=wanted,
            found=str(codec.annotations.get(field) or column.type),
            next_move="give the field another type, or the part another field",
        )


def message_read(
    codec: RowCodec,
    format: Format,
    parts: MessageParts,
    tombstones: Tombstones,
    options: Mapping[str, str],
    *,
    framed: bool = False,
) -> SparkRead:
    """How Spark makes rows of messages; `parts` has been through `place_value`. `framed`: JSON behind a schema id.

    The values of binary formats are the worker's: only the fields of other parts have columns then.
    """
    fields = FieldReads(codec)
    if tombstones == "error":
        fields.reasons["`value` IS NULL"] = text("the message has no value (a tombstone)")
    placed = dict(parts.by_field())
    rest = [name for name in codec.schema.names if name not in placed]
    if rest and format == "json":
        _take_json(fields, rest, _BEHIND_ID if framed else "`value`")
    elif format not in BINARY:
        for name in rest:
            fields.take(codec.schema.field(name), f"CAST(NULL AS {spark_type(codec.schema.field(name).type)})")
    for name, part in placed.items():
        _take_part(fields, codec.schema.field(name), part)
    shown = _TEXT.replace("`value`", _BEHIND_ID) if framed else _TEXT
    read = fields.read("kafka", None, options, None, raw=(WHERE, shown))
    keep = "`value` IS NOT NULL" if tombstones == "skip" else None
    return replace(read, keep=keep, split=_SPLIT, decoded=format in BINARY)


def _take_json(fields: FieldReads, names: list[str], content: str) -> None:
    if content == _BEHIND_ID:
        fields.reasons[f"`value` IS NOT NULL AND NOT {_HAS_ID}"] = text(_NO_ID)
    # Spark's parser would put signs of its own in place of bytes that are no UTF-8, and say nothing.
    given = f"try_validate_utf8(CAST({content} AS STRING))"
    fields.reasons[f"`value` IS NOT NULL AND {_JSON} IS NULL"] = text(NO_JSON)
    ddl = fields.take_json(names, corrupt=_CORRUPT, within=_JSON)
    how = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
    fields.prepare_first(f"from_json({given}, {text(ddl)}, {how}) AS {_JSON}")


def _take_part(fields: FieldReads, field: pa.Field, part: str) -> None:
    kind = spark_type(field.type)
    if part in ("key", "value"):
        _take_bytes(fields, field, f"`{part}`")
    elif part == "headers":
        fields.take(field, _all_headers(field.type.item_type))
        if pa.types.is_string(field.type.item_type):
            condition, reason = _bad_header(field.name)
            fields.reasons[condition] = reason
    elif part.startswith("header "):
        named = text(part.removeprefix("header "))
        # Of headers with the same name the last one counts, as everywhere in Kafka.
        _take_bytes(fields, field, f"try_element_at(filter(headers, h -> h.key = {named}), -1).value")
    else:
        fields.take(field, f"CAST(`{part}` AS {kind})")


def _take_bytes(fields: FieldReads, field: pa.Field, given: str) -> None:
    """Bytes as they are, or as the text of whatever the field holds."""
    as_text = f"CAST({given} AS STRING)"
    if pa.types.is_binary(field.type):
        fields.take(field, given)
    elif pa.types.is_string(field.type):
        fields.cast(field, given, f"try_validate_utf8({as_text})")
    else:
        fields.cast(field, given, f"try_cast({as_text} AS {spark_type(field.type)})")


_HEADER_NAMES: Final = "array_distinct(transform(headers, h -> h.key))"
_HEADER_VALUE: Final = "coalesce(try_element_at(filter(headers, h -> h.key = k), -1).value, CAST('' AS BINARY))"


def _all_headers(kind: pa.DataType) -> str:
    """All of them by name. What is no text is empty here, and makes the row a bad one (`_bad_header`)."""
    value = _HEADER_VALUE
    if pa.types.is_string(kind):
        value = f"coalesce(try_validate_utf8(CAST({value} AS STRING)), '')"
    empty = f"CAST(map() AS MAP<STRING, {spark_type(kind)}>)"
    return f"coalesce(map_from_entries(transform({_HEADER_NAMES}, k -> struct(k, {value}))), {empty})"


def _bad_header(field: str) -> tuple[str, str]:
    """When a message has a header that is no text, and the reason. Of the same name again only the last one counts."""
    some = "exists(headers, h -> NOT is_valid_utf8(CAST(coalesce(h.value, CAST('' AS BINARY)) AS STRING)))"
    wrong = f"filter({_HEADER_NAMES}, k -> NOT is_valid_utf8(CAST({_HEADER_VALUE} AS STRING)))"
    # Nearly no message has one: all of them are looked at once, and only where one is found name by name.
    condition = f"headers IS NOT NULL AND {some} AND size({wrong}) > 0"
    return condition, f"concat({text(f'{field} is not UTF-8 text: header ')}, {wrong}[0])"


class _RawMessage(msgspec.Struct):
    """The JSON text that `SparkRead.raw` makes of a bad message."""

    file: str | None = None
    where: str | None = None
    text: str | None = None
    reason: str | None = None


def explain_message(codec: RowCodec, format: Format, parts: MessageParts, raw: str) -> BadInput:
    """Never raises: what cannot be found out is left out."""
    try:
        told = msgspec.json.decode(raw, type=_RawMessage)
    except msgspec.DecodeError:
        return BadInput(where="", text=raw, reason="the message could not be decoded")
    reason = told.reason or "the message could not be decoded"
    if format == "json" and told.text:
        reason = _json_reason(codec, parts, told.text) or reason
    return BadInput(where=told.where or told.file or "", text=told.text or "", reason=reason)


def _json_reason(codec: RowCodec, parts: MessageParts, value: str) -> str | None:
    """What our own decoder says of the value: it names the member and both types, which Spark does not."""
    placed = {field for field, _ in parts.by_field()}
    if any(codec.annotations.get(name) is None for name in codec.schema.names):
        return None
    members = [
        (name, codec.annotations[name], _member(codec, name)) for name in codec.schema.names if name not in placed
    ]
    try:
        codec_of(msgspec.defstruct("Message", members, kw_only=True)).from_json(value.encode())
    except HeadraceError as error:
        return str(error.__cause__ or error).splitlines()[0]
    except TypeError:
        pass
    return None


def _member(codec: RowCodec, name: str) -> Any:
    encoded = codec.encoded_names[name]
    if name in codec.required:
        return msgspec.field(name=encoded)
    return msgspec.field(default=None, name=encoded)
