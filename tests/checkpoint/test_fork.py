"""A second job that begins with an epoch of the first: a store of its own, an id of its own, nothing shared."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoint.rewind.fork import begin_fork
from headrace.checkpoint.rewind.request import ForkRequest, RewindRequest, parse_start
from headrace.connectors.source_contract import Passage, Replay
from headrace.errors import Refused, SettingsError, StoreError, UpgradeRefused
from headrace.plan.compile import compile_app
from headrace.state.copying import copy_savepoint
from headrace.state.moments import AtEpoch, AtSavepoint
from headrace.state.record import StoreRecord, read_record
from headrace.state.savepoints import list_savepoints, read_savepoint
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.checkpoint.test_rewind import AppendOnly, Program, counting, die, played, total


def record_of(path: Path) -> StoreRecord:
    record = read_record(LocalStore(path))
    assert record is not None
    return record


@pytest.fixture
def program() -> Program:
    return counting(AppendOnly())


@pytest.fixture
def parent(tmp_path: Path, program: Program) -> Path:
    """Six epochs, the first three of them before the savepoint."""
    with Harness(program.app, store=tmp_path / "parent", sinks=True) as h:
        played(h, program, 3)
        h.savepoint("before")
        played(h, program, 3)
    return tmp_path / "parent"


@pytest.mark.parametrize("moment", ["before", "2"])
def test_a_fork_begins_with_the_epoch_and_gives_out_what_it_reads_itself(
    moment: str, parent: Path, tmp_path: Path
) -> None:
    sink = AppendOnly()
    program = counting(sink)
    with Harness(program.app, store=tmp_path / "fork", start_from=f"{parent}@{moment}", sinks=True) as h:
        assert (h.published, total(h, program), sink.rows) == (2, 3, [])
        played(h, program, 2, n=10)
        assert (h.published, total(h, program)) == (4, 23)
        assert [row.total for row in sink.rows] == [13, 23]
    assert hr.Store(parent).state("totals")["a"]["total"] == 6
    mine, other = record_of(tmp_path / "fork"), record_of(parent)
    assert mine.query != other.query
    assert mine.forked_from is not None
    assert (mine.forked_from.url, mine.forked_from.epoch, mine.forked_from.query) == (str(parent), 2, other.query)
    assert [point.name for point in list_savepoints(LocalStore(parent))] == ["before"], "pinned only while it is copied"


def test_without_a_moment_a_fork_begins_with_the_newest_epoch(program: Program, parent: Path, tmp_path: Path) -> None:
    with Harness(program.app, store=tmp_path / "fork", start_from=str(parent)) as h:
        assert (h.published, total(h, program)) == (5, 6)


def test_nothing_is_copied_for_a_program_that_does_not_fit(parent: Path, tmp_path: Path) -> None:
    program = counting(name="sums")
    with pytest.raises(UpgradeRefused, match="no such step"):
        Harness(program.app, store=tmp_path / "fork", start_from=f"{parent}@before")
    assert read_record(LocalStore(tmp_path / "fork")) is None
    with Harness(program.app, store=tmp_path / "fork", start_from=f"{parent}@before", drop=["totals"]) as h:
        played(h, program, 1)
        assert total(h, program) == 1


def test_a_fork_needs_nothing_of_its_parent(program: Program, parent: Path, tmp_path: Path) -> None:
    with Harness(program.app, store=tmp_path / "fork", start_from=f"{parent}@before"):
        pass
    shutil.rmtree(parent)
    # The same command again: the fork is there, and goes on.
    with Harness(program.app, store=tmp_path / "fork", start_from=f"{parent}@before") as h:
        played(h, program, 1)
        assert total(h, program) == 4
        h.maintain()
    assert hr.Store(tmp_path / "fork").state("totals")["a"]["total"] == 4


def test_parent_and_fork_go_back_each_for_itself(parent: Path, tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=tmp_path / "fork", start_from=f"{parent}@before") as h:
        played(h, program, 2, n=10)
        h.rewind("before")
        h.epoch()
        assert (h.published, total(h, program), hr.Store(h.store).timeline) == (3, 23, 1)
    with Harness(program.app, store=parent, start_from="before") as h:
        assert total(h, program) == 3


def test_a_fork_of_a_store_that_went_back_can_go_back_itself(parent: Path, tmp_path: Path) -> None:
    program = counting()
    with Harness(program.app, store=parent, start_from="before") as h:
        played(h, program, 1, n=100)
    with Harness(program.app, store=tmp_path / "fork", start_from=f"{parent}@end-of-timeline-0") as h:
        assert total(h, program) == 6
        played(h, program, 1)
        h.rewind("end-of-timeline-0")
        h.epoch()
        assert (total(h, program), hr.Store(h.store).epochs()) == (7, [5, 6])


def test_another_store_in_its_place_is_refused(program: Program, parent: Path, tmp_path: Path) -> None:
    with Harness(program.app, store=tmp_path / "other") as h:
        played(h, program, 1)
    with pytest.raises(StoreError, match="another store already where the fork is to begin"):
        Harness(program.app, store=tmp_path / "other", start_from=f"{parent}@before")
    with Harness(program.app, store=tmp_path / "fork", start_from=f"{parent}@before"):
        pass
    with pytest.raises(StoreError, match="another store already"):
        Harness(program.app, store=tmp_path / "fork", start_from=f"{parent}@4")
    with pytest.raises(StoreError, match="there is no store here"):
        Harness(program.app, store=tmp_path / "new", start_from=f"{tmp_path}/nowhere@4")


@pytest.mark.parametrize("point", ["copying", "copy_written", "fork_made"])
def test_a_fork_that_died_while_it_was_made_goes_on(point: str, program: Program, parent: Path, tmp_path: Path) -> None:
    if point == "copying":
        from headrace.model.order import EpochLimits

        in_files = EpochLimits(inline_run_bytes=0)
        with Harness(program.app, store=parent, limits=in_files, sinks=True) as h:
            played(h, program, 1)

    def start() -> Harness:
        return Harness(program.app, store=tmp_path / "fork", start_from=str(parent))

    die(point, start)
    with start() as h:
        found = total(h, program)
        assert found == hr.Store(parent).state("totals")["a"]["total"]
        played(h, program, 1)
        assert total(h, program) == found + 1
    assert [point.name for point in list_savepoints(LocalStore(parent))] == ["before"]


def test_a_fork_of_the_newest_epoch_goes_on_with_the_one_it_has_begun_with(
    program: Program, parent: Path, tmp_path: Path
) -> None:
    def start() -> Harness:
        return Harness(program.app, store=tmp_path / "fork", start_from=str(parent))

    die("copy_written", start)
    with Harness(program.app, store=parent, sinks=True) as h:
        played(h, program, 3)
    with start() as h:
        assert (h.published, total(h, program)) == (5, 6)
    assert [point.name for point in list_savepoints(LocalStore(parent))] == ["before"]


def test_a_copy_that_a_job_starts_in_is_no_longer_its_original(parent: Path, tmp_path: Path) -> None:
    files, copy = LocalStore(parent), LocalStore(tmp_path / "copy")
    copy_savepoint(files, read_savepoint(files, "before"), copy)
    assert record_of(tmp_path / "copy").query == record_of(parent).query
    program = counting()
    for epochs in (1, 2):
        with Harness(program.app, store=tmp_path / "copy") as h:
            played(h, program, 1, n=10)
            assert total(h, program) == 3 + 10 * epochs
        found = record_of(tmp_path / "copy")
        assert found.query != record_of(parent).query
        assert found.copied_from is None
        assert found.forked_from is not None
        assert found.forked_from.savepoint == "before"


def test_rows_that_a_source_has_no_more_are_told_and_refused_where_outputs_are_held(
    parent: Path, tmp_path: Path
) -> None:
    class Trimmed(type(hr.source.items([]))):  # type: ignore[misc]
        def check_replay(self, passage: Passage) -> Replay:
            return Replay("lost", "the oldest rows were trimmed")

    program, sources = counting(AppendOnly()), {"hits": Trimmed([], None, 1)}
    facts = compile_app(program.app, parallelism=2, key_groups=128).facts

    def begin(name: str, **how: Any) -> list[str]:
        request = ForkRequest(str(parent), AtSavepoint("before"), **how)
        return begin_fork(LocalStore(tmp_path / name), request, facts, sources, LocalStore)

    lines = begin("fork")
    assert lines[1:] == [
        "rows that the original read behind epoch 2 are missing here: hits: the oldest rows were trimmed"
    ]
    with pytest.raises(Refused, match="sources no longer have what the original read behind epoch 2"):
        begin("held", hold=frozenset({"out0"}))
    assert record_of(tmp_path / "fork").forked_from is not None
    assert read_record(LocalStore(tmp_path / "held")) is None


def test_what_is_asked_for_says_whether_it_is_a_rewind_or_a_fork(tmp_path: Path) -> None:
    own, other = str(tmp_path / "own"), str(tmp_path / "other")
    assert parse_start("", own) is None
    assert parse_start("before-v2", own) == RewindRequest(AtSavepoint("before-v2"))
    assert parse_start(f"{own}@41", own) == RewindRequest(AtEpoch(41))
    assert parse_start(f"file://{own}@41", own) == RewindRequest(AtEpoch(41))
    assert parse_start(f"{other}@41", own) == ForkRequest(other, AtEpoch(41))
    assert parse_start(other, own) == ForkRequest(other)
    assert parse_start("s3://bucket/state@before", own) == ForkRequest("s3://bucket/state", AtSavepoint("before"))
    assert parse_start("s3://bucket/state@7", "s3://bucket/state/") == RewindRequest(AtEpoch(7))
    with pytest.raises(SettingsError, match="which epoch to go back to"):
        parse_start(own, own)
