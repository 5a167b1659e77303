"""Values from JSON: what the program's own type would store is stored, and what it would refuse is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pytest

import headrace as hr
from headrace.model.time import Timestamp, parse_time
from headrace.model.time_shape import TIME, TimeShape
from headrace.model.type_json import plain_json, type_in_words, value_encoder
from headrace.model.type_shape import describe_type
from headrace.model.values import value_codec
from headrace.plan.state_times import times_of


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: float


class Visit(hr.Record):
    page: str
    at: Timestamp
    n: int = 1
    tags: list[str] = []
    note: str | None = None


class Node(hr.Record):
    name: str
    at: Timestamp
    below: list[Node] = []


class Card(hr.Record, tag="card"):
    number: str


class Cash(hr.Record, tag="cash"):
    cents: int
    at: Timestamp


class Wired(msgspec.Struct, array_like=True):
    a: int
    at: Timestamp


WHEN = parse_time("2024-05-01T12:00")
VALUES: list[tuple[Any, Any, Any]] = [
    (int, 5, 5),
    (float, 2, 2.0),
    (bool, True, True),
    (str, "a", "a"),
    (bytes, "aGk=", b"hi"),
    (int | None, None, None),
    (Timestamp, "2024-05-01T12:00Z", WHEN),
    (Timestamp, WHEN, WHEN),
    (datetime, "2024-05-01T12:00:00Z", datetime(2024, 5, 1, 12, tzinfo=UTC)),
    (date, "2024-05-01", date(2024, 5, 1)),
    (timedelta, "PT90S", timedelta(seconds=90)),
    (Decimal, "1.10", Decimal("1.10")),
    (UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
    (Color, "red", Color.RED),
    (Literal["a", 1], 1, 1),
    (list[int], [1, 2], [1, 2]),
    (set[int], [1], {1}),
    (tuple[int, str], [1, "a"], (1, "a")),
    (dict[str, Decimal], {"a": "1"}, {"a": Decimal("1")}),
    (dict[int, int], {"5": 1}, {5: 1}),
    (dict[str, list[Timestamp]], {"a": ["2024-05-01T12:00"]}, {"a": [WHEN]}),
    (Point, [1, 2.5], Point(1, 2.5)),
    (Visit, {"page": "a", "at": "2024-05-01T12:00"}, Visit("a", WHEN)),
    (Visit, {"page": "a", "at": 5, "n": 2, "tags": ["x"], "note": "y"}, Visit("a", 5, 2, ["x"], "y")),
    (Visit | None, None, None),
    (
        Node,
        {"name": "a", "at": 1, "below": [{"name": "b", "at": "2024-05-01T12:00"}]},
        Node("a", 1, [Node("b", WHEN)]),
    ),
    (Card | Cash, {"type": "cash", "cents": 5, "at": "2024-05-01T12:00"}, Cash(5, WHEN)),
    (Wired, [1, "2024-05-01T12:00"], Wired(1, WHEN)),
    (Annotated[int, msgspec.Meta(gt=0, le=10)], 10, 10),
    (Annotated[str, msgspec.Meta(pattern="^a, b$")], "a, b", "a, b"),
]


@pytest.mark.parametrize(("kind", "written", "value"), VALUES, ids=str)
def test_what_is_stored_is_read_back_by_the_program(kind: Any, written: Any, value: Any) -> None:
    raw = value_encoder(describe_type(kind), times_of(kind))(written)
    assert value_codec(kind).decode(raw) == value


@pytest.mark.parametrize(("kind", "written", "value"), VALUES, ids=str)
def test_values_of_python_s_become_the_json_that_is_read(kind: Any, written: Any, value: Any) -> None:
    raw = value_encoder(describe_type(kind), times_of(kind))(plain_json(value))
    assert value_codec(kind).decode(raw) == value


@pytest.mark.parametrize(
    ("kind", "written", "words"),
    [
        (int, "5", "Expected `int`, got `str`"),
        (int, 2**70, "serialize ints"),
        (Timestamp, "noon", "noon"),
        (Color, "green", "green"),
        (Decimal, "a lot", "decimal"),
        (bytes, "§", "base64"),
        (dict[str, int], {"a": "b"}, r"\$\[\.\.\.\]"),
        (Visit, {"page": "a"}, "required field `at`"),
        (Visit, {"page": "a", "at": 1, "who": "b"}, "unknown field `who`"),
        (Visit, {"page": "a", "at": 1, "n": "2"}, r"\$\.n"),
        (Node, {"name": "a", "at": 1, "below": [{"name": 5, "at": 1}]}, r"\$\.below\[0\]\.name"),
        (Card | Cash, {"type": "coin"}, "coin"),
        (Annotated[int, msgspec.Meta(gt=0, le=10)], 11, "<= 10"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_its_place(kind: Any, written: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        value_encoder(describe_type(kind), times_of(kind))(written)


def test_values_of_an_unknown_type_are_taken_as_they_are() -> None:
    assert msgspec.msgpack.decode(value_encoder(None)({"a": [1, None]})) == {"a": [1, None]}
    assert msgspec.msgpack.decode(value_encoder(None, TimeShape(fields={"at": TIME}))({"at": "1970-01-01"})) == {
        "at": 0
    }


def test_a_record_is_told_with_its_fields() -> None:
    assert type_in_words(describe_type(Cash)) == "Cash with cents: int, at: int"
