"""Row patterns of SQL at work, for one key: one preferred match from each row, and where to look for the next.

From a row on, threads of the program go through the rows in the order of preference. A thread that is complete ends all
that stand behind it; those before it go on, and may be complete later. When none is left, the last that was complete is
the match, and looking begins anew where the pattern says. Rows are kept from the row on where looking stands, and as
many before it as PREV may ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
    skip_variables: tuple[int, ...] = ()
    """Of ``to_first`` and ``to_last``: to the rows of these."""
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
    """A match: its last link, which match of its key it is, when it was certain, and the rows before it."""

    link: Link
    number: int
    end_us: int
    before: Sequence[KeptRow] = ()


class _Way(NamedTuple):
    """An instruction that may take the next row."""

    at: int
    variable: int
    mask: int
    asks: bool
    goes_on: bool
    """Whether more rows may follow."""
    completes: bool


class Recognizer:
    """Looks for the matches of one row pattern."""

    def __init__(
        self, program: RowProgram, rules: RecognizerRules, holds: Holds, *, by_row: bool,
        masks: Sequence[int] = (), asked: Collection[int] | None = None,
    ) -> None:  # fmt: skip
        """``by_row``: no condition asks what matched before, so threads at one place are alike.

        ``masks``: of each variable, the bits that its rows have. ``asked``: variables of which ``holds`` has to tell
        the rest; None: all of them.
        """
        self.program = program
        self.rules = rules
        self.holds = holds
        self.by_row = by_row
        masks = masks or [0] * len(program.variables)
        self._ways = [self._ways_of(at, masks, asked) for at in range(program.end)]
        self._first_masks = {way.mask for way in self._ways_of(0, masks, asked)}

    def _ways_of(self, at: int, masks: Sequence[int], asked: Collection[int] | None) -> list[_Way]:
        program, ways = self.program, []
        for each in program.reached[at]:
            if each == program.end:
                # Complete: what is less preferred is not wanted any more.
                break
            variable, behind = program.instructions[each].variable, program.reached[each + 1]
            asks = asked is None or variable in asked
            ways.append(
                _Way(each, variable, masks[variable], asks, behind[0] != program.end, program.end in behind)
            )  # fmt: skip
        return ways

    def resume(self, key: KeyRows, now_us: int) -> list[RowMatch]:
        """Goes through the rows that are kept again: the threads were those of another pattern."""
        key.threads = key.best = None
        return self._advance(key, now_us)

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
        rows, within, masks = key.rows, self.rules.within_us, self._first_masks
        while key.start < key.next_row:
            first = key.start - rows[0].number
            if key.threads is None:
                while first < len(rows) and not any(rows[first].bits & mask == mask for mask in masks):
                    first += 1
                key.start = rows[0].number + first
                if first == len(rows):
                    break
                key.threads, key.best = [(0, None)], None
                place = first
            else:
                place = len(rows) - 1
            ends_us = MAX_TIME if within is None else rows[first].at + within
            while place < len(rows) and key.threads and rows[place].at < ends_us:
                self._step(key, place)
                place += 1
            if key.threads and rows[-1].at < ends_us:
                break
            found += self._decide(key, now_us)
        self._forget(key)
        return found

    def _step(self, key: KeyRows, place: int) -> None:
        kept = key.rows[place]
        number, bits = kept.number, kept.bits
        threads: list[tuple[int, Link | None]] = []
        seen: set[int] = set()
        by_row, holds = self.by_row, self.holds
        assert key.threads is not None
        for at, link in key.threads:
            for each, variable, mask, asks, goes_on, completes in self._ways[at]:
                if by_row:
                    if each in seen:
                        continue
                    seen.add(each)
                if bits & mask != mask or (asks and not holds(variable, place, link, key)):
                    continue
                made = Link(number, variable, kept.row, kept.at, link)
                if goes_on:
                    threads.append((each + 1, made))
                if completes:
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
        first = key.place(key.start)
        before = key.rows[max(first - self.rules.history, 0) : first] if self.rules.history else ()
        key.start = self._next_start(best, key.start)
        return [RowMatch(best, key.matches, end_us, before)]

    def _next_start(self, link: Link, start: int) -> int:
        skip = self.rules.skip
        if skip == TO_NEXT:
            return start + 1
        if skip == PAST_LAST:
            return link.number + 1
        mine = [each.number for each in links_of(link) if each.stage in self.rules.skip_variables]
        goal = -1 if not mine else (mine[-1] if skip == TO_FIRST else mine[0])
        if goal > start:
            return goal
        name = " or ".join(self.program.variables[each] for each in self.rules.skip_variables)
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
