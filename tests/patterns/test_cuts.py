"""What random patterns give, and what they keep, does not depend on where epochs end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from tests.patterns.following import SECOND, Event
from tests.patterns.test_meaning import patterns

LETTERS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("kl")), min_size=1, max_size=12)


def matches_over_epochs(pattern: hr.EventPattern, rows: Sequence[Event], cuts: Sequence[int]) -> tuple[Any, ...]:
    """What matched, what timed out, and what is kept before time goes on to the end."""
    app = hr.App("letters")
    letters = app.read("letters", hr.source.items([]), Event, time=Event.at)
    step = letters.key_by(Event.key).match(pattern).named("found")
    streams = [step.map(repr, output=str), step.timed_out.map(repr, output=str)]
    given_out: tuple[list[str], ...] = ([], [])
    with hr.testing.Harness(app, start="1970-01-01") as h:
        before = 0
        for cut in sorted({*(min(cut, len(rows)) for cut in cuts), len(rows)}):
            h.push(letters, *rows[before:cut])
            h.epoch(watermark=int(rows[cut - 1].at))
            before = cut
            for stream, found in zip(streams, given_out):
                found += h.take(stream)
        kept = [h.state(step, step.partial, key) for key in "kl"]
        h.drain()
        for stream, found in zip(streams, given_out):
            found += h.take(stream)
    for found in given_out:
        found.sort()
    return *given_out, kept


@settings(max_examples=8, deadline=None)
@given(patterns(), LETTERS, st.lists(st.integers(1, 11), min_size=1, max_size=4))
def test_matches_of_random_patterns_do_not_depend_on_cuts(
    pattern: hr.EventPattern, letters: list[tuple[str, str]], cuts: list[int]
) -> None:
    rows = [Event(kind, (i + 1) * SECOND, i, key) for i, (kind, key) in enumerate(letters)]  # type: ignore[arg-type]
    assert matches_over_epochs(pattern, rows, cuts) == matches_over_epochs(pattern, rows, [])


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (hr.pattern("a", "kind = 'a'").then("b", "kind = 'b'"), "a c c a"),
        (hr.pattern("a", "kind = 'a'").then("b", "kind = 'b'").then("c", "kind = 'c'"), "a c c a"),
        (hr.pattern("a", "kind = 'a'").then("b", lambda row: row.kind == "b"), "a c c a"),
        (hr.pattern("a", "kind = 'a'").then("b", "kind = 'b'").optional().next("c", "kind = 'c'"), "a b c a a c a"),
        (hr.pattern("a", "kind = 'a'").next("b", "kind = 'b'"), "a b a a"),
        (hr.pattern("a", "kind = 'a'").then("b", "kind = 'b'"), "a b a a"),
        (hr.pattern("a", "kind = 'a'").then_any("b", "kind = 'b'"), "a b c a b a"),
        (hr.pattern("a", "kind = 'a'").one_or_more().then("b", "kind = 'b'").after_match("past_last"), "a b a c a"),
        (hr.pattern("a", "kind = 'a'").not_then("b", "kind = 'b'"), "a c a c b a"),
    ],
)
def test_what_a_key_keeps_does_not_tell_where_epochs_ended(pattern: hr.EventPattern, line: str) -> None:
    rows = [Event(kind, (i + 1) * SECOND, i) for i, kind in enumerate(line.split())]  # type: ignore[arg-type]
    pattern = pattern.within("1h")
    kept = matches_over_epochs(pattern, rows, [])[-1]
    assert kept[0] is not None
    assert matches_over_epochs(pattern, rows, range(1, len(rows)))[-1] == kept
