"""Why is there no output? Which input holds the watermark of each step back, since when, and what can be done.

`explain_watermark` is pure: it reads what the manifest of an epoch says, so that a running job, a store on disk and a
test get the same answer. `tell_reason` puts an answer into a line for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from headrace.model.amounts import count_of
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.time import format_span, format_time
from headrace.model.watermarks import SourceTime, TimedSource, TimeState, derive_holds, split_watermark

Kind = Literal["no_time", "not_begun", "behind", "idle", "ended"]

STANDS_STILL_US: Final = 30_000_000
"""A watermark that has not moved for so long, while something waits for it, is worth a word without being asked."""


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why the watermark of some steps stands where it stands.

    ``no_time``: no source above them has event time. ``not_begun``: a source has not brought a row, or nothing that
    says how far time has come. ``behind``: a split is the slowest. ``idle``: all inputs are silent. ``ended``: the
    input was drained.
    """

    steps: tuple[str, ...]
    kind: Kind
    watermark: int
    source: str = ""
    """The input that holds it back."""
    split: str = ""
    at_us: int | None = None
    """Event time to which that input has come."""
    since_us: int | None = None
    """Wall clock since which it has not come further."""
    silent: bool = True
    """Whether it brought no row since then; otherwise it brings rows, none of them newer."""
    out_of_order_us: int = 0
    idle_us: int | None = None
    said_by: str = ""
    waits_for_us: int | None = None
    """The earliest event time at which something is due in one of the steps; none is known to wait: None."""
    waiting: tuple[str, ...] = ()
    """Those of the steps in which something is due."""
    waiting_rows: int = 0
    """Rows that wait in the steps to be handled in the order of their time."""
    held: tuple[str, ...] = ()
    """Sources that wait for this one, because they are aligned with it."""

    def still_us(self, clock_us: int) -> int:
        """For how long the input has not come further."""
        return 0 if self.since_us is None else max(0, clock_us - self.since_us)


def explain_watermark(
    time: TimeState,
    sources: Iterable[TimedSource],
    steps: Mapping[str, Iterable[str]],
    clock_us: int,
    waits: Mapping[str, int] | None = None,
    waiting: Mapping[str, int] | None = None,
) -> tuple[Reason, ...]:
    """The reasons for the watermarks of all steps, steps with the same one together.

    ``steps`` maps each step to the timed sources above it, ``waits`` to the earliest event time at which something is
    due there, ``waiting`` to the number of rows that wait there; ``clock_us`` is the wall clock that decides who is
    idle.
    """
    known = {source.name: source for source in sources}
    held = derive_holds(time, list(known.values()))
    found: dict[Reason, list[str]] = {}
    for step, above in steps.items():
        watermark = time.steps.get(step, MIN_TIME)
        reason = _reason(time, {name: known[name] for name in above if name in known}, watermark, clock_us)
        found.setdefault(reason, []).append(step)
    reasons = []
    for reason, alike in found.items():
        due = {step: (waits or {})[step] for step in alike if step in (waits or {})}
        aligned = [name for name in sorted(held) if known[name].align == _group(known, reason.source)]
        reasons.append(
            msgspec.structs.replace(
                reason, steps=tuple(alike), waits_for_us=min(due.values(), default=None),
                waiting=tuple(due), held=tuple(name for name in aligned if name != reason.source),
                waiting_rows=sum((waiting or {}).get(step, 0) for step in alike),
            )
        )  # fmt: skip
    return tuple(reasons)


def _group(known: Mapping[str, TimedSource], source: str) -> str | None:
    return (known[source].align or None) if source in known else None


def _reason(time: TimeState, above: Mapping[str, TimedSource], watermark: int, clock_us: int) -> Reason:
    if not above:
        return Reason((), "no_time", watermark)
    if watermark >= MAX_TIME:
        return Reason((), "ended", watermark)
    states = {name: time.sources.get(name, SourceTime()) for name in above}
    active = [name for name in above if not states[name].idle]
    if not active:
        newest = max((split.seen_us for state in states.values() for split in state.splits.values()), default=None)
        idle_us = max((source.idle_us or 0 for source in above.values()), default=None)
        return Reason((), "idle", watermark, since_us=newest, idle_us=idle_us)
    slowest = min(active, key=lambda name: states[name].watermark)
    return _of_source(above[slowest], states[slowest], watermark, clock_us)


def _of_source(source: TimedSource, state: SourceTime, watermark: int, clock_us: int) -> Reason:
    reason = Reason(
        (), "not_begun", watermark, source=source.name, since_us=state.since_us, idle_us=source.idle_us,
        out_of_order_us=source.out_of_order_us, said_by=source.said_by,
    )  # fmt: skip
    splits = state.active(source.idle_us, clock_us)
    if not splits:
        return reason
    name, split = min(splits.items(), key=lambda item: (split_watermark(source, item[1]), item[0]))
    since_us = split.still_since_us
    found = msgspec.structs.replace(reason, split=name, since_us=since_us, silent=split.seen_us <= since_us)
    if split.max_us <= MIN_TIME:
        return found
    return msgspec.structs.replace(found, kind="behind", at_us=split.max_us)


def stands_still(reason: Reason, clock_us: int) -> bool:
    """Whether something waits for a watermark that has not moved for long: then people wonder why nothing comes."""
    if reason.waits_for_us is None or reason.kind in ("ended", "no_time"):
        return False
    return reason.still_us(clock_us) >= STANDS_STILL_US


def tell_reason(reason: Reason, clock_us: int) -> str:
    """One line for people: the steps, where their time stands, and what holds it there."""
    steps, ago = ", ".join(reason.steps), _ago(reason, clock_us)
    match reason.kind:
        case "ended":
            return f"{steps}: the input was drained, and everything has fired"
        case "no_time":
            return f"{steps}: without event time, because no source above has any"
        case "idle":
            told = f"time stands at {_time(reason.watermark)}, because every input is idle{ago}"
        case _ if ago:
            held = f"held back by {input_name(reason)}, {_tell_input(reason)}{_tell_still(reason)}{ago}"
            told = f"time stands at {_time(reason.watermark)}, {held}"
        case _:
            slowest = f"the slowest input is {input_name(reason)}, {_tell_input(reason)}"
            told = f"time is at {_time(reason.watermark)}; {slowest}"
    return f"{steps}: {told}{_tell_waiting(reason)}"


def input_name(reason: Reason) -> str:
    """The input as people know it: its source, and its split where it has a name."""
    return f"{reason.source}, split {reason.split}" if reason.split else reason.source


def _tell_input(reason: Reason) -> str:
    if reason.at_us is None:
        return f"where {reason.said_by} has not said anything yet" if reason.said_by else "which has not brought a row"
    what = f"where {reason.said_by} said" if reason.said_by else "whose newest row is of"
    behind = f" (less out_of_order={format_span(reason.out_of_order_us)!r})" if reason.out_of_order_us else ""
    return f"{what} {_time(reason.at_us)}{behind}"


def _tell_still(reason: Reason) -> str:
    if reason.at_us is None:
        return ""
    return "; no row came" if reason.silent else "; its rows are no newer"


def _tell_waiting(reason: Reason) -> str:
    told = ""
    if reason.waiting_rows and reason.kind != "ended":
        told = f"; {count_of(reason.waiting_rows, 'row')} wait{'s' if reason.waiting_rows == 1 else ''} for it"
    if reason.waits_for_us is not None:
        told += f"; the next thing is due at {_time(reason.waits_for_us)}"
    if reason.held:
        told += f"; aligned with it, {', '.join(reason.held)} waits"
    return told


def next_move(reason: Reason, clock_us: int) -> str:
    """What can be done about it; empty where nothing is wrong."""
    if reason.kind == "no_time":
        return "say which column tells the time: app.read(…, time=…)"
    if reason.kind == "idle":
        return "time goes on with the next row of any input; until='drained' ends it"
    if reason.kind == "ended" or (reason.since_us is not None and reason.since_us >= clock_us):
        return ""
    if reason.said_by:
        return f"look whether {reason.said_by} still says how far time has come" + _let_go(reason)
    if not reason.silent:
        return "look whether the column given as time= still grows"
    wait = " a shorter out_of_order waits less for late rows;" if reason.out_of_order_us else ""
    return f"time goes on with a newer row;{wait}{_let_go(reason)}".rstrip(";")


def _let_go(reason: Reason) -> str:
    if reason.idle_us is not None:
        return f" idle={format_span(reason.idle_us)!r} will let a silent input go, if others speak"
    return " idle='1m' in app.read would let a silent input go, if others speak"


def _ago(reason: Reason, clock_us: int) -> str:
    if reason.since_us is None:
        return ""
    still_us = reason.still_us(clock_us)
    if not still_us:
        return ""
    return f" since {_time(reason.since_us)} ({format_span(_rounded(still_us))})"


def _rounded(us: int) -> int:
    """To about three digits: nobody wants the microseconds of an hour."""
    unit = 1_000 if us < 1_000_000 else 1_000_000 if us < 3_600_000_000 else 60_000_000
    return max(us - us % unit, unit)


def _time(time_us: int | None) -> str:
    if time_us is None or time_us <= MIN_TIME:
        return "its beginning"
    return "the end of time" if time_us >= MAX_TIME else format_time(time_us - time_us % 1000)
