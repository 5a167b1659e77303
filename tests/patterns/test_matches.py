"""Matches of patterns in programs: rows by time, results, what timed out, clocks, bounds and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import ProgramError


class Tx(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int
    pin: bool = False


class Jump(hr.Record):
    card: str
    jump: int


FRAUD = (
    hr.pattern("small", "cents < 100").not_then("pin", "pin").then("large", "cents > 50000").within("1m")
)  # fmt: skip


def payments(**options: Any) -> hr.Stream[Tx]:
    app = hr.App("shop")
    return app.read("tx", hr.source.items([]), Tx, time=Tx.at, **options)


def test_rows_are_matched_in_the_order_of_their_time() -> None:
    tx = payments()
    jumps = (
        tx.key_by(Tx.card).match(FRAUD).named("fraud").select(Jump, card="small.card", jump="large.cents - small.cents")
    )
    with hr.testing.Harness(tx.app, start="2024-01-01") as h:
        h.push(tx, Tx("a", h.at("12:00:20"), 60_000), Tx("a", h.at("12:00:00"), 50))
        h.epoch(watermark="12:00:10")
        assert h.take(jumps) == []
        h.epoch(watermark="12:01")
        assert h.take(jumps) == [Jump("a", 59_950)]


def test_a_row_that_must_not_come_ends_the_match() -> None:
    tx = payments()
    found = tx.key_by(Tx.card).match(FRAUD).named("fraud").map(lambda match: match.large, output=Tx)
    with hr.testing.Harness(tx.app, start="2024-01-01") as h:
        h.push(tx, Tx("a", h.at("12:00:00"), 50), Tx("a", h.at("12:00:05"), 500, pin=True))
        h.push(tx, Tx("a", h.at("12:00:20"), 60_000))
        h.epoch(watermark="12:10")
        assert h.take(found) == []


def test_partial_matches_that_time_out_say_what_they_waited_for() -> None:
    tx = payments()
    step = tx.key_by(Tx.card).match(FRAUD).named("fraud")
    over = step.timed_out.select(card="small.card", hung="match.waiting_for", end="match.end")
    with hr.testing.Harness(tx.app, start="2024-01-01") as h:
        h.push(tx, Tx("a", h.at("12:00:00"), 50))
        h.epoch(watermark="12:00:30")
        assert h.take(over) == []
        h.epoch(watermark="12:01:00")
        (row,) = h.take(over)
        assert (row.card, row.hung, row.end) == ("a", "large", h.at("12:01:00"))
        assert h.state(step, step.partial, "a") is None


def test_absence_at_the_end_matches_when_its_time_has_passed() -> None:
    tx = payments()
    pattern = hr.pattern("shipped", "cents = 1").not_then("delivered", "cents = 2").within("2h")
    missed = tx.key_by(Tx.card).match(pattern).named("missed").select(card="shipped.card", since="shipped.at")
    with hr.testing.Harness(tx.app, start="2024-01-01") as h:
        h.push(tx, Tx("a", h.at("12:00"), 1), Tx("b", h.at("12:00"), 1), Tx("b", h.at("13:59:59"), 2))
        h.epoch(watermark="13:30")
        assert h.take(missed) == []
        h.epoch(watermark="14:00")
        assert [row.card for row in h.take(missed)] == ["a"]


def test_late_rows_go_to_late_and_match_nothing() -> None:
    tx = payments()
    step = tx.key_by(Tx.card).match(FRAUD).named("fraud")
    late, found = step.late, step.select(card="small.card")
    with hr.testing.Harness(tx.app, start="2024-01-01") as h:
        h.push(tx, Tx("a", h.at("12:00:20"), 60_000))
        h.epoch(watermark="12:00:30")
        h.push(tx, Tx("a", h.at("12:00:10"), 50))
        h.epoch(watermark="12:05")
        assert h.take(found) == []
        assert h.take(late) == [Tx("a", h.at("12:00:10"), 50)]


def test_conditions_over_what_matched_before() -> None:
    tx = payments()
    pattern = (
        hr.pattern("small", "cents < 100")
        .then("more", "cents > small.cents AND (cents > last(more.cents) OR count(more) = 0)").times(2)
        .next("large", "cents > 10 * avg(more.cents)")
    )  # fmt: skip
    found = (
        tx.key_by(Tx.card)
        .match(pattern)
        .named("rising")
        .select(
            low="first(more.cents)",
            high="last(more.cents)",
            n="count(more)",
            all="sum(more.cents) + small.cents",
            top="large.cents",
        )
    )
    with hr.testing.Harness(tx.app, start="2024-01-01") as h:
        for i, cents in enumerate([90, 100, 95, 200, 1600]):
            h.push(tx, Tx("a", h.at(f"12:00:0{i}"), cents))
        h.epoch(watermark="12:05")
        assert [tuple(getattr(row, name) for name in ("low", "high", "n", "all", "top")) for row in h.take(found)] == [
            (100, 200, 2, 390, 1600)
        ]


def test_python_conditions_see_the_row_and_the_match_so_far() -> None:
    tx = payments()
    pattern = hr.pattern("one", lambda row: row.cents == 1).then(
        "two", lambda row, match: row.cents == match.one.cents + 1
    )
    found = tx.key_by(Tx.card).match(pattern).named("steps").map(lambda match: match.two.cents, output=int)
    with hr.testing.Harness(tx.app, start="2024-01-01") as h:
        for i, cents in enumerate([1, 5, 2]):
            h.push(tx, Tx("a", h.at(f"12:00:0{i}"), cents))
        h.epoch(watermark="12:05")
        assert h.take(found) == [2]


def test_by_the_wall_clock_rows_count_as_they_come() -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    step = tx.key_by(Tx.card).match(FRAUD, clock="wall").named("fraud")
    found, over = step.select(card="large.card"), step.timed_out.select(card="small.card")
    with hr.testing.Harness(app, start="2024-01-01T12:00:00") as h:
        h.push(tx, Tx("a", 5, 50), Tx("b", 5, 50))  # type: ignore[arg-type]
        h.epoch(clock="12:00:10")
        h.push(tx, Tx("a", 1, 60_000))  # type: ignore[arg-type]
        h.epoch(clock="12:00:20")
        assert [row.card for row in h.take(found)] == ["a"]
        h.epoch(clock="12:01:30")
        assert [row.card for row in h.take(over)] == ["b"]


def test_partial_matches_survive_a_crash_and_show_what_they_wait_for() -> None:
    tx = payments()
    step = tx.key_by(Tx.card).match(FRAUD).named("fraud")
    found = step.select(card="small.card", cents="large.cents")
    with hr.testing.Harness(tx.app, start="2024-01-01") as h:
        h.push(tx, Tx("a", h.at("12:00:00"), 50))
        h.epoch(watermark="12:00:10")
        partial = h.state(step, step.partial, "a")
        assert (partial.matches[0].waiting_for, partial.matches[0].until) == ("large", h.at("12:01:00"))
        h.push(tx, Tx("a", h.at("12:00:20"), 60_000))
        h.crash(at="before_publish")
        h.epoch(watermark="12:02")
        assert h.take(found) == [found.node.codec.type("a", 60_000)]
        assert h.state(step, step.partial, "a") is None


def test_too_many_partial_matches_are_an_error_that_says_what_to_do() -> None:
    tx = payments()
    pattern = hr.pattern("one", "cents > 0").then_any("two", "cents > 5")
    found = tx.key_by(Tx.card).match(pattern, max_partial=3).named("many").select(n="two.cents")
    with hr.testing.Harness(tx.app, start="2024-01-01") as h:
        for i in range(5):
            h.push(tx, Tx("a", h.at(f"12:00:0{i}"), 1))
        with pytest.raises(hr.HeadraceError, match="a key has 4 partial matches"):
            h.epoch(watermark="12:05")
    assert found is not None


def test_the_oldest_partial_match_goes_where_that_is_chosen() -> None:
    tx = payments()
    pattern = hr.pattern("one", "cents < 5").then("two", "cents > 5")
    step = tx.key_by(Tx.card).match(pattern, max_partial=2, on_overflow="drop_oldest").named("many")
    found = step.select(n="one.cents")
    with hr.testing.Harness(tx.app, start="2024-01-01") as h:
        for i, cents in enumerate([1, 2, 3, 9]):
            h.push(tx, Tx("a", h.at(f"12:00:0{i}"), cents))
        h.epoch(watermark="12:05")
        assert [row.n for row in h.take(found)] == [2, 3]
        assert h.counters(step)["dropped_partial"] == 1  # type: ignore[arg-type]


def test_matches_do_not_depend_on_how_rows_are_cut() -> None:
    def program(tx: Any) -> Any:
        pattern = hr.pattern("a", "cents = 1").then("b", "cents = 2").one_or_more().next("c", "cents > 2").within("9s")
        return tx.key_by(Tx.card).match(pattern.after_match("past_last")).named("abc")

    rows = [Tx(f"k{i % 3}", 1_000_000 * (i // 2), (i * 7) % 4) for i in range(60)]  # type: ignore[arg-type]
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items(rows), Tx, time=Tx.at, out_of_order="5s")
    step = program(tx)
    step.select(key="a.card", n="count(b)", c="c.cents").write(hr.sink.collect())
    step.timed_out.select(key="a.card", end="match.end").write(hr.sink.collect())
    assert hr.testing.verify_program(app, {"tx": rows}, tries=25).ok


def follow_changed(folder: Path, *patterns: hr.EventPattern) -> tuple[list[Any], Any]:
    """A small charge under the first pattern, and all the rest under the second."""
    for pattern, last in zip(patterns, (False, True)):
        tx = payments()
        step = tx.key_by(Tx.card).match(pattern).named("fraud")
        found = step.select(card="small.card", cents="large.cents")
        with hr.testing.Harness(tx.app, start="2024-01-01", store=folder) as h:
            if not last:
                h.push(tx, Tx("a", h.at("12:00:00"), 20))
                h.epoch(watermark="12:00:10")
                continue
            h.push(tx, Tx("a", h.at("12:00:20"), 200), Tx("a", h.at("12:00:30"), 60_000))
            h.epoch(watermark="12:00:40")
            h.epoch(watermark="12:05")
            return [row.cents for row in h.take(found)], h.counters(step).get("forgotten_partial", 0)
    raise AssertionError("two patterns are to be followed")


def test_partial_matches_go_on_where_their_stage_is_still_there(tmp_path: Path) -> None:
    longer = hr.pattern("small", "cents < 50").then("mid", "cents = 200").then("large", "cents > 50000").within("2m")
    assert follow_changed(tmp_path / "1", FRAUD, longer) == ([60_000], 0)
    renamed = hr.pattern("tiny", "cents < 50").then("small", "cents < 3").then("large", "cents > 50000").within("2m")
    assert follow_changed(tmp_path / "2", renamed, FRAUD) == ([], 1)


def test_rows_of_partial_matches_are_adapted_to_the_type_they_have_now(tmp_path: Path) -> None:
    older = type("Tx", (hr.Record,), {"__annotations__": {"card": str, "at": hr.Timestamp, "cents": int}})
    newer = type("Tx", (hr.Record,), {"__annotations__": {**older.__annotations__, "pin": bool}, "pin": True})
    for kind in (older, newer):
        app = hr.App("shop")
        tx: Any = app.read("tx", hr.source.items([]), kind, time="at")
        pattern = hr.pattern("small", "cents < 100").then("large", "cents > 50000")
        found = tx.key_by("card").match(pattern).named("fraud").map(lambda match: match.small, output=kind)
        with hr.testing.Harness(app, start="2024-01-01", store=tmp_path) as h:
            if kind is older:
                h.push(tx, kind("a", h.at("12:00:00"), 50))
                h.epoch(watermark="12:00:10")
                continue
            h.push(tx, kind("a", h.at("12:00:20"), 60_000))
            h.epoch(watermark="12:00:40")
            assert [(row.cents, row.pin) for row in h.take(found)] == [(50, True)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hr.pattern("Big", "n > 0"), "cannot be the name of a stage"),
        (lambda: hr.pattern("a").then("a"), "two stages are called 'a'"),
        (lambda: hr.pattern("a").optional().not_next("b", "n > 0"), "must not follow an optional stage"),
        (lambda: hr.pattern("a").until("n > 0"), "until ends a loop"),
        (lambda: hr.pattern("a").greedy(), "greedy is for loops"),
        (lambda: hr.pattern("a").consecutive(), "consecutive is for loops"),
        (lambda: hr.pattern("a").times(0, 0), "how often a stage comes"),
        (lambda: hr.pattern("a").within("0s"), "a span above 0"),
        (lambda: hr.pattern("a").after_match("to_first", "b"), "no stage 'b'"),
        (lambda: hr.pattern("a").after_match("last"), "no such way"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_in_a_pattern_are_said_at_its_line(make: Any, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as caught:
        make()
    assert "test_matches.py" in caught.value.where and caught.value.expected


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (hr.pattern("a", "cents").then("b"), "not a condition"),
        (hr.pattern("a", "cent > 1"), "no column 'cent'"),
        (hr.pattern("a").not_then("b", "pin"), "needs a time"),
        (hr.pattern("a").then("b").one_or_more().greedy(), "needs a stage behind it"),
        (hr.pattern("a").optional(), "match without any row"),
        (hr.pattern("match"), "the match itself"),
        (hr.pattern("a").then("b", "sum(a.card) > 1"), "a"),
        (hr.pattern("a").then("b", "avg(c.cents) > 1"), "over the rows of one stage"),
        (hr.pattern("a", lambda: True), "takes the row, or the row and the match"),
    ],
)
def test_patterns_that_do_not_fit_their_rows_are_refused(pattern: hr.EventPattern, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as caught:
        payments().key_by(Tx.card).match(pattern)
    assert caught.value.where


def test_a_stage_that_may_be_absent_cannot_fill_a_field_that_must_have_a_value() -> None:
    pattern = hr.pattern("small").then("mid", "cents > 7").optional().then("large")
    step = payments().key_by(Tx.card).match(pattern).named("x")
    with pytest.raises(ProgramError, match="may have no row"):
        step.select(Jump, card="small.card", jump="mid.cents")
    with pytest.raises(ProgramError, match="needs its stage"):
        step.select(jump="cents")
