from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import BadRow, ProgramError
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp


class Place(Record):
    city: str


class Click(Record, tag=True):
    user: str
    button: int


class Scroll(Record, tag=True):
    user: str
    lines: float
    at: Timestamp | None = None


class Ping(Record, tag="ping"):
    pass


Event = Click | Scroll | Ping


def test_a_tagged_union_has_the_tag_and_all_fields_side_by_side() -> None:
    codec = codec_of(Event)
    assert codec.names == ["type", "user", "button", "lines", "at"]
    rows: list[Any] = [Click("a", 1), Scroll("b", 2.0), Ping(), Click("c", 3), Scroll("d", 1.0, Timestamp(4))]
    arrays = codec.to_arrays(rows)
    assert arrays[0].to_pylist() == ["Click", "Scroll", "ping", "Click", "Scroll"]
    assert arrays[2].to_pylist() == [1, None, None, 3, None]
    assert codec.to_objects(arrays) == rows
    assert codec.to_objects(codec.to_arrays([])) == []


def test_an_unknown_tag_and_an_incomplete_member_are_bad_rows() -> None:
    codec = codec_of(Event)
    columns = codec.to_arrays([Click("a", 1), Scroll("b", 1.0), Ping()])
    columns[0] = pa.array(["Click", "Zoom", None])
    bad = codec.bad_rows(columns)
    assert bad is not None
    assert bad.tolist() == [False, True, True]
    with pytest.raises(BadRow, match="Zoom"):
        codec.to_objects(columns)
    columns = codec.to_arrays([Click("a", 1), Click("b", 1)])
    columns[1] = pa.array(["a", None])
    bad = codec.bad_rows(columns)
    assert bad is not None
    assert bad.tolist() == [False, True]


def test_a_member_that_is_not_in_the_union_is_a_bad_row() -> None:
    with pytest.raises(BadRow, match="Click | Scroll | Ping"):
        codec_of(Event).to_arrays([Place("x")])


def test_one_name_with_two_types_in_a_union_is_a_program_error() -> None:
    class Other(Record, tag=True):
        button: str

    with pytest.raises(ProgramError, match="disagree about 'button'"):
        codec_of(Click | Other)


def test_unions_come_back_from_json_by_tag() -> None:
    codec = codec_of(Event)
    rows: list[Any] = [Scroll("b", 2.0, Timestamp(0)), Ping(), Click("a", 1)]
    lines = list(codec.to_json(rows))
    assert b'"at":"1970-01-01T00:00:00Z"' in lines[0]
    assert [codec.from_json(line) for line in lines] == rows


def test_members_of_a_union_keep_their_order() -> None:
    rng = np.random.default_rng(7)
    rows: list[Any] = [Click(str(i), i) if rng.random() < 0.5 else Scroll(str(i), float(i)) for i in range(200)]
    codec = codec_of(Event)
    assert codec.to_objects(codec.to_arrays(rows)) == rows
