"""Values that cannot be read back as they are declared: the epoch stops, says where, and stores nothing."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import BadRow, FunctionFailed
from headrace.testing import Harness
from tests.state.kept_values import Bag, Box, Event, Out, harness


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
    by_pair: hr.MapState[tuple[str, int], int]
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
        elif self.name in ("by_name", "by_pair"):
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
    "by_pair": {("a", 1): 1, ("b", 2): 2},
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
        ("by_name", {5: (1, 2)}),
        ("by_name", {"a": (1, 2), None: (1, 2)}),
        ("by_pair", {("a", "b"): 1}),
        ("by_pair", {("a", 1): 1, ("a", 1.5): 1}),
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
