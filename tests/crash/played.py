"""The program that is killed, in a harness: its input, all that can be seen of it, and what lies in its store."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.dataflow.graph import KeyedNode, ReadNode, TapNode
from headrace.model import crash
from headrace.model.order import EpochLimits
from headrace.state import layout
from headrace.state.manifest import JobState, list_epochs, read_manifest, read_state
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.crash.files import written
from tests.crash.program import Click, Totals, Visits, build, make_click

EPOCHS = 5
PER_EPOCH = 60
FILES = EpochLimits(inline_run_bytes=0, inline_output_bytes=0)
"""Everything in files of its own, nothing inside of reports and manifests."""


class Played:
    """The program in a harness, its input, and everything that can be seen of it."""

    def __init__(self, folder: Path, *, parallelism: int = 2, limits: EpochLimits | None = None) -> None:
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
        self.store = LocalStore(folder / "store", durable=False)

    def push(self, epoch: int) -> None:
        self.h.push(self.clicks, *clicks()[epoch * PER_EPOCH : (epoch + 1) * PER_EPOCH])

    def run(self, *epochs: int) -> None:
        for epoch in epochs:
            self.push(epoch)
            self.h.epoch()

    def die(self, point: str, *, after: int = 0, work: Callable[[], None] | None = None) -> None:
        """Works (on an epoch, if not told otherwise) until a point, passed so many times before, ends the world.

        Other than `Harness.crash` it does not start again: the store is left as the dead process left it.
        """
        left = after

        def strike(reached: str, epoch: int) -> None:
            nonlocal left
            if reached == point:
                if left == 0:
                    raise crash.Crash(point)
                left -= 1

        with crash.planned(strike), pytest.raises(crash.Crash):
            (work or partial(self.h.epoch, final=point == "final_published"))()

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

    # -- what lies in the store ---------------------------------------------------------------------------------

    def state(self) -> JobState:
        """The newest published state, as a new process reads it."""
        return read_state(self.store, 0, list_epochs(self.store, 0)[-1])

    def files(self) -> set[str]:
        """Runs and staged rows that lie in the store."""
        return {*self.store.list(layout.RUNS), *self.store.list(layout.STAGED)}

    def named(self) -> set[str]:
        """Runs and staged rows that a manifest names."""
        return set(named_files(self.store))

    def unfinished(self) -> list[Path]:
        """Temporary files that writers left behind."""
        return sorted((self.store.root / layout.TEMPORARY).iterdir())


def named_files(store: LocalStore) -> Iterator[str]:
    for epoch in list_epochs(store, 0):
        manifest = read_manifest(store, 0, epoch)
        for step in manifest.steps.values():
            yield from (ref.file for ref in (*(step.runs or ()), *step.added) if ref.file)
        for parts in manifest.outputs.values():
            yield from (part.file for part in parts if part.file)


@cache
def clicks() -> list[Click]:
    rng = random.Random(7)
    return [make_click(i, rng) for i in range(EPOCHS * PER_EPOCH)]


@cache
def users() -> list[str]:
    """The busiest and the quietest of them."""
    by_clicks = [user for user, _ in Counter(sorted(click.user for click in clicks())).most_common()]
    return [*by_clicks[:8], *by_clicks[-8:]]


def run_untouched(folder: Path) -> dict[str, Any]:
    """What a run gives that nobody interrupts."""
    played = Played(folder)
    played.run(*range(EPOCHS))
    found = played.end()
    assert all(found["taken"]) and all(found["written"].values()), "every output must have rows, or nothing is proved"
    assert all(any(values) for values in found["states"].values()), "every state must hold something"
    return found
