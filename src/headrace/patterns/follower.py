"""A pattern followed through the rows of many keys: from columns to matches, and from matches to what is stored.

For a batch of rows in key order the conditions are evaluated once. Keys without partial matches are passed over up to
the first row that may begin one, without a Python object; so are rows that cannot change anything. What is left goes to
`headrace.patterns.matcher`. A key's partial matches are read when it has rows, and written when they changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.model.ids import MAX_TIME
from headrace.patterns.matcher import NEVER, KeyMatches, Link, MatchEnd, PartialRun, links_of
from headrace.patterns.partial import PartialMatch, PartialMatches, RowLink

if TYPE_CHECKING:
    from headrace.model.batch import Int64s, Rows
    from headrace.patterns.plan import PatternPlan
    from headrace.state.handles import MapState, Timer, ValueState


class KeyHandles(NamedTuple):
    """The states of a step, moved from key to key."""

    partial: ValueState[Any]
    rows: MapState[int, Any]
    deadline: Timer

    def bind(self, slot: int) -> None:
        self.partial._slot = self.rows._slot = self.deadline._slot = slot


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

    # --- rows

    def follow(self, rows: Rows, at: Int64s | int, slots: Sequence[int], bounds: Int64s, upto_us: int | None) -> None:
        """Rows in the order of their keys. ``bounds``: where those of each slot begin, and the end of the last.

        ``at``: the time of each row, or of all. ``upto_us``: how far time has come behind them; None: it does not tell.
        """
        plan = self.plan
        bits = plan.conditions.bits(rows)
        stored = np.array([self._has(slot) for slot in slots], np.bool_)
        starts = plan.may_start(bits)
        begun = np.cumsum(starts)
        counts = np.diff(bounds)
        before = np.where(bounds[:-1] > 0, begun[bounds[:-1] - 1], 0) if len(begun) else np.zeros(len(slots), np.int64)
        matters = (begun - np.repeat(before, counts) > 0) | np.repeat(stored, counts)
        relevant = plan.may_matter(bits)
        places = np.flatnonzero(matters if relevant is None else matters & relevant)
        events = rows.take(places).objects if len(places) else []
        times = repeat(at) if isinstance(at, int) else at[places].tolist()
        some = list(zip(events, times, bits[places].tolist(), starts[places].tolist()))
        cuts = np.searchsorted(places, bounds).tolist()
        for slot, first, end, known in zip(slots, cuts, cuts[1:], stored.tolist()):
            if known or first < end:
                self._key(slot, some[first:end], upto_us, stored=known)

    def expire(self, slot: int, upto_us: int) -> None:
        """Time has come so far for a key, and it has no rows before that."""
        self._key(slot, (), upto_us, stored=self._has(slot))

    def _has(self, slot: int) -> bool:
        self.handles.partial._slot = slot
        return self.handles.partial.get() is not None

    def _key(self, slot: int, some: Sequence[tuple[Any, int, int, bool]], upto_us: int | None, *, stored: bool) -> None:
        self.handles.bind(slot)
        forgotten = self.forgotten
        key = self._load() if stored else KeyMatches()
        former = (key.runs, key.complete) if stored else None
        feed = self.matcher.feed
        try:
            for row, at, bits, starts in some:
                if key.deadline_us <= at:
                    self._expire(key, at)
                if not key.runs:
                    if not starts:
                        continue
                    if not key.complete:
                        # As for a key that is met anew: numbers do not depend on where epochs end.
                        key.next_row, key.renumbered = 0, True
                self.matches += feed(key, row, at, bits)
            if upto_us is not None and key.deadline_us <= upto_us:
                self._expire(key, upto_us)
        except Exception as error:
            raise self._fail(error, slot) from error
        if former is None or former != (key.runs, key.complete) or self.forgotten > forgotten:
            self._store(key, stored=stored)

    def _expire(self, key: KeyMatches, upto_us: int) -> None:
        matches, timed_out = self.matcher.expire(key, upto_us)
        self.matches += matches
        self.timed_out += timed_out

    # --- what is stored

    def _load(self) -> KeyMatches:
        partial = self.handles.partial.get()
        assert partial is not None
        rows = dict(self.handles.rows.items())
        names = {name: number for number, name in enumerate(self.plan.automaton.names)}
        links: list[Link | None] = []
        for each in partial.links:
            before = None if each.before is None else links[each.before]
            lost = each.stage not in names or each.row not in rows or (each.before is not None and before is None)
            links.append(None if lost else Link(each.row, names[each.stage], rows[each.row], each.at, before))
        runs: list[PartialRun] = []
        complete: list[PartialRun] = []
        for match in partial.matches:
            link = links[match.last]
            place = self.plan.automaton.by_name.get(match.place, -1)
            if link is None or (place < 0 and not match.complete):
                self.forgotten += 1
                continue
            first = min(each.number for each in links_of(link))
            (complete if match.complete else runs).append(PartialRun(place, link, first, match.started))
        deadline = min(map(self.matcher.deadline, runs), default=NEVER)
        return KeyMatches(runs, complete, partial.next_row, deadline_us=deadline)

    def _store(self, key: KeyMatches, *, stored: bool) -> None:
        handles = self.handles
        if not key.runs and not key.complete:
            if stored:
                handles.partial.clear()
                handles.rows.clear()
                handles.deadline.clear()
            return
        numbers: dict[int, int] = {}
        links: list[RowLink] = []
        rows: dict[int, Any] = {}
        matches = [self._stored_match(run, numbers, links, rows, complete=False) for run in key.runs]
        matches += [self._stored_match(run, numbers, links, rows, complete=True) for run in key.complete]
        if stored and key.renumbered:
            handles.rows.clear()
        former: set[int] = set(handles.rows) if stored and not key.renumbered else set()
        for number in former - rows.keys():
            del handles.rows[number]
        for number, row in rows.items():
            if number not in former:
                handles.rows[number] = row
        handles.partial.set(PartialMatches(matches, links, key.next_row))
        deadline = min(map(self.matcher.deadline, key.runs), default=NEVER)
        if deadline <= MAX_TIME:
            handles.deadline.set(deadline - 1)  # type: ignore[arg-type]
        elif stored:
            handles.deadline.clear()

    def _stored_match(
        self, run: PartialRun, numbers: dict[int, int], links: list[RowLink], rows: dict[int, Any], *, complete: bool
    ) -> PartialMatch:
        names, places = self.plan.automaton.names, self.plan.automaton.places
        fresh = []
        link: Link | None = run.link
        while link is not None and id(link) not in numbers:
            fresh.append(link)
            link = link.before
        for each in reversed(fresh):
            before = None if each.before is None else numbers[id(each.before)]
            numbers[id(each)] = len(links)
            links.append(RowLink(each.number, names[each.stage], each.at, before))
            rows[each.number] = each.row
        if complete:
            return PartialMatch("", numbers[id(run.link)], run.started_us, complete=True)  # type: ignore[arg-type]
        deadline = self.matcher.deadline(run)
        return PartialMatch(
            places[run.place].name, numbers[id(run.link)], run.started_us,  # type: ignore[arg-type]
            self.plan.match_rows.waiting_for(run.place), None if deadline > MAX_TIME else deadline,  # type: ignore[arg-type]
        )  # fmt: skip
