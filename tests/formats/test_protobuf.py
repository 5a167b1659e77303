"""Protobuf: any row survives a round trip, bytes are those of other writers, and types meet by the names of fields."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.connectors.formats.avro import messages as avro
from headrace.connectors.formats.fields import row_fields
from headrace.connectors.formats.messages import RowDecoder
from headrace.connectors.formats.misfits import SchemaMisfit, SchemaMistake, UnfitValue
from headrace.connectors.formats.protobuf.messages import ProtobufSchemas, derived_schema, encoder_of, given_schema
from headrace.connectors.formats.registry import StoredSchema
from headrace.errors import ProgramError
from headrace.model.rows import codec_of
from tests.formats.orders import NO_SHRINKING, ORDERS, Order
from tests.formats.protos import add_message, class_of, message_class, new_file


def fields_of(row_type: Any) -> Any:
    codec = codec_of(row_type)
    return row_fields(codec, codec.schema.names, "protobuf", "here")


def written(rows: Sequence[Any], schema: StoredSchema | None = None) -> list[bytes]:
    codec = codec_of(type(rows[0]))
    fields = fields_of(codec.type)
    encoder = encoder_of(None, schema or derived_schema("Row", fields), fields)
    messages: list[bytes] = encoder.encode(codec.to_arrays(rows), len(rows)).to_pylist()
    return messages


def decoded(messages: Sequence[bytes], row_type: Any, schema: StoredSchema) -> tuple[list[Any], dict[int, str]]:
    """The good rows, and what is said of the bad ones."""
    codec = codec_of(row_type)
    decoder = RowDecoder(fields_of(row_type), ProtobufSchemas(fields_of(row_type), None, schema))
    columns, faults = decoder.decode(pa.array(messages, pa.binary()))
    good = pa.array(~faults.bad)
    return codec.to_objects([column.filter(good) for column in columns]), faults.reasons


ORDER_SCHEMA = derived_schema("Order", fields_of(Order))
ORDER_CLASS = class_of(ORDER_SCHEMA)
AVRO_ORDER = avro.derived_schema("Order", fields_of(Order))


@settings(max_examples=20, phases=NO_SHRINKING)
@given(st.lists(ORDERS, min_size=1, max_size=4))
def test_any_row_survives_a_round_trip_and_other_readers_find_the_same(rows: list[Order]) -> None:
    messages = written(rows)
    assert decoded(messages, Order, ORDER_SCHEMA) == (rows, {})
    for row, message in zip(rows, messages, strict=True):
        said = ORDER_CLASS.FromString(message)
        assert said.id == row.id and said.user == row.user and said.raw == row.raw and said.retryCount == row.retries
        assert said.at.ToMicroseconds() == row.at and said.took.ToTimedelta() == row.took
        assert said.HasField("note") == (row.note is not None) and [each.sku for each in said.items] == [
            each.sku for each in row.items
        ]
        assert dict(said.tags) == row.tags
        # Maps have no order; everything else is written as every other writer does.
        for name in ("tags", "amounts", "lines"):
            said.ClearField(name)
        plain = written([row.replace(tags={}, amounts={}, lines={})])[0]
        assert said.SerializeToString() == plain
        assert decoded([ORDER_CLASS.FromString(message).SerializeToString()], Order, ORDER_SCHEMA) == ([row], {})


@settings(max_examples=20, phases=NO_SHRINKING)
@given(st.lists(ORDERS, min_size=1, max_size=3), st.data())
def test_a_damaged_message_never_hurts_its_neighbours(rows: list[Order], data: st.DataObject) -> None:
    messages = written(rows)
    hurt = data.draw(st.integers(0, len(rows) - 1))
    whole = messages[hurt]
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    for noise in (whole[:at], changed):
        found, reasons = decoded([*messages[:hurt], noise, *messages[hurt + 1 :]], Order, ORDER_SCHEMA)
        assert len(found) + len(reasons) == len(rows) and set(reasons) <= {hurt}
        assert [row for row in rows if row in found] >= [row for i, row in enumerate(rows) if i != hurt]


@settings(max_examples=30)
@given(st.binary(max_size=60))
def test_any_bytes_at_all_are_a_row_or_a_bad_one(noise: bytes) -> None:
    found, reasons = decoded([noise], Order, ORDER_SCHEMA)
    assert len(found) + len(reasons) == 1


class Numbers(hr.Record):
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    g: int
    h: int
    i: int
    j: int
    x: float
    y: float
    many: list[int] = []


NUMBERS = [
    "int32 a = 1", "int64 b = 2", "uint32 c = 3", "uint64 d = 4", "sint32 e = 5", "sint64 f = 6", "fixed32 g = 7",
    "fixed64 h = 8", "sfixed32 i = 9", "sfixed64 j = 10", "float x = 11", "double y = 12", "repeated sint32 many = 13",
]  # fmt: skip


@settings(max_examples=20)
@given(
    st.lists(
        st.builds(
            Numbers,
            **dict.fromkeys("aei", st.integers(-(2**31), 2**31 - 1)),
            **dict.fromkeys("bfj", st.integers(-(2**63), 2**63 - 1)),
            **dict.fromkeys("cg", st.integers(0, 2**32 - 1)),
            **dict.fromkeys("dh", st.integers(0, 2**63 - 1)),
            x=st.floats(allow_nan=False, width=32),
            y=st.floats(allow_nan=False),
            many=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_numbers_of_every_kind_have_the_bytes_that_others_write(rows: list[Numbers]) -> None:
    file = new_file("numbers.proto")
    add_message(file, "Numbers", *NUMBERS)
    cls = message_class("shop.Numbers", file)
    schema = given_schema(cls)
    messages = [cls(**{name: getattr(row, name) for name in Numbers.__struct_fields__}) for row in rows]
    assert written(rows, schema) == [message.SerializeToString() for message in messages]
    assert decoded(written(rows, schema), Numbers, schema) == (rows, {})


def test_what_is_too_large_for_a_kind_is_refused() -> None:
    file = new_file("numbers.proto")
    add_message(file, "Numbers", *NUMBERS)
    schema = given_schema(message_class("shop.Numbers", file))
    zeros = Numbers(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
    assert written([zeros], schema) == [b""] and decoded([b""], Numbers, schema) == ([zeros], {})
    with pytest.raises(UnfitValue, match="c is -1, which uint32 cannot hold"):
        written([zeros.replace(c=-1)], schema)
    big = message_class("shop.Numbers", file)(d=2**64 - 1).SerializeToString()
    assert "larger than 64 bits" in decoded([big], Numbers, schema)[1][0]


class Level(Enum):
    LOW = "LOW"
    HIGH = "HIGH"


class Line(hr.Record):
    sku: str
    count: int = 1


class Sale(hr.Record):
    shop: str
    level: Level
    cents: int | None = None
    day: date | None = None
    key: UUID | None = None
    price: Decimal = Decimal(7)
    took: timedelta = timedelta(0)
    at: hr.Timestamp | None = None
    first: Line | None = None
    lines: list[Line] = []
    stock: dict[str, int] = {}


def sale_class() -> Any:
    lines = new_file("lines.proto", package="lines")
    add_message(lines, "Line", "int64 count = 2", "string sku = 1", "string other = 3")
    file = new_file(
        "sale.proto", "lines.proto", "google/protobuf/timestamp.proto", "google/protobuf/duration.proto",
        "google/protobuf/wrappers.proto",
    )  # fmt: skip
    add_message(file, "Other", "int32 n = 1")
    level = file.enum_type.add(name="Level")
    for number, name in enumerate(("LOW", "HIGH", "NEW")):
        level.value.add(name=name, number=number)
    sale = add_message(
        file, "Sale", "string shop = 5", "enum.shop.Level level = 2", ".google.protobuf.Int64Value cents = 3",
        "string day = 4", "string key = 1", "optional string price = 6", ".google.protobuf.Duration took = 7",
        ".google.protobuf.Timestamp at = 8", ".lines.Line first = 9", "repeated .lines.Line lines = 16",
        "repeated .shop.Sale.StockEntry stock = 17", "repeated .shop.Sale unknown = 18", "double more = 19",
    )  # fmt: skip
    add_message(sale, "StockEntry", "string key = 1", "int32 value = 2").options.map_entry = True
    return message_class("shop.Sale", lines, file)


SALE = sale_class()


def test_a_type_that_others_made_is_read_by_the_names_of_its_fields() -> None:
    message = SALE(shop="Ulm", level=1, day="2024-02-03", key="e3e70682-c209-4cac-629f-6fbed82c07cd", more=2.5)
    message.cents.value = 0
    message.took.FromTimedelta(timedelta(seconds=-1, microseconds=5))
    message.at.FromMicroseconds(-1)
    message.first.sku = "a"
    message.lines.add(sku="b", count=2, other="x")
    message.stock["a"] = -3
    message.unknown.add(shop="inner")
    found, reasons = decoded([message.SerializeToString(), b""], Sale, given_schema(SALE))
    assert not reasons
    assert found[0] == Sale(
        "Ulm", Level.HIGH, 0, date(2024, 2, 3), UUID("e3e70682-c209-4cac-629f-6fbed82c07cd"), Decimal(7),
        timedelta(seconds=-1, microseconds=5), hr.Timestamp(-1), Line("a", 0), [Line("b", 2)], {"a": -3},
    )  # fmt: skip
    assert found[1] == Sale("", Level.LOW), "what is absent is zero, null, or the default of the row type"


def test_rows_are_written_as_a_type_that_others_made() -> None:
    row = Sale("Ulm", Level.HIGH, 0, date(2024, 2, 3), None, Decimal("1.50"), timedelta(seconds=-1, microseconds=5),
               hr.Timestamp(-1), Line("a", 0), [Line("b", 2), Line("", 1)], {"a": -3})  # fmt: skip
    with pytest.raises(UnfitValue, match="key is absent in a row"):
        written([row], given_schema(SALE))
    row = row.replace(key=UUID(int=5))
    said = SALE.FromString(written([row], given_schema(SALE))[0])
    assert said.SerializeToString() == written([row], given_schema(SALE))[0]
    assert said.price == "1.5" and said.cents.value == 0 and said.HasField("cents") and said.day == "2024-02-03"
    assert decoded([said.SerializeToString()], Sale, given_schema(SALE)) == ([row], {})


def test_values_that_do_not_fit_make_their_message_bad() -> None:
    messages = [
        SALE(shop="a", level=2), SALE(shop="b", level=7), SALE(shop="c", day="yesterday"), SALE(shop="d", price="x"),
        SALE(shop="e", key="1"),
    ]  # fmt: skip
    found, reasons = decoded([each.SerializeToString() for each in messages], Sale, given_schema(SALE))
    assert found == [] and reasons == {
        0: "level is no Level: 'NEW'",
        1: "level is no value of its enum",
        2: "day does not fit date",
        3: "price does not fit Decimal",
        4: "key is no UUID: '1'",
    }


def test_lists_of_numbers_are_read_packed_or_not_and_the_last_of_a_single_field_counts() -> None:
    class Some(hr.Record):
        n: int
        many: list[int]

    file = new_file("some.proto")
    add_message(file, "Some", "int32 n = 1", "repeated int32 many = 2")
    schema = given_schema(message_class("shop.Some", file))
    message = bytes([0x08, 1, 0x10, 5, 0x12, 2, 6, 7, 0x08, 2, 0x10, 8, 0x7A, 1, 9])
    assert decoded([message, b"\x12\x00"], Some, schema) == ([Some(2, [5, 6, 7, 8]), Some(0, [])], {})
    assert decoded([bytes([0x0D, 0, 0, 0, 0])], Some, schema)[1] == {0: "n is not written as int32"}
    assert decoded([bytes([0x12, 2, 6, 0xFF]), bytes([0x1B])], Some, schema)[1].keys() == {0, 1}


class Tags(hr.Record):
    tags: list[str] | None = None


class Deep(hr.Record):
    deep: list[list[int]]


class NumberShop(hr.Record):
    shop: int


class NumberTime(hr.Record):
    at: int


class TextLines(hr.Record):
    lines: str


@pytest.mark.parametrize(
    ("row_type", "why"),
    [
        (Line, "message shop.Sale has no field sku"),
        (NumberShop, "shop is string, which does not become int"),
        (NumberTime, "at is google.protobuf.Timestamp, which does not become int"),
        (TextLines, "lines is repeated lines.Line, which does not become str"),
    ],
)
def test_a_row_type_that_messages_cannot_become_is_refused(row_type: Any, why: str) -> None:
    with pytest.raises(SchemaMisfit, match=why):
        ProtobufSchemas(fields_of(row_type), None, None).reader_of(given_schema(SALE))


def test_what_protobuf_cannot_say_is_refused_before_anything_is_written() -> None:
    with pytest.raises(SchemaMisfit, match="tags may be None"):
        written([Tags()])
    with pytest.raises(ProgramError, match="within a list or a map"):
        written([Deep([[1]])])
    with pytest.raises(SchemaMisfit, match="message shop.Sale has no field sku, count"):
        written([Line("a")], given_schema(SALE))
    with pytest.raises(SchemaMistake, match="is no class of messages"):
        given_schema("message Sale {}")


@settings(max_examples=10, phases=NO_SHRINKING)
@given(st.lists(ORDERS, min_size=2, max_size=6), st.data())
def test_a_part_of_a_batch_is_written_and_read_as_if_it_stood_alone(rows: list[Order], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    codec, fields = codec_of(Order), fields_of(Order)
    columns = [column.slice(first) for column in codec.to_arrays(rows)]
    for encoder, schemas in (
        (encoder_of(None, ORDER_SCHEMA, fields), ProtobufSchemas(fields, None, ORDER_SCHEMA)),
        (avro.encoder_of(None, AVRO_ORDER, fields), avro.AvroSchemas(fields, None, AVRO_ORDER)),
    ):
        messages = encoder.encode(columns, len(rows) - first)
        assert messages.equals(encoder.encode(codec.to_arrays(rows[first:]), len(rows) - first))
        behind = pa.concat_arrays([pa.array([b"in front"], pa.binary()), messages]).slice(1)
        found, faults = RowDecoder(fields, schemas).decode(behind)
        assert codec.to_objects(found) == rows[first:] and not faults.reasons
