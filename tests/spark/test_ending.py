"""How a run is asked to end, and what is kept of it: no Spark is needed for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.checkpoint.commands import JobAnswer, Stop, await_answer, send_command
from headrace.checkpoint.fence import Fence, take_fence
from headrace.errors import StoreError
from headrace.model import crash
from headrace.spark.ending import Ending
from headrace.state.layout import ManifestName
from headrace.state.savepoints import create_savepoint, list_savepoints
from tests.state.saved import SavedJob

LAST = ManifestName(0, 3)


class Driven:
    """A store with four epochs, whose driver is this test."""

    def __init__(self, folder: Path) -> None:
        job = SavedJob(folder)
        job.publish(4)
        self.store = job.store
        self.fence: Fence = take_fence(self.store, interval_s=3600)
        self.ending = Ending(self.store)
        self.ending.listen(self.fence.number)

    def names(self) -> list[str]:
        return [each.name for each in list_savepoints(self.store)]


@pytest.fixture
def driven(tmp_path: Path) -> Driven:
    driven = Driven(tmp_path / "store")
    yield driven  # type: ignore[misc]
    driven.fence.drop()


def test_a_plain_stop_keeps_nothing(driven: Driven) -> None:
    driven.ending.ask(Stop(), 3)
    assert driven.ending.event.is_set()
    driven.ending.settle(LAST, final=False)
    assert driven.names() == []


def test_the_last_epoch_is_pinned_when_the_run_has_ended(driven: Driven) -> None:
    driven.ending.ask(Stop("before-v2", "why"), 2)
    assert (driven.ending.event.is_set(), driven.names()) == (True, [])
    driven.ending.settle(LAST, final=False)
    [point] = list_savepoints(driven.store)
    assert (point.name, point.epoch, point.note) == ("before-v2", 3, "why")


def test_who_asked_from_another_process_is_answered_behind_the_pin(driven: Driven) -> None:
    command = send_command(driven.store, Stop("before-v2"))
    driven.ending.glance(3)
    assert (driven.ending.event.is_set(), driven.ending.asked_by) == (True, command.by)
    driven.ending.settle(LAST, final=False)
    assert await_answer(driven.store, command) == JobAnswer(3, "before-v2")
    assert driven.names() == ["before-v2"]


def test_a_command_that_came_at_the_very_end_is_carried_out_as_well(driven: Driven) -> None:
    command = send_command(driven.store, Stop("late"))
    driven.ending.settle(LAST, final=False)
    assert await_answer(driven.store, command) == JobAnswer(3, "late")


@pytest.mark.parametrize(
    ("order", "published", "words"),
    [
        (Stop("taken"), 3, "there is a savepoint 'taken' already"),
        (Stop("41"), 3, "a savepoint cannot have this name"),
        (Stop("new"), -1, "no epoch has been published yet"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_the_run_goes_on(
    driven: Driven, order: Stop, published: int, words: str
) -> None:
    create_savepoint(driven.store, name="taken")
    with pytest.raises(StoreError, match=words):
        driven.ending.ask(order, published)
    command = send_command(driven.store, order)
    driven.ending.glance(published)
    assert not driven.ending.event.is_set()
    with pytest.raises(StoreError, match=words):
        await_answer(driven.store, command)


def test_a_run_that_fails_tells_those_who_waited_for_its_end(driven: Driven) -> None:
    command = send_command(driven.store, Stop("before-v2"))
    driven.ending.glance(3)
    driven.ending.give_up(3, StoreError("the sink is gone", next_move="bring it back"))
    with pytest.raises(StoreError, match="the sink is gone"):
        await_answer(driven.store, command)
    assert driven.names() == []


def test_a_run_that_fails_tells_those_as_well_whom_it_had_not_heard(driven: Driven) -> None:
    command = send_command(driven.store, Stop("before-v2"))
    driven.ending.give_up(3, StoreError("the sink is gone"))
    with pytest.raises(StoreError, match="the sink is gone"):
        await_answer(driven.store, command)


def test_a_drain_lets_the_run_go_on_to_its_own_end(driven: Driven) -> None:
    command = send_command(driven.store, Stop("last", drain=True))
    driven.ending.glance(3)
    assert (driven.ending.drains, driven.ending.event.is_set()) == (True, False)
    driven.ending.settle(LAST, final=True)
    assert await_answer(driven.store, command) == JobAnswer(3, "last")


def test_a_drain_that_was_cut_short_is_no_success(driven: Driven) -> None:
    command = send_command(driven.store, Stop("last", drain=True))
    driven.ending.glance(3)
    driven.ending.ask(Stop(), 3)
    driven.ending.settle(LAST, final=False)
    with pytest.raises(StoreError, match="ended before it was"):
        await_answer(driven.store, command)
    assert driven.names() == []


def test_dying_behind_the_pin_leaves_the_savepoint_and_no_answer(driven: Driven) -> None:
    command = send_command(driven.store, Stop("before-v2"))
    driven.ending.glance(3)

    def strike(point: str, epoch: int) -> None:
        if point == "stop_pinned":
            raise crash.Crash(point)

    with crash.planned(strike), pytest.raises(crash.Crash):
        driven.ending.settle(LAST, final=False)
    driven.fence.drop()
    with pytest.raises(StoreError, match="went away and gave no answer"):
        await_answer(driven.store, command)
    assert driven.names() == ["before-v2"]
