"""What random patterns give does not depend on where epochs end."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from tests.patterns.following import SECOND, Event
from tests.patterns.test_meaning import patterns

LETTERS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("kl")), min_size=1, max_size=12)


def matches_over_epochs(pattern: hr.EventPattern, rows: Sequence[Event], cuts: Sequence[int]) -> tuple[list[str], ...]:
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
        h.drain()
        for stream, found in zip(streams, given_out):
            found += h.take(stream)
    for found in given_out:
        found.sort()
    return given_out


@settings(max_examples=8, deadline=None)
@given(patterns(), LETTERS, st.lists(st.integers(1, 11), min_size=1, max_size=4))
def test_matches_of_random_patterns_do_not_depend_on_cuts(
    pattern: hr.EventPattern, letters: list[tuple[str, str]], cuts: list[int]
) -> None:
    rows = [Event(kind, (i + 1) * SECOND, i, key) for i, (kind, key) in enumerate(letters)]  # type: ignore[arg-type]
    assert matches_over_epochs(pattern, rows, cuts) == matches_over_epochs(pattern, rows, [])
