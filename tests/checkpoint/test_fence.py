"""Two drivers on one store: refused, let in, or taken over, whatever kind of store it is."""

from __future__ import annotations

import errno
import fcntl
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from fsspec.implementations.local import LocalFileSystem

from headrace.checkpoint.fence import (
    BEAT_S,
    GLANCE_S,
    STALE_S,
    TAKEOVER_WAIT_S,
    Fence,
    Heart,
    Owner,
    create_fence,
    read_holder,
    take_fence,
)
from headrace.errors import AlreadyExists, CorruptFile, Fenced, MissingFile, StoreError, StoreInUse
from headrace.state import layout
from headrace.state.remote import RemoteStore
from headrace.state.store import Data, LocalStore, StoreFiles

NEVER_S = 3600.0
HERE = Owner(host="host-a", pid=4711, user="ada", machine="a", space="a")
THERE = Owner(host="host-b", pid=12, user="grace", machine="b", space="b")


class Clock:
    """Time that passes only when somebody sleeps; ``then`` is what happens meanwhile."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0
        self.slept_s = 0.0
        self.then: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds
        self.then()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def far(folder: Path) -> RemoteStore:
    """A store that has no lock."""
    return RemoteStore(f"memory://{uuid4()}/store", cache_dir=folder / "cache")


def take(store: StoreFiles, clock: Clock, owner: Owner = HERE, *, takeover: bool = False) -> Fence:
    return take_fence(
        store, takeover=takeover, clock=clock, sleep=clock.sleep, interval_s=NEVER_S, owner=owner
    )  # fmt: skip


def test_a_second_driver_is_refused_while_the_first_is_heard(tmp_path: Path, clock: Clock) -> None:
    store = far(tmp_path)
    first = take(store, clock)
    clock.then = first.heart.beat
    with pytest.raises(StoreInUse) as caught:
        take(store, clock, THERE)
    assert caught.value.what == "another driver is running on this store"
    assert caught.value.where == store.url
    assert "silent for 20 s" in caught.value.expected
    assert caught.value.found == "process 4711 of user ada on host-a (fence 1), last heard of 0 s ago"
    assert "--takeover" in caught.value.next_move and "takeover=True" in caught.value.next_move
    assert clock.slept_s <= BEAT_S, "the next heartbeat is proof enough"
    first.check()
    first.drop()


def test_a_driver_that_was_silent_for_long_is_taken_over_at_once(tmp_path: Path, clock: Clock) -> None:
    store = far(tmp_path)
    first = take(store, clock)
    clock.now_s += STALE_S
    second = take(store, clock, THERE)
    assert clock.slept_s == 0
    assert second.number == 2
    with pytest.raises(Fenced):
        first.check()


def test_a_driver_that_has_just_died_is_taken_over_after_a_silence(tmp_path: Path, clock: Clock) -> None:
    store = far(tmp_path)
    take(store, clock).heart.beat()
    assert take(store, clock, THERE).number == 2
    assert clock.slept_s == STALE_S


def test_a_clock_that_runs_ahead_neither_lets_in_nor_locks_out(tmp_path: Path, clock: Clock) -> None:
    store, ahead = far(tmp_path), Clock()
    ahead.now_s += NEVER_S
    first = take(store, ahead)
    clock.then = first.heart.beat
    with pytest.raises(StoreInUse):
        take(store, clock, THERE)
    clock.then = lambda: None
    assert take(store, clock, THERE).number == 2


def test_a_driver_that_ended_lets_the_next_one_in_at_once(tmp_path: Path, clock: Clock) -> None:
    store = far(tmp_path)
    for number in (1, 2, 3):
        fence = take(store, clock, HERE if number % 2 else THERE)
        assert fence.number == number
        fence.drop()
        fence.drop()
    assert clock.slept_s == 0
    assert store.list(layout.HEARTBEATS) == [layout.heartbeat(3)], "heartbeats of earlier fences are gone"


def test_takeover_shuts_out_a_driver_that_lives_and_gives_it_time_to_end(tmp_path: Path, clock: Clock) -> None:
    store = far(tmp_path)
    first = take(store, clock)

    def notice() -> None:
        with pytest.raises(Fenced, match="process 12 of user grace on host-b") as caught:
            first.check()
        assert caught.value.next_move
        first.drop()

    clock.then = notice
    second = take(store, clock, THERE, takeover=True)
    assert second.number == 2
    assert 0 < clock.slept_s < TAKEOVER_WAIT_S
    second.check()


def test_takeover_does_not_wait_for_ever_for_one_that_does_not_end(tmp_path: Path, clock: Clock) -> None:
    store = far(tmp_path)
    first = take(store, clock)
    clock.then = first.heart.beat
    assert take(store, clock, THERE, takeover=True).number == 2
    assert clock.slept_s == TAKEOVER_WAIT_S
    with pytest.raises(Fenced):
        first.check()


def test_a_heartbeat_of_a_driver_that_is_out_says_nothing(tmp_path: Path, clock: Clock) -> None:
    store = far(tmp_path)
    first = take(store, clock)
    second = take(store, clock, THERE, takeover=True)
    second.drop()
    clock.then = first.heart.beat
    assert take(store, clock, THERE).number == 3


class Rivalled(RemoteStore):
    """A store in which somebody else takes the same fence a moment earlier."""

    rival: Callable[[], None] | None = None

    def create(self, path: str, data: Data) -> None:
        rival, self.rival = self.rival, None
        if rival is not None:
            rival()
        super().create(path, data)


def test_of_two_drivers_that_start_at_the_same_moment_one_is_refused(tmp_path: Path, clock: Clock) -> None:
    store = Rivalled(f"memory://{uuid4()}/store", cache_dir=tmp_path / "cache")
    quicker: list[Fence] = []
    store.rival = lambda: quicker.append(take(store, clock, HERE))
    clock.then = lambda: quicker and quicker[0].heart.beat()
    with pytest.raises(StoreInUse, match="host-a"):
        take(store, clock, THERE)
    quicker[0].check()


def test_a_fence_is_taken_once(tmp_path: Path, clock: Clock) -> None:
    store = far(tmp_path)
    create_fence(store, HERE, 1, locked=False, clock=clock)
    with pytest.raises(AlreadyExists):
        create_fence(store, THERE, 1, locked=False, clock=clock)
    holder = read_holder(store)
    assert holder is not None and holder.host == "host-a"


def test_a_store_that_nobody_drove_has_no_holder(tmp_path: Path) -> None:
    assert read_holder(far(tmp_path)) is None


DIES = """
import os, sys
from fsspec.implementations.local import LocalFileSystem
from headrace.checkpoint.fence import take_fence
from headrace.state.remote import RemoteStore
from headrace.state.store import LocalStore

kind, root, cache = sys.argv[1:]
store = LocalStore(root) if kind == "local" else RemoteStore("far", cache_dir=cache, fs=LocalFileSystem(), root=root)
take_fence(store)
os._exit(1)
"""


@pytest.mark.parametrize("kind", ["local", "far"])
def test_a_process_of_this_machine_that_died_is_noticed_at_once(kind: str, tmp_path: Path) -> None:
    root, cache = str(tmp_path / "store"), str(tmp_path / "cache")
    subprocess.run([sys.executable, "-c", DIES, kind, root, cache], check=False)
    store: StoreFiles = (
        LocalStore(root) if kind == "local" else RemoteStore("far", cache_dir=cache, fs=LocalFileSystem(), root=root)
    )
    fence = take_fence(store, sleep=pytest.fail)
    assert fence.number == 2
    fence.drop()


# --- stores with a lock


def test_the_lock_of_a_local_store_refuses_at_once_and_names_the_holder(tmp_path: Path, clock: Clock) -> None:
    store = LocalStore(tmp_path, durable=False)
    first = take(store, clock)
    with pytest.raises(StoreInUse, match="process 4711 of user ada on host-a") as caught:
        take(store, clock, THERE)
    assert clock.slept_s == 0
    assert "--takeover" in caught.value.next_move
    first.drop()
    take(store, clock, THERE).drop()


def test_takeover_of_a_local_store_waits_for_the_lock(tmp_path: Path, clock: Clock) -> None:
    store = LocalStore(tmp_path, durable=False)
    first = take(store, clock)
    clock.then = first.drop
    second = take(store, clock, takeover=True)
    assert second.number == 2
    with pytest.raises(StoreInUse):
        take(store, clock)
    second.drop()


def test_a_lock_that_does_not_reach_other_machines_is_not_believed(tmp_path: Path, clock: Clock) -> None:
    """Some shared file systems keep locks per machine: there the lock is free, and the heartbeat is not."""
    store = LocalStore(tmp_path, durable=False)
    taken = create_fence(store, THERE, 1, locked=True, clock=clock)
    heart = Heart(store, taken, clock=clock, interval_s=NEVER_S)
    clock.then = heart.beat
    with pytest.raises(StoreInUse, match="grace on host-b"):
        take(store, clock)
    heart.end()
    take(store, clock).drop()


def test_a_file_system_without_locks_goes_by_heartbeats(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(handle: object, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    store = LocalStore(tmp_path, durable=False)
    first = take(store, clock)
    clock.then = first.heart.beat
    with pytest.raises(StoreInUse, match="ada on host-a"):
        take(store, clock, THERE)
    first.drop()
    take(store, clock, THERE).drop()


# --- the heart


def test_a_heart_beats_in_the_background_until_it_ends(tmp_path: Path) -> None:
    store = far(tmp_path)
    thrice = threading.Event()
    told = iter(range(1_000_000))

    def clock() -> float:
        at = next(told)
        if at == 3:
            thrice.set()
        return float(at)

    heart = Heart(store, create_fence(store, HERE, 1, locked=False, clock=clock), clock=clock, interval_s=0.001)
    heart.start()
    assert thrice.wait(60)
    heart.end()
    holder = read_holder(store)
    assert holder is not None
    assert holder.beats >= 3 and holder.ended
    assert (holder.host, holder.pid, holder.user, holder.fence) == ("host-a", 4711, "ada", 1)


class Unreachable(RemoteStore):
    away = False

    def write(self, path: str, data: object) -> None:
        if self.away:
            raise StoreError("this store does not answer")
        super().write(path, data)  # type: ignore[arg-type]

    def read(self, path: str) -> bytes:
        if self.away:
            raise StoreError("this store does not answer")
        return super().read(path)


def test_a_store_that_does_not_answer_ends_no_driver_between_epochs(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Unreachable(f"memory://{uuid4()}/store", cache_dir=tmp_path / "cache")
    fence = take(store, clock)
    store.away = True
    with caplog.at_level(logging.WARNING):
        fence.heart.beat()
        fence.heart.beat()
        assert [record.name for record in caplog.records] == ["headrace.fence"], "said once"
        clock.now_s += GLANCE_S
        fence.glance()
    with pytest.raises(StoreError, match="does not answer"):
        fence.check()
    store.away = False
    fence.check()


class Counted(RemoteStore):
    reads = 0

    def read(self, path: str) -> bytes:
        self.reads += 1
        return super().read(path)


def test_an_idle_driver_asks_a_remote_store_now_and_then_only(tmp_path: Path, clock: Clock) -> None:
    store = Counted(f"memory://{uuid4()}/store", cache_dir=tmp_path / "cache")
    fence = take(store, clock)
    store.reads = 0
    for _ in range(100):
        fence.glance()
    assert store.reads == 0
    clock.now_s += GLANCE_S
    for _ in range(100):
        fence.glance()
    assert store.reads == 1
    take(store, clock, THERE, takeover=True)
    clock.now_s += GLANCE_S
    with pytest.raises(Fenced):
        fence.glance()


def test_a_fence_file_of_an_earlier_version_is_understood(tmp_path: Path, clock: Clock) -> None:
    store = far(tmp_path)
    store.create(layout.fence(6), b'{"fence":6,"host":"h","pid":1,"nonce":"x"}')
    assert take(store, clock).number == 7
    with pytest.raises(MissingFile):
        store.read(layout.heartbeat(6))


def test_a_damaged_fence_file_is_named_with_what_to_do_and_a_takeover_goes_on(tmp_path: Path, clock: Clock) -> None:
    store = LocalStore(tmp_path / "store")
    take(store, clock).drop()
    (tmp_path / "store" / layout.fence(1)).write_bytes(b'{"fence": 1, "hos')
    with pytest.raises(CorruptFile) as damaged:
        take(store, clock)
    assert damaged.value.where == f"{store.url}/{layout.fence(1)}"
    assert "--takeover" in damaged.value.next_move
    assert take(store, clock, takeover=True).number == 2
