"""Rows as text: the bytes depend on the values alone, and equal what the codec writes row by row."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from enum import Enum

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.kafka.rows import encode_key
from headrace.connectors.redis.rows import plain_texts
from headrace.connectors.text import csv_lines, iso_text, json_lines, value_bytes, value_texts
from headrace.model.record import Record
from headrace.model.rows import RowCodec, codec_of
from headrace.model.time import Timestamp, format_time, timestamp


class Colour(Enum):
    RED = "red"


class Flat(Record):
    name: str
    at: Timestamp
    n: int
    share: float
    ok: bool
    day: date
    note: str | None = None
    colour: Colour = Colour.RED


class Deep(Record):
    name: str
    tags: list[str]
    times: dict[str, Timestamp]
    price: Decimal = Decimal("1.50")
    blob: bytes = b"\x00\xff"


class Tagged(Record, tag="paid"):
    n: int


class Renamed(Record, rename="camel"):
    user_name: str
    last_seen: Timestamp


FLAT = [
    Flat("a", timestamp("2024-01-01T12:00:00.5Z"), 1, 0.5, True, date(2024, 1, 1)),
    Flat('say "hi", ünïcode\n', timestamp("1969-12-31T23:59:59.999999Z"), -(2**63), -1.25, False, date(1, 1, 1), ""),
]
DEEP = [Deep("a", ["x", "y"], {"k": timestamp("2024-01-01")}), Deep("b", [], {})]


def table_of(codec: RowCodec, rows: list[Record]) -> pa.Table:
    return pa.Table.from_batches([pa.RecordBatch.from_arrays(codec.to_arrays(rows), schema=codec.schema)])


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(2**55), 2**55)))
def test_bulk_times_are_those_of_format_time(micros: list[int | None]) -> None:
    times = pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))
    assert iso_text(times).to_pylist() == [None if us is None else format_time(us) for us in micros]


def test_times_beyond_the_calendar_of_four_digit_years_are_still_written() -> None:
    far = [253_402_300_800_000_000, 0]
    assert iso_text(pa.array(far).cast(pa.timestamp("us", "UTC"))).to_pylist() == [format_time(us) for us in far]


def test_a_slice_of_times_is_written_as_itself() -> None:
    times = pa.array([0, 1, None, 3], pa.int64()).cast(pa.timestamp("us", "UTC"))
    assert iso_text(times[1:]).to_pylist() == iso_text(times).to_pylist()[1:]


@pytest.mark.parametrize(("row_type", "rows"), [(Flat, FLAT), (Deep, DEEP), (Renamed, [Renamed("u", Timestamp(5))])])
def test_json_lines_are_read_back_by_the_codec(row_type: type[Record], rows: list[Record]) -> None:
    codec = codec_of(row_type)
    lines = json_lines(table_of(codec, rows), codec).splitlines()
    assert [codec.from_json(line) for line in lines] == rows


def test_flat_lines_are_the_bytes_the_codec_writes() -> None:
    codec = codec_of(Flat)
    assert json_lines(table_of(codec, FLAT), codec).splitlines() == list(codec.to_json(FLAT))


def test_text_does_not_depend_on_the_neighbours_in_a_batch() -> None:
    codec = codec_of(Flat)
    whole = table_of(codec, FLAT)
    assert json_lines(whole, codec) == b"".join(json_lines(whole.slice(i, 1), codec) for i in range(len(FLAT)))


def test_the_tag_of_a_type_stands_in_its_lines() -> None:
    codec = codec_of(Tagged)
    assert json_lines(table_of(codec, [Tagged(1)]), codec) == b'{"type":"paid","n":1}\n'


def test_renamed_fields_have_their_json_names() -> None:
    codec = codec_of(Renamed)
    assert b'"userName":"u"' in json_lines(table_of(codec, [Renamed("u", Timestamp(5))]), codec)


@pytest.mark.parametrize(("row_type", "rows"), [(Flat, FLAT), (Deep, DEEP)])
def test_fields_that_stand_elsewhere_are_left_out(row_type: type[Record], rows: list[Record]) -> None:
    codec = codec_of(row_type)
    lines = json_lines(table_of(codec, rows), codec, without=("name",)).splitlines()
    assert len(lines) == len(rows)
    assert all(line.startswith(b"{") and b'"name"' not in line for line in lines)


def test_plain_values_are_objects_with_one_field() -> None:
    for codec, rows in ((codec_of(int), [1]), (codec_of(list[int]), [[1, 2]])):
        assert json_lines(table_of(codec, rows), codec).startswith(b'{"value":')


def test_numbers_that_json_cannot_say_become_null() -> None:
    codec = codec_of(float)
    assert json_lines(table_of(codec, [math.nan, math.inf]), codec) == b'{"value":null}\n{"value":null}\n'


def test_csv_tells_an_empty_text_from_an_absent_one() -> None:
    codec = codec_of(Flat)
    lines = csv_lines(table_of(codec, FLAT)).decode()
    assert lines.startswith("name,at,n,share,ok,day,note,colour\na,2024-01-01T12:00:00.5Z,1,0.5,true,2024-01-01,,red\n")
    last = '"say ""hi"", ünïcode\n",1969-12-31T23:59:59.999999Z,-9223372036854775808,-1.25,false,0001-01-01,"",red\n'
    assert lines.endswith(last)


def test_csv_writes_bytes_as_base64_and_decimals_as_they_are() -> None:
    class Odd(Record):
        blob: bytes
        price: Decimal

    codec = codec_of(Odd)
    rows = [Odd(b"\x00\xff", Decimal("1.50")), Odd(b"", Decimal("100"))]
    assert csv_lines(table_of(codec, rows)).decode() == 'blob,price\nAP8=,1.5\n"",100\n'


def test_the_text_of_a_value_is_the_same_for_keys_of_kafka_and_of_redis() -> None:
    numbers = pa.array([1.0, 2.5, None, 1e300, float("nan")])
    assert value_texts(numbers).to_pylist() == ["1.0", "2.5", None, "1e+300", "nan"]
    assert value_bytes(pa.array([b"\xff", None])).to_pylist() == [b"\xff", None]
    for column in (numbers, pa.array([True, None]), pa.array([7]), pa.array(["ä"])):
        assert encode_key([column]).to_pylist() == plain_texts(pa.chunked_array([column]))
