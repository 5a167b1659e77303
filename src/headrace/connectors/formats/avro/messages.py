"""Avro's schemas for messages: those of writers, by their ids or as given, and the one that rows are written under."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from headrace.connectors.formats.avro.decoding import compile_rows
from headrace.connectors.formats.avro.encoding import compile_messages
from headrace.connectors.formats.avro.schema import AvroType, derive_schema, parse_schema, schema_text
from headrace.connectors.formats.fields import TreeField
from headrace.connectors.formats.messages import ReadRows, RowEncoder, Schemas, frame_header
from headrace.connectors.formats.misfits import SchemaMisfit, SchemaMistake
from headrace.connectors.formats.registry import Registry, StoredSchema

KIND: Final = "AVRO"


class AvroSchemas(Schemas):
    typed = False

    def _compile(self, stored: StoredSchema, fields: Sequence[TreeField]) -> ReadRows:
        return compile_rows(parsed_schema(self._registry, stored), fields)


def schemas_of(fields: Sequence[TreeField], registry: Registry | None, given: StoredSchema | None) -> AvroSchemas:
    """The schemas of messages that are to become these fields."""
    return AvroSchemas(fields, registry, given)


def parsed_schema(registry: Registry | None, stored: StoredSchema) -> AvroType:
    """A schema with what it refers to. Raises SchemaMisfit."""
    if stored.kind != KIND:
        raise SchemaMisfit(f"it is {stored.kind}, not Avro")
    named: dict[str, AvroType] = {}
    try:
        if registry is not None:
            _add_references(registry, stored, named)
        return parse_schema(stored.text, named)
    except SchemaMistake as mistake:
        raise SchemaMisfit(f"it cannot be read: {mistake}") from mistake


def _add_references(registry: Registry, stored: StoredSchema, named: dict[str, AvroType]) -> None:
    for reference in stored.references:
        if reference.name not in named:
            referred = registry.version(reference)
            _add_references(registry, referred, named)
            named[reference.name] = parse_schema(referred.text, named)


def derived_schema(name: str, fields: Sequence[TreeField]) -> StoredSchema:
    """The schema of a row type."""
    return StoredSchema(0, KIND, schema_text(derive_schema(name, fields)))


def given_schema(said: Any) -> StoredSchema:
    """A schema that the user gave: text, what its JSON says, or the name of a file with it. Raises SchemaMistake."""
    if isinstance(said, os.PathLike) or (isinstance(said, str) and said.endswith((".avsc", ".json"))):
        try:
            said = Path(said).read_text(encoding="utf-8")
        except OSError as error:
            raise SchemaMistake(f"{said} cannot be read: {error.strerror}") from error
    if not isinstance(said, str):
        said = schema_text(said)
    parse_schema(said)
    return StoredSchema(0, KIND, said)


def with_imports(registry: Registry, stored: StoredSchema, register: bool) -> StoredSchema:
    """A schema of Avro that a user gives is whole."""
    return stored


def encoder_of(registry: Registry | None, stored: StoredSchema, fields: Sequence[TreeField]) -> RowEncoder:
    """What writes rows under a schema. Raises SchemaMisfit."""
    header = b"" if registry is None else frame_header(stored.id)
    return RowEncoder(compile_messages(parsed_schema(registry, stored), fields), header)


def type_name_of(stored: StoredSchema) -> str:
    """The name of the record of a schema, with its namespace."""
    return parse_schema(stored.text).name
