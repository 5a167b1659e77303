"""Protobuf in Kafka's messages with a schema registry, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.connectors.kafka.sink import KafkaSink
from headrace.connectors.kafka.source import KafkaSource
from headrace.errors import ProgramError, SinkFailed
from headrace.model.rows import codec_of
from tests.formats.protos import add_message, message_class, new_file, serialized
from tests.formats.test_kafka_avro import handed_out, read, staged
from tests.services.registry import FakeRegistry


class Sale(hr.Record):
    shop: str
    cents: int = 0


def sale_class(*more: str) -> Any:
    money = new_file("money.proto", package="money")
    add_message(money, "Money", "int64 cents = 1")
    file = new_file("sale.proto", "money.proto")
    add_message(file, "Other", "string other = 1")
    outer = add_message(file, "Outer")
    add_message(outer, "First", "int32 n = 1")
    add_message(outer, "Sale", "string shop = 2", "int64 cents = 1", ".money.Money paid = 3", *more)
    return message_class("shop.Outer.Sale", money, file)


def source(registry: Any, row_type: Any = Sale, **given: Any) -> KafkaSource:
    made = hr.source.kafka("sales", format="protobuf", registry=registry, **given).bind(codec_of(row_type))
    assert isinstance(made, KafkaSource)
    return made


def sink(registry: Any, **given: Any) -> KafkaSink:
    made = hr.sink.kafka("sales", format="protobuf", registry=registry, **given).bind(codec_of(Sale), "out")
    assert isinstance(made, KafkaSink)
    return made


def test_messages_of_several_types_are_read_side_by_side(registry: FakeRegistry) -> None:
    first, second = sale_class(), sale_class("string note = 7")
    simple = new_file("simple.proto")
    add_message(simple, "Sale", "string shop = 1", "sint32 cents = 9")
    third = message_class("shop.Sale", simple)
    values = [
        *serialized(registry, first, [first(shop="Ulm", cents=5)]),
        *serialized(registry, second, [second(shop="Bonn", cents=6, note="x")]),
        *serialized(registry, third, [third(shop="Köln", cents=-7)]),
    ]
    assert values[0][5:8] == bytes([4, 2, 2]), "the second type within the second type of the file"
    assert values[2][5:6] == b"\x00", "the first type of the file"
    found, bad = read(source(registry.url), handed_out([*values, values[0]]), Sale)
    found.sort(key=lambda row: row.cents)
    assert found == [Sale("Köln", -7), Sale("Ulm", 5), Sale("Ulm", 5), Sale("Bonn", 6)]
    assert not bad and "money.proto" in registry.subjects


def test_another_type_of_the_file_and_what_is_no_message_are_told(registry: FakeRegistry) -> None:
    cls = sale_class()
    header = serialized(registry, cls, [cls(shop="Ulm")])[0][:5]
    values: list[bytes | None] = [header + b"\x00", header + b"\x02\x10", header + b"\x01"]
    found, bad = read(source(registry.url), handed_out(values), Sale)
    assert found == [] and [line.partition(": ")[2] for line in bad] == [
        "schema 2: message shop.Other has no field shop",
        "schema 2: it cannot be read: the file sale.proto has no message type [8]",
        "it does not say which message type of its schema it is",
    ]


def test_messages_have_the_bytes_that_confluents_serializer_writes(registry: FakeRegistry) -> None:
    cls = sale_class()
    rows = [Sale("Ulm", 5), Sale("", 0), Sale("Bonn", -1)]
    values = staged(sink(registry.url, schema=cls), rows)
    assert values == serialized(registry, cls, [cls(shop=row.shop, cents=row.cents) for row in rows])
    assert list(registry.subjects) == ["money.proto", "sales-value"]
    assert read(source(registry.url), handed_out(list(values)), Sale) == (rows, [])


def test_the_type_of_the_rows_is_registered_and_read_back(registry: FakeRegistry) -> None:
    rows = [Sale("Ulm", 5), Sale("Bonn")]
    values = staged(sink(registry.url, subject="{record}"), rows)
    assert list(registry.subjects) == ["Sale"] and values[0][:6] == b"\x00\x00\x00\x00\x01\x00"
    assert read(source(registry.url), handed_out(list(values)), Sale) == (rows, [])
    registry.add("sales-value", registry.schemas[1]["schema"], "PROTOBUF")
    assert staged(sink(registry.url, register=False), rows) == values
    assert source(registry.url).spark(codec_of(Sale)).decoded


def test_imports_are_looked_up_where_nothing_is_to_be_registered(registry: FakeRegistry) -> None:
    with pytest.raises(SinkFailed, match=r"money.proto does not have this schema"):
        staged(sink(registry.url, schema=sale_class(), register=False), [Sale("Ulm")])
    values = staged(sink(registry.url, schema=sale_class()), [Sale("Ulm")])
    assert staged(sink(registry.url, schema=sale_class(), register=False), [Sale("Ulm")]) == values


def test_a_schema_of_another_format_is_refused_at_the_start(registry: FakeRegistry) -> None:
    registry.add("sales-value", '"string"')
    with pytest.raises(ProgramError, match="schema 1: it is AVRO, not Protobuf"):
        source(registry.url).spark(codec_of(Sale))


def test_without_a_registry_messages_are_bare() -> None:
    cls = sale_class()
    made = hr.sink.kafka("sales", format="protobuf", schema=cls).bind(codec_of(Sale), "out")
    assert isinstance(made, KafkaSink)
    values = staged(made, [Sale("Ulm", 5)])
    assert values == [cls(shop="Ulm", cents=5).SerializeToString()]
    assert read(source(None, schema=cls), handed_out(list(values)), Sale) == ([Sale("Ulm", 5)], [])
    with pytest.raises(ProgramError, match="is no class of messages"):
        source(None, schema="sale.proto")
