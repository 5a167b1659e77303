"""The automaton means what the enumeration of all matches says, for patterns and rows at random."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from tests.patterns.following import SECOND, Event, events, follow, shapes
from tests.patterns.reference import Reference

LETTERS = "abcd"


def holds(condition: str, row: Event) -> bool:
    return row.kind in condition.split("(")[1]


def condition(letters: str) -> str:
    return f"kind IN ({', '.join(repr(each) for each in sorted(set(letters)))})"


@st.composite
def quantified(draw: Any, made: hr.EventPattern, *, last: bool, group: bool = False) -> hr.EventPattern:
    kind = draw(st.sampled_from(["one", "one", "one", "times", "range", "some", "two"]))
    within = draw(st.sampled_from([None, None, None, "2s", "3s"]))
    if kind == "times":
        made = made.times(2, within=within)
    elif kind == "range":
        made = made.times(1, 2, within=within)
    elif kind == "some":
        made = made.one_or_more(within=within)
    elif kind == "two":
        made = made.at_least(2, within=within)
    if kind != "one":
        inner = draw(st.sampled_from(["", "consecutive", "allow_combinations"]))
        made = getattr(made, inner)() if inner else made
        if kind in ("some", "two") and not group and draw(st.integers(0, 3)) == 0:
            made = made.until(condition(draw(st.sampled_from(LETTERS))))
    if not last and draw(st.integers(0, 3)) == 0:
        made = made.optional()
    if not last and not group and (made.stages[-1].is_loop or made.stages[-1].skippable) and draw(st.booleans()):
        made = made.greedy()
    return made


@st.composite
def patterns(draw: Any) -> hr.EventPattern:
    letters = st.text(LETTERS, min_size=1, max_size=2)
    count = draw(st.integers(1, 3))
    grouped = draw(st.integers(0, count + 2))
    made: Any = None
    for number in range(count):
        last = number == count - 1
        stage: Any = (f"s{number}", condition(draw(letters)))
        is_group = number == grouped
        if is_group:
            inner = draw(quantified(hr.pattern(f"g{number}", condition(draw(letters))), last=True))
            link = draw(st.sampled_from(["next", "then", "then_any"]))
            stage = (getattr(inner, link)(f"h{number}", condition(draw(letters))),)
        if made is None:
            made = hr.pattern(*stage)
        else:
            before = made.stages[-1]
            if not before.skippable and before.group is None and draw(st.integers(0, 2)) == 0:
                made = getattr(made, draw(st.sampled_from(["not_next", "not_then"])))(
                    f"x{number}", condition(draw(letters))
                )
            link = draw(st.sampled_from(["next", "then", "then_any"]))
            within = draw(st.sampled_from([None, None, "2s"]))
            made = getattr(made, link)(*stage, within=within)
            if not is_group and draw(st.integers(0, 4)) == 0:
                made = made.or_where(condition(draw(letters)))
        made = draw(quantified(made, last=last, group=is_group))
    if not made.stages[-1].is_loop and made.stages[-1].group is None and draw(st.integers(0, 3)) == 0:
        made = getattr(made, draw(st.sampled_from(["not_next", "not_then"])))("x", condition(draw(letters)))
    made = made.within(draw(st.sampled_from(["2s", "4s", "100s"])))
    if draw(st.integers(0, 4)) == 0:
        made = made.within("3s", of="step")
    skip = draw(st.sampled_from(["none", "none", "to_next", "past_last", "to_first", "to_last"]))
    if skip in ("to_first", "to_last"):
        names = [name for name in ("s0", "s1", "s2") if name in {stage.name for stage in made.stages}]
        return made.after_match(skip, draw(st.sampled_from(names))) if names else made
    return made.after_match(skip)


@settings(max_examples=600, deadline=None)
@given(patterns(), st.text(LETTERS, max_size=7), st.lists(st.integers(1, 3), min_size=7, max_size=7))
def test_the_automaton_gives_what_enumeration_finds(pattern: hr.EventPattern, letters: str, gaps: list[int]) -> None:
    times = [sum(gaps[:place]) * SECOND for place in range(len(letters))]
    rows = [row.replace(at=at) for row, at in zip(events(letters), times)]
    plan, matches, _ = follow(pattern, rows)
    reference = Reference(pattern, holds, rows, [row.at for row in rows])
    found = [tuple(each) for each in reference.matches()]
    ours = shapes(plan, matches)
    if pattern.skip == "none":
        assert sorted(ours) == sorted(found)
    else:
        assert [each[:2] for each in ours] == [each[:2] for each in found]
