"""What is advised when a function fails can be done: ``errors`` are named where a step has them, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed
from headrace.testing import Harness


class Tap(hr.Record):
    user: str
    n: int = 1


class Fragile(hr.Process[Tap, Tap, str]):
    wake: hr.WallTimer

    def __init__(self, on: str) -> None:
        self.on = on

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> None:
        self.wake.set(ctx.now)
        if self.on == "event":
            raise ValueError("event")

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:
        if self.on == "timer":
            raise ValueError("timer")


class Refusing(hr.Aggregator[Tap, int, int]):
    def __init__(self, on: str) -> None:
        self.on = on

    def zero(self) -> int:
        return 0

    def add(self, acc: int, x: Tap) -> int:
        return acc // (self.on != "add")

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return acc // (self.on != "result")


def broken(*rows: Any) -> Any:
    raise ValueError("broken")


Make = Callable[[hr.Stream[Tap]], hr.Stream[Any]]

WITH_ERRORS: dict[str, Make] = {
    "map": lambda taps: taps.map(broken, output=Tap),
    "flat_map": lambda taps: taps.flat_map(broken, output=Tap),
    "filter": lambda taps: taps.filter(broken),
    "map_batches": lambda taps: taps.map_batches(broken, Tap),
    "process": lambda taps: taps.key_by("user").process(Fragile("event")),
    "timer": lambda taps: taps.key_by("user").process(Fragile("timer")),
    "reduce": lambda taps: taps.key_by("user").reduce(broken).named("step"),
    "aggregate": lambda taps: taps.key_by("user").aggregate(x=Refusing("add")).named("step"),
}


@pytest.mark.parametrize("verb", WITH_ERRORS)
def test_who_reads_the_errors_that_are_advised_gets_the_rows(verb: str) -> None:
    rows = [Tap("a"), Tap("a")]
    with pytest.raises(FunctionFailed) as caught:
        played(WITH_ERRORS[verb], rows, read_errors=False)
    assert "the step's .errors" in caught.value.next_move
    failed = played(WITH_ERRORS[verb], rows, read_errors=True)
    assert failed
    keyed = verb in ("process", "timer", "reduce", "aggregate")
    assert {row.key for row in failed} == {"a" if keyed else ""}
    assert {row.timer for row in failed} == {"wake" if verb == "timer" else ""}


def played(make: Make, rows: list[Tap], *, read_errors: bool) -> list[hr.Failed]:
    app = hr.App("taps")
    taps = app.read("taps", hr.source.items([]), Tap)
    step = make(taps)
    errors = step.errors if read_errors else None
    with Harness(app) as h:
        h.push(taps, *rows)
        h.epoch()
        return [] if errors is None else h.take(errors)


def same(tap: Tap) -> Tap:
    return tap


WITHOUT_ERRORS: dict[str, tuple[Make, str]] = {
    "a key function": (lambda taps: taps.key_by(broken).latest().named("step"), "filter before key_by"),
    "where in the worker": (lambda taps: taps.map(same).where("1 div n > 0"), "try_divide"),
    "select in the worker": (lambda taps: taps.map(same).select(x="1 div n"), "try_divide"),
    "a result": (lambda taps: taps.key_by("user").aggregate(x=Refusing("result")).named("step"), "mend the function"),
}


@pytest.mark.parametrize("what", WITHOUT_ERRORS)
def test_no_errors_are_advised_where_there_are_none(what: str) -> None:
    make, advice = WITHOUT_ERRORS[what]
    with pytest.raises(FunctionFailed) as caught:
        played(make, [Tap("a", 0)], read_errors=False)
    assert "the step's .errors" not in caught.value.next_move
    assert advice in caught.value.next_move


def leave(tap: Tap) -> Tap:
    sys.exit(3)


@pytest.mark.parametrize("read_errors", [False, True])
def test_a_function_that_would_end_its_process_stops_the_job_with_its_line(read_errors: bool) -> None:
    with pytest.raises(FunctionFailed, match=r"a function ended its process: sys\.exit\(3\)") as caught:
        played(lambda taps: taps.map(leave, output=Tap), [Tap("a")], read_errors=read_errors)
    assert caught.value.where == f"{__file__}:{leave.__code__.co_firstlineno + 1}"


def test_the_advice_for_keys_and_sql_helps() -> None:
    app = hr.App("taps")
    taps = app.read("taps", hr.source.items([]), Tap)
    keyed = taps.map(lambda tap: tap.replace(user=str(1 // tap.n)), output=Tap)
    newest = keyed.key_by(Tap.user).latest().named("newest")
    halves = taps.map(same).select(x="try_divide(1, n)")
    errors = keyed.errors
    with Harness(app) as h:
        h.push(taps, Tap("a", 0), Tap("b", 1))
        h.epoch()
        assert h.take(newest) == [Tap("1", 1)]
        assert [row.x for row in h.take(halves)] == [None, 1.0]
        assert len(h.take(errors)) == 1
