"""Classes of messages, made of descriptors as Protobuf's compiler makes them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from headrace.connectors.formats.registry import StoredSchema

Kind = descriptor_pb2.FieldDescriptorProto
_LABELS = {"": Kind.LABEL_OPTIONAL, "optional": Kind.LABEL_OPTIONAL, "repeated": Kind.LABEL_REPEATED}


def add_message(holder: Any, name: str, *fields: str) -> Any:
    """A message type with fields such as ``repeated int32 n = 3`` or ``.pkg.Other other = 4``."""
    message = (holder.nested_type if hasattr(holder, "nested_type") else holder.message_type).add(name=name)
    for text in fields:
        *before, number = text.replace("=", " ").split()
        label, kind, field = ("", *before) if len(before) == 2 else tuple(before)
        added = message.field.add(name=field, number=int(number), label=_LABELS[label])
        if kind.startswith((".", "enum.")):
            added.type = Kind.TYPE_ENUM if kind.startswith("enum.") else Kind.TYPE_MESSAGE
            added.type_name = kind.removeprefix("enum")
        else:
            added.type = getattr(Kind, f"TYPE_{kind.upper()}")
        if label == "optional":
            added.proto3_optional, added.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field}")
    return message


def new_file(name: str, *imports: str, package: str = "shop") -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    file.dependency.extend(imports)
    return file


def message_class(name: str, *files: Any) -> Any:
    """The class of a message type of the last file, in a pool of its own."""
    from google.protobuf import duration_pb2, timestamp_pb2, wrappers_pb2

    pool: Any = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, duration_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def class_of(stored: StoredSchema) -> Any:
    """The class of the first message type of a schema."""
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(stored.text))
    return message_class(file.message_type[0].name, file)


def serialized(registry: Any, cls: Any, messages: Sequence[Any], topic: str = "sales") -> list[bytes]:
    """As producers with Confluent's own serializer write them."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    write = ProtobufSerializer(cls, SchemaRegistryClient({"url": registry.url}), {"use.deprecated.format": False})
    return [write(message, SerializationContext(topic, MessageField.VALUE)) for message in messages]
