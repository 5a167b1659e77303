"""Matches of a pattern over a line of letters, for the pictures of the guide and the cases of the literature."""

from __future__ import annotations

import headrace as hr
from tests.patterns.following import events, follow, shapes


def matches_of(pattern: hr.EventPattern, line: str) -> list[str]:
    """The matches as texts of rows, in the order in which they go out: ``["a b1", "a b2"]``."""
    rows = line.split()
    plan, matches, _ = follow(pattern, events(line))
    return [" ".join(rows[place] for place in places) for places, _, _ in shapes(plan, matches)]
