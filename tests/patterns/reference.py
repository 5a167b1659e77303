"""What a pattern means, by enumeration: every way to lay its stages over the rows of a key is tried.

Nothing of the automaton is used. A pattern is expanded into all sequences of single stages that its quantifiers allow;
a match is a sequence and a choice of rows for it, such that each row fits and what lies between two of them may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

from headrace.patterns.declare import EventPattern, Stage

Fits = Callable[[Any, Any], bool]
"""Whether a condition holds for a row."""


class Found(NamedTuple):
    """One match: its rows by position, and the stage of each."""

    rows: tuple[int, ...]
    stages: tuple[str, ...]
    end_us: int


@dataclass(frozen=True)
class Item:
    """One row to be taken, and what counts on the way to it."""

    stage: Stage
    link: str
    gap_us: int | None
    in_loop: bool
    guards: tuple[Stage, ...] = ()
    refusals: tuple[Stage, ...] = ()
    stops: tuple[Stage, ...] = ()


@dataclass(frozen=True)
class Pending:
    """What the next item will have to mind."""

    guards: tuple[Stage, ...] = ()
    refusals: tuple[Stage, ...] = ()
    stops: tuple[Stage, ...] = ()


@dataclass
class Reference:
    """Enumerates the matches of a pattern among rows of one key."""

    pattern: EventPattern
    fits: Fits
    rows: Sequence[Any]
    at: Sequence[int]
    _expanded: list[tuple[tuple[Item, ...], Pending]] = field(default_factory=list)

    def matches(self) -> list[Found]:
        """All matches, in the order in which they go out."""
        found: set[Found] = set()
        for items, rest in self._expand(self.pattern.stages, "then_any", None, False, Pending()):
            for places in combinations(range(len(self.rows)), len(items)):
                end = self._end(items, rest, places)
                if end is not None:
                    found.add(Found(places, tuple(item.stage.name for item in items), end))
        ordered = sorted(found, key=lambda match: (match.end_us, self._completed_at(match), match.rows, match.stages))
        return ordered if self.pattern.skip == "none" else self._after_skips(ordered)

    def _completed_at(self, match: Found) -> int:
        return match.rows[-1] if self.at[match.rows[-1]] == match.end_us else len(self.rows)

    # --- all sequences

    def _expand(
        self, stages: Sequence[Stage], link: str, gap: int | None, in_loop: bool, pending: Pending
    ) -> Iterator[tuple[tuple[Item, ...], Pending]]:
        if not stages:
            yield (), pending
            return
        first, rest = stages[0], stages[1:]
        for items, after in self._expand_stage(first, link, gap, in_loop, pending, rest):
            following = rest[0] if rest else None
            way = following.link if following is not None else link
            for more, end in self._expand(rest, way, following.gap_us if following else None, False, after):
                if len(items) + len(more) <= len(self.rows):
                    yield (*items, *more), end

    def _expand_stage(
        self, stage: Stage, link: str, gap: int | None, in_loop: bool, pending: Pending, rest: Sequence[Stage]
    ) -> Iterator[tuple[tuple[Item, ...], Pending]]:
        if stage.absent:
            if stage.link == "next":
                yield (), Pending(pending.guards, (*pending.refusals, stage), pending.stops)
            else:
                yield (), Pending(pending.guards, pending.refusals, (*pending.stops, stage))
            return
        most = min(stage.high or len(self.rows), len(self.rows))
        counts = ([0] if stage.skippable else []) + list(range(stage.low, most + 1))
        for count in counts:
            more = stage.high is None or count < stage.high
            for items, after in self._repeat(stage, count, link, gap, in_loop, pending, rest):
                yield items, self._guarded(stage, after) if stage.is_greedy and more else after

    def _guarded(self, stage: Stage, after: Pending) -> Pending:
        return Pending((*after.guards, stage), after.refusals, after.stops)

    def _repeat(
        self, stage: Stage, count: int, link: str, gap: int | None, in_loop: bool, pending: Pending,
        rest: Sequence[Stage],
    ) -> Iterator[tuple[tuple[Item, ...], Pending]]:  # fmt: skip
        if count == 0:
            yield (), pending
            return
        # A loop that could end here ends where the stage behind it must not come.
        ends = rest[0] if rest and rest[0].absent and rest[0].link == "then" else None
        for before, after in self._repeat(stage, count - 1, link, gap, in_loop, pending, rest):
            way, span, inner = (link, gap, in_loop) if count == 1 else (stage.inner, stage.inner_gap_us, True)
            if count > stage.low and ends is not None:
                after = Pending(after.guards, after.refusals, (*after.stops, ends))
            if stage.group is not None:
                for items, end in self._expand(stage.group.stages, way, span, inner, after):
                    if len(before) + len(items) <= len(self.rows):
                        yield (*before, *items), end
            else:
                gaps = [each for each in (span, self.pattern.step_within_us) if each is not None]
                item = Item(stage, way, min(gaps, default=None), inner, after.guards, after.refusals, after.stops)
                yield (*before, item), Pending()

    # --- one choice of rows

    def _end(self, items: Sequence[Item], rest: Pending, places: tuple[int, ...]) -> int | None:
        """When the match is complete; None: it is none."""
        whole = self.pattern.within_us
        if not items or not all(self._takes(item.stage, place) for item, place in zip(items, places)):
            return None
        if self._any(items[0].guards, places[0]):
            return None
        for item, before, place in zip(items[1:], places, places[1:]):
            if not self._may_pass(item, before, place):
                return None
        start, last = self.at[places[0]], places[-1]
        if whole is not None and self.at[last] - start >= whole:
            return None
        if rest.guards:
            return None
        if rest.refusals:
            after = last + 1
            if after == len(self.rows) or self._any(rest.refusals, after):
                return None
            step = self.pattern.step_within_us
            if whole is not None and self.at[after] - start >= whole:
                return None
            return None if step is not None and self.at[after] - self.at[last] >= step else self.at[after]
        if rest.stops:
            step = self.pattern.step_within_us
            ends = [start + whole] if whole is not None else []
            deadline = min(ends + ([self.at[last] + step] if step is not None else []))
            later = [i for i in range(last + 1, len(self.rows)) if self.at[i] < deadline]
            return None if any(self._any(rest.stops, i) for i in later) else deadline
        return self.at[last]

    def _may_pass(self, item: Item, before: int, place: int) -> bool:
        between = range(before + 1, place)
        onward = range(before + 1, place + 1)
        if item.gap_us is not None and self.at[place] - self.at[before] >= item.gap_us:
            return False
        if item.link == "next" and between:
            return False
        if item.link == "then" and any(self._takes(item.stage, i) for i in between):
            return False
        ends_on = item.stage.ends_on if item.in_loop else None
        if ends_on is not None and any(self.fits(ends_on, self.rows[i]) for i in between):
            return False
        if self._any(item.refusals, before + 1):
            return False
        return not any(self._any((*item.stops, *item.guards), i) for i in onward)

    def _any(self, stages: Sequence[Stage], place: int) -> bool:
        return any(self._takes(stage, place) for stage in stages)

    def _takes(self, stage: Stage, place: int) -> bool:
        row = self.rows[place]
        if stage.ends_on is not None and self.fits(stage.ends_on, row):
            return False
        return any(all(self.fits(each, row) for each in alternative) for alternative in stage.alternatives)

    # --- after a match

    def _after_skips(self, matches: Sequence[Found]) -> list[Found]:
        """Matches by where they began; each takes others with it that began too early behind it."""
        chosen: list[Found] = []
        bound = -1
        ordered = sorted(matches, key=lambda m: (m.rows[0], m.end_us, self._completed_at(m), m.rows, m.stages))
        for match in ordered:
            if match.rows[0] > bound:
                chosen.append(match)
                bound = max(bound, self._upto(match))
        return chosen

    def _upto(self, match: Found) -> int:
        skip = self.pattern.skip
        if skip in ("to_next", "past_last"):
            return match.rows[0] if skip == "to_next" else match.rows[-1]
        mine = [row for row, stage in zip(match.rows, match.stages) if stage == self.pattern.skip_stage]
        return -1 if not mine else (mine[0] if skip == "to_first" else mine[-1]) - 1
