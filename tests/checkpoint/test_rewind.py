"""Going back to an earlier epoch of a store: in the harness, with real files behind it and a death at every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import structs

import headrace as hr
from headrace.checkpoint.offline import hold_stopped
from headrace.checkpoint.publish import publish_manifest
from headrace.checkpoint.recover import start_over
from headrace.errors import Fenced, Refused, StoreError
from headrace.model import crash
from headrace.state.lineage import is_going_back
from headrace.state.manifest import EpochNote, read_manifest, read_seal, read_state
from headrace.state.record import read_record
from headrace.state.savepoints import delete_savepoint, list_savepoints
from headrace.state.store import LocalStore
from headrace.testing import Harness


class Hit(hr.Record):
    page: str
    n: int = 1


class Program(NamedTuple):
    app: hr.App
    hits: Any
    totals: Any


class AppendOnly(type(hr.sink.collect())):  # type: ignore[misc]
    """Cannot take back what went out; what it let out is kept for every program that writes to it."""

    rewinds = frozenset({"hold"})


def counting(*sinks: Any, name: str = "totals") -> Program:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.items([]), Hit)
    totals = hits.key_by(Hit.page).aggregate(total=hr.sum("n")).named(name)
    for number, sink in enumerate(sinks):
        totals.changes().write(sink, name=f"out{number}")
    return Program(app, hits, totals)


def played(h: Harness, program: Program, epochs: int, n: int = 1) -> None:
    for _ in range(epochs):
        h.push(program.hits, Hit("a", n))
        h.epoch()


def total(h: Harness, program: Program) -> int:
    row = h.state(program.totals, key="a")
    return 0 if row is None else int(row.total)


# --- the state and the epochs


def test_the_state_is_that_of_the_savepoint_and_what_was_read_since_is_read_again() -> None:
    program = counting()
    with Harness(program.app) as h:
        played(h, program, 3)
        h.savepoint("before")
        played(h, program, 4, n=10)
        assert (h.published, total(h, program)) == (6, 43)
        h.rewind("before")
        assert (h.published, total(h, program)) == (2, 3)
        h.epoch()
        assert (h.published, total(h, program)) == (3, 43)


@pytest.mark.parametrize("moment", ["before", 2, "2"])
def test_a_rewind_goes_to_a_savepoint_or_any_kept_epoch(moment: str | int) -> None:
    program = counting()
    with Harness(program.app) as h:
        played(h, program, 3)
        h.savepoint("before")
        played(h, program, 2)
        h.rewind(moment)
        assert (h.published, total(h, program)) == (2, 3)


def test_readers_see_the_epochs_that_lead_to_the_present(tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=tmp_path) as h:
        played(h, program, 3)
        h.savepoint("before")
        played(h, program, 2, n=10)
        h.rewind("before")
        store = hr.Store(tmp_path)
        assert (store.epochs(), store.timeline, store.state("totals")["a"]["total"]) == ([0, 1, 2], 1, 3)
        h.epoch()
        assert store.epochs() == [0, 1, 2, 3]
        found = {epoch: store.at(epoch).state("totals")["a"]["total"] for epoch in store.epochs()}
        assert found == {0: 1, 1: 2, 2: 3, 3: 23}
        assert store.at("end-of-timeline-0").state("totals")["a"]["total"] == 23


def test_the_old_end_is_kept_and_other_abandoned_epochs_are_swept(tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=tmp_path) as h:
        played(h, program, 3)
        h.savepoint("before")
        played(h, program, 5)
        h.rewind("before")
        played(h, program, 3)
        h.maintain()
        files = LocalStore(tmp_path)
        abandoned = {path for path in files.list("manifests/0") if int(path[-17:-5]) > 2}
        # Its last one, what that is read with, and the seal behind it.
        assert "manifests/0/000000000007.json" in abandoned
        assert read_seal(files, 0, 8) is not None
        assert hr.Store(f"{tmp_path}@end-of-timeline-0").state("totals")["a"]["total"] == 8
        assert hr.Store(tmp_path).state("totals")["a"]["total"] == total(h, program)


def test_going_back_twice_leaves_one_line_of_epochs(tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=tmp_path) as h:
        played(h, program, 5)
        h.rewind(3)
        h.epoch()
        h.rewind(1)
        h.epoch()
        assert hr.Store(tmp_path).epochs() == [0, 1, 2]
        assert total(h, program) == 5
        record = read_record(LocalStore(tmp_path))
        assert record is not None
        assert [(each.timeline, each.start) for each in record.branches] == [(1, (0, 3)), (2, (0, 1))]


def test_the_newest_epoch_is_no_rewind(tmp_path: Path) -> None:
    program = counting(AppendOnly())
    with Harness(program.app, store=tmp_path, sinks=True) as h:
        played(h, program, 2)
        h.savepoint("stopped-here")
        h.rewind("stopped-here")
        played(h, program, 1)
        assert (hr.Store(tmp_path).timeline, h.published, total(h, program)) == (0, 2, 3)


def test_the_same_command_again_goes_on_and_again_goes_back_once_more() -> None:
    program = counting()
    with Harness(program.app) as h:
        played(h, program, 2)
        h.savepoint("before")
        played(h, program, 2)
        for _ in range(2):
            h.rewind("before")
            h.epoch()
        assert (h.published, hr.Store(h.store).timeline) == (3, 1)
        h.rewind("before", again=True)
        assert (h.published, hr.Store(h.store).timeline) == (1, 2)


def test_a_new_process_goes_back_and_reads_what_is_pushed_again(tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=tmp_path) as h:
        played(h, program, 2)
        h.savepoint("before")
        played(h, program, 2, n=10)
    program = counting()
    with Harness(program.app, store=tmp_path, start_from="before") as h:
        played(h, program, 1, n=100)
        assert (h.published, total(h, program)) == (2, 102)


def test_a_rescale_and_a_rewind_go_together(tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=tmp_path, parallelism=1) as h:
        played(h, program, 2)
        h.savepoint("before")
    with Harness(program.app, store=tmp_path, parallelism=3) as h:
        played(h, program, 2)
    with Harness(program.app, store=tmp_path, parallelism=2, start_from="before") as h:
        assert total(h, program) == 2
        played(h, program, 2)
        assert total(h, program) == 4


def test_what_is_swept_or_unknown_is_refused_and_the_program_goes_on() -> None:
    program = counting()
    with Harness(program.app) as h:
        played(h, program, 20)
        h.maintain()
        with pytest.raises(StoreError, match="epoch 1 is not in the store"):
            h.rewind(1)
        with pytest.raises(StoreError, match="no savepoint 'before'"):
            h.rewind("before")
        played(h, program, 1)
        assert total(h, program) == 21


# --- outputs


def test_an_output_that_cannot_take_back_has_to_be_chosen_for() -> None:
    program = counting(hr.sink.collect(), AppendOnly())
    with Harness(program.app, sinks=True) as h:
        played(h, program, 2)
        h.savepoint("before")
        played(h, program, 2)
        with pytest.raises(Refused, match="rows went out behind epoch 1 that cannot be taken back") as error:
            h.rewind("before")
        assert (error.value.found, "--hold out1" in error.value.next_move) == ("out1", True)
        with pytest.raises(Refused, match="cannot take back what went out"):
            h.rewind("before", repeat="out1")
        with pytest.raises(Refused, match="no output 'out7'"):
            h.rewind("before", hold=["out7"])
        with pytest.raises(Refused, match="either repeats or holds"):
            h.rewind("before", hold=["out0"], repeat=["out0"])
        assert (h.published, hr.Store(h.store).timeline) == (3, 0)


def test_an_output_of_which_nothing_went_out_is_not_asked_for() -> None:
    program = counting(AppendOnly())
    with Harness(program.app, sinks=True) as h:
        played(h, program, 2)
        h.savepoint("before")
        h.epoch()
        h.rewind("before")
        assert h.published == 1


@pytest.mark.parametrize("hold", ["out0", "all", ["out0"]])
def test_an_output_that_holds_gives_each_row_out_once(hold: Any) -> None:
    sink = AppendOnly()
    program = counting(sink)
    with Harness(program.app, sinks=True) as h:
        played(h, program, 2)
        h.savepoint("before")
        played(h, program, 3)
        h.push(program.hits, Hit("a", 100))
        h.rewind("before", hold=hold)
        h.epoch()
        # All that had been read is read in one epoch, and nothing more.
        assert (h.published, total(h, program), len(sink.rows)) == (2, 5, 5)
        h.epoch()
        assert [row.total for row in sink.rows] == [1, 2, 3, 4, 5, 105]
        assert read_manifest(LocalStore(h.store), 1, 2).held.count("out0") == 1


def test_held_rows_that_were_not_out_yet_go_out_before(tmp_path: Path) -> None:
    sink = AppendOnly()
    program = counting(sink)
    with Harness(program.app, sinks=True) as h:
        played(h, program, 2)
        h.savepoint("before")
        played(h, program, 1)
        h.push(program.hits, Hit("a"))
        die("published", h.epoch)
        assert [row.total for row in sink.rows] == [1, 2, 3]
        h.rewind("before", hold="out0")
        h.epoch()
        assert [row.total for row in sink.rows] == [1, 2, 3, 4]


class Waiting(hr.Process[Hit, Hit, str]):
    ring: hr.WallTimer

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> None:
        self.ring.set(ctx.now + hr.seconds(10))

    def on_timer(self, timer: hr.WallTimer, ctx: hr.Context[str]) -> None:
        pass


def timing() -> Program:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.items([]), Hit)
    rung = hits.key_by(Hit.page).process(Waiting()).named("rung")
    rung.write(AppendOnly(), name="out0")
    return Program(app, hits, rung)


def test_holding_is_refused_where_clocks_make_the_replay_differ() -> None:
    program = timing()
    with Harness(program.app, sinks=True) as h:
        played(h, program, 1)
        h.savepoint("before")
        played(h, program, 2)
        with pytest.raises(Refused, match="may come to other rows") as error:
            h.rewind("before", hold="out0")
        assert "the step 'rung' works by the wall clock" in error.value.found


def test_holding_is_refused_where_the_program_or_a_person_changed_what_was_read(tmp_path: Path) -> None:
    program = counting(AppendOnly())
    with Harness(program.app, store=tmp_path, sinks=True) as h:
        played(h, program, 1)
        h.savepoint("before")
        played(h, program, 1)
    with hold_stopped(LocalStore(tmp_path)) as stopped:
        stopped.publish(EpochNote(kind="edit", by="ada", at_us=1))
    with Harness(program.app, store=tmp_path, sinks=True) as h:
        with pytest.raises(Refused, match="may come to other rows") as error:
            h.rewind("before", hold="all")
        assert "a change that a person made (edit)" in error.value.found
    other = counting(AppendOnly(), hr.sink.discard())
    with Harness(other.app, store=tmp_path, sinks=True) as h:
        with pytest.raises(Refused) as error:
            h.rewind("before", hold="all")
        assert "the program is another one than that of epoch 0" in error.value.found


def test_a_program_that_changes_before_what_is_held_has_passed_is_refused(tmp_path: Path) -> None:
    program = counting(AppendOnly())
    with Harness(program.app, store=tmp_path, sinks=True) as h:
        played(h, program, 1)
        h.savepoint("before")
        played(h, program, 1)
        h.rewind("before", hold="all")
    other = counting(AppendOnly(), hr.sink.discard())
    with pytest.raises(Refused, match="the program has changed since"):
        Harness(other.app, store=tmp_path, sinks=True)


def test_a_hold_that_cannot_go_on_can_be_taken_back(tmp_path: Path) -> None:
    sink = AppendOnly()
    program = counting(sink)
    with Harness(program.app, store=tmp_path, sinks=True) as h:
        played(h, program, 1)
        h.savepoint("before")
        played(h, program, 2)
        h.rewind("before", hold="all")
        h.rewind("end-of-timeline-0", hold="all")
        assert total(h, program) == 3
        played(h, program, 1)
        assert [row.total for row in sink.rows] == [1, 2, 3, 4]
        assert hr.Store(tmp_path).epochs() == [0, 1, 2, 3]


def test_an_abandoned_epoch_is_no_place_to_go_to_while_outputs_keep_rows() -> None:
    program = counting(hr.sink.collect())
    with Harness(program.app, sinks=True) as h:
        played(h, program, 1)
        h.savepoint("before")
        played(h, program, 2)
        h.rewind("before")
        played(h, program, 1)
        with pytest.raises(Refused, match="was abandoned by an earlier rewind"):
            h.rewind("end-of-timeline-0")


def test_without_outputs_an_abandoned_epoch_can_be_gone_to(tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=tmp_path) as h:
        played(h, program, 1)
        h.savepoint("before")
        played(h, program, 2, n=10)
        h.rewind("before")
        played(h, program, 1)
        h.rewind("end-of-timeline-0")
        assert (total(h, program), hr.Store(tmp_path).epochs()) == (21, [0, 1, 2])


# --- deaths, and drivers that wake up

STEPS = [point for point in crash.POINTS if point.startswith("rewind_") and point != "rewind_staged"]
STEPS += ["manifest_written", "manifest_answer_lost"]
COMMITTED = ("rewind_sealed", "rewind_pinned", "rewind_forgetting", "rewind_forgotten", "rewind_recorded")


def die(point: str, call: Callable[[], object]) -> None:
    def strike(reached: str, epoch: int) -> None:
        if reached == point:
            raise crash.Crash(point)

    with pytest.raises(crash.Crash), crash.planned(strike):
        call()


def lines(folder: Path) -> list[str]:
    return sorted(line for file in folder.glob("part-*") for line in file.read_text().splitlines())


@pytest.mark.parametrize("point", STEPS)
def test_a_death_at_any_step_of_a_rewind_is_made_good_by_the_next_start(point: str, tmp_path: Path) -> None:
    held = AppendOnly()
    program = counting(hr.sink.files(tmp_path / "a", format="json"), hr.sink.files(tmp_path / "b", format="json"), held)
    store = tmp_path / "store"
    with Harness(program.app, store=store, sinks=True) as h:
        played(h, program, 2)
        h.savepoint("before")
        played(h, program, 3)
        die(point, lambda: h.rewind("before", hold="out2"))
        h.restart()
        if point in COMMITTED or point == "manifest_answer_lost":
            assert (h.published, hr.Store(store).timeline) == (1, 1)
        else:
            assert (h.published, hr.Store(store).timeline) == (4, 0)
            h.rewind("before", hold="out2")
        h.restart()
        h.epoch()
        assert (h.published, total(h, program)) == (2, 5)
        assert [row.total for row in held.rows] == [1, 2, 3, 4, 5]
        for folder in (tmp_path / "a", tmp_path / "b"):
            # The abandoned rows are gone; one epoch repeats all of them as one.
            assert len(lines(folder)) == 3, lines(folder)
        played(h, program, 1)
        assert [row.total for row in held.rows] == [1, 2, 3, 4, 5, 6]
    names = [point.name for point in list_savepoints(LocalStore(store))]
    assert names == ["before", "end-of-timeline-0"]


def test_a_driver_that_slept_through_a_rewind_cannot_publish(tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=tmp_path) as h:
        played(h, program, 3)
        h.rewind(1)
        files = LocalStore(tmp_path)
        late = read_state(files, 0, 2).manifest
        sleeper = structs.replace(late, epoch=3, nonce="asleep", parent=late.nonce, parent_epoch=2)
        with pytest.raises(Fenced, match="timeline 0 has ended"):
            publish_manifest(files, sleeper)


def test_an_epoch_that_the_driver_before_publishes_meanwhile_is_the_end(tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=tmp_path) as h:
        played(h, program, 3)
        files = LocalStore(tmp_path)
        state = read_state(files, 0, 2)
        late = structs.replace(state.manifest, epoch=3, nonce="late", parent=state.manifest.nonce, parent_epoch=2)

        def publish_late(point: str, epoch: int) -> None:
            if point == "rewind_proved" and files.list("manifests/0")[-1].endswith("2.json"):
                publish_manifest(files, late)

        with crash.planned(publish_late):
            h.rewind(1)
        seal = read_seal(files, 0, 4)
        assert seal is not None
        assert (seal.end, h.published) == ((0, 3), 1)


def test_state_is_not_changed_by_hand_before_a_rewind_has_come_to_an_epoch(tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=tmp_path) as h:
        played(h, program, 3)
        h.rewind(1)
        assert is_going_back(LocalStore(tmp_path))
    with pytest.raises(StoreError, match="repeat first what has gone out"), hold_stopped(LocalStore(tmp_path)):
        pass
    with Harness(program.app, store=tmp_path) as h:
        h.epoch()
        assert not is_going_back(LocalStore(tmp_path))


def test_fresh_forgets_that_there_was_a_rewind(tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=tmp_path) as h:
        played(h, program, 3)
        h.rewind(1)
        h.epoch()
    delete_savepoint(LocalStore(tmp_path), "end-of-timeline-0")
    start_over(LocalStore(tmp_path), "hits")
    record = read_record(LocalStore(tmp_path))
    assert record is not None
    assert (record.timeline, record.branches) == (2, ())
    with Harness(program.app, store=tmp_path) as h:
        played(h, program, 1)
        assert hr.Store(tmp_path).epochs() == [0]
