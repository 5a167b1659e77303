from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import ProgramError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.time import (
    Duration,
    Timestamp,
    days,
    format_span,
    format_time,
    hours,
    milliseconds,
    minutes,
    parse_time,
    seconds,
    span_us,
    timestamp,
)


def test_times_and_spans_are_ints_at_run_time() -> None:
    assert type(Timestamp(5)) is int
    assert Duration(5) == 5
    assert timestamp("1970-01-01T00:00:01") + seconds(1) == 2_000_000


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("500ms", 500_000),
        ("5s", 5_000_000),
        ("1m", 60_000_000),
        ("1h", 3_600_000_000),
        ("7d", 7 * 86_400_000_000),
        ("2h30m", 9_000_000_000),
        ("2h 30m", 9_000_000_000),
        ("1.5s", 1_500_000),
        ("250us", 250),
        ("0s", 0),
        (" 5s ", 5_000_000),
    ],
)
def test_a_span_is_a_number_and_a_unit(text: str, us: int) -> None:
    assert span_us(text) == us


@pytest.mark.parametrize("wrong", ["", "5", "s", "5 parsecs", "5s!", "five", "5s5"])
def test_a_span_that_says_nothing_is_an_error_that_shows_the_forms(wrong: str) -> None:
    with pytest.raises(ProgramError) as caught:
        span_us(wrong, what="out_of_order", where="app.py:3")
    assert "out_of_order" in str(caught.value)
    assert "app.py:3" in str(caught.value)
    assert '"500ms"' in str(caught.value)


def test_spans_come_as_timedeltas_and_durations_too() -> None:
    assert span_us(timedelta(minutes=1)) == span_us(minutes(1)) == 60_000_000
    assert (milliseconds(2), hours(1), days(1)) == (2_000, 3_600_000_000, 86_400_000_000)
    for wrong in (True, 1.5, None):
        with pytest.raises(ProgramError):
            span_us(wrong)  # type: ignore[arg-type]


@given(st.integers(min_value=0, max_value=10**15))
def test_a_formatted_span_reads_back(us: int) -> None:
    assert span_us(format_span(us)) == us


@given(st.integers(min_value=MIN_TIME, max_value=MAX_TIME))
@example(-62_167_219_200_000_001)
@example(-62_135_596_800_000_001)
@example(253_402_300_800_000_000)
def test_any_formatted_time_reads_back(us: int) -> None:
    assert parse_time(format_time(us)) == us


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_datetime_and_its_text_are_the_same_time(at: datetime) -> None:
    assert timestamp(at) == timestamp(at.isoformat())


def test_times_without_a_zone_are_utc() -> None:
    aware = datetime(2024, 1, 1, 12, tzinfo=UTC)
    east = datetime(2024, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))
    assert timestamp(datetime(2024, 1, 1, 12)) == timestamp(aware) == timestamp(east) == timestamp("2024-01-01T12:00")


def test_fractions_are_written_as_far_as_needed() -> None:
    assert format_time(1_000_000) == "1970-01-01T00:00:01Z"
    assert format_time(1_500_000) == "1970-01-01T00:00:01.5Z"
    assert format_time(-1) == "1969-12-31T23:59:59.999999Z"


@pytest.mark.parametrize("wrong", ["", "noon", "2024-13-01", "2024-01-01T25:00", "12:00"])
def test_text_that_is_no_time_is_an_error(wrong: str) -> None:
    with pytest.raises(ProgramError, match="cannot read a point in time"):
        parse_time(wrong)
