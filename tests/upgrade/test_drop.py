"""What a person gives up is gone: from the first epoch on, over crashes and folds, and only once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UpgradeRefused
from headrace.model.order import Dropped
from headrace.state.manifest import read_state
from headrace.state.store import LocalStore
from tests.upgrade.pages import VALUE, Hit, Version, add, keeping, run_old
from tests.upgrade.test_matrix import HOUR, LIST, TOTAL, in_turn, told, windowed

TEXT = keeping(hr.ValueState[str], lambda state, event: state.set(f"{state.get() or ''}x"), lambda state: state.get())


def test_a_dropped_state_begins_anew_under_its_name_and_another_type(tmp_path: Path) -> None:
    run_old(tmp_path, VALUE)
    with pytest.raises(UpgradeRefused, match="--drop kept.held"):
        Version(tmp_path, TEXT)
    with Version(tmp_path, TEXT, drop=["kept.held"]) as new:
        assert told(new.epoch(("a", "12:40", 1))) == [("a", "'x'")]


def test_rows_that_wait_are_given_up_by_the_name_of_their_step_and_nothing_else_is(tmp_path: Path) -> None:
    run_old(tmp_path, in_turn("time"), "12:15")
    with pytest.raises(UpgradeRefused, match="--drop kept"):
        Version(tmp_path, in_turn("arrival"))
    with Version(tmp_path, in_turn("arrival"), drop=["kept"]) as new:
        assert new.fates == {"kept": "kept", "kept.!waiting": "dropped"}
        assert told(new.epoch(("a", "12:40", 5), watermark="12:40")) == [("a", "7")]
    with Version(tmp_path, in_turn("time")) as again:
        assert told(again.epoch(("b", "12:45", 1), watermark="12:50")) == [("b", "1")]


@pytest.mark.parametrize("at", ["before_publish", "published"])
def test_what_was_dropped_stays_dropped_over_a_crash_of_the_first_epoch(tmp_path: Path, at: str) -> None:
    run_old(tmp_path, VALUE)
    with Version(tmp_path, TEXT, drop=["kept.held"]) as new:
        new.h.push(new.hits, Hit("a", new.h.at("12:40")))
        new.h.crash(at=at)
        new.epoch()
        new.h.take(new.step)
        assert told(new.epoch(("a", "12:41", 1))) == [("a", "'xx'")]


def test_the_same_words_said_again_drop_nothing_a_second_time(tmp_path: Path) -> None:
    run_old(tmp_path, VALUE)
    for expected in ("'x'", "'xx'", "'xxx'"):
        with Version(tmp_path, TEXT, drop=["kept.held", "nobody"]) as new:
            assert told(new.epoch(("a", "12:40", 1))) == [("a", expected)]
            new.h.maintain()


def test_rows_of_a_dropped_state_do_not_come_back_when_its_name_does(tmp_path: Path) -> None:
    two = keeping(hr.ValueState[int], add, lambda state: state.get(), beside={"other": hr.ValueState[int]})
    one = keeping(hr.ListState[int], lambda state, event: state.append(event.n), list, state="list")
    run_old(tmp_path, VALUE)
    with Version(tmp_path, one, drop=["kept.held"]) as new:
        assert new.fates["kept.held"] == "dropped"
        new.epoch(("a", "12:40", 1))
    with Version(tmp_path, two, drop=["kept.list"]) as again:
        assert told(again.epoch(("a", "12:41", 1), ("b", "12:41", 1))) == [("a", "1"), ("b", "1")]


def test_folds_leave_out_what_was_dropped_and_the_manifest_forgets_it_with_the_last_old_run(tmp_path: Path) -> None:
    run_old(tmp_path, VALUE)
    with Version(tmp_path, LIST, drop=["kept.held"]) as new:
        for i in range(12):
            new.epoch(("a", "12:40", i), ("b", "12:40", i))
            new.h.maintain()
        state = read_state(LocalStore(tmp_path), 0, new.h.published)
        assert state.manifest.hidden == {}
        assert told(new.epoch(("b", "12:40", 12))) == [("b", repr(list(range(13))))]


def test_a_dropped_step_leaves_neither_state_nor_counters(tmp_path: Path) -> None:
    run_old(tmp_path, windowed(HOUR, **TOTAL))
    with Version(tmp_path, windowed(hr.tumbling("2h"), **TOTAL), drop=["kept"]) as new:
        assert told(new.epoch(("a", "12:40", 5), watermark="14:00")) == [("a", 5)]
    state = read_state(LocalStore(tmp_path), 0, 1)
    assert all(ref.epoch == 1 for ref in state.runs["kept"])


def test_only_what_would_be_refused_is_dropped(tmp_path: Path) -> None:
    run_old(tmp_path, VALUE)
    with Version(tmp_path, VALUE, drop=["kept", "kpt.held"]) as same:
        lines = {line.name: line.notes for line in same.h._coordinator.upgrade.changes}
        assert lines["--drop kept"] == ("nothing to drop: it goes on with what is stored",)
        assert "did you mean kept" in lines["--drop kpt.held"][0]
        assert told(same.epoch(("a", "12:40", 1))) == [("a", "3")]


def test_a_state_without_what_was_given_up_is_the_same_to_driver_and_tasks(tmp_path: Path) -> None:
    run_old(tmp_path, VALUE)
    state: Any = read_state(LocalStore(tmp_path), 0, 0)
    without = state.without(Dropped(tables={"kept": ("held",)}))
    assert without.manifest.hidden == {"kept": {"held": 1}}
    assert "held" not in without.manifest.states["kept"]
    assert without.runs == state.runs
    assert state.without(Dropped(steps=("kept",))).runs["kept"] == ()
    assert state.without(None) is state


def test_a_job_does_not_go_back_with_a_program_that_does_not_fit_what_is_there(tmp_path: Path) -> None:
    with Version(tmp_path, VALUE) as old:
        for n in (1, 2, 4):
            old.epoch(("a", "12:10", n))
    with pytest.raises(UpgradeRefused, match="--drop kept.held"):
        Version(tmp_path, TEXT, start_from="0", repeat="all")
    with Version(tmp_path, VALUE) as old:
        assert old.h.published == 2, "nothing was sealed"
        assert told(old.epoch(("a", "12:11", 1))) == [("a", "8")]
    with Version(tmp_path, TEXT, start_from="0", repeat="all", drop=["kept.held"]) as new:
        assert new.h.published == 0
        new.h.push(new.hits, *(Hit("a", new.h.at("12:10"), n) for n in (2, 4, 1)))
