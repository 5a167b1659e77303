"""Partial matches between memory and what is stored of them: chains of links through rows.

In memory a partial match is the last of a chain of links, each with its row. Stored, links and rows stand in lists, and
names of stages and places stand for their numbers: a pattern that has changed finds its own places again, and what
stands at a stage or place that is gone is lost. Rows are numbered anew each time, by their order alone: what is stored
does not tell how many rows were passed over, nor where epochs ended.
"""

from __future__ import annotations

from typing import Any

from headrace.model.ids import MAX_TIME
from headrace.patterns.matcher import NEVER, KeyMatches, Link, Matcher, PartialRun
from headrace.patterns.partial import PartialMatch, PartialMatches, RowLink, TakenRow


def read_runs(stored: PartialMatches[Any], matcher: Matcher) -> tuple[KeyMatches, int]:
    """What is held of a key, and how many partial matches stood where the pattern has nothing any more."""
    automaton, rows = matcher.automaton, stored.rows
    numbers = automaton.numbers
    links: list[Link | None] = []
    for each in stored.links:
        before = None if each.before is None else links[each.before]
        if each.stage not in numbers or (each.before is not None and before is None):
            links.append(None)
        else:
            taken = rows[each.row]
            links.append(Link(taken.number, numbers[each.stage], taken.row, taken.at, before))  # type: ignore[arg-type]
    key, lost = KeyMatches(next_row=stored.next_row), 0
    for match in stored.matches:
        link = links[match.last]
        place = automaton.by_name.get(match.place, -1)
        if link is None or (place < 0 and not match.complete):
            lost += 1
            continue
        first = link
        while first.before is not None:
            first = first.before
        run = PartialRun(place, link, first.number, match.started)  # type: ignore[arg-type]
        (key.complete if match.complete else key.runs).append(run)
    key.deadline_us = min(map(matcher.deadline, key.runs), default=NEVER)
    return key, lost


def stored_runs(key: KeyMatches, matcher: Matcher) -> PartialMatches[Any]:
    """What is stored of what is held of a key."""
    return _StoredForm(matcher).of(key)


class _StoredForm:
    """Puts the partial matches of a key into the form in which they are stored."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._numbers: dict[int, int] = {}
        """Link, by its identity → its position."""
        self._positions: dict[int, int] = {}
        """Row, by its number → its position."""
        self._links: list[RowLink] = []
        self._taken: list[Link] = []
        """Of each row a link that took it."""

    def of(self, key: KeyMatches) -> PartialMatches[Any]:
        matches = [self._partial(run) for run in key.runs]
        matches += [PartialMatch("", self._link(run.link), run.started_us, complete=True) for run in key.complete]  # type: ignore[arg-type]
        ranks = {number: rank for rank, number in enumerate(sorted(self._positions))}
        rows: Any = [TakenRow(ranks[link.number], link.at, link.row) for link in self._taken]  # type: ignore[arg-type]
        return PartialMatches(tuple(matches), tuple(self._links), tuple(rows), len(rows))

    def _partial(self, run: PartialRun) -> PartialMatch:
        deadline: Any = self._matcher.deadline(run)
        place = self._matcher.automaton.places[run.place]
        return PartialMatch(
            place.name, self._link(run.link), run.started_us,  # type: ignore[arg-type]
            place.waiting_words, None if deadline > MAX_TIME else deadline,
        )  # fmt: skip

    def _link(self, last: Link) -> int:
        numbers, names = self._numbers, self._matcher.automaton.names
        fresh = []
        link: Link | None = last
        while link is not None and id(link) not in numbers:
            fresh.append(link)
            link = link.before
        for each in reversed(fresh):
            row = self._positions.get(each.number)
            if row is None:
                row = self._positions[each.number] = len(self._taken)
                self._taken.append(each)
            before = None if each.before is None else numbers[id(each.before)]
            numbers[id(each)] = len(self._links)
            self._links.append(RowLink(row, names[each.stage], before))
        return numbers[id(last)]
