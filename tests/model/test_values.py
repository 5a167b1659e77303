from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, Literal, NamedTuple, NewType
from uuid import UUID

import msgspec
import pytest

from headrace.errors import ProgramError
from headrace.model.record import Record
from headrace.model.time import Timestamp
from headrace.model.values import check_storable, type_name, value_codec

UserId = NewType("UserId", str)


class Color(Enum):
    RED = "red"


class Point(Record):
    x: int
    at: Timestamp = Timestamp(0)


class Click(Record, tag=True):
    button: int


class Scroll(Record, tag=True):
    lines: int


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)


class Pair(NamedTuple):
    a: int
    b: str


class Tree(Record):
    value: int
    children: list[Tree] = []


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 2**63 - 1),
        (float, 1.5),
        (str, "text"),
        (bytes, b"\x00\xff"),
        (bool, True),
        (int | None, None),
        (Timestamp, 5),
        (UserId, "u1"),
        (datetime, datetime(2024, 1, 1, 12, tzinfo=UTC)),
        (date, date(2024, 1, 1)),
        (time, time(12, 30)),
        (timedelta, timedelta(seconds=5)),
        (Decimal, Decimal("1.50")),
        (UUID, UUID(int=7)),
        (Color, Color.RED),
        (Literal["a", 1], 1),
        (list[int], [1, 2]),
        (set[str], {"a"}),
        (frozenset[int], frozenset({1})),
        (tuple[int, str], (1, "a")),
        (dict[int, list[Point]], {1: [Point(1)]}),
        (Point, Point(1, Timestamp(2))),
        (Click | Scroll, Scroll(3)),
        (Basket, Basket(["a"])),
        (Pair, Pair(1, "a")),
        (Tree, Tree(1, [Tree(2)])),
        (int | str | None, "x"),
        (Any, {"a": [1, None]}),
    ],
)
def test_every_type_that_msgspec_knows_comes_back(annotation: Any, value: Any) -> None:
    codec = value_codec(annotation)
    got = codec.decode(codec.encode(value))
    assert got == value
    assert type(got) is type(value)


def test_values_evolve_by_name() -> None:
    class Old(Record):
        a: int
        gone: str

    class New(Record):
        added: int = 7
        a: int = 0

    assert value_codec(New).decode(value_codec(Old).encode(Old(1, "x"))) == New(7, 1)


def test_nothing_is_pickled() -> None:
    with pytest.raises(TypeError):
        value_codec(Any).encode(Fraction(1, 2))


class Photo:
    pass


class Profile(Record):
    name: str
    photo: Photo


@pytest.mark.parametrize(
    "annotation", [Photo, complex, Fraction, deque[int], Callable[[int], int], type, list[Photo], Photo | None]
)
def test_a_type_that_cannot_be_stored_is_refused_while_building(annotation: Any) -> None:
    with pytest.raises(ProgramError, match="cannot be stored"):
        value_codec(annotation)


def test_the_refusal_names_the_field_and_the_place() -> None:
    with pytest.raises(ProgramError) as caught:
        value_codec(dict[str, Profile], what="state 'seen' of Fraud", where="app.py:7")
    text = str(caught.value)
    assert text.startswith("app.py:7: the type of state 'seen' of Fraud cannot be stored")
    assert "Profile.photo is Photo" in text


def test_a_class_with_typed_fields_is_told_that_it_lacks_its_base() -> None:
    class Plain:
        name: str

    with pytest.raises(ProgramError) as caught:
        check_storable(Plain, what="rows of Plain")
    assert caught.value.next_move == "let it be a Record: class Plain(hr.Record)"


def test_untagged_unions_of_records_are_refused_with_the_reason() -> None:
    with pytest.raises(ProgramError, match="tagged"):
        check_storable(Point | Tree)


def test_an_unknown_name_is_refused_in_words() -> None:
    class Broken(Record):
        x: Nowhere  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(ProgramError, match="Nowhere"):
        value_codec(Broken)


def test_types_are_named_as_a_user_writes_them() -> None:
    assert type_name(dict[str, Point | None]) == "dict[str, Point | None]"
    assert type_name(Timestamp) == "Timestamp"
    assert type_name(Click | Scroll) == "Click | Scroll"
    assert type_name(Literal["a"]) == "Literal['a']"


def test_one_annotation_has_one_codec() -> None:
    assert value_codec(dict[str, int]) is value_codec(dict[str, int])
    assert isinstance(value_codec(msgspec.Struct).encode, type(msgspec.msgpack.Encoder().encode))
