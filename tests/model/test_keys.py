"""Key bytes: one key, one form, wherever it is computed."""

from __future__ import annotations

import enum
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ProgramError
from headrace.model import key_text, keys
from headrace.model.ids import HASH_SEED
from headrace.model.time import Timestamp, timestamp
from tests.effort import examples

# The first example pays for what pyarrow sets up, so there is no deadline.
quick = settings(max_examples=examples(20))

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"))
DECIMALS = st.decimals(-(10**19), 10**19, allow_nan=False, allow_infinity=False, places=18)
DATETIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(lambda value: value.replace(tzinfo=UTC))

COLUMNS: dict[Any, st.SearchStrategy[Any]] = {
    pa.string(): TEXT,
    pa.int64(): INT64,
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.binary(): st.binary(),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): DATETIMES,
    pa.decimal128(38, 18): DECIMALS,
    pa.duration("us"): st.timedeltas(timedelta(days=-10000), timedelta(days=10000)),
}
SCALARS = st.one_of(
    TEXT, INT64, st.binary(), st.booleans(), st.none(), st.dates(), DECIMALS, st.floats(allow_nan=False)
)
KEYS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=6)


def identity(value: Any) -> Any:
    """What makes a key that key: 1, 1.0 and True are three keys, and zero has one sign."""
    if isinstance(value, tuple):
        return tuple(identity(part) for part in value)
    return (type(value).__name__, 0.0 if value == 0 and isinstance(value, float) else value)


@quick
@given(KEYS)
def test_a_key_comes_back_from_its_bytes(key: Any) -> None:
    assert identity(keys.decode_key(keys.encode_key(key))) == identity(key)


@quick
@given(KEYS, KEYS)
def test_different_keys_have_different_bytes(one: Any, two: Any) -> None:
    assert (keys.encode_key(one) == keys.encode_key(two)) == (identity(one) == identity(two))


@quick
@given(st.lists(TEXT, min_size=2, max_size=4), st.lists(TEXT, min_size=2, max_size=4))
def test_parts_of_a_composite_cannot_run_into_each_other(one: list[str], two: list[str]) -> None:
    assert (keys.encode_key(tuple(one)) == keys.encode_key(tuple(two))) == (one == two)


@pytest.mark.parametrize("kind", COLUMNS, ids=str)
@quick
@given(data=st.data())
def test_a_column_encodes_as_its_values_do(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | COLUMNS[kind], max_size=8))
    encoded = keys.encode_columns([pa.array(values, kind)])
    assert encoded.type == pa.binary()
    assert encoded.to_pylist() == [keys.encode_key(value) for value in values]


@quick
@given(st.lists(st.tuples(st.none() | TEXT, st.none() | INT64, st.none() | st.booleans()), max_size=8))
def test_several_columns_encode_as_their_tuples_do(rows: list[tuple[Any, ...]]) -> None:
    columns = [
        pa.array([row[0] for row in rows], pa.string()),
        pa.array([row[1] for row in rows], pa.int64()),
        pa.array([row[2] for row in rows], pa.bool_()),
    ]
    assert keys.encode_columns(columns).to_pylist() == [keys.encode_key(row) for row in rows]


def test_a_slice_of_a_column_encodes_only_its_own_rows() -> None:
    for column in (pa.array([1, None, 3, 4]), pa.array(["a", None, "c", "d"]), pa.array([1.5, None, -0.0, math.nan])):
        whole = keys.encode_columns([column]).to_pylist()
        assert keys.encode_columns([column.slice(1, 2)]).to_pylist() == whole[1:3]


@quick
@given(st.lists(st.binary(), max_size=20))
def test_hashes_of_a_column_are_xxhash64_of_each_element(encoded: list[bytes]) -> None:
    hashes = keys.hash_encoded(pa.array(encoded, pa.binary()))
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [xxhash.xxh64(each, seed=HASH_SEED).intdigest() for each in encoded]
    assert hashes.tolist() == [keys.hash_key(each) for each in encoded]


def test_the_bytes_are_the_stored_format_and_never_change() -> None:
    assert keys.encode_key("ü") == b"s\xc3\xbc"
    assert keys.encode_key(-2) == b"i\xff\xff\xff\xff\xff\xff\xff\xfe"
    assert keys.encode_key(b"\x00") == b"y\x00"
    assert keys.encode_key(True) == b"b\x01"
    assert keys.encode_key(None) == b"n"
    assert keys.encode_key(date(1969, 12, 31)) == b"d\xff\xff\xff\xff"
    assert keys.encode_key(1.5) == b"f\x3f\xf8\x00\x00\x00\x00\x00\x00"
    assert keys.encode_key(Decimal("1.50")) == b"m1.5"
    assert keys.encode_key(("a", 1)) == b"(\x00\x00\x00\x02sa\x00\x00\x00\x09i\x00\x00\x00\x00\x00\x00\x00\x01"
    assert keys.encode_key(()) == b"("
    assert keys.hash_key(b"sa") == xxhash.xxh64_intdigest(b"sa", 42)


def test_zero_and_nan_are_one_key_each() -> None:
    assert keys.encode_key(-0.0) == keys.encode_key(0.0)
    assert keys.encode_key(math.nan) == keys.encode_key(-math.nan)
    assert math.isnan(keys.decode_key(keys.encode_key(math.nan)))
    assert keys.encode_key(Decimal("-0.00")) == keys.encode_key(Decimal(0))
    assert keys.encode_key(Decimal("1E+3")) == keys.encode_key(Decimal("1000.0"))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    name: str
    at: datetime


SAMPLES: list[tuple[Any, Any]] = [
    ("abc", str),
    (7, int),
    (timestamp("2024-01-01T12:00:00Z"), Timestamp),
    (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime),
    (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime | None),
    (None, datetime | None),
    (timedelta(seconds=-1), timedelta),
    (date(2024, 2, 29), date),
    (UUID(int=5), UUID),
    (Colour.BLUE, Colour),
    (Level.LOW, Level),
    (Decimal("12.5"), Decimal),
    (2.5, float),
    (True, bool),
    (b"\x00\xff", bytes),
    (("a", Colour.RED), tuple[str, Colour]),
    ((1, 2, 3), tuple[int, ...]),
    (Pair("x", datetime(2024, 1, 1, tzinfo=UTC)), Pair),
    (("a", None), tuple[str, int | None]),
]


@pytest.mark.parametrize(("key", "kind"), SAMPLES)
def test_the_annotation_gives_a_key_back_its_type(key: Any, kind: Any) -> None:
    back = keys.decode_key(keys.encode_key(key), kind)
    assert back == key
    assert type(back) is type(key)


@pytest.mark.parametrize(("key", "kind"), SAMPLES)
def test_a_key_comes_back_from_what_a_person_reads(key: Any, kind: Any) -> None:
    back = keys.parse_key_text(keys.key_text(key, kind), kind)
    assert back == key
    assert type(back) is type(key)


def test_text_keys_are_written_as_they_are_and_others_as_json() -> None:
    assert keys.key_text("tweet-42") == "tweet-42"
    assert keys.key_text(5) == "5"
    assert keys.key_text(None) == "null"
    assert keys.key_text(("a", 1)) == '["a", 1]'
    assert keys.key_text(True) == "true"
    assert keys.key_text(timestamp("2024-01-01T00:00:00Z"), Timestamp) == '"2024-01-01T00:00:00Z"'
    assert keys.key_text(UUID(int=5)) == str(UUID(int=5))


def test_quotes_may_be_left_out_where_nothing_else_could_be_meant() -> None:
    assert keys.parse_key_text("2024-02-29", date) == date(2024, 2, 29)
    assert keys.parse_key_text("2024-01-01T00:00:00Z", Timestamp) == timestamp("2024-01-01T00:00:00Z")
    assert keys.parse_key_text("1704067200000000", Timestamp) == timestamp("2024-01-01T00:00:00Z")
    assert keys.parse_key_text("red", Colour) is Colour.RED
    assert keys.parse_key_text("5", str) == "5"


@pytest.mark.parametrize("key", [None, "null", '"null"', '""null""', '"null', '"a"', "nullnull", "", "7"])
def test_no_text_is_written_as_null_is(key: str | None) -> None:
    written = keys.key_text(key)
    assert (written == "null") is (key is None)
    assert [keys.parse_key_text(written, kind) for kind in (str, str | None, None)] == [key] * 3
    assert key_text.text_key(written.encode()) == keys.encode_key(key)
    assert key_text.written_key(keys.encode_key(key)) == written.encode()


@pytest.mark.parametrize(("text", "kind"), [("x", int), ("1", bool), ("x", UUID), ("1.5", int), ("green", Colour)])
def test_text_that_is_no_such_key_is_an_error_that_names_both(text: str, kind: Any) -> None:
    with pytest.raises(ProgramError) as raised:
        keys.parse_key_text(text, kind)
    assert repr(text) in raised.value.found


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, [1], {"a": 1}, object(), Decimal("NaN"), "\ud800"])
def test_what_cannot_be_a_key_is_an_error_that_shows_it(value: Any) -> None:
    with pytest.raises(ProgramError) as raised:
        keys.encode_key(value)
    assert type(value).__name__ in raised.value.found


def test_a_nested_column_cannot_be_a_key() -> None:
    with pytest.raises(ProgramError):
        keys.encode_columns([pa.array([[1]])])


@quick
@given(st.integers(0, 2**64 - 1), st.integers(0, 12).map(lambda power: 2**power))
def test_the_key_group_is_the_top_bits_of_the_hash(hashed: int, groups: int) -> None:
    group = keys.key_group(hashed, groups)
    assert group == (hashed >> (64 - groups.bit_length() + 1) if groups > 1 else 0)
    assert keys.key_groups(np.array([hashed], np.uint64), groups).tolist() == [group]


@quick
@given(st.integers(1, 200), st.sampled_from([1, 2, 64, 128, 1024]))
def test_every_key_group_belongs_to_exactly_one_shard(parallelism: int, groups: int) -> None:
    ranges = [keys.group_range(shard, parallelism, groups) for shard in range(parallelism)]
    assert [group for each in ranges for group in each] == list(range(groups))
    assert all(
        keys.shard_of(group, parallelism, groups) == shard for shard, each in enumerate(ranges) for group in each
    )


@quick
@given(st.lists(st.binary(max_size=80), max_size=60), st.integers(0, 3))
def test_a_column_of_keys_is_hashed_as_its_keys_are(encoded: list[bytes], skipped: int) -> None:
    column = pa.array(encoded, pa.binary()).slice(skipped)
    assert keys.hash_encoded(column).tolist() == [keys.hash_key(key) for key in column.to_pylist()]


@pytest.mark.parametrize("length", [*range(70), 131, 70_000])
def test_many_keys_of_one_length_are_hashed_as_each_is(length: int) -> None:
    made = [bytes((n * 7 + place) % 256 for place in range(length)) for n in range(40)]
    expected = [keys.hash_key(key) for key in made]
    assert keys.hash_encoded(pa.array(made, pa.binary())).tolist() == expected
    mixed = [*made, b"shorter", *(b"%03d" % n for n in range(30))]
    assert keys.hash_encoded(pa.array(mixed, pa.binary())).tolist()[:40] == expected
