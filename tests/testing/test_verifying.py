"""`headrace verify`: faults are planted, and each is found with what it depends on and the step to look at."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headrace as hr
from headrace.errors import ProgramError
from headrace.testing import DependenceReport, verify_program, verifying
from tests.cli.calling import call, call_json

NOON = 1_704_110_400_000_000
SEEN_HERE: list[str] = []
TOLD = 0


class Move(hr.Record):
    user: str
    n: int
    at: hr.Timestamp


class Said(hr.Record):
    user: str
    what: str


def moves(*rows: tuple[str, int, int]) -> list[Move]:
    return [Move(user, n, hr.Timestamp(NOON + second * 1_000_000)) for user, second, n in rows]


SAMPLE = {
    "moves": {
        "p0": moves(("a", 0, 1), ("b", 2, 2), ("a", 4, 3), ("a", 9, 5)),
        "p1": moves(("a", 0, 4), ("b", 1, 6), ("a", 5, 7), ("a", 9, 8)),
    },
    "others": moves(("a", 1, 10), ("b", 2, 20), ("a", 7, 30)),
}


class Function(hr.Process[Move, Said, str]):
    total: hr.ValueState[int]

    def on_event(self, event: Move, ctx: hr.Context[str]) -> Iterator[Said]:
        yield Said(ctx.key, f"{event.n} {self.what(event, ctx)}")

    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        raise NotImplementedError


class Quiet(Function):
    quiet: hr.Timer

    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        self.total.set(self.total.get(0) + 1)
        self.quiet.set(event.at + hr.seconds(2))
        return self.total.get()

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:
        self.total.clear()


class Wall(Function):
    brief: hr.ValueState[int] = hr.state(ttl="10m")

    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        known = self.brief.get()
        self.brief.set(1)
        return known


class WallTimed(Function):
    later: hr.WallTimer

    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        self.later.set(ctx.now + hr.minutes(10))
        return ""

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Said]:
        yield Said(ctx.key, "later")


class Epoch(Function):
    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        return ctx.epoch


class Now(Function):
    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        return ctx.now


class Global(Function):
    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        global TOLD
        TOLD += 1
        return TOLD


class Remembers(Function):
    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        SEEN_HERE.append(event.user)
        return len(SEEN_HERE)


class InItself(Function):
    def __init__(self) -> None:
        self.count = 0

    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        self.count += 1
        return self.count


class Chance(Function):
    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        return random.random()


class Clock(Function):
    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        return time.perf_counter_ns()


class Shown(Function):
    brief: hr.ValueState[int] = hr.state(ttl=hr.ttl("1s", clock="event", expired="show"))

    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        return self.total.get()


class Meet(hr.CoProcess[Move, Move, Said, str]):
    last: hr.ValueState[int]

    def on_left(self, event: Move, ctx: hr.Context[str]) -> Iterator[Said]:
        yield Said(ctx.key, f"{event.n} beside {self.last.get()}")

    def on_right(self, event: Move, ctx: hr.Context[str]) -> None:
        self.last.set(event.n)


class Picky(Function):
    """Fails where two rows of one key come in one order, and not in the other."""

    def what(self, event: Move, ctx: hr.Context[str]) -> Any:
        if event.n == 4 and self.total.get() is None:
            raise ValueError("never the first")
        self.total.set(event.n)
        return ""


class Fault(NamedTuple):
    build: Callable[[Any], Any]
    factors: set[str]
    """At least one of these is named."""
    says: str
    """Part of what is said to look at."""


def function(fn: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda streams: streams[0].key_by(Move.user).process(fn, **options)


FAULTS: dict[str, Fault] = {
    "timers_behind_rows": Fault(function(Quiet()), {"cuts", "order"}, 'order="time"'),
    "newest_of_one_time": Fault(lambda streams: streams[0].key_by(Move.user).latest(), {"order"}, "is the newest"),
    "not_commutative": Fault(
        lambda streams: streams[0].key_by(Move.user).reduce(lambda a, b: a.replace(n=a.n * 2 + b.n)), {"order"},
        "in another order",
    ),
    "collected": Fault(
        lambda streams: streams[0].key_by(Move.user).aggregate(ns=hr.collect("n")), {"order"}, "which row comes first"
    ),
    "wall_ttl": Fault(function(Wall()), {"clock"}, "brief expires by the wall clock"),
    "wall_timer": Fault(function(WallTimed()), {"clock"}, "later fires by the wall clock"),
    "epoch": Fault(function(Epoch()), {"cuts"}, "uses ctx.epoch"),
    "now": Fault(function(Now(), order="time"), {"clock"}, "uses now, the wall clock"),
    "global_variable": Fault(function(Global()), {"again"}, "changes the global TOLD"),
    "list_outside": Fault(function(Remembers()), {"again"}, "uses SEEN_HERE, a list outside"),
    "attribute": Fault(function(InItself()), {"cuts", "crashes", "parallelism"}, "sets .count"),
    "chance": Fault(function(Chance(), order="time"), {"again"}, "asks random"),
    "machine_clock": Fault(function(Clock()), {"again"}, "asks time"),
    "two_streams": Fault(
        lambda streams: streams[0].key_by(Move.user).connect(streams[1].key_by(Move.user)).process(Meet()),
        {"cuts", "order"}, 'order="time"',
    ),
}  # fmt: skip


def planted(out_of_order: str = "1m", **builds: Callable[[Any], Any]) -> hr.App:
    app = hr.App("planted")
    source = hr.source.items([])
    streams = [app.read(name, source, Move, time=Move.at, out_of_order=out_of_order) for name in ("moves", "others")]
    for name, build in builds.items():
        build(streams).named(name).show()
    return app


@pytest.fixture(scope="module")
def found() -> DependenceReport:
    """What is said of a program with every fault but the one by which it fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifying, "_SMALLER_RUNS", 0)
        return verify_program(planted(**{name: fault.build for name, fault in FAULTS.items()}), SAMPLE, tries=17)


@pytest.fixture
def whole_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples need not be small in most tests."""
    monkeypatch.setattr(verifying, "_SMALLER_RUNS", 0)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_with_its_cause_and_its_step(name: str, found: DependenceReport) -> None:
    [output] = [each for each in found.dependences if each.what == f"output {name}_console"]
    assert set(output.factors) & FAULTS[name].factors, output.tell()
    assert output.step.startswith(f"{name} ("), output.tell()
    assert FAULTS[name].says in output.tell()


@pytest.mark.usefixtures("whole_examples")
def test_a_program_that_fails_in_one_order_only_is_told() -> None:
    found = verify_program(planted(picky=function(Picky())), SAMPLE, tries=8).dependences
    [failure] = [each for each in found if each.what == "the run"]
    assert "order" in failure.factors
    assert "ValueError: never the first" in failure.tell()


@pytest.mark.usefixtures("whole_examples")
def test_every_version_of_an_aggregate_depends_on_where_epochs_end() -> None:
    app = planted()
    sums = app.read("more", hr.source.items([]), Move).key_by(Move.user).aggregate(n=hr.sum("n")).named("sums")
    sums.changes().show()
    [output] = verify_program(app, {"more": SAMPLE["moves"]}, tries=8).dependences
    assert "cuts" in output.factors and output.step.startswith("changes")
    assert "takes every version of a row" in output.tell()


@pytest.mark.usefixtures("whole_examples")
def test_rows_that_are_late_under_some_cuts_are_told() -> None:
    found = verify_program(planted("1s", quiet=function(Quiet(), order="time")), SAMPLE, tries=8)
    assert any("cuts" in each.factors for each in found.dependences)
    assert "a longer out_of_order= waits for them" in found.tell()


def test_an_example_is_as_small_as_it_can_be() -> None:
    app = planted(newest=FAULTS["newest_of_one_time"].build)
    [output, state] = verify_program(app, SAMPLE, tries=10).dependences
    assert output.what == "output newest_console" and state.what == "state newest"
    assert len(output.example.rows) == 2
    assert len({row.row.at for row in output.example.rows}) == 1
    assert {row.split for row in output.example.rows} == {"p0", "p1"}


def test_a_program_in_the_order_of_time_depends_on_its_rows_alone() -> None:
    def build(streams: Any) -> Any:
        by_user = streams[0].key_by(Move.user)
        quiet = by_user.process(Quiet(), order="time")
        met = by_user.connect(streams[1].key_by(Move.user)).process(Meet(), order="time").named("met")
        windows = by_user.window(hr.tumbling("3s")).aggregate(n=hr.sum("n"), most=hr.max("n")).named("windows")
        for step in (met, windows.finals(), by_user.aggregate(mean=hr.avg("n")).named("means")):
            step.show()
        return quiet

    found = verify_program(planted(quiet_too=build), SAMPLE, tries=12)
    assert found.ok, found.tell()
    assert "came to the same in every one" in found.tell()
    assert set(found.targets) >= {"output quiet_too_console", "state quiet_too.total", "state means"}


PROGRAM = """
import headrace as hr

class Move(hr.Record):
    user: str
    n: int
    at: hr.Timestamp

app = hr.App("moved")
moves = app.read("moves", hr.source.items([]), Move, time=Move.at)
moves.key_by(Move.user).latest().named("newest").show()
"""


def test_the_command_reads_a_sample_and_says_what_it_saw(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    folder = tmp_path / "sample" / "moves"
    folder.mkdir(parents=True)
    line = '{{"user": "a", "n": {n}, "at": "2024-01-01T12:00:0{n}Z"}}\n'
    (folder / "p0.jsonl").write_text(line.format(n=1) + line.format(n=2))
    (folder / "p1.jsonl").write_text(line.format(n=3))
    asked = ("verify", tmp_path / "app.py", "--data", tmp_path / "sample", "--tries", 9)
    assert "output newest_console, state newest came to the same in every one" in call(*asked).stdout
    (folder / "p2.jsonl").write_text(line.format(n=3).replace('"n": 3', '"n": 9'))
    data = call_json(*asked, code=1)
    assert {each["what"] for each in data["dependences"]} == {"output newest_console", "state newest"}
    assert all(each["factors"] == ["order"] for each in data["dependences"])


def test_a_sample_that_does_not_fit_is_refused_in_words(tmp_path: Path) -> None:
    app = planted(quiet=function(Quiet()))
    with pytest.raises(ProgramError, match="no such source"):
        verify_program(app, {"moved": []})
    with pytest.raises(ProgramError, match="there is no such folder"):
        verify_program(app, tmp_path / "nowhere")
    (tmp_path / "moves.jsonl").write_text("{}\n")
    with pytest.raises(ProgramError, match="does not fit its source"):
        verify_program(app, tmp_path)
