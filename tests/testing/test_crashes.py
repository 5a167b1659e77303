"""A program that dies at every named point, in the harness: what it gave, wrote and kept equals an uninterrupted run.

The program is that of the crash tests with Spark (`tests.crash.program`): two keyed steps, every kind of state, timers,
a side output, files of three formats. `tests.crash.test_every_point` tells which test strikes at which point.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.model import crash
from headrace.model.order import EpochLimits
from headrace.testing import Harness
from tests.crash.files import written
from tests.crash.played import EPOCHS, FILES, Played, clicks, run_untouched
from tests.crash.program import Click

IN_FILES = "delta_half_written"
"""Reached only where a delta is a file of its own, and does not travel inside the manifest."""
POINTS = [point for point in crash.POINTS if point not in crash.BESIDE | crash.ASKED and point != IN_FILES]
PUBLISHED = {"manifest_answer_lost", "published", "between_sinks", "between_files", "released", "final_published"}
"""Points behind the commit point: the epoch is true, and only its release is repeated."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_untouched(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("limits", [None, FILES], ids=["small things inline", "everything in files"])
@pytest.mark.parametrize("point", [IN_FILES, *(point for point in POINTS if point != "final_published")])
def test_dying_at_a_point_in_two_epochs_changes_nothing(
    point: str, limits: EpochLimits | None, tmp_path: Path, expected: dict[str, Any]
) -> None:
    if point == IN_FILES and limits is None:
        pytest.skip("a delta that travels inside the manifest is never a file")
    played = Played(tmp_path, limits=limits)
    for epoch in range(EPOCHS):
        played.push(epoch)
        if epoch in (1, 3):
            played.h.crash(at=point)
            assert played.h.published == (epoch if point in PUBLISHED else epoch - 1), point
        if played.h.published < epoch:
            played.h.epoch()
    assert played.end() == expected


def test_dying_at_every_point_in_turn_before_an_epoch_succeeds_changes_nothing(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    before = [point for point in POINTS if point not in PUBLISHED]
    behind = [point for point in POINTS if point in PUBLISHED and point != "final_published"]
    played = Played(tmp_path, parallelism=3)
    for epoch in range(EPOCHS):
        played.push(epoch)
        for point in before:
            played.h.crash(at=point)
        played.h.crash(at=behind[epoch])
    assert played.end() == expected


def test_dying_when_the_last_epoch_of_drained_input_is_published_changes_nothing(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path)
    for epoch in range(EPOCHS):
        played.push(epoch)
        played.h.epoch()
    played.take()
    played.h.crash(at="final_published")
    found = played.end()
    assert (found["taken"], found["written"]) == (expected["taken"], expected["written"])


def test_only_a_published_epoch_is_seen_by_anyone(tmp_path: Path) -> None:
    played = Played(tmp_path)
    for point in POINTS:
        if point not in PUBLISHED:
            played.push(0)
            played.h.crash(at=point)
            played.take()
            assert not any(played.taken), point
            assert not any(written(tmp_path).values()), point
    played.h.close()


def test_a_crash_that_is_never_reached_is_an_error(tmp_path: Path) -> None:
    app = hr.App("small")
    taps = app.read("taps", hr.source.items([]), Click)
    with Harness(app) as h:
        h.push(taps, clicks()[0])
        with pytest.raises(hr.ProgramError, match="never came to this crash point"):
            h.crash(at="in_function")
        with pytest.raises(hr.ProgramError, match="no such crash point"):
            h.crash(at="tea_time")


@pytest.mark.parametrize("point", sorted(crash.BESIDE))
def test_dying_beside_the_epochs_is_an_error_while_there_is_nothing_to_fold_or_sweep(
    point: str, tmp_path: Path
) -> None:
    played = Played(tmp_path, limits=FILES)
    played.push(0)
    with pytest.raises(hr.ProgramError, match="never came to this crash point"):
        played.h.crash(at=point)
    played.h.close()


def test_a_crash_may_move_the_clocks_like_any_epoch() -> None:
    class Alarm(hr.Process[Click, Click, str]):
        ring: hr.WallTimer
        soon: hr.Timer
        rung: hr.Counter

        def on_event(self, event: Click, ctx: hr.Context[str]) -> None:
            self.ring.set(ctx.now + hr.seconds(10))
            self.soon.set(event.at + hr.seconds(10))

        def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:
            self.rung.inc()

    app = hr.App("alarm")
    taps = app.read("taps", hr.source.items([]), Click, time=Click.at)
    step = taps.key_by(Click.user).process(Alarm())
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(taps, Click("a", "b", h.at("12:00")))
        h.epoch()
        h.crash(at="before_publish", clock="12:00:10", watermark="12:00:10")
        assert h.counters(step) == {}
        h.crash(at="published", watermark="12:00:10")
        assert h.counters(step) == {"rung": 2}
