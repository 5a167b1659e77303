from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.columns import TIMESTAMP
from headrace.model.keys import decode_columns, encode_columns, encode_key

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    TIMESTAMP: st.integers(-(2**62), 2**62),
    pa.float64(): st.floats(allow_nan=False).map(lambda value: value + 0.0),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(date(1900, 1, 1), date(2200, 1, 1)),
}


@given(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3), st.data())
def test_columns_of_keys_come_back_as_they_were(kinds: list[pa.DataType], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 6))
    columns = [
        pa.array(data.draw(st.lists(st.none() | KINDS[kind], min_size=count, max_size=count)), kind) for kind in kinds
    ]
    encoded = encode_columns(columns)
    assert decode_columns(encoded, kinds) == columns
    if count > 1:
        found = decode_columns(encoded.slice(1), kinds)
        assert found == [column.slice(1) for column in columns]


def test_whole_numbers_fit_the_column_they_are_wanted_in() -> None:
    encoded = pa.array([encode_key(3), encode_key(-1)], pa.binary())
    assert decode_columns(encoded, [pa.float64()]) == [pa.array([3.0, -1.0])]


@pytest.mark.parametrize(
    ("keys", "kinds"),
    [
        ([Decimal("1.5")], [pa.decimal128(38, 18)]),
        (["a", 1], [pa.string()]),
        (["a"], [pa.int64()]),
        ([("a", 1)], [pa.string()]),
        ([("a", 1)], [pa.string(), pa.int64(), pa.int64()]),
        ([("a", 1)], [pa.string(), pa.string()]),
        (["a"], [pa.string(), pa.int64()]),
    ],
)
def test_keys_that_cannot_be_read_in_bulk_are_left_to_the_caller(keys: list[Any], kinds: list[pa.DataType]) -> None:
    assert decode_columns(pa.array([encode_key(key) for key in keys], pa.binary()), kinds) is None
