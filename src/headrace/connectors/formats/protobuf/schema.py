"""Message types of Protobuf: read from the descriptors of files, and made for a row type.

The package ``protobuf`` reads and checks descriptors; what both directions need of a type is kept apart from it
(`ProtoMessage`), and types that contain themselves are linked by reference. The type that a row type has numbers its
fields in their order: a new field belongs at the end, as it does everywhere in Protobuf.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, timestamp_pb2, wrappers_pb2

from headrace.connectors.formats.fields import TreeField
from headrace.connectors.formats.misfits import SchemaMistake
from headrace.errors import ProgramError
from headrace.model.time import Duration

TIMESTAMP: Final = "google.protobuf.Timestamp"
DURATION: Final = "google.protobuf.Duration"
_WRAPPER: Final = re.compile(r"google\.protobuf\.(Double|Float|U?Int64|U?Int32|Bool|String|Bytes)Value")
_KNOWN: Final = (timestamp_pb2, duration_pb2, wrappers_pb2)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_Type: Final = descriptor_pb2.FieldDescriptorProto


@dataclass
class ProtoField:
    number: int
    name: str
    kind: str
    """``int64``, ``sfixed32``, ``string``, ``enum``, ``message``, …"""
    repeated: bool = False
    presence: bool = False
    """Whether a message tells zero from nothing."""
    required: bool = False
    packed: bool = False
    message: ProtoMessage | None = None
    symbols: dict[int, str] = field(default_factory=dict)
    """Of an enum: the names of its numbers."""

    @property
    def is_map(self) -> bool:
        return self.repeated and self.message is not None and self.message.is_entry

    @property
    def says(self) -> str:
        """The type, for people."""
        kind = self.message.name if self.message is not None else self.kind
        return f"map of {self.message.fields[1].says}" if self.is_map and self.message is not None else (
            f"repeated {kind}" if self.repeated else kind
        )  # fmt: skip


@dataclass
class ProtoMessage:
    name: str
    fields: list[ProtoField] = field(default_factory=list)
    is_entry: bool = False
    """Whether it is a pair of a map."""

    @property
    def wrapped(self) -> ProtoField | None:
        """Of a well-known wrapper, such as ``Int64Value``, what it holds."""
        return self.fields[0] if _WRAPPER.fullmatch(self.name) else None


def message_of(content: bytes, path: Sequence[int], imports: Mapping[str, bytes]) -> ProtoMessage:
    """A message type by its place in a file: in its serialized descriptor.

    ``imports``: the files that it imports, by name, each behind those that it imports itself. Raises SchemaMistake.
    """
    pool: Any = descriptor_pool.DescriptorPool()
    try:
        for known in _KNOWN:
            pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
        for name, each in imports.items():
            # A registry knows a file by the name under which it is imported; its own name may be another.
            imported = descriptor_pb2.FileDescriptorProto.FromString(each)
            imported.name = name
            pool.AddSerializedFile(imported.SerializeToString())
        file = descriptor_pb2.FileDescriptorProto.FromString(content)
        file.name = file.name or "default"
        pool.AddSerializedFile(file.SerializeToString())
        types = pool.FindFileByName(file.name).message_types_by_name
        descriptor = types[file.message_type[path[0]].name]
        for place in path[1:]:
            descriptor = descriptor.nested_types[place]
    except IndexError as error:
        raise SchemaMistake(f"the file {file.name} has no message type {list(path)}") from error
    except Exception as error:
        # The pool and the parser raise what they like: TypeError, DecodeError, KeyError.
        raise SchemaMistake(f"{type(error).__name__}: {error}") from error
    return _message(descriptor, {})


def _message(descriptor: Any, known: dict[str, ProtoMessage]) -> ProtoMessage:
    made = known.get(descriptor.full_name)
    if made is None:
        made = known[descriptor.full_name] = ProtoMessage(descriptor.full_name)
        made.is_entry = bool(descriptor.GetOptions().map_entry)
        made.fields = [_field(each, known) for each in sorted(descriptor.fields, key=lambda each: int(each.number))]
    return made


def _field(descriptor: Any, known: dict[str, ProtoMessage]) -> ProtoField:
    kind = _Type.Type.Name(descriptor.type).removeprefix("TYPE_").lower()
    message = None if descriptor.message_type is None else _message(descriptor.message_type, known)
    enum = descriptor.enum_type
    symbols = {} if enum is None else {each.number: each.name for each in reversed(enum.values)}
    repeated = bool(descriptor.is_repeated)
    presence, packed = bool(descriptor.has_presence), bool(descriptor.is_packed)
    required = bool(descriptor.is_required)
    return ProtoField(descriptor.number, descriptor.name, kind, repeated, presence, required, packed, message, symbols)


# --- the type of a row type


_SIMPLE: Final = (
    (pa.types.is_boolean, _Type.TYPE_BOOL),
    (pa.types.is_integer, _Type.TYPE_INT64),
    (pa.types.is_floating, _Type.TYPE_DOUBLE),
    (pa.types.is_binary, _Type.TYPE_BYTES),
)


def derive_file(name: str, fields: Sequence[TreeField]) -> descriptor_pb2.FileDescriptorProto:
    """A file whose first message type is that of rows with these fields."""
    own = _plain_name(name)
    file = descriptor_pb2.FileDescriptorProto(name=f"{own}.proto", syntax="proto3")
    _add_message(file, own, fields, {own: None})
    return file


def _add_message(file: Any, name: str, fields: Sequence[TreeField], named: dict[str, Any]) -> None:
    message = file.message_type.add(name=name)
    for number, each in enumerate(fields, 1):
        if not _NAME.fullmatch(each.name):
            raise ProgramError(
                f"{each.name!r} cannot be the name of a field in Protobuf",
                expected="letters, digits and underscores, and no digit first",
                found=repr(each.name),
                next_move=f'give it another name in messages: {each.path} = hr.field(name="…")',
            )
        _add_field(file, message, each, number, named)
    # What the compiler makes of `optional` stands behind the other alternatives, of which there are none.
    for added in message.field:
        if added.proto3_optional:
            added.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{added.name}")


def _add_field(file: Any, message: Any, tree: TreeField, number: int, named: dict[str, Any]) -> None:
    added = message.field.add(name=tree.name, number=number, json_name=_json_name(tree.name))
    if pa.types.is_list(tree.kind):
        added.label = _Type.LABEL_REPEATED
        _set_type(file, added, tree.parts[0], f"{message.name}_{tree.name}", named)
    elif pa.types.is_map(tree.kind):
        entry = message.nested_type.add(name=f"{_camel(tree.name)}Entry")
        entry.options.map_entry = True
        for place, part in enumerate(("key", "value")):
            inner = entry.field.add(name=part, number=place + 1, label=_Type.LABEL_OPTIONAL, json_name=part)
            _set_type(file, inner, tree.parts[place], f"{message.name}_{tree.name}", named)
        added.label, added.type = _Type.LABEL_REPEATED, _Type.TYPE_MESSAGE
        added.type_name = f".{message.name}.{entry.name}"
    else:
        added.label = _Type.LABEL_OPTIONAL
        _set_type(file, added, tree, f"{message.name}_{tree.name}", named)
        # A reader tells what is absent from zero only where the type says so.
        if added.type != _Type.TYPE_MESSAGE and not tree.required:
            added.proto3_optional = True


def _set_type(file: Any, added: Any, tree: TreeField, place: str, named: dict[str, Any]) -> None:
    kinds, kind = pa.types, tree.kind
    if kinds.is_list(kind) or kinds.is_map(kind):
        raise ProgramError(
            f"field {tree.path} cannot be written as protobuf",
            expected="lists and maps of values and records",
            found=f"{tree.says} within a list or a map, which Protobuf cannot say",
            next_move="put it into a record of its own",
        )
    if kinds.is_timestamp(kind) or is_span(tree):
        _import(file, timestamp_pb2 if kinds.is_timestamp(kind) else duration_pb2)
        added.type, added.type_name = _Type.TYPE_MESSAGE, f".{TIMESTAMP if kinds.is_timestamp(kind) else DURATION}"
        return
    if kinds.is_struct(kind):
        added.type, added.type_name = _Type.TYPE_MESSAGE, f".{_record_name(file, tree, place, named)}"
        return
    # Days, decimals and the like have no type of their own: they are their text, as in JSON.
    added.type = next((proto for test, proto in _SIMPLE if test(kind)), _Type.TYPE_STRING)


def _record_name(file: Any, tree: TreeField, place: str, named: dict[str, Any]) -> str:
    own = _plain_name(getattr(tree.annotation, "__name__", place))
    if own in named and named[own] is not tree.annotation:
        own = place
    if own not in named:
        named[own] = tree.annotation
        _add_message(file, own, tree.parts, named)
    return own


def is_span(tree: TreeField) -> bool:
    """Whether the declared type is a span of time, which columns hold as microseconds."""
    return tree.annotation is timedelta or tree.annotation is Duration


def _import(file: Any, known: Any) -> None:
    if known.DESCRIPTOR.name not in file.dependency:
        file.dependency.append(known.DESCRIPTOR.name)


def _plain_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return plain if _NAME.fullmatch(plain) else f"_{plain}"


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
