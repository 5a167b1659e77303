"""A fork that takes outputs over: what the original gave out it does not repeat, and what comes behind is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.checkpoint.offline import hold_stopped
from headrace.checkpoint.rewind.request import parse_start
from headrace.errors import Refused, SettingsError, StoreError, StoreInUse
from headrace.state.manifest import read_manifest
from headrace.state.record import read_record
from headrace.state.savepoints import list_savepoints
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.checkpoint.test_rewind import AppendOnly, Hit, Program, counting, die, total


class World:
    """A target that both jobs write to, and what the source has."""

    def __init__(self, folder: Path) -> None:
        self.blue, self.green = folder / "blue", folder / "green"
        self.target = AppendOnly()
        self.rows = [Hit("a", n) for n in range(1, 8)]

    def begin(self, cut: int = 2, end: int = 5) -> None:
        program = rows_out(self.target)
        with Harness(program.app, store=self.blue, sinks=True) as h:
            for number, row in enumerate(self.rows[:end]):
                h.push(program.hits, row)
                h.epoch()
                if number == cut - 1:
                    h.savepoint("cut")
            h.savepoint("last")

    def fork(self, program: Program, moment: str = "@cut", read: int = 2, hold: str = "out") -> Harness:
        h = Harness(program.app, store=self.green, start_from=f"{self.blue}{moment}", hold=hold, sinks=True)
        h.push(program.hits, *self.rows[read:])
        return h


def rows_out(sink: object, *, twice: bool = False) -> Program:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.items([]), Hit)
    rows = hits.map(lambda hit: hit.replace(n=hit.n * 100), output=Hit) if twice else hits
    totals = rows.key_by(Hit.page).aggregate(total=hr.sum("n")).named("totals")
    rows.write(sink, name="out")
    return Program(app, hits, totals)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_rows_up_to_the_last_epoch_are_the_originals_and_those_behind_it_are_the_forks(world: World) -> None:
    world.begin()
    program = rows_out(world.target, twice=True)
    with world.fork(program) as h:
        h.epoch()
        assert h.published == 2
        assert [row.n for row in world.target.rows] == [1, 2, 3, 4, 5]
        assert total(h, program) == 1 + 2 + (3 + 4 + 5) * 100
        h.epoch()
        assert [row.n for row in world.target.rows] == [1, 2, 3, 4, 5, 600, 700]
    assert read_manifest(LocalStore(world.green), 0, 2).held == ["out"]
    assert [point.name for point in list_savepoints(LocalStore(world.blue))] == ["cut", "last"]


@pytest.mark.parametrize("point", ["copy_written", "fork_made", "reports_collected", "published"])
def test_dying_on_the_way_gives_nothing_out_twice(point: str, world: World) -> None:
    world.begin()

    def start() -> Harness:
        return world.fork(rows_out(world.target))

    def run() -> None:
        with start() as h:
            h.epoch()

    die(point, run)
    # A supervisor starts the same command again; from then on it goes on.
    again = rows_out(world.target)
    with Harness(again.app, store=world.green, start_from=f"{world.blue}@cut", hold="out", sinks=True) as h:
        read = 5 if h.published == 2 else 2
        h.push(again.hits, *world.rows[read:])
        h.epoch()
        h.epoch()
        assert [row.n for row in world.target.rows] == [1, 2, 3, 4, 5, 6, 7]
        assert total(h, again) == 28


def test_all_outputs_can_be_held_and_the_newest_epoch_leaves_nothing_to_pass(world: World) -> None:
    world.begin()
    program = rows_out(world.target)
    with world.fork(program, "", read=5, hold="all") as h:
        h.epoch()
        h.epoch()
        assert total(h, program) == 28
        assert [row.n for row in world.target.rows] == [1, 2, 3, 4, 5, 6, 7]


def test_going_back_to_where_the_fork_began_repeats_nothing_of_the_original(world: World) -> None:
    world.begin()
    world.target.rewinds = frozenset({"repeat", "hold"})
    program = rows_out(world.target)
    with world.fork(program):
        pass
    with pytest.raises(StoreError, match="repeat first what has gone out"), hold_stopped(LocalStore(world.green)):
        pass
    with world.fork(program) as h:
        h.epoch()
        h.epoch()
        with pytest.raises(Refused, match="cannot be taken back"):
            h.rewind(1)
        h.rewind(1, hold="out")
        h.epoch()
        assert (total(h, program), [row.n for row in world.target.rows]) == (28, [1, 2, 3, 4, 5, 6, 7])


def test_an_original_that_still_runs_is_refused_and_left_alone(world: World) -> None:
    world.begin()
    blue = rows_out(hr.sink.discard())
    with Harness(blue.app, store=world.blue):
        with pytest.raises(StoreInUse, match="another driver is running") as error:
            world.fork(rows_out(world.target))
        assert "headrace stop" in str(error.value.next_move)
    assert read_record(LocalStore(world.green)) is None
    assert [point.name for point in list_savepoints(LocalStore(world.blue))] == ["cut", "last"]


@pytest.mark.parametrize("moment", ["@cut", "@2"])
def test_what_cannot_be_passed_is_refused(moment: str, world: World) -> None:
    world.begin()
    with pytest.raises(Refused, match="no output 'outs'"):
        world.fork(rows_out(world.target), moment, hold="outs")
    app = hr.App("hits")
    other = app.read("others", hr.source.items([]), Hit)
    other.key_by(Hit.page).aggregate(total=hr.sum("n")).named("totals")
    other.write(world.target, name="out")
    with pytest.raises(Refused, match="cannot read exactly what the original had read") as error:
        Harness(app, store=world.green, start_from=f"{world.blue}{moment}", hold="out", sinks=True)
    assert error.value.found == "others"
    program = rows_out(world.target)
    with Harness(program.app, store=world.blue, sinks=True) as h:
        h.drain()
    with pytest.raises(Refused, match="the input of the original was ended"):
        world.fork(rows_out(world.target), moment)
    assert [point.name for point in list_savepoints(LocalStore(world.blue))] == ["cut", "last"], "no pin is left"


def test_an_abandoned_epoch_leads_to_no_end(world: World) -> None:
    world.begin()
    program = counting()
    with Harness(rows_out(hr.sink.discard()).app, store=world.blue, start_from="cut", sinks=True):
        pass
    with pytest.raises(Refused, match="does not lead to the newest epoch"):
        world.fork(rows_out(world.target), "@last")
    assert program.app.name == "hits"


def test_a_fork_takes_nothing_back(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a fork takes nothing back"):
        parse_start("./blue@cut", str(tmp_path / "green"), repeat="out")
