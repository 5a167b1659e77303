"""Protobuf's schemas for messages: those of writers, by their ids or as given, and the one that rows are written under.

A schema is a file of message types, told as its serialized descriptor in base64: Confluent's serializers register it
so, and a registry gives it so when it is asked for ``format=serialized``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from google.protobuf import descriptor_pb2

from headrace.connectors.formats import pieces
from headrace.connectors.formats.fields import TreeField
from headrace.connectors.formats.messages import ReadRows, RowEncoder, Schemas, frame_header
from headrace.connectors.formats.misfits import SchemaMisfit, SchemaMistake
from headrace.connectors.formats.protobuf.decoding import compile_rows
from headrace.connectors.formats.protobuf.encoding import compile_messages
from headrace.connectors.formats.protobuf.schema import ProtoMessage, derive_file, message_of
from headrace.connectors.formats.registry import Reference, Registry, StoredSchema

KIND: Final = "PROTOBUF"
FORM: Final = "serialized"
_KNOWN: Final = "google/protobuf/"
_FIRST: Final = (0,)


class ProtobufSchemas(Schemas):
    typed = True
    form = FORM

    def _compile(self, stored: StoredSchema, fields: Sequence[TreeField]) -> ReadRows:
        return compile_rows(message_type(self._registry, stored), fields)


def schemas_of(fields: Sequence[TreeField], registry: Registry | None, given: StoredSchema | None) -> ProtobufSchemas:
    """The schemas of messages that are to become these fields."""
    return ProtobufSchemas(fields, registry, given)


def message_type(registry: Registry | None, stored: StoredSchema) -> ProtoMessage:
    """The message type that a schema is about. Raises SchemaMisfit."""
    if stored.kind != KIND:
        raise SchemaMisfit(f"it is {stored.kind}, not Protobuf")
    try:
        files: dict[str, bytes] = {}
        if registry is not None:
            _add_references(registry, stored, files)
        for text in stored.imports:
            files[descriptor_pb2.FileDescriptorProto.FromString(_content(text)).name] = _content(text)
        return message_of(_content(stored.text), stored.path or _FIRST, files)
    except SchemaMistake as mistake:
        raise SchemaMisfit(f"it cannot be read: {mistake}") from mistake


def _add_references(registry: Registry, stored: StoredSchema, files: dict[str, bytes]) -> None:
    for reference in stored.references:
        if reference.name not in files and not reference.name.startswith(_KNOWN):
            referred = registry.version(reference, FORM)
            _add_references(registry, referred, files)
            files[reference.name] = _content(referred.text)


def _content(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise SchemaMistake("the registry gave its text and not its descriptor (format=serialized)") from error


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def derived_schema(name: str, fields: Sequence[TreeField]) -> StoredSchema:
    """The schema of a row type."""
    return StoredSchema(0, KIND, _text(derive_file(name, fields).SerializeToString(deterministic=True)), path=_FIRST)


def given_schema(said: Any) -> StoredSchema:
    """The schema of a class of messages that Protobuf's compiler made. Raises SchemaMistake."""
    descriptor = getattr(said, "DESCRIPTOR", None)
    if descriptor is None or not hasattr(descriptor, "containing_type"):
        raise SchemaMistake(f"{said!r} is no class of messages")
    path: list[int] = []
    inner = descriptor
    while inner is not None:
        outer = inner.containing_type
        siblings = inner.file.message_types_by_name if outer is None else outer.nested_types_by_name
        path.insert(0, list(siblings).index(inner.name))
        inner = outer
    imports: dict[str, str] = {}
    _add_imports(descriptor.file, imports)
    return StoredSchema(
        0, KIND, _text(descriptor.file.serialized_pb), path=tuple(path), imports=tuple(imports.values())
    )


def _add_imports(file: Any, imports: dict[str, str]) -> None:
    for each in file.dependencies:
        if each.name not in imports and not each.name.startswith(_KNOWN):
            _add_imports(each, imports)
            imports[each.name] = _text(each.serialized_pb)


def with_imports(registry: Registry, stored: StoredSchema, register: bool) -> StoredSchema:
    """A schema whose imports are in the registry, each under its own name; they are put there, or looked up."""
    references: dict[str, Reference] = {}
    for text in stored.imports:
        file = descriptor_pb2.FileDescriptorProto.FromString(_content(text))
        needed = tuple(references[name] for name in file.dependency if name in references)
        imported = StoredSchema(0, KIND, text, needed)
        if register:
            registry.register(file.name, imported)
        references[file.name] = Reference(file.name, file.name, registry.find(file.name, imported).version)
    own = descriptor_pb2.FileDescriptorProto.FromString(_content(stored.text))
    return stored._replace(references=tuple(references[name] for name in own.dependency if name in references))


def encoder_of(registry: Registry | None, stored: StoredSchema, fields: Sequence[TreeField]) -> RowEncoder:
    """What writes rows under a schema. Raises SchemaMisfit."""
    header = b"" if registry is None else frame_header(stored.id) + _path_bytes(stored.path or _FIRST)
    return RowEncoder(compile_messages(message_type(registry, stored), fields), header)


def _path_bytes(path: tuple[int, ...]) -> bytes:
    if path == _FIRST:
        return b"\x00"
    said: list[bytes] = pieces.longs(np.array([len(path), *path], np.int64)).to_pylist()
    return b"".join(said)


def type_name_of(stored: StoredSchema) -> str:
    """The name of the message type, with its package."""
    return message_type(None, stored).name
