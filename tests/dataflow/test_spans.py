"""A span of time says its unit, wherever a program gives one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

import pytest

import headrace as hr


class Tx(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int = 0


def read(**options: Any) -> Any:
    return hr.App("spans").read("tx", hr.source.items([]), Tx, time=Tx.at, **options)


def keyed() -> Any:
    return read().key_by(Tx.card)


async def find(card: str) -> Tx | None:
    return None


@pytest.mark.parametrize(
    "say",
    [
        lambda span: read(out_of_order=span),
        lambda span: read(idle=span),
        lambda span: read(align="a", max_drift=span),
        lambda span: read(watermark=hr.watermarks.bounded(span)),
        hr.ttl,
        lambda span: hr.sum("cents", over=span),
        hr.tumbling,
        lambda span: hr.tumbling("1h", offset=span),
        lambda span: hr.sliding("1h", every=span),
        hr.session,
        hr.early,
        hr.every,
        hr.timeout,
        hr.keep_span,
        lambda span: keyed().window(hr.tumbling("1h"), allow_late=span),
        lambda span: (tx := keyed()).join(tx, within=(span, span)),
        lambda span: read().lookup(find, by=Tx.card, timeout=span),
    ],
)
@pytest.mark.parametrize("number", [5, 2.5])
def test_a_bare_number_is_refused_with_the_units_to_choose_from(say: Any, number: float) -> None:
    with pytest.raises(hr.ProgramError, match="has no unit") as refused:
        say(number)
    assert refused.value.found == f"the bare number {number}"
    assert f'"{number}s" or hr.seconds({number})' in refused.value.next_move


def test_spans_that_say_their_unit_are_taken_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for span in ("50ms", "3600us", timedelta(microseconds=1), hr.milliseconds(50), hr.Duration(7), 2 * hr.days(1)):
            hr.tumbling(span)
            hr.ttl(span)
            read(out_of_order=span)


def test_a_negative_span_is_called_negative() -> None:
    with pytest.raises(hr.ProgramError, match="the size of a window is negative"):
        hr.tumbling("-1h")


def test_arithmetic_among_spans_gives_spans_and_with_a_time_gives_a_time() -> None:
    at = hr.timestamp("2024-01-01T00:00:00")
    minute: Any = hr.minutes(1)
    for span in (
        minute + minute,
        minute - hr.seconds(1),
        minute * 2,
        2 * minute,
        minute // 2,
        minute % 7,
        abs(-minute),
    ):
        hr.ttl(span)
    assert at + minute == hr.timestamp("2024-01-01T00:01:00") == minute + at
    for time in (at + minute, at - minute, minute + at):
        assert type(time) is int
    assert minute // hr.seconds(1) == 60 and type(minute // hr.seconds(1)) is int
    assert minute / hr.seconds(1) == 60.0


class Wait(hr.Record):
    card: str
    span: hr.Duration


class Keep(hr.Process[Wait, Wait, str]):
    last: hr.ValueState[hr.Duration]
    every: hr.MapState[str, Wait]

    def on_event(self, event: Wait, ctx: hr.Context[str]) -> Iterator[Wait]:
        before = self.last.get()
        self.last.set(hr.seconds(5))
        self.every["x"] = Wait("x", hr.hours(1))
        yield Wait(event.card, before if before is not None else hr.seconds(1))


def test_spans_that_a_program_makes_are_stored_and_given_out_as_ints() -> None:
    app = hr.App("waits")
    waits = app.read("waits", hr.source.items([]), Wait)
    given = waits.key_by(Wait.card).process(Keep()).named("keep")
    by_span = waits.key_by(lambda wait: hr.seconds(1)).latest().named("by_span")
    with hr.testing.Harness(app) as h:
        for _ in range(2):
            h.push(waits, Wait("a", hr.minutes(1)))
            h.epoch()
        assert [row.span for row in h.take(given)] == [1_000_000, 5_000_000]
        assert h.state(given, Keep.every, "a") == {"x": Wait("x", hr.hours(1))}
        assert len(h.take(by_span)) == 2


@pytest.mark.parametrize("span", ["400000d", hr.days(1) * 10**9])
def test_a_span_that_no_time_could_be_moved_by_is_refused(span: Any) -> None:
    with pytest.raises(hr.ProgramError) as raised:
        hr.ttl(span)
    assert raised.value.what.endswith("is too long") and raised.value.expected == "365000 days at the most"


@pytest.mark.parametrize("make", [hr.milliseconds, hr.seconds, hr.minutes, hr.hours, hr.days])
@pytest.mark.parametrize("n", ["5", float("nan"), float("inf"), True, None])
def test_a_span_is_made_of_a_finite_number(make: Any, n: Any) -> None:
    with pytest.raises(hr.ProgramError, match=f"hr.{make.__name__} takes a number") as raised:
        make(n)
    assert "test_spans.py:" in raised.value.where
    assert raised.value.next_move


@pytest.mark.parametrize("at", [5, 5.5, None, timedelta(1), date(2024, 1, 1)])
def test_a_timestamp_is_made_of_text_or_a_datetime(at: Any) -> None:
    with pytest.raises(hr.ProgramError, match="takes ISO text or a datetime") as raised:
        hr.timestamp(at)
    assert "test_spans.py:" in raised.value.where
    assert ("hr.Timestamp(5)" in raised.value.next_move) == (at == 5)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: hr.sum("n", over="x"), "cannot read over= of sum"),
        (lambda: hr.count(over=hr.seconds(0)), "over= of count must be greater than zero"),
        (lambda: hr.ttl("x"), "cannot read the TTL"),
        (lambda: hr.ttl("0s"), "the TTL must be greater than zero"),
        (lambda: hr.ttl("1d", clock="sun"), "ttl has no clock 'sun'"),  # type: ignore[arg-type]
        (lambda: hr.tumbling("1h", offset="-1h"), "an offset is negative"),
        (lambda: hr.tumbling("999999999d"), "the size of a window is too long"),
    ],
)
def test_a_wrong_span_is_told_with_its_line_and_a_next_move(call: Any, what: str) -> None:
    with pytest.raises(hr.ProgramError) as raised:
        call()
    assert raised.value.what == what
    assert "test_spans.py:" in raised.value.where
    assert raised.value.next_move or raised.value.expected
    assert "above zero" not in raised.value.expected or "negative" not in raised.value.what


def test_how_long_windows_are_kept_is_told_with_its_line() -> None:
    class Hit(hr.Record):
        page: str
        at: hr.Timestamp

    hits = hr.App("a").read("hits", hr.source.items([]), Hit, time=Hit.at)
    hourly = hits.key_by("page").window(hr.tumbling("1h")).aggregate(n=hr.count()).named("hourly")
    with pytest.raises(hr.ProgramError, match="keep has no unit") as raised:
        hourly.queryable(keep=24)  # type: ignore[arg-type]
    assert "test_spans.py:" in raised.value.where
    with pytest.raises(hr.ProgramError) as raised:
        hr.tumbling(5.5)  # type: ignore[arg-type]
    assert "hr.Duration" not in raised.value.next_move
