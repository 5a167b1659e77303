"""Random patterns as rules give what they give in code, wherever epochs end and however often everything crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from tests.patterns.following import SECOND, Event
from tests.patterns.test_cuts import LETTERS
from tests.patterns.test_meaning import patterns

Given = tuple[list[str], list[str]]
"""Texts of matches, and of partial matches whose time was over."""
EVERYTHING_IN = 10_000 * SECOND


def text_of(rule: str, stages: dict[str, Any], match: Any) -> str:
    rows = {name: taken if isinstance(taken, list) else [taken] if taken else [] for name, taken in stages.items()}
    return f"{rule} {[(name, [row.n for row in taken]) for name, taken in rows.items()]} {match}"


def of_pattern(rule: str) -> Callable[[Any], str]:
    return lambda match: text_of(
        rule, {name: getattr(match, name) for name in match.__struct_fields__[:-1]}, match.match
    )


def of_rule(match: Any) -> str:
    return text_of(match.rule, match.stages, match.match)


def in_code(whole: Sequence[hr.EventPattern], rows: Sequence[Event]) -> Given:
    """What the patterns give, each in a step of its own."""
    app = hr.App("letters")
    letters = app.read("letters", hr.source.items([]), Event, time=Event.at)
    steps = [letters.key_by(Event.key).match(each).named(f"m{i}") for i, each in enumerate(whole)]
    found = [step.map(of_pattern(f"r{i}"), output=str) for i, step in enumerate(steps)]
    over = [step.timed_out.map(of_pattern(f"r{i}"), output=str) for i, step in enumerate(steps)]
    with hr.testing.Harness(app, start="1970-01-01") as h:
        h.push(letters, *rows)
        h.epoch(watermark=EVERYTHING_IN)
        return sorted(x for each in found for x in h.take(each)), sorted(x for each in over for x in h.take(each))


def as_rules(
    rules: Sequence[hr.PatternRule], rows: Sequence[Event], cuts: Sequence[int], crashes: Sequence[int] = ()
) -> Given:
    """What they give as rules that are read at the beginning; epochs end behind some rows."""
    app = hr.App("letters")
    letters = app.read("letters", hr.source.items([]), Event, time=Event.at)
    stream = app.read("rules", hr.source.items([]), hr.PatternRule, time=hr.PatternRule.at)
    step = letters.key_by(Event.key).match(stream.broadcast()).named("found")
    found, over = step.map(of_rule, output=str), step.timed_out.map(of_rule, output=str)
    with hr.testing.Harness(app, start="1970-01-01") as h:
        h.push(stream, *rules)
        before = 0
        for cut in sorted({*(min(cut, len(rows)) for cut in cuts), len(rows)}):
            h.push(letters, *rows[before:cut])
            watermark = int(rows[cut - 1].at) if cut < len(rows) else EVERYTHING_IN
            if cut in crashes:
                h.crash(at="before_publish", watermark=watermark)
            h.epoch(watermark=watermark)
            before = cut
        return sorted(h.take(found)), sorted(h.take(over))


def rows_of(letters: list[tuple[str, str]]) -> list[Event]:
    return [Event(kind, (i + 1) * SECOND, i, key) for i, (kind, key) in enumerate(letters)]  # type: ignore[arg-type]


CUTS = st.lists(st.integers(1, 11), max_size=4)


@settings(max_examples=12, deadline=None)
@given(st.lists(patterns(), min_size=1, max_size=4), LETTERS, CUTS, st.booleans())
def test_rules_give_what_their_patterns_give_in_code(
    whole: list[hr.EventPattern], letters: list[tuple[str, str]], cuts: list[int], as_json: bool
) -> None:
    rows = rows_of(letters)
    rules = [hr.PatternRule(f"r{i}", each.to_json() if as_json else each.to_text()) for i, each in enumerate(whole)]
    assert as_rules(rules, rows, cuts, crashes=cuts[:1]) == in_code(whole, rows)


@st.composite
def timed_rules(draw: Any) -> list[hr.PatternRule]:
    """Two rules that come, change and go."""
    made = []
    for i in range(draw(st.integers(1, 6))):
        name, at = draw(st.sampled_from(["r0", "r1"])), (2 * i + draw(st.integers(1, 2))) * SECOND
        active = draw(st.integers(0, 3)) > 0
        text = draw(patterns()).to_text() if active else ""
        made.append(hr.PatternRule(name, text, at=hr.Timestamp(at), active=active))
    return made


@settings(max_examples=12, deadline=None)
@given(timed_rules(), LETTERS, CUTS)
def test_what_timed_rules_give_does_not_depend_on_cuts(
    rules: list[hr.PatternRule], letters: list[tuple[str, str]], cuts: list[int]
) -> None:
    rows = rows_of(letters)
    assert as_rules(rules, rows, cuts, crashes=cuts[:1]) == as_rules(rules, rows, [])


def test_matches_and_states_of_timed_rules_depend_on_their_rows_alone() -> None:
    rows = [Event("abcd"[i * 7 % 4], hr.Timestamp(SECOND * (1 + i // 2)), i, f"k{i % 3}") for i in range(40)]
    first, second = "a [kind = 'a'], then b [kind = 'b']+, then c [kind = 'c'], within 9s", "x [n > 1], then b [n > 4]"
    rules = [
        hr.PatternRule("r1", first, at=hr.Timestamp(SECOND)),
        hr.PatternRule("r2", second + ", within 2s, after match to_next", at=hr.Timestamp(3 * SECOND)),
        hr.PatternRule("r1", first.replace("9s", "4s"), at=hr.Timestamp(9 * SECOND)),
        hr.PatternRule("r2", at=hr.Timestamp(11 * SECOND), active=False),
        hr.PatternRule("r2", second + ", within 20s", at=hr.Timestamp(13 * SECOND)),
    ]
    app = hr.App("letters")
    letters = app.read("letters", hr.source.items(rows), Event, time=Event.at, out_of_order="5s")
    stream = app.read("rules", hr.source.items(rules), hr.PatternRule, time=hr.PatternRule.at, out_of_order="20s")
    step = letters.key_by(Event.key).match(stream.broadcast()).named("found")
    step.select(rule="match.rule", version="match.version", n="count(rows)", end="match.end").write(hr.sink.collect())
    step.timed_out.select(rule="match.rule", waits="match.waiting_for", end="match.end").write(hr.sink.collect())
    report = hr.testing.verify_program(app, {"letters": rows, "rules": rules}, tries=25)
    assert report.ok, report
