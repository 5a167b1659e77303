"""Values that can be changed in place: what counts is what was set, wherever epochs end; and what does not fit."""

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
from headrace.errors import BadRow, FunctionFailed
from headrace.state.annotations import declared_codec
from headrace.testing import Harness


class Event(hr.Record):
    key: str
    n: int = 0
    at: hr.Timestamp = hr.Timestamp(0)


class Out(hr.Record):
    key: str
    trail: list[int]


class Box(hr.Record):
    a: int
    b: int = 0


class Bag(hr.Record):
    things: list[int]


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


class Appending(hr.Aggregator[int, list[int], list[int]]):
    def zero(self) -> list[int]:
        return []

    def add(self, acc: list[int], x: int) -> list[int]:
        acc.append(x)
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
    kept: hr.AggregatingState[int, list[int]] = hr.state(aggregator=Appending())

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Out]:
        self.kept.add(event.n)
        yield Out(ctx.key, self.kept.get() or [])


def harness(function: Any, *, errors: bool = False) -> tuple[Harness, Any, Any]:
    app = hr.App("copies")
    events = app.read("events", hr.source.items([]), Event, time=Event.at)
    step = events.key_by(Event.key).process(function).named("step")
    step.show()
    if errors:
        step.errors.show()
    return Harness(app, parallelism=1), events, step


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
    total: hr.AggregatingState[int, list[int]] = hr.state(aggregator=Appending())

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Out]:
        trail = self.value.get([])
        trail.append(event.n)
        self.value.set(trail)
        entry = self.map.get("x", [])
        entry.append(event.n)
        self.map["x"] = entry
        self.total.add(event.n)
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


# --- what does not fit


def refused(function: Any, *rows: Event) -> FunctionFailed:
    """The error of an epoch that must not be published, and that leaves nothing behind."""
    h, events, _ = harness(function)
    with h:
        h.push(events, Event("fine", 0), *rows)
        with pytest.raises(FunctionFailed) as caught:
            h.epoch()
        assert h.published == -1
        return caught.value


class Sets(hr.Process[Event, Out, str]):
    number: hr.ValueState[int]
    text: hr.ValueState[str]
    box: hr.ValueState[Box]
    boxes: hr.ListState[Box]
    by_name: hr.MapState[str, tuple[int, int]]
    bags: hr.ValueState[Bag]
    wall: hr.WallTimer
    ends: hr.Timers

    def __init__(self, name: str, bad: Any) -> None:
        self.name = name
        self.bad = bad

    def on_event(self, event: Event, ctx: hr.Context[str]) -> None:
        given: Any = self.bad if event.n else GOOD[self.name]
        handle = getattr(self, self.name)
        if self.name == "boxes":
            handle.append(given)
        elif self.name == "by_name":
            handle.update(given)
        elif self.name == "ends":
            handle.add(given)
        else:
            handle.set(given)

    def on_timer(self, timer: Any, ctx: hr.Context[str]) -> None:
        pass


GOOD: dict[str, Any] = {
    "number": 1,
    "text": "a",
    "box": Box(1),
    "boxes": Box(1),
    "by_name": {"a": (1, 2)},
    "bags": Bag([1]),
    "wall": 5,
    "ends": 5,
}


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("number", 2**70),
        ("number", 1.5),
        ("number", object()),
        ("number", Unshowable()),
        ("text", "a\ud800"),
        ("box", Box(1.5)),  # type: ignore[arg-type]
        ("box", Box(2**70)),
        ("boxes", Box("a")),  # type: ignore[arg-type]
        ("by_name", {"a": (1, "b")}),
        ("by_name", {"a\ud800": (1, 2)}),
        ("bags", Bag([1.5])),  # type: ignore[list-item]
        ("bags", Bag(LOOP)),
        ("wall", 2**63),
        ("ends", -(2**63) - 1),
    ],
)
def test_what_does_not_fit_stops_the_epoch_and_says_where(name: str, bad: Any) -> None:
    error = refused(Sets(name, bad), Event("odd", 1), Event("other", 0))
    assert error.where.startswith("step step")
    assert "key odd" in error.found
    assert name in str(error) or "timer" in str(error)
    assert error.failure is not None and error.failure.key == "odd"


def test_a_misfit_that_can_be_changed_in_place_goes_to_the_errors_of_the_step() -> None:
    h, events, step = harness(Sets("bags", Bag([1.5])), errors=True)  # type: ignore[list-item]
    with h:
        h.push(events, Event("a", 0), Event("a", 1), Event("b", 0))
        h.epoch()
        (failed,) = h.take(step.errors)
        assert failed.key == "a" and "'bags' was given" in failed.error
        assert h.state(step, Sets.bags, "a") == Bag([1])


# --- steps that keep values for functions without declaring a state


class Numbers(hr.Record):
    key: str
    ns: list[int]


class Trail(hr.Aggregator[Event, list[int], list[int]]):
    def zero(self) -> list[int]:
        return []

    def add(self, acc: list[int], x: Event) -> list[int]:
        acc.append(x.n)
        return acc

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b

    def result(self, acc: list[int]) -> list[int]:
        return acc


def joined(a: Numbers, b: Numbers) -> Numbers:
    a.ns.extend(b.ns)
    return a


@pytest.mark.parametrize("epochs", [(3,), (1, 2), (1, 1, 1)])
def test_rolling_results_stay_as_they_were_given_out(epochs: tuple[int, ...]) -> None:
    app = hr.App("rolling")
    events = app.read("events", hr.source.items([]), Event)
    lists = app.read("lists", hr.source.items([]), Numbers)
    trails = events.key_by(Event.key).aggregate(Out, trail=Trail(), fire=hr.per_row()).named("trails")
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


class Halving(hr.Aggregator[Event, int, int]):
    """Makes a number with a fraction of some rows, which its type does not allow."""

    def zero(self) -> int:
        return 0

    def add(self, acc: int, x: Event) -> int:
        return acc + x.n / 2 if x.n % 2 else acc + 1  # type: ignore[return-value]

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return 1


class Halved(hr.Record):
    key: str
    n: int


def half(a: Event, b: Event) -> Event:
    return Event(a.key, a.n + (0.5 if b.n % 2 else 1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "made",
    [
        lambda keyed: keyed.aggregate(Halved, n=Halving()),
        lambda keyed: keyed.window(hr.tumbling("1h")).aggregate(Halved, n=Halving()),
        lambda keyed: keyed.window(hr.tumbling("1h")).reduce(half),
    ],
)
def test_what_other_functions_make_must_fit_too(made: Any) -> None:
    app = hr.App("halves")
    events = app.read("events", hr.source.items([]), Event, time=Event.at)
    step = made(events.key_by(Event.key)).named("step")
    step.show()
    with Harness(app, parallelism=1) as h:
        h.push(events, *(Event(key, n) for key, n in (("fine", 2), ("fine", 2), ("odd", 1), ("odd", 1))))
        with pytest.raises(FunctionFailed, match="which its type cannot hold") as caught:
            h.epoch()
        assert h.published == -1
        assert caught.value.where == "step step" and caught.value.found == "key odd"


def test_what_is_given_out_must_fit_too() -> None:
    app = hr.App("halves")
    events = app.read("events", hr.source.items([]), Event, time=Event.at)
    events.key_by(Event.key).reduce(half, fire=hr.per_epoch()).named("step").show()
    with Harness(app, parallelism=1) as h:
        h.push(events, Event("odd", 1), Event("odd", 1))
        with pytest.raises(BadRow, match="step step: a row does not fit Event"):
            h.epoch()
        assert h.published == -1


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


class Never(hr.Trigger):
    def on_row(self, row: Event, ctx: hr.TriggerContext) -> hr.TriggerResult:
        ctx.set_timer(hr.Timestamp(2**63))
        return hr.TriggerResult.CONTINUE


def test_a_trigger_cannot_set_a_timer_beyond_time() -> None:
    app = hr.App("never")
    events = app.read("events", hr.source.items([]), Event, time=Event.at)
    step = events.key_by(Event.key).window(hr.tumbling("1h"), fire=Never()).aggregate(n=hr.count()).named("step")
    step.show()
    with Harness(app, parallelism=1) as h:
        h.push(events, Event("a"))
        with pytest.raises(FunctionFailed, match="is no time for a timer") as caught:
            h.epoch()
        assert caught.value.failure.file == __file__
