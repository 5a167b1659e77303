"""A program that dies at every named point, in the harness: what it gave, wrote and kept equals an uninterrupted run.

The program is that of the crash tests with Spark (`tests.crash.program`): two keyed steps, every kind of state, timers,
a side output, files of three formats. What cannot be reached without Spark or a second thread is named below.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.dataflow.graph import KeyedNode, ReadNode, TapNode
from headrace.model import crash
from headrace.model.order import Limits
from headrace.testing import Harness
from tests.crash.files import written
from tests.crash.program import Click, Totals, Visits, build, make_click

UNREACHABLE = {
    "base_written": "folds run in a thread of the driver, and a harness has none",
    "sweeping": "sweeps run in a thread of the driver, and a harness has none",
}
IN_FILES = "delta_half_written"
"""Reached only where a delta is a file of its own, and does not travel inside the manifest."""
POINTS = [point for point in crash.POINTS if point not in UNREACHABLE and point != IN_FILES]
PUBLISHED = {"manifest_answer_lost", "published", "between_sinks", "between_files", "released", "final_published"}
"""Points behind the commit point: the epoch is true, and only its release is repeated."""

EPOCHS = 5
PER_EPOCH = 60
FILES = Limits(inline_run_bytes=0, inline_output_bytes=0)


class Played:
    """The program in a harness, its input, and everything that can be seen of it."""

    def __init__(self, folder: Path, *, parallelism: int = 2, limits: Limits | None = None) -> None:
        self.folder = folder
        app = build(folder, EPOCHS * PER_EPOCH, PER_EPOCH)
        reads = [node for node in app.nodes if isinstance(node, ReadNode)]
        steps = [node for node in app.nodes if isinstance(node, KeyedNode)]
        sides = [node for node in app.nodes if isinstance(node, TapNode)]
        self.clicks: hr.Stream[Click] = hr.Stream(app, reads[0])
        self.streams: list[hr.Stream[Any]] = [hr.Stream(app, node) for node in (*steps, *sides)]
        self.visits, self.totals = self.streams[:2]
        self.taken: list[list[str]] = [[] for _ in self.streams]
        self.h = Harness(app, store=folder / "store", parallelism=parallelism, limits=limits, sinks=True)

    def push(self, epoch: int) -> None:
        self.h.push(self.clicks, *clicks()[epoch * PER_EPOCH : (epoch + 1) * PER_EPOCH])

    def end(self) -> dict[str, Any]:
        """What the program gave, wrote and kept, from beginning to end."""
        self.take()
        states = {
            "clicks": [self.h.state(self.visits, Visits.clicks, user) for user in users()],
            "pages": [self.h.state(self.visits, Visits.pages, user) for user in users()],
            "trail": [self.h.state(self.visits, Visits.trail, user) for user in users()],
            "quiet": [self.h.state(self.visits, Visits.quiet, user) for user in users()],
            "totals": [self.h.state(self.totals, Totals.clicks, f"page-{i}") for i in range(12)],
            "minutes": [self.h.state(self.totals, Totals.minutes, f"page-{i}") for i in range(12)],
        }
        counters = [dict(self.h.counters(step)) for step in (self.visits, self.totals)]
        if self.h.published < EPOCHS:
            self.h.drain()
        self.take()
        self.h.close()
        return {
            "taken": [sorted(rows) for rows in self.taken],
            "written": written(self.folder),
            "states": states,
            "counters": counters,
        }

    def take(self) -> None:
        for rows, stream in zip(self.taken, self.streams, strict=True):
            rows += map(repr, self.h.take(stream))


@cache
def clicks() -> list[Click]:
    rng = random.Random(7)
    return [make_click(i, rng) for i in range(EPOCHS * PER_EPOCH)]


@cache
def users() -> list[str]:
    """Some of them, among which there are quiet ones and busy ones."""
    return sorted({click.user for click in clicks()})[:40]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    played = Played(tmp_path_factory.mktemp("whole"))
    for epoch in range(EPOCHS):
        played.push(epoch)
        played.h.epoch()
    found = played.end()
    assert all(found["taken"]) and all(found["written"].values()), "every output must have rows, or nothing is proved"
    assert all(any(values) for values in found["states"].values()), "every state must hold something"
    return found


@pytest.mark.parametrize("limits", [None, FILES], ids=["small things inline", "everything in files"])
@pytest.mark.parametrize("point", [IN_FILES, *(point for point in POINTS if point != "final_published")])
def test_dying_at_a_point_in_two_epochs_changes_nothing(
    point: str, limits: Limits | None, tmp_path: Path, expected: dict[str, Any]
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


@pytest.mark.parametrize("point", UNREACHABLE)
def test_points_that_a_harness_does_not_reach_are_known(point: str, tmp_path: Path) -> None:
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
