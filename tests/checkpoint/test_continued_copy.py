"""A copy whose original is lost goes on as the job itself: sinks know it, and nothing is out twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import Refused, SettingsError
from headrace.state.copying import copy_savepoint
from headrace.state.record import read_record
from headrace.state.savepoints import list_savepoints, read_savepoint
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.checkpoint.test_rewind import Program, counting, die, lines, played, total


def files(path: Path) -> Any:
    return hr.sink.files(path / "out", format="json")


def make_copy(path: Path, program: Program, behind: int) -> Path:
    """Three epochs, a copy of them, and more epochs of the original behind it, which is lost then."""
    with Harness(program.app, store=path / "store", sinks=True) as h:
        played(h, program, 3)
        h.savepoint("nightly")
        original = LocalStore(path / "store")
        copy_savepoint(original, read_savepoint(original, "nightly"), LocalStore(path / "copy"))
        played(h, program, behind, n=100)
    shutil.move(path / "store", path / "lost")
    return path / "copy"


def job_of(store: Path) -> str:
    record = read_record(LocalStore(store))
    assert record is not None and record.copied_from is None and record.forked_from is None
    return record.store_id


def test_it_keeps_the_id_and_goes_on_behind_the_copied_epoch(tmp_path: Path) -> None:
    program = counting(files(tmp_path))
    copy = make_copy(tmp_path, program, behind=0)
    for _ in range(2):
        # The same command again is an ordinary start.
        with Harness(program.app, store=copy, sinks=True, original_lost=True) as h:
            played(h, program, 1)
    assert job_of(copy) == job_of(tmp_path / "lost")
    assert (h.published, hr.Store(copy).timeline) == (4, 0)
    assert [line.split('"total":')[1] for line in lines(tmp_path / "out")] == [f"{n}}}" for n in range(1, 6)]


@pytest.mark.parametrize("point", ["rewind_proved", "rewind_sealed", "rewind_forgetting", "rewind_recorded", ""])
def test_what_the_original_gave_out_behind_the_copy_is_taken_back(tmp_path: Path, point: str) -> None:
    program = counting(files(tmp_path))
    copy = make_copy(tmp_path, program, behind=2)
    assert len(lines(tmp_path / "out")) == 5
    if point:
        die(point, lambda: Harness(program.app, store=copy, sinks=True, original_lost=True))
    with Harness(program.app, store=copy, sinks=True, original_lost=True) as h:
        assert (h.published, total(h, program), len(lines(tmp_path / "out"))) == (2, 3, 3)
        played(h, program, 2, n=10)
        assert hr.Store(copy).timeline >= 1
        h.rewind("nightly", again=True)
        assert total(h, program) == 3
    assert [line.split('"total":')[1] for line in lines(tmp_path / "out")] == ["1}", "2}", "3}"]


def test_a_driver_of_the_lost_store_that_wakes_up_is_shut_out(tmp_path: Path) -> None:
    program = counting(files(tmp_path))
    copy = make_copy(tmp_path, program, behind=2)
    with Harness(program.app, store=copy, sinks=True, original_lost=True) as h:
        played(h, program, 1, n=10)
    with pytest.raises(hr.HeadraceError), Harness(program.app, store=tmp_path / "lost", sinks=True) as h:
        played(h, program, 1, n=1000)
    assert not any("1000" in line for line in lines(tmp_path / "out"))


def test_the_original_that_is_still_there_is_not_given_up(tmp_path: Path) -> None:
    program = counting(files(tmp_path))
    copy = make_copy(tmp_path, program, behind=1)
    shutil.move(tmp_path / "lost", tmp_path / "store")
    with pytest.raises(Refused, match="the original of this copy is still there") as refused:
        Harness(program.app, store=copy, sinks=True, original_lost=True)
    assert f"--store {tmp_path / 'store'} --from nightly" in str(refused.value.next_move)
    record = read_record(LocalStore(copy))
    assert record is not None and record.copied_from is not None, "nothing has happened"
    # Without saying that the original is gone the copy becomes a job of its own.
    with Harness(program.app, store=copy) as h:
        played(h, program, 1)
    record = read_record(LocalStore(copy))
    assert record is not None and record.forked_from is not None


def as_kind(kind: Any, path: Path) -> Any:
    sink = files(path)
    sink.__class__ = kind
    return sink


class Appends(type(files(Path()))):  # type: ignore[misc]
    """Knows what it has, and cannot take it back."""

    rewinds = frozenset({"hold"})


class Forgetful(Appends):
    def released(self, job: str) -> Any:
        return "unknown"


class Keyed(Appends):
    changelog_key = ("page",)


def test_rows_that_would_be_there_twice_are_refused(tmp_path: Path) -> None:
    program = counting(as_kind(Appends, tmp_path))
    copy = make_copy(tmp_path, program, behind=2)
    with pytest.raises(Refused, match="rows went out behind epoch 2") as refused:
        Harness(program.app, store=copy, sinks=True, original_lost=True)
    assert refused.value.found == "out0 has epoch 4 of timeline 0"
    program = counting(as_kind(Forgetful, tmp_path))
    with pytest.raises(Refused, match="nobody can tell what the target of the output 'out0' has"):
        Harness(program.app, store=copy, sinks=True, original_lost=True)


def test_a_target_of_one_row_per_key_is_overwritten(tmp_path: Path) -> None:
    program = counting(as_kind(Keyed, tmp_path))
    copy = make_copy(tmp_path, program, behind=2)
    with Harness(program.app, store=copy, sinks=True, original_lost=True) as h:
        played(h, program, 1, n=10)
    assert any('"total":13}' in line for line in lines(tmp_path / "out"))
    assert hr.Store(copy).timeline == 1


def test_a_store_that_is_no_copy_simply_goes_on(tmp_path: Path) -> None:
    program = counting()
    for _ in range(2):
        with Harness(program.app, store=tmp_path / "store", original_lost=True) as h:
            played(h, program, 1)
    assert total_of(tmp_path / "store") == 2 and not list_savepoints(LocalStore(tmp_path / "store"))


def total_of(store: Path) -> int:
    return int(hr.Store(store).state("totals")["a"]["total"])


@pytest.mark.parametrize("also", [{"fresh": True}, {"start_from": "before"}])
def test_it_goes_together_with_nothing_that_begins_elsewhere(also: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="a copy goes on behind the epoch that it has"):
        counting().app.settings(original_lost=True, **also)
