"""How time moves: pure arithmetic over what sources have seen.

The watermark of a source is the minimum over its active splits of (largest event time − out-of-orderness − 1 µs); a
step's is the minimum over the sources above it. It moves once per epoch, after the epoch's data and before its
timers, and never goes back. Every task of an epoch and the driver call `derive_time` with the same inputs and must
get the same answer: nothing here reads a clock or a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headrace.model.ids import MAX_TIME, MIN_TIME

Marks = Mapping[str, Mapping[str, int]]
"""Source → split → largest event time seen in this epoch."""


class TimedSource(msgspec.Struct, frozen=True):
    """What the arithmetic needs to know of a source."""

    name: str
    out_of_order_us: int = 0
    idle_us: int | None = None


class SplitTime(msgspec.Struct, frozen=True, array_like=True):
    max_us: int
    """Largest event time seen."""
    seen_us: int
    """Wall clock of the epoch that last brought a row."""


class SourceTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time of one source at the end of an epoch."""

    splits: dict[str, SplitTime] = {}
    watermark: int = MIN_TIME
    idle: bool = False
    since_us: int | None = None
    """Wall clock of the first epoch that knew this source."""


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
) -> TimeState:
    """The time after an epoch that saw ``marks``. ``steps`` maps each step to the timed sources above it.

    ``was`` maps a renamed step to its former name. What left the program keeps its time, in case it comes back.
    ``reached_us`` sets every watermark by hand, for tests.
    """
    after = dict(before.sources)
    for source in sources:
        after[source.name] = _advance(
            source, before.sources.get(source.name, SourceTime()), marks.get(source.name, {}), clock_us
        )
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


def _advance(source: TimedSource, before: SourceTime, seen: Mapping[str, int], clock_us: int) -> SourceTime:
    since_us = clock_us if before.since_us is None else before.since_us
    splits = dict(before.splits)
    if seen:
        # A source is one nameless split or several named ones; a changed program may turn one into the other.
        named = any(seen)
        splits = {split: time for split, time in splits.items() if bool(split) == named}
    for split, max_us in seen.items():
        old = splits.get(split)
        splits[split] = SplitTime(max_us if old is None else max(old.max_us, max_us), clock_us)
    idle_us = source.idle_us
    active = [split.max_us for split in splits.values() if idle_us is None or clock_us - split.seen_us < idle_us]
    # A source that has not spoken yet is active and holds time at its beginning, until idleness lets it go.
    idle = not active and idle_us is not None and (bool(splits) or clock_us - since_us >= idle_us)
    reached = min(active) - source.out_of_order_us - 1 if active else before.watermark
    return SourceTime(splits=splits, watermark=max(before.watermark, reached), idle=idle, since_us=since_us)


def merge_marks(into: dict[str, dict[str, int]], marks: Marks) -> None:
    """Keep the larger time of each split."""
    for source, splits in marks.items():
        kept = into.setdefault(source, {})
        for split, max_us in splits.items():
            if max_us > kept.get(split, MIN_TIME - 1):
                kept[split] = max_us


def derive_next_idle_us(time: TimeState, sources: Iterable[TimedSource], clock_us: int) -> int | None:
    """Wall clock at which the next active split falls idle: the job needs an epoch then, data or not."""
    due: list[int] = []
    for source in sources:
        state = time.sources.get(source.name)
        if source.idle_us is None or state is None or state.idle:
            continue
        seen = [split.seen_us for split in state.splits.values()] or [state.since_us or 0]
        due += [at + source.idle_us for at in seen if at + source.idle_us > clock_us]
    return min(due, default=None)
