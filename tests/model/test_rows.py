from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadRow, ProgramError
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Duration, SpanInt, Timestamp

UserId = NewType("UserId", str)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Impression(Record):
    tweet: str
    at: Timestamp
    n: int = 1


class Place(Record):
    city: str
    seen: Timestamp | None = None


@dataclass
class Size:
    width: int
    height: int = 0


class Tree(Record):
    value: int
    children: list[Tree] = []


class Everything(Record):
    text: str
    whole: int
    real: float
    raw: bytes
    yes: bool
    at: Timestamp
    span: Duration
    moment: datetime
    day: date
    clock: time
    gap: timedelta
    money: Decimal
    uid: UUID
    color: Color
    level: Level
    mode: Literal["a", "b"]
    user: UserId
    small: Annotated[int, msgspec.Meta(ge=0)]
    maybe: int | None
    tags: list[str]
    ids: set[int]
    path: tuple[str, ...]
    pair: tuple[int, str]
    counts: dict[str, int]
    stamps: list[Timestamp | None]
    place: Place
    places: list[Place]
    by_city: dict[str, Place]
    size: Size | None
    anything: Any
    mixed: int | str
    number: int | float
    tree: Tree


def everything(**changes: Any) -> Everything:
    row = Everything(
        text="ü",
        whole=-(2**63),
        real=0.5,
        raw=b"\x00",
        yes=True,
        at=Timestamp(1),
        span=Duration(2),
        moment=datetime(2024, 1, 1, 12, 0, 0, 7, tzinfo=UTC),
        day=date(1969, 12, 31),
        clock=time(12, 30, 0, 5),
        gap=timedelta(microseconds=-3),
        money=Decimal("12.50"),
        uid=UUID(int=7),
        color=Color.BLUE,
        level=Level.LOW,
        mode="b",
        user=UserId("u"),
        small=3,
        maybe=None,
        tags=["a", "b"],
        ids={1, 2},
        path=("x", "y"),
        pair=(1, "z"),
        counts={"a": 1, "b": 2},
        stamps=[Timestamp(1), None],
        place=Place("here", Timestamp(5)),
        places=[Place("one"), Place("two", Timestamp(6))],
        by_city={"one": Place("one")},
        size=Size(1, 2),
        anything={"x": [1, None]},
        mixed="m",
        number=1.5,
        tree=Tree(1, [Tree(2)]),
    )
    return row.replace(**changes)


def test_every_type_of_field_comes_back_from_columns() -> None:
    rows = [everything(), everything(size=None, maybe=3, tags=[], counts={}, anything=None, mixed=1, places=[])]
    codec = codec_of(Everything)
    arrays = codec.to_arrays(rows)
    assert [array.type for array in arrays] == list(codec.schema.types)
    got = codec.to_objects(arrays)
    assert got == rows
    for name in Everything.__struct_fields__:
        made = type(getattr(rows[0], name))
        assert type(getattr(got[0], name)) is (int if made is SpanInt else made), name


def test_columns_may_be_slices_of_larger_ones() -> None:
    rows = [everything(whole=i, tags=[str(i)] * i, counts={str(i): i}) for i in range(5)]
    codec = codec_of(Everything)
    arrays = [array.slice(2, 2) for array in codec.to_arrays(rows)]
    assert codec.to_objects(arrays) == rows[2:4]


def test_empty_batches_convert_both_ways() -> None:
    codec = codec_of(Everything)
    assert codec.to_objects(codec.to_arrays([])) == []
    assert codec.to_objects([pa.array([], type=kind) for kind in codec.schema.types]) == []


def test_the_schema_speaks_sparks_types() -> None:
    assert codec_of(Impression).spark_ddl == "`tweet` STRING, `at` TIMESTAMP, `n` BIGINT"
    ddl = dict(part.split(" ", 1) for part in codec_of(Everything).spark_ddl.replace(", `", "\n`").split("\n"))
    assert ddl["`money`"] == "DECIMAL(38,18)"
    assert ddl["`tags`"] == "ARRAY<STRING>"
    assert ddl["`counts`"] == "MAP<STRING, BIGINT>"
    assert "`place` STRUCT<`city`: STRING, `seen`: TIMESTAMP>" in codec_of(Everything).spark_ddl
    assert ddl["`pair`"] == ddl["`mixed`"] == ddl["`tree`"] == "BINARY"


def test_what_columns_cannot_say_is_marked_as_packed() -> None:
    schema = codec_of(Everything).schema
    packed = {field.name for field in schema if field.metadata == {b"headrace": b"msgpack"}}
    assert packed == {"pair", "anything", "mixed", "tree"}


def test_required_and_defaults_tell_which_columns_may_be_null() -> None:
    codec = codec_of(Impression)
    assert codec.required == ("tweet", "at")
    assert codec.defaults == {"n": 1}
    assert codec_of(Place).required == ("city",)
    assert codec_of(Place).defaults == {"seen": None}


def test_a_null_where_a_default_exists_becomes_the_default() -> None:
    columns = [pa.array(["a", "b"]), pa.array([1, 2], pa.int64()), pa.array([None, 5], pa.int64())]
    assert codec_of(Impression).to_objects(columns) == [
        Impression("a", Timestamp(1), 1),
        Impression("b", Timestamp(2), 5),
    ]


def test_default_factories_give_each_row_its_own() -> None:
    class Bag(Record):
        items: list[str] = []

    first, second = codec_of(Bag).to_objects([pa.array([None, None], pa.list_(pa.string()))])
    assert first.items == []
    assert first.items is not second.items


def test_a_null_where_a_value_is_required_is_a_bad_row() -> None:
    codec = codec_of(Impression)
    columns = [pa.array(["a", None]), pa.array([1, 2], pa.int64()), pa.array([3, 4], pa.int64())]
    with pytest.raises(BadRow, match="no value for 'tweet' of Impression"):
        codec.to_objects(columns)
    bad = codec.bad_rows(columns)
    assert bad is not None
    assert bad.tolist() == [False, True]
    assert codec.bad_rows([column.slice(0, 1) for column in columns]) is None


def test_times_of_any_zone_and_unit_are_the_same_microseconds() -> None:
    at = pa.array([1_000_000], pa.int64()).view(pa.timestamp("us"))
    for column in (
        at.cast(pa.timestamp("us", "Europe/Berlin")),
        at.cast(pa.timestamp("ns", "UTC")),
        at.cast(pa.timestamp("s", "UTC")),
    ):
        got = codec_of(Impression).to_objects([pa.array(["a"]), column, pa.array([1])])
        assert got == [Impression("a", Timestamp(1_000_000), 1)]


def test_an_object_that_does_not_fit_names_the_field() -> None:
    with pytest.raises(BadRow) as caught:
        codec_of(Impression).to_arrays([Impression("a", Timestamp(1)), Impression("b", "soon")])  # type: ignore[arg-type]
    assert "at: Timestamp" in str(caught.value)
    assert "'soon'" in str(caught.value)
    with pytest.raises(BadRow, match="does not fit"):
        codec_of(Impression).to_arrays([Impression("a", Timestamp(1), 2**63)])
    with pytest.raises(BadRow, match="does not fit"):
        codec_of(Impression).to_arrays([object()])


def test_what_is_behind_the_point_is_never_cut_off() -> None:
    class Sum(Record):
        n: int
        parts: list[int] = []
        at: Timestamp = Timestamp(0)

    codec = codec_of(Sum)
    whole: list[Any] = [Sum(2.0), Sum(3, [4.0])]  # type: ignore[arg-type, list-item]
    assert codec.to_objects(codec.to_arrays(whole)) == [Sum(2), Sum(3, [4])]
    for wrong in (Sum(1.5), Sum(1, [1, 2.5]), Sum(1, at=0.5), Sum(float("nan"))):  # type: ignore[arg-type, list-item]
        with pytest.raises(BadRow, match="is not a whole number"):
            codec.to_arrays([Sum(1), wrong])


def test_index_suggests_the_nearest_names() -> None:
    codec = codec_of(Impression)
    assert codec.index("at") == 1
    with pytest.raises(ProgramError, match="did you mean tweet") as caught:
        codec.index("twet", where="app.py:9")
    assert str(caught.value).startswith("app.py:9: Impression has no column 'twet'")


def test_a_union_without_tags_is_a_program_error() -> None:
    with pytest.raises(ProgramError, match="tag"):
        codec_of(Place | Impression)


def test_plain_values_travel_as_one_column() -> None:
    codec = codec_of(str)
    assert codec.names == ["value"]
    assert codec.to_objects(codec.to_arrays(["a", "b"])) == ["a", "b"]
    assert list(codec.to_json(["a"])) == [b'"a"']
    assert codec_of(dict[str, int]).to_objects(codec_of(dict[str, int]).to_arrays([{"a": 1}])) == [{"a": 1}]
    with pytest.raises(BadRow):
        codec.to_arrays([1])
    with pytest.raises(BadRow):
        codec.to_objects([pa.array(["a", None])])


def test_dataclasses_and_keyword_only_records_are_rows_too() -> None:
    class Keyword(Record, kw_only=True):
        b: int = 1
        a: str

    for rows in ([Size(1, 2)], [Keyword(a="x", b=2)]):
        codec = codec_of(type(rows[0]))
        assert codec.to_objects(codec.to_arrays(rows)) == rows


def test_a_type_that_cannot_travel_is_a_program_error_at_the_users_line() -> None:
    class Holder(Record):
        thing: Any
        fn: complex

    with pytest.raises(ProgramError, match=r"Holder.fn is complex") as caught:
        codec_of(Holder, where="app.py:4")
    assert caught.value.where == "app.py:4"


def test_fields_that_differ_in_case_only_are_refused() -> None:
    class Cased(Record):
        name: str
        Name: str

    with pytest.raises(ProgramError, match="differ in case"):
        codec_of(Cased)


def test_a_codec_is_pickled_as_its_type() -> None:
    codec = codec_of(Impression)
    assert pickle.loads(pickle.dumps(codec)) is codec


class Renamed(Record, rename="camel"):
    tweet_id: str
    seen_at: Timestamp


def test_json_uses_encoded_names_and_iso_times() -> None:
    codec = codec_of(Renamed)
    row = Renamed("a", Timestamp(1_704_110_400_500_000))
    assert list(codec.to_json([row])) == [b'{"tweetId":"a","seenAt":"2024-01-01T12:00:00.5Z"}']
    assert codec.from_json(b'{"tweetId":"a","seenAt":"2024-01-01T13:00:00.5+01:00"}') == row
    assert codec.from_json(b'{"tweetId":"a","seenAt":1704110400500000}') == row
    assert codec.encoded_names == {"tweet_id": "tweetId", "seen_at": "seenAt"}


def test_every_type_of_field_comes_back_from_json() -> None:
    codec = codec_of(Everything)
    row = everything(pair=(1, "z"))
    (line,) = codec.to_json([row])
    assert b'"stamps":["1970-01-01T00:00:00.000001Z",null]' in line
    assert codec.from_json(line) == row


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"tweet":1,"at":0}', b'{"at":0}', b'{"tweet":"a","at":"noon"}'])
def test_json_that_does_not_fit_is_a_bad_row(line: bytes) -> None:
    with pytest.raises(BadRow, match="no Impression"):
        codec_of(Impression).from_json(line)


@given(
    st.lists(
        st.builds(
            Impression,
            st.text(),
            st.integers(-(2**62), 2**62).map(Timestamp),
            st.integers(-(2**63), 2**63 - 1),
        )
    )
)
def test_any_rows_come_back_from_columns_and_from_json(rows: list[Impression]) -> None:
    codec = codec_of(Impression)
    assert codec.to_objects(codec.to_arrays(rows)) == rows
    assert [codec.from_json(line) for line in codec.to_json(rows)] == rows
    assert codec.bad_rows(codec.to_arrays(rows)) is None


@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9), max_value=10**9)))
def test_decimals_keep_their_value(values: list[Decimal]) -> None:
    codec = codec_of(Decimal)
    got = codec.to_objects(codec.to_arrays(values))
    assert got == values
    assert not any("E" in str(value) for value in got if value)
