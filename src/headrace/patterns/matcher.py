"""Partial matches of one key at work: what a row, and the passing of time, do to them.

`Matcher` knows one pattern; `KeyMatches` is what it holds for the key at hand. Rows come in the order in which they
count. A row is first preceded by its time (`expire`), then tried on every partial match in the order in which they
began, then on the start. Which complete matches are given out, and which partial ones go because of them, is decided
by the pattern's way to go on after a match: with any but ``none`` a complete match waits until no partial match that
began before it is left.

Of matches that are complete with one row, that comes first which took its rows earlier, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import EpochFailed
from headrace.model.time import format_time
from headrace.patterns.automaton import COMPLETE, START, Automaton

if TYPE_CHECKING:
    from headrace.patterns.declare import Skip

NEVER: Final = 1 << 63
"""Behind the end of time."""


class Link(NamedTuple):
    """One row of a match, and those before it; matches share what they have in common."""

    number: int
    """Of the row: above those of the rows of its key that came earlier."""
    stage: int
    row: Any
    at: int
    before: Link | None


class PartialRun(NamedTuple):
    """One partial match."""

    place: int
    link: Link
    first: int
    """Number of its first row."""
    started_us: int


class MatchEnd(NamedTuple):
    """A match that goes out, or a partial one whose time is over."""

    run: PartialRun
    end_us: int


@dataclass
class KeyMatches:
    """What is held for one key."""

    runs: list[PartialRun] = field(default_factory=list)
    complete: list[PartialRun] = field(default_factory=list)
    """Complete matches that wait for earlier partial ones."""
    next_row: int = 0
    deadline_us: int = NEVER
    """No partial match runs out of time before."""


@dataclass(frozen=True)
class MatchRules:
    """What a pattern says beside its stages."""

    within_us: int | None
    skip: Skip
    skip_stage: int = -1
    skip_needs_stage: bool = False
    max_partial: int = 10_000
    drops_oldest: bool = False


class AskedCondition(NamedTuple):
    """A condition that is asked for one row and one partial match."""

    bit: int
    holds: Callable[[Any, Link | None], bool]
    by_row: bool
    """Whether the row alone decides."""


class Matcher:
    """Follows one pattern."""

    def __init__(self, automaton: Automaton, rules: MatchRules, asked: Sequence[AskedCondition] = ()) -> None:
        self.automaton = automaton
        self.rules = rules
        self.asked = {place: [each for each in asked if state.asks >> each.bit & 1]
                      for place, state in enumerate(automaton.places)}  # fmt: skip
        self.dropped = 0
        """Partial matches that were dropped because a key had too many."""
        self._timed = [any(gap is not None for gap in place.gaps) for place in automaton.places]
        self._has_gaps = any(self._timed)
        self._holds_back = rules.skip != "none"

    # --- a row comes

    def feed(self, key: KeyMatches, row: Any, at: int, bits: int) -> list[MatchEnd]:
        """A row of the key; gives the matches that go out. What has run out of time by then was taken before."""
        automaton, link = self.automaton, None
        step, asked, timed = automaton.step, self.asked, self._timed
        runs: list[PartialRun] = []
        complete: list[PartialRun] = []
        by_row: dict[int, bool] = {}
        number = key.next_row
        for run in key.runs:
            place = run.place
            mine = bits | self._ask(asked[place], row, run.link, by_row) if asked[place] else bits
            closed = self._closed(run, at) if timed[place] else 0
            for move in step(place, mine, closed):
                if move.stage < 0:
                    if move.completes:
                        complete.append(run)
                    else:
                        runs.append(
                            run if move.place == place else PartialRun(move.place, run.link, run.first, run.started_us)
                        )
                    continue
                made = PartialRun(move.place, Link(number, move.stage, row, at, run.link), run.first, run.started_us)
                if move.completes:
                    complete.append(made)
                if move.place != COMPLETE:
                    runs.append(made)
        mine = bits | self._ask(asked[START], row, None, by_row) if asked[START] else bits
        for move in step(START, mine):
            link = Link(number, move.stage, row, at, None)
            made = PartialRun(move.place, link, number, at)
            if move.completes:
                complete.append(made)
            if move.place != COMPLETE:
                runs.append(made)
        key.next_row = number + 1
        if runs and self._has_gaps:
            key.deadline_us = min(key.deadline_us, *map(self.deadline, runs))
        elif runs and self.rules.within_us is not None:
            key.deadline_us = min(key.deadline_us, at + self.rules.within_us)
        key.runs = runs
        if len(runs) > self.rules.max_partial:
            self._limit(key)
        return self._release(key, complete, at) if complete or key.complete else []

    def _ask(self, asked: Sequence[AskedCondition], row: Any, link: Link | None, by_row: dict[int, bool]) -> int:
        bits = 0
        for each in asked:
            if not each.by_row:
                holds = each.holds(row, link)
            elif (known := by_row.get(each.bit)) is None:
                holds = by_row[each.bit] = each.holds(row, None)
            else:
                holds = known
            if holds:
                bits |= 1 << each.bit
        return bits

    def answers(self, run: PartialRun | None, row: Any, at: int, bits: int) -> tuple[int, int]:
        """What a row is to a partial match, or to none: the conditions that hold, and edges whose time is over."""
        place = START if run is None else run.place
        asked = self._ask(self.asked[place], row, None if run is None else run.link, {})
        return bits | asked, 0 if run is None or not self._timed[place] else self._closed(run, at)

    def _closed(self, run: PartialRun, at: int) -> int:
        closed = 0
        for number, gap in enumerate(self.automaton.places[run.place].gaps):
            if gap is not None and at - run.link.at >= gap:
                closed |= 1 << number
        return closed

    def _limit(self, key: KeyMatches) -> None:
        """Too many partial matches: an error, or those that began first go."""
        over = len(key.runs) - self.rules.max_partial
        if not self.rules.drops_oldest:
            raise EpochFailed(
                f"a key has {len(key.runs)} partial matches",
                expected=f"at most {self.rules.max_partial} (max_partial=)",
                found=f"the oldest began at {format_time(key.runs[0].started_us)}",
                next_move="bound the pattern with within(…) or until(…), take then for then_any, raise max_partial=, "
                'or drop the oldest: on_overflow="drop_oldest"',
            )
        oldest = sorted(range(len(key.runs)), key=lambda i: (key.runs[i].first, i))[:over]
        gone = set(oldest)
        key.runs = [run for i, run in enumerate(key.runs) if i not in gone]
        self.dropped += over

    # --- time passes

    def deadline(self, run: PartialRun) -> int:
        """When the time of a partial match is over."""
        place = self.automaton.places[run.place]
        whole = self.rules.within_us
        ends = NEVER if whole is None else run.started_us + whole
        return ends if place.longest_gap_us is None else min(ends, run.link.at + place.longest_gap_us)

    def expire(self, key: KeyMatches, upto_us: int) -> tuple[list[MatchEnd], list[MatchEnd]]:
        """What time has run out for up to a moment: matches that are complete by that, and partial ones."""
        matches: list[MatchEnd] = []
        over: list[MatchEnd] = []
        while key.deadline_us <= upto_us:
            ends = [self.deadline(run) for run in key.runs]
            first = min(ends, default=NEVER)
            if first > upto_us:
                key.deadline_us = first
                break
            mine = [run for run, end in zip(key.runs, ends) if end == first]
            key.runs = [run for run, end in zip(key.runs, ends) if end != first]
            key.deadline_us = min((end for end in ends if end != first), default=NEVER)
            places = self.automaton.places
            complete = [run for run in mine if places[run.place].completes_in_time]
            over += [MatchEnd(run, first) for run in mine if not places[run.place].completes_in_time]
            matches += self._release(key, complete, first)
        return matches, over

    # --- matches are complete

    def _release(self, key: KeyMatches, complete: list[PartialRun], at: int) -> list[MatchEnd]:
        if len(complete) > 1:
            complete.sort(key=_rank)
        if not self._holds_back:
            return [MatchEnd(run, at) for run in complete]
        key.complete += complete
        released: list[MatchEnd] = []
        while key.complete:
            earliest = min(key.complete, key=lambda run: run.first)
            if any(run.first < earliest.first for run in key.runs):
                break
            key.complete.remove(earliest)
            released.append(MatchEnd(earliest, at))
            upto = self._upto(earliest)
            key.runs = [run for run in key.runs if run.first > upto]
            key.complete = [run for run in key.complete if run.first > upto]
        return released

    def _upto(self, run: PartialRun) -> int:
        """Partial matches that began with this row, or before it, go."""
        skip = self.rules.skip
        if skip == "to_next":
            return run.first
        if skip == "past_last":
            return run.link.number
        numbers = [link.number for link in links_of(run.link) if link.stage == self.rules.skip_stage]
        if numbers:
            return (numbers[-1] if skip == "to_first" else numbers[0]) - 1
        if self.rules.skip_needs_stage:
            name = self.automaton.names[self.rules.skip_stage]
            raise EpochFailed(
                f"a match has no row of the stage {name!r}, to which to skip",
                expected=f"a row for {name}, as after_match(…, needed=True) says",
                found=f"rows for {', '.join(dict.fromkeys(self.automaton.names[x.stage] for x in links_of(run.link)))}",
                next_move="leave needed= out: then nothing is skipped behind such a match",
            )
        return -1


def links_of(link: Link | None) -> Iterator[Link]:
    """The rows of a match, the newest first."""
    while link is not None:
        yield link
        link = link.before


def newest_rows(link: Link | None, stages: Collection[int], most: int | None) -> list[Any]:
    """The rows of some stages, the oldest first; of them the newest so many. None: all."""
    rows: list[Any] = []
    while link is not None and (most is None or len(rows) < most):
        if link.stage in stages:
            rows.append(link.row)
        link = link.before
    rows.reverse()
    return rows


def rows_by_stage(link: Link | None, stages: int) -> list[list[Any]]:
    """The rows of each stage, the oldest first."""
    rows: list[list[Any]] = [[] for _ in range(stages)]
    for each in links_of(link):
        rows[each.stage].append(each.row)
    for mine in rows:
        mine.reverse()
    return rows


def _rank(run: PartialRun) -> tuple[Any, ...]:
    links = list(links_of(run.link))[::-1]
    return tuple(link.number for link in links), tuple(link.stage for link in links)
