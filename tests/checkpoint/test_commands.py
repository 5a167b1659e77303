"""Commands to a driver from other processes: addressed, in order, answered once, cheap to look for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from headrace.checkpoint.commands import (
    GLANCE_S,
    ErrorParts,
    Inbox,
    JobAnswer,
    JobCommand,
    Stop,
    await_answer,
    await_end,
    drop_commands,
    send_command,
)
from headrace.checkpoint.fence import STALE_S, Fence, Owner, create_fence, read_holder, take_fence
from headrace.errors import StoreError
from headrace.state import layout
from headrace.state.remote import RemoteStore
from headrace.state.store import LocalStore, StoreFiles

THERE = Owner(host="host-b", pid=12, user="grace", machine="b", space="b")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0
        self.then: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.then()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFiles:
    if request.param == "local":
        return LocalStore(tmp_path / "store", durable=False)
    (tmp_path / "store").mkdir()
    return RemoteStore("mem://x", cache_dir=tmp_path / "cache", fs=LocalFileSystem(), root=str(tmp_path / "store"))


def taken(store: StoreFiles, clock: Clock, owner: Owner | None = None) -> Fence:
    return take_fence(store, clock=clock, sleep=clock.sleep, interval_s=3600, owner=owner)


def sent(store: StoreFiles, clock: Clock, **order: Any) -> JobCommand:
    return send_command(store, Stop(**order), clock, clock.sleep)


def waited(store: StoreFiles, command: JobCommand, clock: Clock) -> JobAnswer:
    return await_answer(store, command, sleep=clock.sleep, monotonic=clock)


def test_commands_are_met_once_and_in_the_order_in_which_they_were_given(store: StoreFiles, clock: Clock) -> None:
    fence = taken(store, clock)
    inbox = Inbox(store, fence.number, clock)
    assert list(inbox.look()) == []
    first, second = sent(store, clock, savepoint="a"), sent(store, clock, drain=True)
    assert list(inbox.look()) == [first, second]
    assert list(inbox.look()) == []
    third = sent(store, clock)
    assert list(inbox.look()) == [third]
    fence.drop()


def test_an_answer_reaches_whoever_asked(store: StoreFiles, clock: Clock) -> None:
    fence = taken(store, clock)
    inbox = Inbox(store, fence.number, clock)
    command = sent(store, clock, savepoint="before-v2")

    def answer() -> None:
        for each in inbox.look():
            inbox.answer(each, JobAnswer(41, each.order.savepoint))

    clock.then = answer
    assert waited(store, command, clock) == JobAnswer(41, "before-v2")
    clock.then = fence.drop
    await_end(store, fence.number, sleep=clock.sleep, monotonic=clock)


def test_a_refusal_is_raised_where_the_command_was_given(store: StoreFiles, clock: Clock) -> None:
    fence = taken(store, clock)
    inbox = Inbox(store, fence.number, clock)
    command = sent(store, clock)
    inbox.answer(command, JobAnswer(3, refusal=ErrorParts("this cannot be", expected="x", found="y", next_move="z")))
    with pytest.raises(StoreError, match="this cannot be") as refused:
        waited(store, command, clock)
    assert (refused.value.expected, refused.value.found, refused.value.next_move) == ("x", "y", "z")
    fence.drop()


def test_nobody_is_asked_where_nobody_drives(store: StoreFiles, clock: Clock) -> None:
    with pytest.raises(StoreError, match="no job runs on this store") as none:
        sent(store, clock)
    assert none.value.found == "nobody ever did"
    taken(store, clock).drop()
    with pytest.raises(StoreError, match="has ended"):
        sent(store, clock)
    create_fence(store, THERE, 2, locked=False, clock=clock)
    clock.now_s += STALE_S
    with pytest.raises(StoreError, match="last heard of 20 s ago"):
        sent(store, clock)
    assert not store.list(layout.COMMANDS)


def test_a_driver_whose_clock_is_another_is_heard(store: StoreFiles, clock: Clock) -> None:
    fence = taken(store, clock, THERE)
    clock.now_s += 3_600
    there_s = clock.now_s - 3_600

    def beat() -> None:
        beats = read_holder(store)
        assert beats is not None
        late = msgspec.structs.replace(beats, at_us=round(there_s * 1e6), beats=beats.beats + 1)
        store.write(layout.heartbeat(fence.number), msgspec.json.encode(late))

    clock.then = beat
    assert sent(store, clock).fence == fence.number
    fence.drop()


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("ends", "it has ended"),
        ("falls silent", "it has been silent for too long"),
        ("is taken over", "another driver has taken over"),
    ],
)
def test_a_driver_that_goes_away_without_an_answer_is_told(
    store: StoreFiles, clock: Clock, then: str, words: str
) -> None:
    fence = taken(store, clock, THERE)
    command = sent(store, clock)
    if then == "ends":
        clock.then = fence.drop
    elif then == "is taken over":
        clock.then = lambda: create_fence(store, THERE, fence.number + 1, locked=False, clock=clock)
    with pytest.raises(StoreError, match=words):
        try:
            waited(store, command, clock)
        finally:
            fence.drop()


def test_what_an_older_driver_was_asked_is_not_for_the_next_one(store: StoreFiles, clock: Clock) -> None:
    old = taken(store, clock)
    sent(store, clock)
    old.drop()
    new = taken(store, clock)
    inbox = Inbox(store, new.number, clock)
    assert list(inbox.look()) == []
    assert store.list(layout.COMMANDS), "who asked the driver before may still be waiting for its answer"
    new.drop()
    drop_commands(store, new.number)
    assert not store.list(layout.COMMANDS)


def test_an_idle_driver_of_a_remote_store_looks_now_and_then_only(store: StoreFiles, clock: Clock) -> None:
    fence = taken(store, clock)
    inbox = Inbox(store, fence.number, clock)
    assert list(inbox.glance()) == []
    command = sent(store, clock)
    early = list(inbox.glance())
    assert early == ([command] if isinstance(store, LocalStore) else [])
    clock.now_s += GLANCE_S
    assert early + list(inbox.glance()) == [command]
    fence.drop()


def test_looking_is_one_read(tmp_path: Path, clock: Clock) -> None:
    reads: list[str] = []

    class Counting(LocalStore):
        def read(self, path: str) -> bytes:
            reads.append(path)
            return super().read(path)

    inbox = Inbox(Counting(tmp_path, durable=False), 1, clock)
    assert list(inbox.look()) == []
    assert reads == [layout.command(1, 0)]


def test_a_command_of_another_version_is_refused_and_those_behind_it_are_met(store: StoreFiles, clock: Clock) -> None:
    fence = taken(store, clock)
    inbox = Inbox(store, fence.number, clock)
    strange = sent(store, clock)
    store.write(layout.command(fence.number, 0), msgspec.json.encode({"order": {"type": "fly"}}))
    command = sent(store, clock)
    assert list(inbox.look()) == [command]
    with pytest.raises(StoreError, match="does not understand"):
        waited(store, strange, clock)
    fence.drop()


def test_a_store_that_does_not_answer_is_only_noted(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(LocalStore):
        def read(self, path: str) -> bytes:
            raise StoreError("the store is away")

    with caplog.at_level(logging.WARNING):
        assert list(Inbox(Away(tmp_path, durable=False), 1, clock).look()) == []
    assert "the store is away" in caplog.text
