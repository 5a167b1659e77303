"""A row pattern of SQL followed through the rows of many keys, and what is stored of each.

A key keeps its rows from the one on from which a match is looked for, and the ways through the pattern that are open,
so that the rows of an epoch are gone through once. Ways are stored as the variables of their rows: rows follow each
other at once, so that says which rows they are. Under another pattern ways are made again from the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np

from headrace.model.batch import Rows
from headrace.model.ids import MAX_TIME
from headrace.model.time import Timestamp
from headrace.patterns.define import RowTextReader
from headrace.patterns.follower import KeyHandles, moment_behind, rows_that_matter, timer_at
from headrace.patterns.matcher import Link, links_of
from headrace.patterns.recognizer import KeptRow, KeyRows, Recognizer, RowMatch

if TYPE_CHECKING:
    from headrace.model.batch import Int64s
    from headrace.patterns.recognize import RowPatternPlan

R = TypeVar("R")


class RecognizedRow(msgspec.Struct, Generic[R], frozen=True):
    """A row that may still be asked for."""

    at: Timestamp
    bits: int
    """Which conditions it answers alone."""
    row: R


class OpenWay(msgspec.Struct, frozen=True):
    """A way through the pattern that may still become a match."""

    at: int
    """The instruction that it has come to."""
    variables: str
    """Of its rows, from the start on, in their order."""


class RecognizedRows(msgspec.Struct, Generic[R], frozen=True, omit_defaults=True):
    """What is kept of a key: its last rows, and how far looking for a match has come."""

    first: int
    """Number of the first row that is kept."""
    start: int
    """Number of the row from which a match is looked for."""
    rows: tuple[RecognizedRow[R], ...]
    matches: int = 0
    ways: tuple[OpenWay, ...] = ()
    """The preferred first."""
    best: str = ""
    """Variables of the match that there is already, if no way comes to a longer one."""
    program: int = 0
    """Of which pattern the ways and the bits are."""
    waiting_for: str = ""
    until: Timestamp | None = None


class RowFollower:
    """One row pattern in one task."""

    def __init__(self, plan: RowPatternPlan, handles: KeyHandles, fail: Callable[[Exception, int], Exception]) -> None:
        self.plan = plan
        self.handles = handles
        self.found: list[RowMatch] = []
        self._fail = fail
        definitions, variables = plan.definitions, plan.program.variables
        column_mask = definitions.conditions.column_mask
        self._texts: list[list[RowTextReader]] = [[] for _ in variables]
        for over, (_, variable) in zip(definitions.texts, definitions.owners, strict=True):
            self._texts[variable].append(RowTextReader(over, variable, variables, plan.codec, plan.subsets))
        self._numbers = {name: number for number, name in enumerate(variables)}
        self._waiting: dict[tuple[int, ...], str] = {}
        self._recognizer = Recognizer(
            plan.program, plan.rules, self._holds, by_row=definitions.by_row,
            masks=[mask & column_mask for mask in definitions.masks],
            asked={number for number, texts in enumerate(self._texts) if texts},
        )  # fmt: skip

    def _holds(self, variable: int, place: int, link: Link | None, key: KeyRows) -> bool:
        return all(text.holds(place, link, key) for text in self._texts[variable])

    def follow(self, rows: Rows, at: Int64s, slots: Sequence[int], bounds: Int64s, upto_us: int | None) -> None:
        """As `headrace.patterns.follower.PatternFollower.follow`."""
        plan = self.plan
        bits = plan.definitions.conditions.bits(rows)
        starts = plan.may_start(bits)
        stored = [self.handles.stored(slot) for slot in slots]
        if not plan.rules.history:
            known = np.array([each is not None for each in stored], np.bool_)
            places = np.flatnonzero(rows_that_matter(starts, known, bounds))
            rows, at, bits, starts = rows.take(places), at[places], bits[places], starts[places]
            bounds = np.searchsorted(places, bounds)
        some = list(zip(rows.objects, at.tolist(), bits.tolist(), starts.tolist()))
        cuts = bounds.tolist()
        for slot, first, end, kept in zip(slots, cuts, cuts[1:], stored):
            if first < end or kept is not None:
                self._key(slot, some[first:end], upto_us, kept)

    def expire(self, slot: int, upto_us: int) -> None:
        """As `headrace.patterns.follower.PatternFollower.expire`."""
        kept = self.handles.stored(slot)
        if kept is not None:
            self._key(slot, (), upto_us, kept)

    def _key(
        self, slot: int, rows: Sequence[tuple[Any, int, int, bool]], upto_us: int | None,
        stored: RecognizedRows[Any] | None,
    ) -> None:  # fmt: skip
        recognizer, history = self._recognizer, self.plan.rules.history
        feed, find_deadline = recognizer.feed, recognizer.deadline
        changed = False
        try:
            key = KeyRows()
            if stored is not None:
                key = self._load(stored)
                if stored.program != self.plan.identity and key.rows:
                    changed = True
                    now_us = rows[0][1] if rows else key.rows[-1].at if upto_us is None else upto_us
                    self.found += recognizer.resume(key, now_us)
            deadline = find_deadline(key)
            for row, at, bits, starts in rows:
                if deadline <= at:
                    self.found += recognizer.expire(key, at)
                if not key.rows:
                    if not starts and not history:
                        continue
                    key.start = key.next_row = 0
                changed = True
                self.found += feed(key, row, at, bits)
                deadline = find_deadline(key)
            if upto_us is not None and deadline <= (behind_us := moment_behind(upto_us)):
                changed = True
                self.found += recognizer.expire(key, behind_us)
        except Exception as error:
            raise self._fail(error, slot) from error
        if changed:
            self.handles.bind(slot)
            self._store(key, stored)

    # --- what is stored

    def _load(self, stored: RecognizedRows[Any]) -> KeyRows:
        """``threads`` and bits count for the pattern that they were stored by only."""
        first: int = stored.first
        rows: Any = [KeptRow(first + i, each.at, each.row, each.bits) for i, each in enumerate(stored.rows)]  # type: ignore[arg-type]
        key = KeyRows(rows, stored.start, first + len(rows), stored.matches)
        if stored.program == self.plan.identity:
            if stored.ways:
                key.threads = [(way.at, self._link(key, way.variables)) for way in stored.ways]
            key.best = self._link(key, stored.best)
            return key
        bits = self.plan.definitions.conditions.bits(Rows.of_objects(self.plan.codec, [each.row for each in rows]))
        key.rows = [row._replace(bits=each) for row, each in zip(rows, bits.tolist())]
        return key

    def _link(self, key: KeyRows, variables: str) -> Link | None:
        link = None
        if variables:
            rows = key.rows[key.place(key.start) :]
            for name, row in zip(variables.split(" "), rows):
                link = Link(row.number, self._numbers[name], row.row, row.at, link)
        return link

    def _variables(self, link: Link | None) -> str:
        names = self.plan.program.variables
        return " ".join([names[each.stage] for each in links_of(link)][::-1])

    def _store(self, key: KeyRows, stored: RecognizedRows[Any] | None) -> None:
        handles = self.handles
        before = None if stored is None else _timer_of(stored)
        if not key.rows and not (self.plan.numbered and key.matches):
            if stored is not None:
                handles.move(before, None)
                handles.partial.clear()
            return
        deadline: Any = self._recognizer.deadline(key)
        handles.move(before, timer_at(deadline))
        threads = key.threads or ()
        ways = tuple([OpenWay(at, self._variables(link)) for at, link in threads])
        rows: Any = tuple([RecognizedRow(row.at, row.bits, row.row) for row in key.rows])  # type: ignore[arg-type]
        handles.partial.set(
            RecognizedRows(
                key.rows[0].number if rows else 0,
                key.start if rows else 0,
                rows,
                key.matches,
                ways,
                self._variables(key.best),
                self.plan.identity,
                self._waiting_for(tuple([at for at, _ in threads])),
                None if deadline >= MAX_TIME else deadline,
            )
        )

    def _waiting_for(self, threads: tuple[int, ...]) -> str:
        """The variables that may come next, in words."""
        text = self._waiting.get(threads)
        if text is None:
            program = self.plan.program
            places = [each for at in threads for each in program.reached[at] if each != program.end]
            names = [program.variables[program.instructions[each].variable] for each in places]
            text = self._waiting[threads] = " or ".join(dict.fromkeys(names))
        return text


def _timer_of(stored: RecognizedRows[Any]) -> int | None:
    """Without ``until`` a match that is looked for waits for the end of time."""
    if stored.start >= stored.first + len(stored.rows):
        return None
    until: Any = MAX_TIME if stored.until is None else stored.until
    return timer_at(until)
