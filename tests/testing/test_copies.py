"""What functions keep in their own objects: each start has its own, and the program stays as it was stated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed
from headrace.model.order import EpochLimits
from headrace.plan.compile import compile_app
from headrace.plan.ship import dump_program
from headrace.spark.executor import Ship, Worker
from headrace.testing import Harness


class Tap(hr.Record):
    user: str
    n: int = 1


BROKEN: list[str] = []
"""Code is shared with the test, so what stands in a module can be changed while a program runs."""


class Keeping(hr.Process[Tap, Tap, str]):
    """Says how many rows its object has seen, in whatever way it counts them."""

    def __init__(self) -> None:
        self.users: list[str] = []

    def on_event(self, event: Tap, ctx: hr.Context[str]) -> Iterator[Tap]:
        self.users.append(event.user)
        if BROKEN:
            raise ValueError("broken")
        yield event.replace(n=len(self.users))


class Numbering:
    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def __call__(self, tap: Tap) -> Tap:
        self.seen[tap.user] = self.seen.get(tap.user, 0) + 1
        return tap.replace(n=self.seen[tap.user])


class Program:
    def __init__(self) -> None:
        self.app = hr.App("taps")
        self.taps = self.app.read("taps", hr.source.items([]), Tap)
        self.keeping, self.numbering = Keeping(), Numbering()
        self.kept = self.taps.key_by(Tap.user).process(self.keeping)
        self.numbered = self.taps.map(self.numbering, output=Tap)

    def epoch(self, h: Harness, n: int = 1) -> tuple[list[int], list[int]]:
        h.push(self.taps, Tap("a", n))
        h.epoch()
        return [row.n for row in h.take(self.kept)], [row.n for row in h.take(self.numbered)]


def test_the_objects_of_the_program_stay_as_they_were() -> None:
    program = Program()
    with Harness(program.app) as h:
        program.epoch(h)
        assert program.epoch(h) == ([2], [2]), "within a start an object lives on, as in a worker"
    assert program.keeping.users == []
    assert program.numbering.seen == {}
    assert "total" not in vars(program.keeping)
    with Harness(program.app) as h:
        assert program.epoch(h) == ([1], [1])


@pytest.mark.parametrize("point", ["in the middle", "before_publish", "published"])
def test_after_a_crash_functions_are_as_they_were_shipped(point: str) -> None:
    program = Program()
    with Harness(program.app) as h:
        program.epoch(h)
        if point == "in the middle":
            h.restart()
        else:
            h.push(program.taps, Tap("b"))
            h.crash(at=point)
            h.epoch()
            h.take(program.kept), h.take(program.numbered)
            h.restart()
        assert program.epoch(h) == ([1], [1])


def test_after_a_failure_functions_are_as_they_were_shipped() -> None:
    program = Program()
    with Harness(program.app) as h:
        program.epoch(h)
        BROKEN.append("for once")
        with pytest.raises(FunctionFailed, match="broken"):
            program.epoch(h)
        BROKEN.clear()
        h.epoch()
        assert [row.n for row in h.take(program.kept)] == [1]


def test_a_worker_that_lost_its_operators_makes_them_of_functions_as_shipped(tmp_path: Path) -> None:
    program = Program()
    program.kept.show()
    program.numbered.show()
    payload: Any = SimpleNamespace(value=dump_program(compile_app(program.app, parallelism=1, key_groups=4)))
    worker = Worker(Ship("id", payload, str(tmp_path), EpochLimits()))
    first = worker.live(("level", 1))
    assert worker.live(("level", 1)) is first
    keeping: Any = first.operators[0]
    keeping.function.users.append("half way")
    worker._live.pop(("level", 1))
    again: Any = worker.live(("level", 1)).operators[0]
    assert again.function.users == []
