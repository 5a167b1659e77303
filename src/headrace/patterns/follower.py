"""A pattern followed through the rows of many keys: from columns to matches, and from matches to what is stored.

For a batch of rows in key order the conditions are evaluated once. Keys without partial matches are passed over up to
the first row that may begin one, without a Python object; so are rows that cannot change anything. What is left goes to
`headrace.patterns.matcher`. A key's partial matches are read when it has rows, and written when they changed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.model.ids import MAX_TIME
from headrace.patterns.chains import read_runs, stored_runs
from headrace.patterns.matcher import NEVER, KeyMatches, MatchEnd, PartialRun
from headrace.patterns.partial import PartialMatches

if TYPE_CHECKING:
    from headrace.model.batch import Int64s, Rows
    from headrace.patterns.plan import Mask, PatternPlan
    from headrace.state.handles import Timer, ValueState


class KeyHandles(NamedTuple):
    """The states of a step, moved from key to key."""

    partial: ValueState[Any]
    deadline: Timer

    def bind(self, slot: int) -> None:
        self.partial._slot = self.deadline._slot = slot

    def stored(self, slot: int) -> Any:
        """What is kept of a key; None: nothing."""
        partial = self.partial
        partial._slot = slot
        return partial.get()

    def move(self, before_us: int | None, at_us: int | None) -> None:
        """Moves the timer, where it is not set to that already; None: it is not set."""
        if at_us is None and before_us is not None:
            self.deadline.clear()
        elif at_us is not None and at_us != before_us:
            self.deadline.set(at_us)  # type: ignore[arg-type]


class PatternFollower:
    """One pattern in one task."""

    def __init__(
        self, plan: PatternPlan, step: str, handles: KeyHandles, fail: Callable[[Exception, int], Exception]
    ) -> None:
        """``fail`` makes of an error, and the slot of the key at hand, the one that stops the task."""
        self.plan = plan
        self.matcher = plan.matcher(step)
        self.handles = handles
        self.matches: list[MatchEnd] = []
        self.timed_out: list[MatchEnd] = []
        self.forgotten = 0
        """Partial matches that stood at a stage that the pattern has no more."""
        self._fail = fail

    @property
    def dropped(self) -> int:
        """Partial matches that went because a key had too many."""
        return self.matcher.dropped

    # --- rows

    def follow(self, rows: Rows, at: Int64s | int, slots: Sequence[int], bounds: Int64s, upto_us: int | None) -> None:
        """Rows in the order of their keys. ``bounds``: where those of each slot begin, and the end of the last.

        ``at``: the time of each row, or of all. ``upto_us``: how far time has come behind them; None: it does not tell.
        """
        plan = self.plan
        bits = plan.conditions.bits(rows)
        stored = [self.handles.stored(slot) for slot in slots]
        known = np.array([each is not None for each in stored], np.bool_)
        starts = plan.may_start(bits)
        matters = rows_that_matter(starts, known, bounds)
        relevant = plan.may_matter(bits)
        places = np.flatnonzero(matters if relevant is None else matters & relevant)
        events = rows.take(places).objects if len(places) else []
        times = repeat(at) if isinstance(at, int) else at[places].tolist()
        some = list(zip(events, times, bits[places].tolist(), starts[places].tolist()))
        cuts = np.searchsorted(places, bounds).tolist()
        for slot, first, end, partial in zip(slots, cuts, cuts[1:], stored):
            if first < end or partial is not None:
                self._key(slot, some[first:end], upto_us, partial)

    def expire(self, slot: int, upto_us: int) -> None:
        """Time has come so far for a key, and it has no rows before that."""
        partial = self.handles.stored(slot)
        if partial is not None:
            self._key(slot, (), upto_us, partial)

    def _key(
        self,
        slot: int,
        some: Sequence[tuple[Any, int, int, bool]],
        upto_us: int | None,
        stored: PartialMatches[Any] | None,
    ) -> None:
        forgotten = self.forgotten
        key = KeyMatches() if stored is None else self._load(stored)
        runs, complete = key.runs, list(key.complete)
        feed = self.matcher.feed
        try:
            for row, at, bits, starts in some:
                if key.deadline_us <= at:
                    self._expire(key, at)
                if not key.runs and not starts:
                    continue
                self.matches += feed(key, row, at, bits)
            if upto_us is not None and key.deadline_us <= (behind_us := moment_behind(upto_us)):
                self._expire(key, behind_us)
        except Exception as error:
            raise self._fail(error, slot) from error
        changed = self.forgotten > forgotten or not (same_runs(runs, key.runs) and same_runs(complete, key.complete))
        # A pattern that was given more time has other deadlines than those that were set.
        if changed or (not some and stored is not None and timer_of(stored) != timer_at(key.deadline_us)):
            self.handles.bind(slot)
            self._store(key, stored)

    def _expire(self, key: KeyMatches, upto_us: int) -> None:
        matches, timed_out = self.matcher.expire(key, upto_us)
        self.matches += matches
        self.timed_out += timed_out

    # --- what is stored

    def _load(self, stored: PartialMatches[Any]) -> KeyMatches:
        key, lost = read_runs(stored, self.matcher)
        self.forgotten += lost
        return key

    def _store(self, key: KeyMatches, stored: PartialMatches[Any] | None) -> None:
        handles = self.handles
        deadline = min(map(self.matcher.deadline, key.runs), default=NEVER)
        handles.move(None if stored is None else timer_of(stored), timer_at(deadline))
        if key.runs or key.complete:
            handles.partial.set(stored_runs(key, self.matcher))
        elif stored is not None:
            handles.partial.clear()


def same_runs(before: Sequence[PartialRun], after: Sequence[PartialRun]) -> bool:
    """Whether these are the same partial matches; one that went on is another."""
    return len(before) == len(after) and all(map(operator.is_, before, after))


def rows_that_matter(starts: Mask, known: Mask, bounds: Int64s) -> Mask:
    """Rows of keys of which something is kept, and of the others those from the first on that may begin a match."""
    begun = np.append(0, np.cumsum(starts))
    counts = np.diff(bounds)
    since = begun[1:][bounds[0] : bounds[-1]] - np.repeat(begun[bounds[:-1]], counts)
    matters: Mask = (since > 0) | np.repeat(known, counts)
    return matters


def moment_behind(upto_us: int) -> int:
    """The earliest time that rows can still have: what ends by then has ended."""
    return min(upto_us + 1, MAX_TIME)


def timer_at(deadline_us: int) -> int | None:
    """When the watermark has passed all rows before a deadline; None: never."""
    if deadline_us >= MAX_TIME:
        return MAX_TIME if deadline_us == MAX_TIME else None
    return deadline_us - 1


def timer_of(stored: PartialMatches[Any]) -> int | None:
    untils: list[Any] = [each.until for each in stored.matches if each.until is not None]
    return timer_at(min(untils, default=NEVER))
