"""Retention: which epochs the setting ``retain`` keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.model.retention import EpochTime, Retention, SpanRule, derive_retained, parse_retention

MINUTE = 60_000_000
HOUR, DAY = 60 * MINUTE, 24 * 60 * MINUTE


def kept_of(text: int | str, times: list[EpochTime]) -> list[int]:
    return sorted(derive_retained(times, parse_retention(text)))


def each(minutes: int, count: int, start_us: int = 1000 * DAY) -> list[EpochTime]:
    """So many epochs, one every few minutes."""
    return [EpochTime(epoch, start_us + epoch * minutes * MINUTE) for epoch in range(count)]


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("24h", (SpanRule(HOUR), SpanRule(DAY, HOUR))),
        ("30m", (SpanRule(30 * MINUTE),)),
        ("24h all", (SpanRule(DAY),)),
        ("24h every 2h", (SpanRule(DAY, 2 * HOUR),)),
        (" 2h all ,7d every 1h", (SpanRule(2 * HOUR), SpanRule(7 * DAY, HOUR))),
    ],
)
def test_rules_are_spans_with_what_is_kept_of_them(text: str, rules: tuple[SpanRule, ...]) -> None:
    assert parse_retention(text) == Retention(rules=rules)


@pytest.mark.parametrize(("value", "newest"), [(10, 10), ("10", 10), (0, 0)])
def test_a_number_is_so_many_epochs(value: int | str, newest: int) -> None:
    assert parse_retention(value) == Retention(newest)


@pytest.mark.parametrize(
    "value", ["", "soon", "24h every", "24h each 1h", "0s", "24h,", "24h every 0s", "all", -1, "-1"]
)
def test_what_is_no_rule_is_refused_with_the_forms_there_are(value: int | str) -> None:
    with pytest.raises(SettingsError, match="retain") as caught:
        parse_retention(value)
    assert '"2h all, 7d every 1h"' in caught.value.expected


def test_a_day_is_all_of_the_last_hour_and_the_last_epoch_of_each_hour_before() -> None:
    times = each(10, 2 * 24 * 6)
    newest = times[-1].epoch
    # Six an hour; the newest is at x:50, so the last hour begins with the epoch at (x-1):50.
    assert kept_of("24h", times) == [*range(newest - 144, newest - 6, 6), *range(newest - 6, newest + 1)]


def test_two_epochs_stay_whatever_the_rules_say() -> None:
    assert kept_of("1s", each(10, 5)) == [3, 4]
    assert kept_of(0, each(10, 5)) == [3, 4]
    assert kept_of("1d", []) == []


@given(
    gaps=st.lists(st.integers(0, 40 * MINUTE), min_size=1, max_size=60),
    text=st.sampled_from(["3h", "5h every 1h", "1h all, 12h every 3h", "4"]),
    cut=st.integers(1, 60),
)
def test_thinning_now_and_later_leaves_what_thinning_later_leaves(gaps: list[int], text: str, cut: int) -> None:
    times, now = [], 1000 * DAY
    for epoch, gap in enumerate(gaps):
        now += gap
        times.append(EpochTime(epoch, now))
    early = derive_retained(times[:cut], parse_retention(text))
    thinned = [each for each in times[:cut] if each.epoch in early] + times[cut:]
    assert kept_of(text, thinned) == kept_of(text, times)
