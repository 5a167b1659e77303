"""Flink's CEP, feature by feature (C1–C14): what each of them comes to here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.errors import ProgramError
from tests.patterns.following import Event, events, follow, shapes
from tests.patterns.pictures import matches_of

A, B, C, D = (f"kind = '{letter}'" for letter in "abcd")
START = hr.pattern("a", A)
LOOP = START.one_or_more()
GROUP = hr.pattern("a", A).next("b", B)

CASES: list[tuple[str, hr.EventPattern, str, list[str]]] = [
    ("C1 a sequence begins with a stage", START.then("b", B), "a b", ["a b"]),
    ("C1 or with a group", hr.pattern(GROUP).then("c", C), "a b c", ["a b c"]),
    ("C2 next", START.next("b", B), "a c b1 b2", []),
    ("C2 followedBy", START.then("b", B), "a c b1 b2", ["a b1"]),
    ("C2 followedByAny", START.then_any("b", B), "a c b1 b2", ["a b1", "a b2"]),
    ("C3 notNext", START.not_next("c", C).then("b", B), "a1 c b a2 b", ["a2 b"]),
    ("C3 notFollowedBy", START.not_then("c", C).then("b", B), "a1 d c b a2 d b", ["a2 b"]),
    ("C3 notFollowedBy at the end, with within", START.not_then("c", C).within("3s"), "a1 d d a2 c", ["a1"]),
    ("C4 where is joined with and", START.then("b", B).where("n > 1"), "a b1 b2", ["a b2"]),
    ("C4 or", START.then("b", B).or_where(C), "a c b", ["a c"]),
    ("C4 until", START.then("b", B).one_or_more().until(C), "a b1 b2 c b3", ["a b1", "a b1 b2"]),
    ("C5 conditions over what was taken", START.then("b", "n > a.n AND kind = 'b'"), "a2 b1 b3", ["a2 b3"]),
    ("C5 and over aggregates of a loop", LOOP.then("b", f"{B} AND n > sum(a.n)"), "a2 a3 b4", ["a2 b4", "a3 b4"]),
    ("C6 times(n)", START.times(2), "a1 b a2 a3", ["a1 a2", "a2 a3"]),
    ("C6 times(a, b)", START.times(1, 2), "a1 a2", ["a1", "a1 a2", "a2"]),
    ("C6 timesOrMore", START.at_least(2), "a1 a2 a3", ["a1 a2", "a1 a2 a3", "a2 a3"]),
    ("C6 oneOrMore, relaxed inside", LOOP.next("b", B), "a1 c a2 b", ["a1 a2 b", "a2 b"]),
    ("C6 optional", START.then("b", B).optional().then("c", C), "a b c", ["a b c", "a c"]),
    ("C6 greedy", LOOP.greedy().then("b", B), "a1 a2 b", ["a1 a2 b", "a2 b"]),
    ("C6 a window for each gap of a loop", START.times(2, within="2s"), "a1 a2 c a3", ["a1 a2"]),
    ("C7 consecutive", LOOP.consecutive().next("b", B), "a1 c a2 a3 b", ["a2 a3 b", "a3 b"]),
    ("C7 allowCombinations", START.times(2).allow_combinations(), "a1 a2 a3", ["a1 a2", "a1 a3", "a2 a3"]),
    ("C8 groups are repeated", hr.pattern(GROUP).times(2).next("c", C), "a1 b1 d a2 b2 c", ["a1 b1 a2 b2 c"]),
    ("C8 and left out", START.then(hr.pattern("b", B).next("c", C)).optional().then("d", D), "a d", ["a d"]),
    ("C9 within ends when its time is reached", START.then("b", B).within("2s"), "a c b", []),
    ("C9 and not before", START.then("b", B).within("3s"), "a c b", ["a b"]),
    ("C9 of each step", START.then("b", B).then("c", C).within("3s", of="step"), "a d b d c", ["a b c"]),
    ("C9 of several the smallest counts", START.then("b", B).within("9s").within("2s"), "a c b", []),
    ("C10 noSkip", LOOP.next("b", B), "a1 a2 b", ["a1 a2 b", "a2 b"]),
    ("C10 skipToNext", LOOP.then("b", B).after_match("to_next"), "a1 a2 b", ["a1 a2 b", "a2 b"]),
    ("C10 skipPastLastEvent", LOOP.next("b", B).after_match("past_last"), "a1 a2 b", ["a1 a2 b"]),
    ("C10 skipToFirst", LOOP.next("b", B).after_match("to_first", "b"), "a1 a2 b", ["a1 a2 b"]),
    ("C10 skipToLast", LOOP.next("b", B).after_match("to_last", "a"), "a1 a2 a3 b", ["a1 a2 a3 b", "a3 b"]),
]


@pytest.mark.parametrize(("pattern", "line", "matches"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_it_gives_these_matches(pattern: hr.EventPattern, line: str, matches: list[str]) -> None:
    assert sorted(matches_of(pattern, line)) == sorted(matches)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: START.then("a", B), "two stages are called 'a'"),
        (lambda: hr.pattern("a:b", A), "cannot be the name"),
        (lambda: START.optional().not_then("b", B), "must not follow an optional stage"),
        (lambda: START.times(2).until(B), "until ends a loop that has no end of its own"),
        (lambda: hr.pattern(GROUP).one_or_more().greedy(), "greedy is for loops"),
        (lambda: follow(START.not_then("b", B), []), "needs a time for that"),
    ],
    ids=["C1 names differ", "C1 names are plain", "C3 not behind optional", "C4 until", "C6 greedy", "C3 at the end"],
)
def test_what_flink_refuses_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        make()


def test_c10_a_match_without_the_stage_to_skip_to_skips_nothing_or_is_an_error() -> None:
    pattern = START.then("b", B).optional().then("c", C).within("9s")
    assert matches_of(pattern.after_match("to_first", "b"), "a1 a2 c") == ["a1 c", "a2 c"]
    with pytest.raises(hr.HeadraceError, match="no row of the stage 'b'"):
        matches_of(pattern.after_match("to_first", "b", needed=True), "a c")


def test_c11_and_c12_a_match_has_the_time_of_its_last_row_and_a_partial_one_that_when_its_time_was_over() -> None:
    plan, matches, over = follow(START.then("b", B).within("3s"), events("a1 c b a2 c"))
    assert [end for _, _, end in shapes(plan, matches)] == [2_000_000]
    assert [end for _, _, end in shapes(plan, over)] == [6_000_000]
    assert [row.match.waiting_for for row in plan.match_rows.rows(over, over=True)] == ["b"]


def test_c13_ties_of_time_are_decided_by_columns_and_late_rows_go_to_late() -> None:
    app = hr.App("letters")
    letters = app.read("letters", hr.source.items([]), Event, time=Event.at)
    step = letters.key_by(Event.key).match(START.next("b", B), order=("time", "n")).named("ab")
    found, late = step.select(a="a.n", b="b.n"), step.late
    with hr.testing.Harness(app, start="2024-01-01") as h:
        at = h.at("12:00")
        h.push(letters, Event("b", at, 2), Event("a", at, 1))
        h.epoch(watermark="12:01")
        h.push(letters, Event("a", at, 3))
        h.epoch(watermark="12:02")
        assert [(row.a, row.b) for row in h.take(found)] == [(1, 2)]
        assert [row.n for row in h.take(late)] == [3]
        assert h.counters(step)["late"] == 1


def test_c14_keys_do_not_meet_and_a_stream_without_keys_is_one() -> None:
    app = hr.App("letters")
    letters = app.read("letters", hr.source.items([]), Event, time=Event.at)
    of_keys = letters.key_by(Event.key).match(START.next("b", B)).named("keys").select(n="b.n")

    def everybody(row: Event) -> int:
        return 0

    of_all = letters.key_by(everybody).match(START.next("b", B)).named("all").select(n="b.n")
    with hr.testing.Harness(app, start="2024-01-01") as h:
        for second, (kind, key) in enumerate([("a", "k"), ("b", "l"), ("b", "k")]):
            h.push(letters, Event(kind, h.at(f"12:00:0{second}"), second, key))
        h.epoch(watermark="12:01")
        assert [row.n for row in h.take(of_keys)] == [2]
        assert [row.n for row in h.take(of_all)] == [1]
