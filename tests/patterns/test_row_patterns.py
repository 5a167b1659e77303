"""Row patterns of SQL mean what backtracking by preference finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import EpochFailed, ExpressionError
from headrace.model.ids import MAX_TIME
from headrace.patterns.matcher import links_of
from headrace.patterns.recognizer import KeyRows, Recognizer, RecognizerRules
from headrace.patterns.row_pattern import (
    RowChain,
    RowChoice,
    RowPart,
    RowRepeat,
    RowVariable,
    compile_row_pattern,
    parse_row_pattern,
)
from tests.patterns.following import SECOND

Rows = list[int]
Path = tuple[tuple[int, str], ...]
"""Rows of a match by position, each with its variable."""


def fits(variable: str, rows: Rows, place: int, path: Path) -> bool:
    """A: even; B: odd; U: above the row before; L: above the last row of L, and the first that is above 1."""
    value = rows[place]
    if variable == "U":
        return place > 0 and value > rows[place - 1]
    if variable == "L":
        mine = [rows[at] for at, name in path if name == "L"]
        return value > (mine[-1] if mine else 1)
    return value % 2 == (variable == "B") or variable == "X"


class Backtracking:
    """Tries one way after the other, the preferred first."""

    def __init__(self, rows: Rows, times: list[int], within: int) -> None:
        self.rows, self.times, self.within = rows, times, within

    def matches(self, node: RowPart, skip: str, variable: str) -> list[Path] | None:
        """All matches; None: the way to go on after one of them is an error."""
        found: list[Path] = []
        start = 0
        while start < len(self.rows):
            path = next((path for _, path in self.ways(node, start, (), start) if path), None)
            if path is None:
                start += 1
                continue
            found.append(path)
            if skip in ("to_first", "to_last"):
                mine = [place for place, name in path if name == variable] or [start]
                goal = mine[0] if skip == "to_first" else mine[-1]
                if goal <= start:
                    return None
                start = goal
            else:
                start = start + 1 if skip == "to_next" else path[-1][0] + 1
        return found

    def ways(self, node: RowPart, place: int, path: Path, start: int) -> Iterator[tuple[int, Path]]:
        match node:
            case RowVariable(name):
                in_time = place < len(self.rows) and self.times[place] - self.times[start] < self.within
                if in_time and fits(name, self.rows, place, path):
                    yield place + 1, (*path, (place, name))
            case RowChain(parts):
                yield from self.chain(parts, place, path, start)
            case RowChoice(parts):
                for part in parts:
                    yield from self.ways(part, place, path, start)
            case RowRepeat():
                yield from self.repeat(node, 0, place, path, start)

    def chain(self, parts: tuple[RowPart, ...], place: int, path: Path, start: int) -> Iterator[tuple[int, Path]]:
        if not parts:
            yield place, path
            return
        for after, longer in self.ways(parts[0], place, path, start):
            yield from self.chain(parts[1:], after, longer, start)

    def repeat(self, node: RowRepeat, count: int, place: int, path: Path, start: int) -> Iterator[tuple[int, Path]]:
        if count >= node.low and node.reluctant:
            yield place, path
        if node.high is None or count < node.high:
            for after, longer in self.ways(node.part, place, path, start):
                if after > place or count < node.low:
                    yield from self.repeat(node, count + 1, after, longer, start)
        if count >= node.low and not node.reluctant:
            yield place, path


def recognized(
    text: str, rows: Rows, times: list[int], skip: str, variable: str, within: int
) -> list[Path] | None:  # fmt: skip
    program = compile_row_pattern(parse_row_pattern(text))

    def holds(variable: int, place: int, link: Any, key: KeyRows) -> bool:
        path = tuple((each.number, program.variables[each.stage]) for each in links_of(link))[::-1]
        return fits(program.variables[variable], rows, key.rows[place].number, path)

    skip_to = tuple(number for number, name in enumerate(program.variables) if name == variable)
    rules = RecognizerRules(skip, skip_to, within_us=within * SECOND, history=1)
    recognizer = Recognizer(program, rules, holds, by_row="L" not in text)
    key = KeyRows()
    matches = []
    try:
        for value, at in zip(rows, times):
            matches += recognizer.expire(key, at * SECOND)
            matches += recognizer.feed(key, value, at * SECOND)
        matches += recognizer.expire(key, MAX_TIME)
    except EpochFailed:
        return None
    assert [match.number for match in matches] == list(range(1, len(matches) + 1))
    return [
        tuple((each.number, program.variables[each.stage]) for each in links_of(match.link))[::-1] for match in matches
    ]


VARIABLES = st.sampled_from("ABULX")
PATTERNS = st.recursive(
    VARIABLES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(" ".join),
        st.lists(inner, min_size=2, max_size=2).map(lambda parts: f"({' | '.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}?", "{2,}"])).map(
            lambda each: f"({each[0]}){each[1]}"
        ),
    ),
    max_leaves=5,
)


SKIPS = st.sampled_from(["past_last", "to_next", "to_first", "to_last"])


@settings(max_examples=400, deadline=None)
@given(
    PATTERNS, st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=7), SKIPS, VARIABLES, st.integers(1, 9)
)
def test_the_program_finds_what_backtracking_finds(
    text: str, rows: list[tuple[int, int]], skip: str, variable: str, within: int
) -> None:
    try:
        compile_row_pattern(parse_row_pattern(text))
    except ExpressionError:
        # Patterns that match without any row are refused.
        return
    values = [value for value, _ in rows]
    times = [sum(gap for _, gap in rows[:place]) for place in range(len(rows))]
    wanted = Backtracking(values, times, within).matches(parse_row_pattern(text), skip, variable)
    assert recognized(text, values, times, skip, variable, within) == wanted


@pytest.mark.parametrize("text", ["", "A |", "(A", "A)", "A{3,2}", "A{}", "PERMUTE(A, B)", "^A", "A ** B", "A*"])
def test_what_is_no_row_pattern_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        compile_row_pattern(parse_row_pattern(text))


def test_a_match_that_does_not_come_to_its_end_stops_at_a_bound() -> None:
    program = compile_row_pattern(parse_row_pattern("A X* B"))
    rules = RecognizerRules(max_rows=3)
    recognizer = Recognizer(program, rules, lambda variable, *rest: variable < 2, by_row=True)
    key = KeyRows()
    with pytest.raises(EpochFailed, match="gone on over 4 of its rows"):
        for second in range(9):
            recognizer.feed(key, second, second * SECOND)
