"""Sweeps, savepoints and drivers that meet at any moment: a savepoint that was answered is always readable.

Everybody who touches the store is stepped one request at a time, so every order of requests can come up: the job
publishes, two drivers sweep (one of them was taken over and may sleep in the middle of a sweep), people take savepoints
of any epoch and delete them, and processes die between two requests.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import StoreError
from headrace.model.retention import Retention
from headrace.state import layout
from headrace.state.manifest import JobState, list_epochs
from headrace.state.savepoints import Savepoint, check_files, create_savepoint, delete_savepoint, list_savepoints
from headrace.state.store import LocalStore, StoreFiles, open_store
from headrace.state.sweep import sweep_store
from tests.state.saved import SavedJob

if TYPE_CHECKING:
    from tests.objects import ObjectServer

REQUESTS: Final = ("read", "write", "create", "list", "delete", "exists")


class Stepped:
    """A store whose every request waits until its turn comes."""

    def __init__(self, inner: StoreFiles, turn: Callable[[], None]) -> None:
        self._inner = inner
        self._turn = turn

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in REQUESTS:
            return method

        def request(*args: Any) -> Any:
            self._turn()
            return method(*args)

        return request


class Dead(BaseException):
    """Ends a process between two requests."""


class Process:
    """Work that goes on by one request whenever `step` is called."""

    def __init__(self, store: StoreFiles, work: Callable[[StoreFiles], object]) -> None:
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._dying = False
        self.result: object = None
        self.ended = False
        self._thread = threading.Thread(target=self._run, args=(Stepped(store, self._turn), work), daemon=True)
        self._thread.start()
        self._waits.acquire()

    def _run(self, store: Any, work: Callable[[StoreFiles], object]) -> None:
        with contextlib.suppress(Dead, StoreError):
            self.result = work(store)
        self.ended = True
        self._waits.release()

    def _turn(self) -> None:
        self._waits.release()
        self._go.acquire()
        if self._dying:
            raise Dead

    def step(self) -> None:
        if not self.ended:
            self._go.release()
            self._waits.acquire()

    def finish(self) -> None:
        while not self.ended:
            self.step()

    def die(self) -> None:
        self._dying = True
        self.finish()


class World:
    """One job, its drivers one after the other, and the people around it."""

    def __init__(self, path: Path) -> None:
        self.job = SavedJob(LocalStore(path, durable=False))
        self.store = self.job.store
        self.job.publish(4)
        self.fence = 1
        self.sweeps: list[Process] = []
        self.slept = 0
        """So many of the sweeps are those of drivers that were taken over."""
        self.takers: list[Process] = []
        self.answered: dict[str, Savepoint] = {}
        self._names = 0

    def take_over(self) -> None:
        """The old driver may still be in the middle of a sweep."""
        self.fence += 1
        self.slept = len(self.sweeps)
        self.store.write(layout.fence(self.fence), b"{}")

    def begin_sweep(self) -> None:
        assert self.job.state is not None
        state, fence = self.job.state, self.fence
        if all(process.ended for process in self.sweeps[self.slept :]):
            self.sweeps.append(Process(self.store, lambda store: _sweep(store, state, fence)))

    def begin_savepoint(self, back: int) -> None:
        epochs = list_epochs(self.store, 0)
        place = layout.ManifestName(0, epochs[max(0, len(epochs) - 1 - back)])
        self._names += 1
        name = f"s{self._names}"
        self.takers.append(Process(self.store, lambda store: create_savepoint(store, name=name, place=place)))

    def step(self, number: int, times: int) -> None:
        running = [each for each in (*self.sweeps, *self.takers) if not each.ended]
        for _ in range(times if running else 0):
            running[number % len(running)].step()

    def kill(self, number: int) -> None:
        running = [each for each in (*self.sweeps, *self.takers) if not each.ended]
        if running:
            running[number % len(running)].die()

    def delete(self, number: int) -> None:
        if self.answered:
            name = sorted(self.answered)[number % len(self.answered)]
            del self.answered[name]
            delete_savepoint(self.store, name)

    def check(self) -> None:
        for taker in self.takers:
            if isinstance(taker.result, Savepoint):
                self.answered[taker.result.name] = taker.result
                taker.result = None
        for savepoint in self.answered.values():
            check_files(self.store, savepoint)

    def end(self) -> None:
        for process in (*self.sweeps, *self.takers):
            process.finish()
        self.check()


def _sweep(store: StoreFiles, state: JobState, fence: int) -> None:
    sweep_store(store, state, fence=fence, retain=Retention(2))


Moves = st.lists(
    st.one_of(
        st.tuples(st.just("publish")),
        st.tuples(st.just("begin_sweep")),
        st.tuples(st.just("begin_savepoint"), st.integers(0, 6)),
        *[st.tuples(st.just("step"), st.integers(0, 5), st.integers(1, 20))] * 4,
        st.tuples(st.just("kill"), st.integers(0, 5)),
        st.tuples(st.just("delete"), st.integers(0, 5)),
        st.tuples(st.just("take_over")),
    ),
    max_size=80,
)


@given(moves=Moves)
@settings(deadline=None)
def test_a_savepoint_that_was_answered_is_readable_whatever_meets(
    moves: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    for name, *numbers in moves:
        if name == "publish":
            world.job.publish()
        else:
            getattr(world, name)(*numbers)
        world.check()
    world.end()


@pytest.mark.parametrize("requests", range(30))
def test_a_pin_at_any_moment_of_the_sweep_that_deletes_is_kept_or_refused(requests: int, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.job.publish(4)
    assert world.job.state is not None
    _sweep(world.store, world.job.state, 1)
    world.begin_sweep()
    for _ in range(requests):
        world.sweeps[0].step()
    with contextlib.suppress(StoreError):
        world.answered["a"] = create_savepoint(world.store, name="a", place=layout.ManifestName(0, 5))
    world.end()
    # It was condemned by the sweep before: refused, and nothing is left that pins it.
    assert (world.answered, list_savepoints(world.store)) == ({}, [])


@pytest.mark.parametrize("requests", range(30))
def test_a_pin_at_any_moment_of_the_sweep_that_condemns_is_kept_or_refused(requests: int, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.job.publish(4)
    world.begin_sweep()
    for _ in range(requests):
        world.sweeps[0].step()
    with contextlib.suppress(StoreError):
        world.answered["a"] = create_savepoint(world.store, name="a", place=layout.ManifestName(0, 5))
    world.end()
    for _ in range(3):
        world.begin_sweep()
        world.end()
    assert [each.name for each in list_savepoints(world.store)] == list(world.answered)
    assert list_epochs(world.store, 0) == ([3, 4, 5, 6, 7] if world.answered else [6, 7])


@pytest.fixture
def remote(object_server: ObjectServer, bucket: str) -> StoreFiles:
    return open_store(f"s3://{bucket}/job")


def test_an_object_store_is_swept_around_its_savepoints(remote: StoreFiles) -> None:
    job = SavedJob(remote)
    state = job.publish(8)
    pinned = create_savepoint(remote, name="before-v2", place=layout.ManifestName(0, 3))
    for _ in range(2):
        _sweep(remote, state, 1)
    assert list_epochs(remote, 0) == [3, 6, 7]
    check_files(remote, pinned)
    with pytest.raises(StoreError):
        create_savepoint(remote, place=layout.ManifestName(0, 4))
    delete_savepoint(remote, "before-v2")
    for _ in range(2):
        _sweep(remote, state, 1)
    assert list_epochs(remote, 0) == [6, 7]
