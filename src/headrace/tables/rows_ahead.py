"""The function that hands a key's rows on when all is known that SQL's OVER says of rows around them, later ones too.

A row waits until the rows that its frames reach to have come: so many further rows of its key, or all rows up to a time
that the watermark has passed. Rows of a number that never come are known to be missing when the input has ended. It
runs in the ordered step, as `headrace.tables.over_rows` does, whose way to compute aggregates it shares.

A row comes out at the time at which it was complete, and not at its own, which has passed then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import new_class
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.aggregates.accumulate import KeyFold, make_fold
from headrace.aggregates.declare import Agg
from headrace.dataflow.functions import Process
from headrace.model.ids import MAX_TIME
from headrace.model.record import row_type
from headrace.model.rows import RowCodec, codec_of
from headrace.model.time import Timestamp
from headrace.state.handles import Context, Timer, ValueState
from headrace.tables.over_rows import aggregate_of

In = TypeVar("In")
Out = TypeVar("Out")
K = TypeVar("K")


class Reach(NamedTuple):
    """Which rows around a row are meant: from so far before it (negative: behind it) to so far behind it."""

    before: int
    behind: int
    by_time: bool
    """Whether microseconds are meant, and not rows."""


@dataclass(frozen=True)
class RowsAround:
    """What is asked of the rows around each row."""

    leads: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Name → column, and how many rows later."""
    there: Mapping[str, int] = field(default_factory=dict)
    """Name → how many rows later one has to be for it to be true."""
    frames: Mapping[str, tuple[Agg[Any], Reach]] = field(default_factory=dict)

    @property
    def reaches(self) -> list[Reach]:
        later = [*(rows for _, rows in self.leads.values()), *self.there.values()]
        return [*(Reach(0, rows, by_time=False) for rows in later), *(reach for _, reach in self.frames.values())]


class RowsAhead(Process[In, Out, K], Generic[In, Out, K]):
    """Hands rows on in the order of time, each when it is complete; base of the classes that `rows_ahead` makes."""

    nameless = True
    """The query that it works for names the step, not its class."""
    kept: ValueState[list[Any]]
    """Rows of the key, oldest first: those that frames still reach back to, and behind them those that wait."""
    times: ValueState[list[int]]
    given: ValueState[int]
    """How many of them were handed on."""
    complete: Timer
    """When the first row that waits is complete, as far as time says it; the end of time where rows say it."""

    def __init__(self, asked: RowsAround, taken: Any, out: Any) -> None:
        self.asked, self.taken, self.out = asked, taken, out
        reaches = asked.reaches
        self.rows_before = max([reach.before for reach in reaches if not reach.by_time], default=0)
        self.rows_behind = max([reach.behind for reach in reaches if not reach.by_time], default=0)
        self.us_before = max([reach.before for reach in reaches if reach.by_time], default=0)
        self.us_behind = max([reach.behind for reach in reaches if reach.by_time], default=-1)
        self._folds: dict[str, tuple[KeyFold, Reach]] = {}

    def open(self) -> None:
        codec = codec_of(self.taken)
        for name, (agg, reach) in self.asked.frames.items():
            fold = make_fold(agg, codec, "OVER", name)
            assert fold is not None, "aggregators of one's own are refused in frames"
            self._folds[name] = (fold, reach)

    def on_event(self, event: In, ctx: Context[K]) -> Iterator[Out]:
        at = int(ctx.timestamp or 0)
        rows, times = [*self.kept.get([]), event], [*self.times.get([]), at]
        # Further rows of this very time may come.
        yield from self._complete(rows, times, at - 1, ended=False)

    def on_timer(self, timer: Timer, ctx: Context[K]) -> Iterator[Out]:
        at = int(ctx.timestamp or 0)
        yield from self._complete(self.kept.get([]), self.times.get([]), at, ended=at >= MAX_TIME)

    def _complete(self, rows: list[Any], times: list[int], upto_us: int, *, ended: bool) -> Iterator[Out]:
        """Hands on the rows about which all is known. ``upto_us``: all rows up to this time have come."""
        place = self.given.get(0)
        while place < len(rows):
            waits = times[place] + self.us_behind > upto_us if self.us_behind >= 0 else False
            if not ended and (waits or place + self.rows_behind >= len(rows)):
                break
            yield self._row(rows, times, place)
            place += 1
        if place < len(rows):
            by_time = times[place] + self.us_behind if self.us_behind >= 0 else MAX_TIME
            self.complete.set(Timestamp(by_time if upto_us < by_time else MAX_TIME))
            oldest = times[place]
        else:
            self.complete.clear()
            oldest = times[-1] if times else 0
        first = max(place - self.rows_before, 0)
        if self.us_before:
            first = min(first, bisect_left(times, oldest - self.us_before))
        self.kept.set(rows[first:])
        self.times.set(times[first:])
        self.given.set(place - first)

    def _row(self, rows: list[Any], times: list[int], place: int) -> Out:
        event, asked = rows[place], self.asked
        values = {name: getattr(event, name) for name in self.taken.__struct_fields__}
        for name, (column, later) in asked.leads.items():
            values[name] = getattr(rows[place + later], column) if place + later < len(rows) else None
        for name, later in asked.there.items():
            values[name] = place + later < len(rows)
        for name, (fold, reach) in self._folds.items():
            if reach.by_time:
                start = bisect_left(times, times[place] - reach.before)
                end = bisect_right(times, times[place] + reach.behind)
            else:
                start, end = max(place - reach.before, 0), place + reach.behind + 1
            some = slice(start, max(end, start))
            values[name] = aggregate_of(fold, codec_of(self.taken), rows[some], times[some])
        made: Out = self.out(**values)
        return made


def rows_ahead(asked: RowsAround, codec: RowCodec, key_type: Any, added: Mapping[str, Any]) -> Any:
    """A function for rows of this type. ``added``: the types of what it adds to each row."""
    taken = codec.type
    out = row_type("Row", {**codec.annotations, **added})

    def declare(namespace: dict[str, Any]) -> None:
        namespace["__annotations__"] = {"kept": ValueState[list[taken]]}  # type: ignore[valid-type]
        namespace["__module__"] = __name__

    cls: Any = new_class("RowsAhead", (RowsAhead[taken, out, key_type],), {}, declare)  # type: ignore[valid-type]
    return cls(asked, taken, out)
