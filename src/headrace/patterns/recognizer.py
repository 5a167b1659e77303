"""Row patterns of SQL at work, for one key: one preferred match from each row, and where to look for the next.

From a row on, threads of the program go through the rows in the order of preference. A thread that is complete ends all
that stand behind it; those before it go on, and may be complete later. When none is left, the last that was complete is
the match, and looking begins anew where the pattern says. Rows are kept from the row on where looking stands, and as
many before it as PREV may ask for; threads are not: they are made again from the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headrace.errors import EpochFailed
from headrace.model.ids import MAX_TIME
from headrace.patterns.matcher import NEVER, Link, links_of
from headrace.patterns.row_pattern import RowProgram

TO_NEXT: Final = "to_next"
PAST_LAST: Final = "past_last"
TO_FIRST: Final = "to_first"
TO_LAST: Final = "to_last"


class KeptRow(NamedTuple):
    """A row of the key that may still be asked for."""

    number: int
    at: int
    row: Any
    bits: int = 0
    """Which conditions it answers alone, and how."""


Holds = Callable[[int, int, Link | None, "KeyRows"], bool]
"""Whether a row, by its place among those kept, may be one for a variable, behind what matched so far."""


@dataclass(frozen=True)
class RecognizerRules:
    """What a row pattern says beside PATTERN and DEFINE."""

    skip: str = PAST_LAST
    skip_variable: int = -1
    within_us: int | None = None
    history: int = 0
    """How many rows before a match PREV may ask for."""
    max_rows: int = 100_000
    """Rows of one key that may be kept."""


@dataclass
class KeyRows:
    """What is kept for one key."""

    rows: list[KeptRow] = field(default_factory=list)
    start: int = 0
    """Number of the row from which a match is looked for."""
    next_row: int = 0
    matches: int = 0
    """How many matches there were."""
    threads: list[tuple[int, Link | None]] | None = None
    """None: to be made from the rows."""
    best: Link | None = None

    def place(self, number: int) -> int:
        """The place of a row among those kept."""
        return number - self.rows[0].number if self.rows else 0


class RowMatch(NamedTuple):
    """A match: its last link, which match of its key it is, and when it was certain."""

    link: Link
    number: int
    end_us: int


class Recognizer:
    """Looks for the matches of one row pattern."""

    def __init__(self, program: RowProgram, rules: RecognizerRules, holds: Holds, *, by_row: bool) -> None:
        """``by_row``: no condition asks what matched before, so threads at one place are alike."""
        self.program = program
        self.rules = rules
        self.holds = holds
        self.by_row = by_row

    def resume(self, key: KeyRows) -> None:
        """Makes the threads again, from the rows that are kept."""
        self._advance(key, 0)

    def feed(self, key: KeyRows, row: Any, at: int, bits: int = 0) -> list[RowMatch]:
        """The next row of the key."""
        key.rows.append(KeptRow(key.next_row, at, row, bits))
        key.next_row += 1
        found = self._advance(key, at)
        if len(key.rows) > self.rules.max_rows:
            raise EpochFailed(
                f"a match of a key has gone on over {len(key.rows)} of its rows",
                expected=f"at most {self.rules.max_rows}",
                found="a row pattern that does not come to its end",
                next_move="bound it: WITHIN INTERVAL '1' HOUR, or {n,m} for * and +",
            )
        return found

    def expire(self, key: KeyRows, upto_us: int) -> list[RowMatch]:
        """Time has come so far: what had to be complete before is decided."""
        found: list[RowMatch] = []
        while key.rows and key.start < key.next_row and self.deadline(key) <= upto_us:
            found += self._decide(key, min(self.deadline(key), upto_us))
            found += self._advance(key, key.rows[-1].at if key.rows else upto_us)
        return found

    def deadline(self, key: KeyRows) -> int:
        """When the match that is looked for has no more time; at the end of time, where it has one already."""
        if key.start >= key.next_row or not key.rows:
            return NEVER
        began = key.rows[key.place(key.start)].at
        return MAX_TIME if self.rules.within_us is None else min(began + self.rules.within_us, MAX_TIME)

    # --- from one row on

    def _advance(self, key: KeyRows, now_us: int) -> list[RowMatch]:
        """Goes through the rows that no thread has seen yet, as far as there are some."""
        found: list[RowMatch] = []
        while key.start < key.next_row:
            if key.threads is None:
                key.threads, key.best = [(0, None)], None
                seen = key.start
            else:
                seen = key.next_row - 1
            for number in range(seen, key.next_row):
                if not key.threads or self._is_over(key, number):
                    break
                self._step(key, number)
            if key.threads and not self._is_over(key, key.next_row - 1):
                break
            found += self._decide(key, now_us)
        self._forget(key)
        return found

    def _is_over(self, key: KeyRows, number: int) -> bool:
        within = self.rules.within_us
        rows = key.rows
        return within is not None and rows[key.place(number)].at - rows[key.place(key.start)].at >= within

    def _step(self, key: KeyRows, number: int) -> None:
        program, end = self.program, self.program.end
        place = key.place(number)
        kept = key.rows[place]
        threads: list[tuple[int, Link | None]] = []
        seen: set[int] = set()
        assert key.threads is not None
        for at, link in key.threads:
            for each in program.reached[at]:
                if each == end:
                    break
                variable = program.instructions[each].variable
                if self.by_row and each in seen:
                    continue
                seen.add(each)
                if not self.holds(variable, place, link, key):
                    continue
                made = Link(number, variable, kept.row, kept.at, link)
                behind = program.reached[each + 1]
                if behind[0] != end:
                    threads.append((each + 1, made))
                if end in behind:
                    # Complete: what stands behind this thread is not wanted any more.
                    key.best, key.threads = made, threads
                    return
        key.threads = threads

    def _decide(self, key: KeyRows, end_us: int) -> list[RowMatch]:
        """Nothing more can become of the rows from the start on: gives the match, and goes on behind it."""
        best, key.threads, key.best = key.best, None, None
        if best is None:
            key.start += 1
            return []
        key.matches += 1
        key.start = self._next_start(best, key.start)
        return [RowMatch(best, key.matches, end_us)]

    def _next_start(self, link: Link, start: int) -> int:
        skip = self.rules.skip
        if skip == TO_NEXT:
            return start + 1
        if skip == PAST_LAST:
            return link.number + 1
        mine = [each.number for each in links_of(link) if each.stage == self.rules.skip_variable]
        goal = -1 if not mine else (mine[-1] if skip == TO_FIRST else mine[0])
        if goal > start:
            return goal
        name = self.program.variables[self.rules.skip_variable]
        raise EpochFailed(
            f"AFTER MATCH SKIP {skip.replace('_', ' ').upper()} {name} would not go on",
            expected=f"a row for {name} behind the first row of the match",
            found=f"no row for {name}" if goal < 0 else f"{name} is the first row of the match",
            next_move="skip TO NEXT ROW or PAST LAST ROW, or to a variable that always comes later",
        )

    def _forget(self, key: KeyRows) -> None:
        first = max(key.start - self.rules.history, 0)
        gone = key.place(first) if key.rows else 0
        if gone > 0:
            del key.rows[:gone]


def variables_of(link: Link, count: int) -> list[Sequence[Any]]:
    """The rows of each variable, the oldest first."""
    rows: list[list[Any]] = [[] for _ in range(count)]
    for each in links_of(link):
        rows[each.stage].append(each.row)
    return [each[::-1] for each in rows]
