"""Cases as data: contiguity, quantifiers, ways to go on after a match, absence and time, over lines of letters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

import headrace as hr
from tests.patterns.following import events
from tests.patterns.pictures import matches_of
from tests.patterns.reference import Reference

CASES: Final = Path(__file__).with_name("cases.txt")
_STEP: Final = re.compile(r"(?:(next|then|then_any|not_next|not_then) )?(\w)((?:\.\w+\([^)]*\))*)")


def pattern_of(text: str) -> hr.EventPattern:
    """``a then b.times(2) within 3s skip past_last``: letters are stages, each for the rows of its letter."""
    stages, _, skip = text.partition(" skip ")
    stages, _, within = stages.partition(" within ")
    made: Any = None
    for link, letter, calls in _STEP.findall(stages):
        condition = f"kind IN ('{letter}')"
        made = hr.pattern(letter, condition) if made is None else getattr(made, link)(letter, condition)
        for name, arguments in re.findall(r"\.(\w+)\(([^)]*)\)", calls):
            numbers = [int(each) if each.isdigit() else f"kind IN ('{each}')" for each in re.findall(r"\w+", arguments)]
            made = getattr(made, name)(*numbers)
    made = made.within(within) if within else made
    return made.after_match(*skip.split()) if skip else made  # type: ignore[no-any-return]


def cases() -> list[tuple[str, str, list[str]]]:
    lines = [line.split("|") for line in CASES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [
        (pattern.strip(), rows.strip(), [each.strip() for each in matches.split(";") if each.strip()])
        for pattern, rows, matches in lines
    ]


@pytest.mark.parametrize(("pattern", "rows", "matches"), cases() if CASES.exists() else [])
def test_the_pattern_gives_these_matches(pattern: str, rows: str, matches: list[str]) -> None:
    assert matches_of(pattern_of(pattern), rows) == matches
    names = rows.split()
    reference = Reference(
        pattern_of(pattern), lambda condition, row: row.kind in condition.split("(")[1], events(rows),
        [row.at for row in events(rows)],
    )  # fmt: skip
    assert [" ".join(names[place] for place in each.rows) for each in reference.matches()] == matches
