"""Numbers, dates and times as text, the way Spark writes and reads them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sql.evaluate.numbers import round_half_up
from headrace.sql.evaluate.text import pad_text, split_text
from headrace.sql.evaluate.text_values import double_text, float_text, parse_date, parse_timestamp
from tests.effort import examples


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (123456.789, "123456.789"),
        (1e7, "1.0E7"),
        (9999999.0, "9999999.0"),
        (12345678.9, "1.23456789E7"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (-1.5e-10, "-1.5E-10"),
        (1e300, "1.0E300"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, text: str) -> None:
    assert double_text(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_double_is_that_double(value: float) -> None:
    text = double_text(value)
    assert float(text) == value
    assert re.fullmatch(r"-?\d+\.\d+(E-?\d+)?", text)


def test_floats_are_written_with_their_own_digits() -> None:
    assert float_text(float(np.float32(0.1))) == "0.1"
    assert float_text(float(np.float32(1e10))) == "1.0E10"


def _us(*parts: int) -> int:
    return int((datetime(*parts, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)


def test_timestamps_are_read_with_and_without_zone() -> None:
    assert parse_timestamp("2024-02-29") == _us(2024, 2, 29)
    assert parse_timestamp("2024-2-9 1:2:3.5") == _us(2024, 2, 9, 1, 2, 3) + 500_000
    assert parse_timestamp("2024-02-29T10:11:12Z") == _us(2024, 2, 29, 10, 11, 12)
    assert parse_timestamp("2024-02-29 10:11:12+02:00") == _us(2024, 2, 29, 8, 11, 12)
    assert parse_timestamp("2024-07-01 12:00:00 Europe/Berlin") == _us(2024, 7, 1, 10)
    for text in ("", "today", "2024-13-01", "2024-02-29 25:00", "2024-02-29 10", "24-01-01", "2024-01-01 10:00 Mars/X"):
        assert parse_timestamp(text) is None, text


def test_dates_are_read_from_the_front_of_a_timestamp_too() -> None:
    assert parse_date("1970-01-02") == 1
    assert parse_date("1969-12-31T23:00:00") == -1
    assert parse_date("2024") == parse_date("2024-01-01")
    for text in ("", "x", "2024-02-30", "2024-1-1x", "24-01-01"):
        assert parse_date(text) is None, text


# Half-way texts such as 10000000002.675, which as doubles lie a little above or below the half.
HALVES = st.builds(
    lambda whole, places: float(f"{whole}5e-{places}"), st.integers(-(10**14), 10**14), st.integers(0, 8)
)


@settings(max_examples=examples(100))
@given(st.lists(st.floats(-1e12, 1e12) | HALVES, min_size=1), st.integers(-4, 8))
def test_rounding_is_that_of_the_decimal_text(values: list[float], places: int) -> None:
    from decimal import ROUND_HALF_UP, Decimal

    expected = [float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)) for value in values]
    assert round_half_up(np.array(values), places).tolist() == expected


@given(st.text("ab,", max_size=12), st.integers(-1, 4))
def test_splitting_and_joining_gives_the_text_back(text: str, limit: int) -> None:
    pieces = split_text(text, ",", re.compile(","), limit)
    assert ",".join(pieces) == text
    assert limit <= 0 or len(pieces) <= limit


@given(st.text(max_size=6), st.integers(-2, 9), st.text(max_size=3), st.booleans())
def test_padded_text_has_the_length_asked_for_where_there_is_something_to_pad_with(
    text: str, length: int, fill: str, left: bool
) -> None:
    padded = pad_text(text, length, fill, left=left)
    assert len(padded) == max(length, 0) or (not fill and padded == text)
