from __future__ import annotations

import msgspec
import pytest

from headrace.errors import ProgramError
from headrace.model.record import Failed, Record, Row, row_type
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp


class Impression(Record):
    tweet: str
    at: Timestamp
    n: int = 1


def test_a_record_is_frozen_and_copied_with_changes() -> None:
    one = Impression("a", Timestamp(1))
    assert one.replace(n=2) == Impression("a", Timestamp(1), 2)
    assert hash(one) == hash(Impression("a", Timestamp(1)))
    with pytest.raises(AttributeError):
        one.n = 3  # type: ignore[misc]


def test_a_field_of_the_class_is_a_column_descriptor() -> None:
    assert Impression.tweet.__name__ == "tweet"  # type: ignore[attr-defined]
    assert Impression.n.__name__ == "n"  # type: ignore[attr-defined]


def test_records_inherit_fields_and_freezing() -> None:
    class Paid(Impression):
        cents: int = 0

    assert Paid("a", Timestamp(1), 2, 3).cents == 3
    assert Paid.__struct_config__.frozen


def test_one_shape_is_one_row_type() -> None:
    made = row_type("Total", {"tweet": str, "total": int | None})
    assert made is row_type("Total", {"tweet": str, "total": int | None})
    assert made is not row_type("Total", {"tweet": str, "total": int})
    assert issubclass(made, Row)
    assert made("a", 3).total == 3


@pytest.mark.parametrize("wrong", ["count(*)", "a b", "", "__x"])
def test_a_row_type_refuses_names_that_are_no_names(wrong: str) -> None:
    with pytest.raises(ProgramError, match="cannot have a column"):
        row_type("Total", {wrong: int})


def test_failed_rows_are_records() -> None:
    failed = Failed("parse", "ValueError: no", b"{}", "app.py:3")
    assert codec_of(Failed).to_objects(codec_of(Failed).to_arrays([failed])) == [failed]


def test_local_records_know_local_names() -> None:
    class Inner(Record):
        x: int

    class Outer(Record):
        inner: Inner
        many: list[Inner]

    got = msgspec.msgpack.decode(msgspec.msgpack.encode(Outer(Inner(1), [])), type=Outer)
    assert got == Outer(Inner(1), [])


def test_local_forward_references_are_resolved_when_used() -> None:
    class Outer(Record):
        later: list[Later]

    class Later(Record):
        x: int

    codec = codec_of(Outer)
    rows = [Outer([Later(1), Later(2)])]
    assert codec.to_objects(codec.to_arrays(rows)) == rows
