"""Watermarks: pure arithmetic over the event times that sources have seen.

The watermark of a source is the minimum over its active splits of (mark − out-of-orderness − 1 µs). The mark of a split
is the largest event time seen, or what its rows or a generator said. The watermark of a step is the minimum over the
sources above it. It moves once per epoch, after the data and before the timers of the epoch, and never goes back. Every
task of an epoch and the driver call `derive_time` with the same inputs and must get the same answer, so nothing here
reads a clock or a file. `headrace.model.watermark_reasons` says why a watermark stands where it stands.

Aligned sources wait for each other: `derive_waiting` says which of them, or of their splits, wait in the next epoch.
Spark writes down the resulting offsets before any row is read, so that answer need not be the same in a replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from headrace.model.ids import MAX_TIME, MIN_TIME

Marks = Mapping[str, Mapping[str, int]]
"""Source → split → its mark in this epoch: no row before this time is expected, but for the source's disorder."""
Kept = Mapping[str, Mapping[str, str]]
"""Source → split → what its watermark generator keeps, as JSON text."""
HISTORY: Final = "(history) "
"""Begins the names of a backfill's splits while it reads its history."""
Holds = dict[str, frozenset[str]]
"""Source → splits that are too far ahead of their group and wait."""


class TimedSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the arithmetic needs to know of a source."""

    name: str
    out_of_order_us: int = 0
    idle_us: int | None = None
    said_by: str = ""
    """Who says how far time has come, where it is not the largest time seen: a condition, a column, a generator."""
    align: str = ""
    """The group of sources that wait for each other; empty: none."""
    max_drift_us: int = 0
    """How far a split may be ahead of its group's slowest source."""


class SplitTime(msgspec.Struct, frozen=True, array_like=True):
    max_us: int
    """Its mark: largest event time seen, or the largest that was said."""
    seen_us: int
    """Wall clock of the epoch that last brought a row."""
    moved_us: int | None = None
    """Wall clock of the epoch that last moved the mark; absent in manifests of older programs."""
    kept: str = ""
    """What its watermark generator keeps, as JSON text."""
    waited_us: int | None = None
    """Wall clock of the last epoch in which it was told to wait."""

    @property
    def heard_us(self) -> int:
        """Wall clock since which its silence counts: one that was told to wait is not idle."""
        return self.seen_us if self.waited_us is None else max(self.seen_us, self.waited_us)

    @property
    def still_since_us(self) -> int:
        """Wall clock since which the mark stands."""
        return self.seen_us if self.moved_us is None else self.moved_us


class SourceTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time of one source at the end of an epoch."""

    splits: dict[str, SplitTime] = {}
    watermark: int = MIN_TIME
    idle: bool = False
    since_us: int | None = None
    """Wall clock of the first epoch that knew this source."""
    said_by: str = ""
    """Who said the marks of its splits; empty: they are the largest times seen."""

    def active(self, idle_us: int | None, clock_us: int) -> dict[str, SplitTime]:
        """The splits that have spoken within the time in which silence means nothing."""
        if idle_us is None:
            return self.splits
        return {split: time for split, time in self.splits.items() if clock_us - time.heard_us < idle_us}


class TimeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time of a job at the end of an epoch; part of its manifest."""

    sources: dict[str, SourceTime] = {}
    steps: dict[str, int] = {}
    """Step → watermark."""


def derive_time(
    before: TimeState,
    marks: Marks,
    *,
    sources: Iterable[TimedSource],
    steps: Mapping[str, Iterable[str]],
    clock_us: int,
    final: bool,
    was: Mapping[str, str] | None = None,
    reached_us: int | None = None,
    kept: Kept | None = None,
) -> TimeState:
    """The time after an epoch that saw ``marks``. ``steps`` maps each step to the timed sources above it.

    ``was`` maps a renamed step to its former name. What left the program keeps its time, in case it comes back.
    ``reached_us`` sets every watermark by hand, for tests. ``kept`` moves no time, so only the driver gives it.
    """
    sources = list(sources)
    held = derive_holds(before, sources)
    after = dict(before.sources)
    for source in sources:
        name = source.name
        after[name] = _advance(
            source, before.sources.get(name, SourceTime()), marks.get(name, {}), clock_us,
            held=held.get(name, frozenset()), kept=(kept or {}).get(name, {}),
        )  # fmt: skip
    watermarks = dict(before.steps)
    for step, above in steps.items():
        old = (was or {}).get(step)
        if old is not None and step not in watermarks and old in watermarks:
            watermarks[step] = watermarks.pop(old)
        active = [after[name].watermark for name in above if not after[name].idle]
        reached = MAX_TIME if final else min(active, default=MIN_TIME)
        if reached_us is not None:
            reached = reached_us
        watermarks[step] = max(watermarks.get(step, MIN_TIME), reached)
    return TimeState(sources=after, steps=watermarks)


def _advance(
    source: TimedSource,
    before: SourceTime,
    seen: Mapping[str, int],
    clock_us: int,
    *,
    held: frozenset[str],
    kept: Mapping[str, str],
) -> SourceTime:
    since_us = clock_us if before.since_us is None else before.since_us
    splits = dict(before.splits)
    if before.said_by != source.said_by:
        # Marks that were made another way mean something else; what was reached by them stays reached.
        splits = {split: _begun_anew(each, before.watermark) for split, each in splits.items()}
    for split in held & splits.keys():
        # It is silent because it was told to wait. Called idle, it would be overtaken and its next rows late.
        splits[split] = msgspec.structs.replace(splits[split], waited_us=clock_us)
    if seen:
        # A source is one nameless split or several named ones; a changed program may turn one into the other.
        named = any(seen)
        splits = {split: time for split, time in splits.items() if bool(split) == named}
        if not any(split.startswith(HISTORY) for split in seen):
            # The live stream of a backfill has begun: its history is read, and holds nothing back.
            splits = {split: time for split, time in splits.items() if not split.startswith(HISTORY)}
    for split, mark in seen.items():
        splits[split] = _move_mark(splits.get(split), mark, clock_us, kept.get(split))
    after = SourceTime(splits=splits, since_us=since_us, said_by=source.said_by)
    active = after.active(source.idle_us, clock_us)
    # A source that has not spoken yet is active and holds time at its beginning, until idleness lets it go.
    idle = not active and source.idle_us is not None and (bool(splits) or clock_us - since_us >= source.idle_us)
    reached = min(split_watermark(source, each) for each in active.values()) if active else MIN_TIME
    return msgspec.structs.replace(after, watermark=max(before.watermark, reached), idle=idle)


def _begun_anew(split: SplitTime, watermark: int) -> SplitTime:
    mark = watermark + 1 if watermark > MIN_TIME else MIN_TIME
    return msgspec.structs.replace(split, max_us=min(split.max_us, mark), kept="")


def _move_mark(before: SplitTime | None, mark: int, clock_us: int, kept: str | None) -> SplitTime:
    if before is None:
        return SplitTime(mark, clock_us, clock_us, kept or "")
    moved_us = clock_us if mark > before.max_us else before.still_since_us
    return SplitTime(max(before.max_us, mark), clock_us, moved_us, before.kept if kept is None else kept)


def split_watermark(source: TimedSource, split: SplitTime) -> int:
    """How far time has come in one split. The beginning of time, where its rows have not said anything yet."""
    return split.max_us - source.out_of_order_us - 1 if split.max_us > MIN_TIME else MIN_TIME


def merge_marks(into: dict[str, dict[str, int]], marks: Marks) -> None:
    """Keep the larger time of each split."""
    for source, splits in marks.items():
        found = into.setdefault(source, {})
        for split, mark in splits.items():
            if mark > found.get(split, MIN_TIME - 1):
                found[split] = mark


def leave_out_heard(hints: Marks, time: TimeState, clock_us: int) -> dict[str, dict[str, int]]:
    """Times that a filter hid from the tasks of an epoch, without those that its rows have told anyway.

    ``time`` and ``clock_us``: of that epoch. What is observed before a filter is the newest of all rows, also of those
    that went through it. Learned once more by the next epoch, it would look like a row that came then.
    """
    left: dict[str, dict[str, int]] = {}
    for source, splits in hints.items():
        known = time.sources.get(source, SourceTime()).splits
        for split, max_us in splits.items():
            heard = known.get(split)
            if heard is None or heard.seen_us != clock_us or heard.max_us < max_us:
                left.setdefault(source, {})[split] = max_us
    return left


def choose_kept(reported: Iterable[tuple[Marks, Kept]]) -> dict[str, dict[str, str]]:
    """What each split's generator keeps, from what the tasks say that read it in one epoch.

    Several tasks may have read slices of one split, each with a copy of its generator. The copy that got furthest is
    kept, as its time counts; between two that are equal the text decides, so that the order of the tasks does not.
    """
    best: dict[tuple[str, str], tuple[int, str]] = {}
    for marks, kept in reported:
        for source, splits in kept.items():
            for split, text in splits.items():
                found = (marks.get(source, {}).get(split, MIN_TIME), text)
                best[source, split] = max(best.get((source, split), found), found)
    chosen: dict[str, dict[str, str]] = {}
    for (source, split), (_, text) in best.items():
        chosen.setdefault(source, {})[split] = text
    return chosen


def derive_holds(time: TimeState, sources: Sequence[TimedSource], *, spoke_at_us: int | None = None) -> Holds:
    """Which splits wait in the next epoch because they are too far ahead of their group.

    The group's minimum is over the sources that have spoken and are not idle. With ``spoke_at_us``, the wall clock of
    an epoch, only those that brought rows in it count: where input ends, one that is silent has reached its end or
    waits itself, and nobody should wait for it.
    """
    reached: dict[str, int] = {}
    for source in sources:
        state = time.sources.get(source.name, SourceTime())
        if not source.align or state.idle or state.watermark <= MIN_TIME:
            continue
        if spoke_at_us is None or any(split.seen_us == spoke_at_us for split in state.splits.values()):
            reached[source.align] = min(reached.get(source.align, MAX_TIME), state.watermark)
    holds: Holds = {}
    for source in sources:
        if source.align not in reached:
            continue
        limit = reached[source.align] + source.max_drift_us
        splits = time.sources.get(source.name, SourceTime()).splits
        ahead = frozenset(split for split, each in splits.items() if split_watermark(source, each) > limit)
        if ahead:
            holds[source.name] = ahead
    return holds


def derive_next_idle_us(time: TimeState, sources: Iterable[TimedSource], clock_us: int) -> int | None:
    """Wall clock at which the next active split falls idle: the job needs an epoch then, data or not."""
    due: list[int] = []
    for source in sources:
        state = time.sources.get(source.name)
        if source.idle_us is None or state is None or state.idle:
            continue
        seen = [split.heard_us for split in state.splits.values()] or [state.since_us or 0]
        due += [at + source.idle_us for at in seen if at + source.idle_us > clock_us]
    return min(due, default=None)


WAITED: Final = "headrace:waited"
"""Stands in the position of a source that waits while input is read to its end: Spark takes a position that does not
move for that end."""


class SourceHold(msgspec.Struct, frozen=True, omit_defaults=True):
    splits: tuple[str, ...] = ()
    """Those that wait."""
    whole: bool = False
    """All of its splits do."""


class WaitingOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Source → what waits. Two answers, because only its reader knows which run it is in."""

    paced: dict[str, SourceHold] = {}
    """In a run without end: a silent source may speak again, so the others wait for it until it is idle."""
    hurried: dict[str, SourceHold] = {}
    """In a run that ends with its input: a source that is silent has reached its end."""


def derive_waiting(time: TimeState, sources: Sequence[TimedSource], clock_us: int) -> WaitingOrder:
    """What waits after an epoch with this wall clock."""
    return WaitingOrder(
        paced=_source_holds(time, derive_holds(time, sources)),
        hurried=_source_holds(time, derive_holds(time, sources, spoke_at_us=clock_us)),
    )


def _source_holds(time: TimeState, holds: Holds) -> dict[str, SourceHold]:
    return {
        source: SourceHold(tuple(sorted(splits)), splits >= time.sources.get(source, SourceTime()).splits.keys())
        for source, splits in holds.items()
    }
