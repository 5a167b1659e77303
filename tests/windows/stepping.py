"""Windowed steps in tests: one made from what a case says, and results as short text.

Rows are written ``a5@12``: key a, value 5, time 12 µs. Results are written ``a[10,20)=5,7``: the values of a window, by
size; ``/early`` or ``/late`` behind it where it did not come on time; without bounds where a window has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import headrace as hr
from headrace.dataflow.graph import KeyedNode
from headrace.operators.contract import Operator
from headrace.plan.build import operator_builder
from headrace.testing.rig import EmittedRow, OperatorRig, row_time

ROW = re.compile(r"(\w)(-?\d+)@(-?\d+)")
VERBS = ("collect", "process", "own", "reduce", "sums", "top", "distinct")
"""Ways to ask for all values of a window, or for their number and sum, or how many there are; each is kept in a way of
its own."""


class Event(hr.Record):
    key: str
    n: int
    at: hr.Timestamp
    seen: list[int] = []
    gap: hr.Duration = hr.Duration(0)


class Seen(hr.Record):
    key: str
    seen: list[int]
    pane: str = ""
    window_start: int | None = None
    window_end: int | None = None


class All(hr.Aggregator[Event, list[int], list[int]]):
    """Keeps every value, changing its accumulator in place."""

    def zero(self) -> list[int]:
        return []

    def add(self, acc: list[int], x: Event) -> list[int]:
        acc.append(x.n)
        return acc

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        a.extend(b)
        return a

    def result(self, acc: list[int]) -> list[int]:
        return list(acc)


class Tell(hr.WindowProcess[Event, Seen, str]):
    def on_window(self, rows: Sequence[Event], ctx: hr.WindowContext[str]) -> Iterator[Seen]:
        yield Seen(ctx.key, [row.n for row in rows], ctx.pane, int(ctx.window.start), int(ctx.window.end))


def both(a: Event, b: Event) -> Event:
    return a.replace(seen=[*(a.seen or [a.n]), *(b.seen or [b.n])])


def windowed(
    app: hr.App, window: Any, verb: str, *, timed: bool = True, **options: Any
) -> hr.types.WindowStream[Any, Event]:
    """The windowed step of a case."""
    events = app.read("events", hr.source.items([]), Event, time=Event.at if timed else None)
    held = events.key_by(Event.key).window(window, **options)
    match verb:
        case "collect":
            return held.aggregate(seen=hr.collect("n")).named("step")
        case "own":
            return held.aggregate(seen=All()).named("step")
        case "sums":
            return held.aggregate(n=hr.count(), total=hr.sum("n")).named("step")
        case "top":
            return held.aggregate(seen=hr.top("n", 1000)).named("step")
        case "distinct":
            return held.aggregate(kinds=hr.count_distinct("n")).named("step")
        case "reduce":
            return held.reduce(both).named("step")
        case "process":
            return held.process(Tell()).named("step")
    raise AssertionError(verb)


def operator_of(stream: hr.types.WindowStream[Any, Event]) -> Operator:
    assert isinstance(stream.node, KeyedNode)
    return operator_builder(stream.node)()


def rig_of(stream: hr.types.WindowStream[Any, Event], *, timed: bool = True, **options: Any) -> OperatorRig:
    options.setdefault("outlets", ("late", "finals"))
    return OperatorRig(operator_of(stream), Event, lambda row: row.key, time=row_time if timed else None, **options)


def events(text: str, gap: int = 0) -> list[Event]:
    made = [Event(key, int(n), hr.Timestamp(int(at)), [], hr.Duration(gap)) for key, n, at in ROW.findall(text)]
    assert len(made) == len(text.split()), f"not all of {text!r} are rows"
    return made


def told(emitted: EmittedRow, spec: Any) -> str:
    """A result as text. A reduced row does not say its window."""
    row = emitted.value
    if isinstance(row, Event):
        return f"{row.key}={_listed(row.seen or [row.n])}"
    if hasattr(row, "kinds"):
        shown = f"#{row.kinds}"
    else:
        shown = f"{row.n}:{row.total}" if hasattr(row, "total") else _listed(row.seen)
    pane = getattr(row, "pane", "") or "on_time"
    if not spec.assigner.timed:
        return f"{row.key}={shown}"
    assert emitted.at == row.window_end - 1, f"the time of a result is the last instant of its window: {emitted}"
    return f"{row.key}[{row.window_start},{row.window_end})={shown}" + ("" if pane == "on_time" else f"/{pane}")


def expected_of(text: str, verb: str) -> list[str]:
    """Expected results, as far as rows of a verb tell them."""
    if verb == "reduce":
        text = re.sub(r"\[[^)]*\)|/\w+", "", text)
    if verb == "sums":
        text = re.sub(r"=([-,\d]+)", lambda found: _summed(found[1]), text)
    if verb == "distinct":
        text = re.sub(r"=([-,\d]+)", lambda found: f"=#{len(set(found[1].split(',')))}", text)
    return text.split()


def _listed(values: Sequence[int]) -> str:
    return ",".join(map(str, sorted(values)))


def _summed(listed: str) -> str:
    values = [int(each) for each in listed.split(",")]
    return f"={len(values)}:{sum(values)}"
