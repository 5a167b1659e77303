"""Avro: any row survives a round trip, bytes are those of other writers, and schemas are resolved by Avro's rules."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.connectors.formats.avro.messages import AvroSchemas, derived_schema, encoder_of, given_schema
from headrace.connectors.formats.avro.schema import parse_schema
from headrace.connectors.formats.cursor import Faults
from headrace.connectors.formats.fields import row_fields
from headrace.connectors.formats.messages import RowDecoder
from headrace.connectors.formats.misfits import SchemaMisfit, SchemaMistake, UnfitValue
from headrace.connectors.formats.registry import StoredSchema
from headrace.model.rows import codec_of
from tests.formats.orders import NO_SHRINKING, ORDERS, Order


def fields_of(row_type: Any) -> Any:
    codec = codec_of(row_type)
    return row_fields(codec, codec.schema.names, "avro", "here")


def written(rows: Sequence[Any], schema: Any = None) -> list[bytes]:
    codec = codec_of(type(rows[0]))
    fields = fields_of(codec.type)
    stored = derived_schema("Row", fields) if schema is None else given_schema(schema)
    messages: list[bytes] = encoder_of(None, stored, fields).encode(codec.to_arrays(rows), len(rows)).to_pylist()
    return messages


def decoded(messages: Sequence[bytes], row_type: Any, schema: Any) -> tuple[list[Any], dict[int, str]]:
    """The good rows, and what is said of the bad ones."""
    codec = codec_of(row_type)
    stored = schema if isinstance(schema, StoredSchema) else given_schema(schema)
    decoder = RowDecoder(fields_of(row_type), AvroSchemas(fields_of(row_type), None, stored))
    columns, faults = decoder.decode(pa.array(messages, pa.binary()))
    good = pa.array(~faults.bad)
    return codec.to_objects([column.filter(good) for column in columns]), faults.reasons


def by_fastavro(rows: Sequence[Any], schema: Any) -> list[bytes]:
    parsed = fastavro.parse_schema(schema)
    messages = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        messages.append(out.getvalue())
    return messages


def record(*whole: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A schema with these fields: by name and type, or as they are."""
    plain = [{"name": name, "type": each} for name, each in fields.items()]
    return {"type": "record", "name": "shop.Row", "fields": [*plain, *whole]}


ORDER_SCHEMA = derived_schema("Order", fields_of(Order))


@settings(max_examples=20, phases=NO_SHRINKING)
@given(st.lists(ORDERS, min_size=1, max_size=4))
def test_any_row_survives_a_round_trip_and_has_the_bytes_that_others_write(rows: list[Order]) -> None:
    schema = derived_schema("Order", fields_of(Order))
    messages = written(rows)
    assert decoded(messages, Order, schema) == (rows, {})
    parsed = fastavro.parse_schema(json.loads(schema.text))
    for message in messages:
        said = fastavro.schemaless_reader(io.BytesIO(message), parsed)
        assert by_fastavro([said], json.loads(schema.text)) == [message]


@settings(max_examples=20, phases=NO_SHRINKING)
@given(st.lists(ORDERS, min_size=1, max_size=3), st.data())
def test_a_damaged_message_is_bad_alone_and_never_an_error(rows: list[Order], data: st.DataObject) -> None:
    messages = written(rows)
    hurt = data.draw(st.integers(0, len(rows) - 1))
    whole = messages[hurt]
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    found, reasons = decoded(
        [*messages[:hurt], cut, *messages[hurt + 1 :]], Order, derived_schema("Row", fields_of(Order))
    )
    assert found == [*rows[:hurt], *rows[hurt + 1 :]] and list(reasons) == [hurt]
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    found, reasons = decoded(
        [*messages[:hurt], changed, *messages[hurt + 1 :]], Order, derived_schema("Row", fields_of(Order))
    )
    assert len(found) + len(reasons) == len(rows) and set(reasons) <= {hurt}


@settings(max_examples=20)
@given(st.binary(max_size=60))
def test_any_bytes_at_all_are_a_row_or_a_bad_one(noise: bytes) -> None:
    found, reasons = decoded([noise], Order, ORDER_SCHEMA)
    assert len(found) + len(reasons) == 1


class Reading(hr.Record):
    value: float
    at: hr.Timestamp | None = None
    name: str = "none"


def test_numbers_widen_and_text_and_bytes_are_one_another() -> None:
    class Text(hr.Record):
        name: bytes
        raw: str

    for kind in ("int", "long", "float", "double"):
        schema = record(value=kind, name="string")
        assert decoded(by_fastavro([{"value": 7, "name": "a"}], schema), Reading, schema)[0] == [
            Reading(7.0, None, "a")
        ]
    schema = record(name="string", raw="bytes")
    messages = by_fastavro([{"name": "ü", "raw": "ä".encode()}, {"name": "b", "raw": b"\xff"}], schema)
    assert decoded(messages, Text, schema) == ([Text("ü".encode(), "ä")], {1: "raw is not UTF-8 text"})


@pytest.mark.parametrize(("logical", "unit"), [("millis", 1_000), ("micros", 1_000_000), ("nanos", 1_000_000_000)])
def test_times_of_any_unit_become_microseconds(logical: str, unit: int) -> None:
    schema = record(value="double", at={"type": "long", "logicalType": f"timestamp-{logical}"})
    bare = record(value="double", at="long")
    messages = by_fastavro([{"value": 1.0, "at": 5 * unit}], bare)
    assert decoded(messages, Reading, schema)[0] == [Reading(1.0, hr.Timestamp(5_000_000))]
    local = record(value="double", at={"type": "long", "logicalType": f"local-timestamp-{logical}"})
    assert decoded(messages, Reading, local)[0] == [Reading(1.0, hr.Timestamp(5_000_000))]


def test_a_time_beyond_all_years_makes_its_message_bad() -> None:
    schema = record(value="double", at={"type": "long", "logicalType": "timestamp-millis"})
    messages = by_fastavro([{"value": 1.0, "at": 2**62}], record(value="double", at="long"))
    assert decoded(messages, Reading, schema) == ([], {0: "a time in it lies beyond all years"})


def test_a_bare_number_is_no_time() -> None:
    with pytest.raises(SchemaMisfit, match="at is long, a number without a unit"):
        AvroSchemas(fields_of(Reading), None, None).reader_of(given_schema(record(value="double", at="long")))


def test_branches_of_a_union_are_judged_message_by_message() -> None:
    schema = record(value=["int", "string", "double", "null"])
    messages = by_fastavro([{"value": 1}, {"value": "x"}, {"value": 2.5}, {"value": None}], schema)
    found, reasons = decoded(messages, Reading, schema)
    assert found == [Reading(1.0), Reading(2.5)]
    assert reasons == {1: "value is string, which does not become float", 3: "value is missing"}


def test_null_and_what_is_absent_take_the_default_of_the_row_type() -> None:
    schema = record(value="double", name=["null", "string"])
    messages = by_fastavro([{"value": 1.0, "name": None}, {"value": 1.0, "name": "x"}], schema)
    assert decoded(messages, Reading, schema)[0] == [Reading(1.0, None, "none"), Reading(1.0, None, "x")]
    schema = record(value="double")
    assert decoded(by_fastavro([{"value": 1.0}], schema), Reading, schema)[0] == [Reading(1.0, None, "none")]
    with pytest.raises(SchemaMisfit, match=r"record shop.Row has no field value"):
        AvroSchemas(fields_of(Reading), None, None).reader_of(given_schema(record(name="string")))


def test_fields_of_former_names_are_found() -> None:
    class City(hr.Record):
        city: str = hr.field(was="town")

    schema = record(town="string")
    assert decoded(by_fastavro([{"town": "Ulm"}], schema), City, schema)[0] == [City("Ulm")]
    assert parse_schema(derived_schema("City", fields_of(City)).text).fields[0].aliases == ("town",)


def test_what_the_row_type_does_not_have_is_passed_over_whatever_it_is() -> None:
    tree = {"type": "record", "name": "Tree", "fields": [
        {"name": "children", "type": {"type": "array", "items": "Tree"}},
        {"name": "next", "type": ["null", "Tree"], "default": None},
    ]}  # fmt: skip
    kinds = {
        "a": "null", "b": "boolean", "c": "int", "d": "float", "e": "bytes", "f": tree,
        "g": {"type": "map", "values": ["null", "string", {"type": "array", "items": "long"}]},
        "h": {"type": "fixed", "name": "Four", "size": 4}, "i": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    }  # fmt: skip
    leaf = {"children": [], "next": None}
    some = {"children": [leaf, {"children": [leaf], "next": leaf}], "next": {"children": [], "next": leaf}}
    row = {
        "a": None, "b": True, "c": -3, "d": 1.5, "e": b"xy", "f": some, "g": {"x": "1", "y": [1, 2, 3], "z": None},
        "h": b"1234", "i": "B",
    }  # fmt: skip
    schema = record(**kinds, value="double")
    messages = by_fastavro([{**row, "value": 1.0}, {**row, "g": {}, "f": leaf, "value": 2.0}], schema)
    assert decoded(messages, Reading, schema) == ([Reading(1.0), Reading(2.0)], {})


def test_blocks_that_tell_their_size_are_read() -> None:
    class Numbers(hr.Record):
        numbers: list[int]

    # Two items in 2 bytes, then one without a size, then the end.
    message = bytes([3, 4, 2, 4, 2, 6, 0])
    schema = record(numbers={"type": "array", "items": "int"})
    assert decoded([message, b"\x00"], Numbers, schema) == ([Numbers([1, 2, 3]), Numbers([])], {})
    lying = bytes([0xFE, 0xFF, 0xFF, 0xFF, 0x0F, 2])
    assert (
        "more items than it has room for"
        in decoded([lying], Numbers, record(numbers={"type": "array", "items": "int"}))[1][0]
    )


def test_decimals_of_bytes_and_fixed_keep_their_value() -> None:
    class Price(hr.Record):
        price: Decimal
        fixed: Decimal

    schema = record(
        price={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        fixed={"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 12, "scale": 3},
    )
    rows = [Price(Decimal(cents) / 100, Decimal(cents * 7) / 1000) for cents in (0, 1, -1, 127, 128, -127, -129, 99999)]
    said = [{"price": row.price, "fixed": row.fixed} for row in rows]
    assert written(rows, schema) == by_fastavro(said, schema)
    assert decoded(by_fastavro(said, schema), Price, schema) == (rows, {})
    with pytest.raises(UnfitValue, match="price has a value that 10 digits, 2 of them behind the point cannot say"):
        written([Price(Decimal("0.001"), Decimal(0))], schema)


def test_enums_days_and_times_of_day_are_values_of_python() -> None:
    class Log(hr.Record):
        day: date
        level: str

    schema = record(
        day={"type": "int", "logicalType": "date"}, level={"type": "enum", "name": "L", "symbols": ["LOW", "HIGH"]}
    )
    messages = by_fastavro([{"day": date(1969, 12, 31), "level": "HIGH"}], schema)
    assert decoded(messages, Log, schema)[0] == [Log(date(1969, 12, 31), "HIGH")]
    assert written([Log(date(1969, 12, 31), "HIGH")], schema) == messages
    with pytest.raises(UnfitValue, match="level is 'MEDIUM', no symbol of enum shop.L"):
        written([Log(date(2024, 1, 1), "MEDIUM")], schema)


def test_rows_are_written_under_a_schema_that_has_more_fields_with_defaults() -> None:
    schema = record(
        {"name": "extra", "type": ["null", "string"], "default": None},
        {"name": "count", "type": "int", "default": 7},
        value="double",
        at=[{"type": "long", "logicalType": "timestamp-millis"}, "null"],
        name="string",
    )
    message = written([Reading(1.5, hr.Timestamp(2_000_999))], schema)[0]
    found: Any = fastavro.schemaless_reader(io.BytesIO(message), fastavro.parse_schema(schema))
    assert (
        found["extra"] is None and found["count"] == 7 and found["at"] == datetime.fromisoformat("1970-01-01T00:00:02Z")
    )
    with pytest.raises(SchemaMisfit, match="the rows have no field count, which record shop.Row requires"):
        micros = {"type": "long", "logicalType": "timestamp-micros"}
        written([Reading(1.5)], record(value="double", at=["null", micros], name="string", count="int"))
    with pytest.raises(SchemaMisfit, match="has no field name"):
        written(
            [Reading(1.5)], record(value="double", at=["null", {"type": "long", "logicalType": "timestamp-micros"}])
        )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{", "no JSON"),
        ({"type": "record", "name": "1a", "fields": []}, "cannot be the name of a type"),
        (record(a="Other"), "there is no type Other"),
        (record(a={"type": "array"}), "does not say of what"),
        ("missing.avsc", "cannot be read"),
    ],
)
def test_what_is_no_schema_is_said_in_words(said: Any, why: str) -> None:
    with pytest.raises(SchemaMistake, match=why):
        given_schema(said)


def test_named_types_are_found_in_their_namespace() -> None:
    schema = {"type": "record", "name": "Outer", "namespace": "a.b", "fields": [
        {"name": "first", "type": {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": "int"}]}},
        {"name": "second", "type": "Inner"},
        {"name": "third", "type": "a.b.Inner"},
    ]}  # fmt: skip
    outer = parse_schema(schema)
    assert [field.type.name for field in outer.fields] == ["a.b.Inner"] * 3


def test_a_block_of_no_messages_is_no_rows() -> None:
    assert decoded([], Reading, record(value="double")) == ([], {})
    assert not Faults(0).bad.any() and np.array([]).size == 0


def test_a_key_that_is_no_text_makes_its_message_bad_alone() -> None:
    class Tagged(hr.Record):
        tags: dict[str, int]

    messages = [b"\x02\x02a\x02\x00", b"\x02\x02\xff\x02\x00", b"\x00"]
    found, reasons = decoded(messages, Tagged, record(tags={"type": "map", "values": "int"}))
    assert found == [Tagged({"a": 1}), Tagged({})] and reasons == {1: "tags has a key that is not UTF-8 text"}


def test_a_long_list_of_numbers_among_short_ones_is_read_at_once() -> None:
    class Lists(hr.Record):
        ints: list[int]
        floats: list[float]

    schema = record(ints={"type": "array", "items": "long"}, rest={"type": "array", "items": "int"},
                    floats={"type": "array", "items": "float"})  # fmt: skip
    long = {"ints": list(range(-100_000, 100_000)), "rest": [1] * 100_000, "floats": [0.5] * 100_000}
    short = {"ints": [1], "rest": [], "floats": []}
    messages = by_fastavro([short, long, short], schema)
    found, reasons = decoded([*messages, messages[1][:-9]], Lists, schema)
    assert [len(row.ints) for row in found] == [1, 200_000, 1] and found[1] == Lists(long["ints"], long["floats"])
    assert list(reasons) == [3]
