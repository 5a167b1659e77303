"""Rows of one key followed through a pattern without any operator, and what is compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import headrace as hr
from headrace.model.batch import Rows
from headrace.model.rows import codec_of
from headrace.patterns.matcher import KeyMatches, MatchEnd, links_of
from headrace.patterns.plan import PatternPlan, plan_pattern


class Event(hr.Record):
    """A row with one letter."""

    kind: str
    at: hr.Timestamp = 0  # type: ignore[assignment]
    n: int = 0
    key: str = "k"


CODEC = codec_of(Event)
SECOND = 1_000_000


def events(letters: str) -> list[Event]:
    """A row per letter, a second apart; a number behind a letter tells rows apart for readers only."""
    kinds = letters.split() if " " in letters else list(letters)
    return [Event(kind[0], i * SECOND, int(kind[1:] or 0)) for i, kind in enumerate(kinds)]  # type: ignore[arg-type]


def follow(pattern: hr.EventPattern, rows: Sequence[Event]) -> tuple[PatternPlan, list[MatchEnd], list[MatchEnd]]:
    """The matches, and what timed out, when time goes on to the end."""
    plan = plan_pattern(pattern, CODEC)
    matcher, key = plan.matcher("test"), KeyMatches()
    bits = plan.conditions.bits(Rows.of_objects(CODEC, list(rows), np.array([row.at for row in rows])))
    matches: list[MatchEnd] = []
    over: list[MatchEnd] = []
    for place, row in enumerate(rows):
        for found, each in zip((matches, over), matcher.expire(key, row.at)):
            found += each
        key.next_row = place
        matches += matcher.feed(key, row, row.at, int(bits[place]))
    for found, each in zip((matches, over), matcher.expire(key, 1 << 61)):
        found += each
    return plan, matches, over


def shapes(plan: PatternPlan, matches: Sequence[MatchEnd]) -> list[tuple[Any, ...]]:
    """Rows by position, stages and the end of each match."""
    made = []
    for match in matches:
        links = list(links_of(match.run.link))[::-1]
        names = tuple(plan.automaton.names[link.stage] for link in links)
        made.append((tuple(link.number for link in links), names, match.end_us))
    return made
