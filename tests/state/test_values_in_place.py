"""Values that can be changed in place: copies go in and out of a state, wherever epochs end and whatever fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pytest

import headrace as hr
from headrace.state.fitting import declared_codec
from headrace.testing import Harness
from tests.state.kept_values import Bag, Box, Event, Out, harness


class Tree(hr.Record):
    of: Box
    left: Tree | None = None


class Open(msgspec.Struct):
    a: int


@dataclass
class Loose:
    a: int


@dataclass(frozen=True)
class Firm:
    a: int


class Pair(NamedTuple):
    a: int
    b: str


class Colour(Enum):
    RED = "red"


class Appending(hr.Aggregator[Event, list[int], list[int]]):
    def zero(self) -> list[int]:
        return []

    def add(self, acc: list[int], x: Event) -> list[int]:
        acc += [x.n]
        return acc

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b

    def result(self, acc: list[int]) -> list[int]:
        return acc


def extended(a: list[int], b: list[int]) -> list[int]:
    a.extend(b)
    return a


class Values(hr.Process[Event, Out, str]):
    kept: hr.ValueState[list[int]]

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Out]:
        trail = self.kept.get([])
        trail.append(event.n)
        self.kept.set(trail)
        yield Out(ctx.key, trail)


class Expiring(Values):
    kept: hr.ValueState[list[int]] = hr.state(ttl="1d")


class Maps(hr.Process[Event, Out, str]):
    kept: hr.MapState[str, list[int]]

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Out]:
        trail = self.kept.get("x", [])
        trail.append(event.n)
        self.kept["x"] = trail
        yield Out(ctx.key, trail)


class Lists(hr.Process[Event, Out, str]):
    kept: hr.ListState[list[int]]

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Out]:
        given = [event.n]
        self.kept.append(given)
        given.append(-1)
        for each in self.kept:
            each.append(-2)
        yield Out(ctx.key, [n for each in self.kept for n in each])


class Reduced(hr.Process[Event, Out, str]):
    kept: hr.ReducingState[list[int]] = hr.state(reduce=extended)

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Out]:
        self.kept.add([event.n])
        yield Out(ctx.key, self.kept.get() or [])


class Aggregated(hr.Process[Event, Out, str]):
    kept: hr.AggregatingState[Event, list[int]] = hr.state(aggregator=Appending())

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Out]:
        self.kept.add(event)
        yield Out(ctx.key, self.kept.get() or [])


def trails(function: Any, epochs: Sequence[int]) -> tuple[list[list[int]], Any]:
    h, events, step = harness(function)
    rows = [Event("a", n + 1) for n in range(sum(epochs))]
    with h:
        for count in epochs:
            h.push(events, *rows[:count])
            h.epoch()
            rows = rows[count:]
        return [row.trail for row in h.take(step)], h.state(step, type(function).kept, "a")


@pytest.mark.parametrize("function", [Values(), Expiring(), Maps(), Lists(), Reduced(), Aggregated()])
@pytest.mark.parametrize("epochs", [(3,), (2, 1), (1, 1, 1)])
def test_what_was_given_out_stays_as_it_was_wherever_epochs_end(function: Any, epochs: tuple[int, ...]) -> None:
    given, kept = trails(function, epochs)
    assert given == [[1], [1, 2], [1, 2, 3]]
    assert kept in ([1, 2, 3], {"x": [1, 2, 3]}, [[1], [2], [3]])


class Careless(hr.Process[Event, Out, str]):
    """Changes what it got, and what it set before, without setting it again."""

    kept: hr.ValueState[Bag]
    map: hr.MapState[str, dict[str, int]]

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Out]:
        bag = self.kept.get()
        if bag is None:
            bag = Bag([event.n])
            entry = {"n": event.n}
            self.kept.set(bag)
            self.map["x"] = entry
            entry["n"] = -1
        bag.things.append(-1)
        for each in self.map.values():
            each["more"] = 1
        self.map["x"]["more"] = 2
        found = self.kept.get()
        assert found is not None
        yield Out(ctx.key, found.things + sorted(self.map["x"].values()))


@pytest.mark.parametrize("epochs", [(3,), (1, 2), (1, 1, 1)])
def test_a_change_in_place_counts_only_if_it_is_set(epochs: tuple[int, ...]) -> None:
    given, kept = trails(Careless(), epochs)
    assert given == [[1, 1]] * 3
    assert kept == Bag([1])


class Failing(hr.Process[Event, Out, str]):
    value: hr.ValueState[list[int]]
    map: hr.MapState[str, list[int]]
    total: hr.AggregatingState[Event, list[int]] = hr.state(aggregator=Appending())

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Out]:
        trail = self.value.get([])
        trail.append(event.n)
        self.value.set(trail)
        entry = self.map.get("x", [])
        entry.append(event.n)
        self.map["x"] = entry
        self.total.add(event)
        if event.n == 13:
            raise ValueError("thirteen")
        yield Out(ctx.key, trail)


@pytest.mark.parametrize("epochs", [(3,), (1, 2), (1, 1, 1)])
def test_what_a_failing_call_changed_in_place_is_undone(epochs: tuple[int, ...]) -> None:
    h, events, step = harness(Failing(), errors=True)
    rows = [Event("a", 1), Event("a", 13), Event("a", 2)]
    with h:
        for count in epochs:
            h.push(events, *rows[:count])
            h.epoch()
            rows = rows[count:]
        assert [row.trail for row in h.take(step)] == [[1], [1, 2]]
        assert [failed.error for failed in h.take(step.errors)] == ["ValueError: thirteen"]
        assert h.state(step, Failing.value, "a") == [1, 2]
        assert h.state(step, Failing.map, "a") == {"x": [1, 2]}
        assert h.state(step, Failing.total, "a") == [1, 2]


@pytest.mark.parametrize(
    ("annotation", "changeable", "each"),
    [
        *((kind, False, False) for kind in (int, float, str, bytes, bool, datetime, Decimal, UUID, Colour, int | None)),
        *((kind, False, False) for kind in (hr.Timestamp, str | int)),
        *((kind, False, True) for kind in (Box, Firm, Pair, tuple[int, ...], tuple[Box, str], Box | None, Tree)),
        *((kind, False, True) for kind in (Literal["a", "b"], Annotated[int, msgspec.Meta(ge=0)], frozenset[int])),
        *((kind, True, True) for kind in (list[int], dict[str, int], set[int], bytearray, Bag, Open, Loose, Any)),
        *((kind, True, True) for kind in (tuple[int, list[int]], Bag | None, tuple[Open, ...], frozenset[Any])),
    ],
)
def test_an_annotation_says_what_can_be_changed_in_place(annotation: Any, changeable: bool, each: bool) -> None:
    codec = declared_codec(annotation)
    assert (codec.changeable, codec.each) == (changeable, each)


# --- steps that keep values for functions without declaring a state


class Numbers(hr.Record):
    key: str
    ns: list[int]


def joined(a: Numbers, b: Numbers) -> Numbers:
    a.ns.extend(b.ns)
    return a


@pytest.mark.parametrize("epochs", [(3,), (1, 2), (1, 1, 1)])
def test_rolling_results_stay_as_they_were_given_out(epochs: tuple[int, ...]) -> None:
    app = hr.App("rolling")
    events = app.read("events", hr.source.items([]), Event)
    lists = app.read("lists", hr.source.items([]), Numbers)
    trails = events.key_by(Event.key).aggregate(Out, trail=Appending(), fire=hr.per_row()).named("trails")
    reduced = lists.key_by(Numbers.key).reduce(joined).named("reduced")
    trails.show()
    reduced.show()
    numbers = [1, 2, 3]
    with Harness(app, parallelism=1) as h:
        for count in epochs:
            h.push(events, *(Event("a", n) for n in numbers[:count]))
            h.push(lists, *(Numbers("a", [n]) for n in numbers[:count]))
            h.epoch()
            numbers = numbers[count:]
        assert [row.trail for row in h.take(trails)] == [[1], [1, 2], [1, 2, 3]]
        assert [row.ns for row in h.take(reduced)] == [[1], [1, 2], [1, 2, 3]]


class Rule(hr.Record):
    name: str
    n: int = 0


class Ruled(hr.BroadcastProcess[Event, Rule, Out, str]):
    rules: hr.BroadcastState[str, list[int]]

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> Iterator[Out]:
        ns = self.rules.get(event.name, [])
        ns.append(event.n)
        self.rules[event.name] = ns if event.n != 99 else [0.5]  # type: ignore[list-item]
        yield Out(event.name, ns)
        if event.n == 13:
            raise ValueError("thirteen")
        ns.append(-1)

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Out]:
        yield Out(ctx.key, self.rules.get("a", []))


@pytest.mark.parametrize("epochs", [(4,), (1, 1, 1, 1)])
def test_broadcast_values_are_copied_and_checked_where_they_are_put(epochs: tuple[int, ...]) -> None:
    app = hr.App("rules")
    events = app.read("events", hr.source.items([]), Event)
    rules = app.read("rules", hr.source.items([]), Rule)
    step = events.key_by(Event.key).connect(rules.broadcast()).process(Ruled()).named("step")
    step.show()
    step.errors.show()
    rows = [Rule("a", n) for n in (1, 13, 99, 2)]
    with Harness(app, parallelism=2) as h:
        for count in epochs:
            h.push(rules, *rows[:count])
            h.epoch()
            rows = rows[count:]
        assert [failed.error[:20] for failed in h.take(step.errors)] == ["ValueError: thirteen", "TypeError: the state"]
        h.take(step)
        h.push(events, Event("x"))
        h.epoch()
        assert [row.trail for row in h.take(step)] == [[1, 2]]
