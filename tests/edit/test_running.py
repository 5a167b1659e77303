"""Edits of a running job: true with the epoch that comes next, once, and never with an epoch that is not published."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from headrace.checkpoint.commands import Inbox, JobCommand
from headrace.edit.edits import Edit
from headrace.edit.offline import EditedEpoch
from headrace.edit.running import LIVE_EDITS, LiveEdits, edit_running
from headrace.errors import HeadraceError, ProgramError, StoreError
from headrace.state.manifest import read_manifest
from headrace.state.store import LocalStore
from tests.edit.kinds import Fraud, Shop

SET = Edit(state="fraud.total", key="ann", set=1_000)


class Driven(Shop):
    """The program in a harness whose driver meets commands, as a run does between its epochs."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.files = LocalStore(folder, durable=False)
        self.pool = ThreadPoolExecutor(4)
        self.listen()

    def listen(self) -> None:
        """Behind every start: a driver has an inbox of its own."""
        assert self.h._fence is not None
        self.inbox = Inbox(self.files, self.h._fence.number)
        self.edits = LiveEdits(self.files)
        self.h._coordinator.edits = self.edits

    def ask(self, *edits: Edit) -> Future[EditedEpoch]:
        """Somebody else asks for edits and waits; comes back when the driver has met the command."""
        asked = self.pool.submit(edit_running, self.files, edits, why="ticket", sleep=lambda seconds: None)
        while not asked.done():
            met = list(self.inbox.look())
            for command in met:
                self.edits.ask(command, self.inbox)
            if met:
                break
        return asked


@pytest.fixture
def shop(tmp_path: Any) -> Iterator[Driven]:
    shop = Driven(str(tmp_path / "store"))
    with shop.h, shop.pool:
        shop.sell(("ann", "tea", 10), ("bob", "tea", 5))
        yield shop


def test_edits_are_true_with_the_next_epoch_behind_its_rows(shop: Driven) -> None:
    asked = shop.ask(SET, Edit(state="fraud.shops", key="ann", patch={"gin": 4}))
    shop.sell(("ann", "tea", 7))
    done = asked.result()
    assert (done.epoch, done.before, done.live) == (1, 0, True)
    assert [change.values for change in done.plan.changes] == [(17, 1_000), ({"tea": 2}, {"gin": 4, "tea": 2})]
    assert (shop.state(Fraud.total), shop.state(Fraud.shops)) == (1_000, {"gin": 4, "tea": 2})
    (note,) = read_manifest(shop.files, 0, 1).notes
    assert (note.why, note.changed) == ("ticket", {"fraud.total": 1, "fraud.shops": 1})
    shop.sell(("ann", "tea", 1))
    assert shop.state(Fraud.total) == 1_001
    assert read_manifest(shop.files, 0, 2).notes == []


def test_several_commands_of_one_epoch_follow_each_other(shop: Driven) -> None:
    asked = [shop.ask(Edit(state="fraud.recent", key="bob", append=sale(i))) for i in range(3)]
    shop.h.epoch()
    assert [each.result().epoch for each in asked] == [1, 1, 1]
    shop.sell(("bob", "tea", 9))
    assert [each.cents for each in shop.state(Fraud.recent, "bob")] == [5, 0, 1, 2, 9]


def sale(cents: int) -> dict[str, Any]:
    return {"customer": "bob", "shop": "tea", "cents": cents, "at": "2024-01-01T12:00"}


@pytest.mark.parametrize("point", ["reports_collected", "before_publish", "manifest_written"])
def test_an_epoch_that_dies_before_it_is_published_takes_its_edits_along(point: str, shop: Driven) -> None:
    asked = shop.ask(SET)
    shop.h.push(shop.sales)
    shop.h.crash(at=point)
    # The driver is gone, and the next one has not heard of them.
    with pytest.raises(StoreError, match="went away and gave no answer"):
        asked.result()
    shop.h.epoch()
    assert (shop.h.published, shop.state(Fraud.total)) == (1, 10)


@pytest.mark.parametrize("point", ["manifest_answer_lost", "published"])
def test_whoever_waits_finds_out_that_a_driver_died_behind_the_deed(point: str, shop: Driven) -> None:
    asked = shop.ask(SET)
    shop.h.crash(at=point)
    assert asked.result().epoch == 1
    shop.listen()
    shop.sell(("ann", "tea", 1))
    assert shop.state(Fraud.total) == 1_001


def test_an_epoch_that_fails_and_is_run_again_makes_its_edits_once(shop: Driven) -> None:
    asked = shop.ask(Edit(state="fraud.recent", key="ann", append=sale(7)))
    state = shop.h._coordinator.state
    assert state is not None
    # As an epoch that failed behind its edits, which were written and not published.
    parent = {"parent_epoch": 0, "parent": state.manifest.nonce}
    following = msgspec.structs.replace(state.manifest, epoch=1, full=False, steps={}, **parent)
    shop.edits.apply(state.followed_by(following), fence=1)
    assert not shop.edits.waiting
    shop.edits.ask(*waiting_again(shop))
    shop.h.epoch()
    assert asked.result().epoch == 1
    assert [each.cents for each in shop.state(Fraud.recent)] == [10, 7]


def waiting_again(shop: Driven) -> tuple[JobCommand, Inbox]:
    (again,) = shop.edits._left_over()
    return again


def test_what_does_not_fit_is_refused_before_the_job_is_asked(shop: Driven) -> None:
    with pytest.raises(ProgramError, match="does not fit the state"):
        edit_running(shop.files, [Edit(state="fraud.total", key="ann", set="x")], why="x")
    assert list(shop.inbox.look()) == []


def test_what_no_longer_fits_is_refused_by_the_job_which_goes_on(shop: Driven) -> None:
    late = Edit(state="fraud.quiet", key="ann", set="2024-01-01T12:30")
    asked = shop.ask(late, SET)
    shop.sell(("bob", "tea", 1), at="13:00")
    with pytest.raises(StoreError, match="does not fit the state") as refused:
        asked.result()
    assert "counts as fired" in refused.value.found
    assert (shop.h.published, shop.state(Fraud.total)) == (1, 10)


def test_a_run_that_ends_without_another_epoch_says_so(shop: Driven) -> None:
    asked = shop.ask(SET)
    shop.edits.give_up(0)
    with pytest.raises(StoreError, match="ended before the edits were made"):
        asked.result()


def test_too_many_edits_are_for_a_stopped_job(shop: Driven) -> None:
    with pytest.raises(ProgramError, match="too many edits"):
        edit_running(shop.files, [SET] * (LIVE_EDITS + 1), why="x")


def test_nobody_is_asked_where_nobody_drives(tmp_path: Any) -> None:
    folder = str(tmp_path / "store")
    with Shop(folder).h as h:
        h.epoch()
    with pytest.raises(HeadraceError, match="no job runs on this store"):
        edit_running(LocalStore(folder, durable=False), [SET], why="x")
