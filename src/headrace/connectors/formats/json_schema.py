"""JSON under a schema registry: the JSON Schema of a row type, and documents behind its id.

A document says everything by itself, so readers only pass over the id; the schema is for the registry, which checks how
it changes, and for consumers in other languages.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection, Sequence
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa

from headrace.connectors.formats.binary import BinaryFormat
from headrace.connectors.formats.fields import TreeField
from headrace.connectors.formats.messages import RowEncoder, frame_header
from headrace.connectors.formats.misfits import SchemaMistake
from headrace.connectors.formats.registry import Registry, StoredSchema
from headrace.connectors.text import json_documents

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

KIND: Final = "JSON"
_TEXTS: Final = {
    UUID: "uuid", datetime.date: "date", datetime.time: "time", datetime.timedelta: "duration", Decimal: "",
}  # fmt: skip


class RegisteredJson(BinaryFormat):
    """Whole rows as JSON documents with a schema id in front."""

    def fields(self, codec: RowCodec, names: Collection[str]) -> tuple[TreeField, ...]:
        # A schema of the user's own may say what a derived one cannot.
        return () if self.given is not None else super().fields(codec, names)

    def check_writing(self, codec: RowCodec, names: Collection[str]) -> None:
        derived_schema("", self.fields(codec, names))

    def encoder(self, schema: StoredSchema, codec: RowCodec, names: Collection[str]) -> RowEncoder:
        def write(columns: Sequence[pa.Array], count: int) -> pa.Array:
            return json_documents(pa.RecordBatch.from_arrays(list(columns), schema=codec.schema), codec)

        return RowEncoder(write, frame_header(schema.id))


def derived_schema(name: str, fields: Sequence[TreeField]) -> StoredSchema:
    """The schema of a row type."""
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "title": name}
    return StoredSchema(0, KIND, json.dumps({**draft, **_object(fields)}, separators=(",", ":")))


def _object(fields: Sequence[TreeField]) -> dict[str, Any]:
    said: dict[str, Any] = {"type": "object", "properties": {each.name: _optional(each) for each in fields}}
    required = [each.name for each in fields if each.required]
    return {**said, "required": required} if required else said


def _optional(field: TreeField) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, _type(field)]} if field.optional else _type(field)


def _type(field: TreeField) -> dict[str, Any]:
    kinds, kind = pa.types, field.kind
    if kinds.is_struct(kind):
        return _object(field.parts)
    if kinds.is_list(kind):
        return {"type": "array", "items": _optional(field.parts[0])}
    if kinds.is_map(kind):
        return {"type": "object", "additionalProperties": _optional(field.parts[1])}
    if kinds.is_timestamp(kind):
        return {"type": "string", "format": "date-time"}
    if field.annotation in _TEXTS:
        form = _TEXTS[field.annotation]
        return {"type": "string", "format": form} if form else {"type": "string"}
    if isinstance(field.annotation, type) and issubclass(field.annotation, Enum):
        return {"enum": [each.value for each in field.annotation]}
    if kinds.is_binary(kind):
        return {"type": "string", "contentEncoding": "base64"}
    if kinds.is_boolean(kind):
        return {"type": "boolean"}
    if kinds.is_integer(kind):
        return {"type": "integer"}
    return {"type": "number"} if kinds.is_floating(kind) else {"type": "string"}


def given_schema(said: Any) -> StoredSchema:
    """A schema that the user gave, as text or as what it says. Raises SchemaMistake."""
    if isinstance(said, str):
        try:
            json.loads(said)
        except json.JSONDecodeError as error:
            raise SchemaMistake(f"no JSON: {error}") from error
        return StoredSchema(0, KIND, said)
    return StoredSchema(0, KIND, json.dumps(said, separators=(",", ":")))


def with_imports(registry: Registry, stored: StoredSchema, register: bool) -> StoredSchema:
    """A schema that a user gives is whole."""
    return stored


def type_name_of(stored: StoredSchema) -> str:
    """The title of a schema."""
    return str(json.loads(stored.text).get("title", ""))
