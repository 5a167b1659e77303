"""Any order of epochs, deaths, edits, rewinds, folds, shards and erasures comes to what a dictionary says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.edit.erasing.erase import erase_key
from headrace.errors import MissingFile, StoreError
from headrace.model.order import EpochLimits
from headrace.read.store import Store
from headrace.state.store import LocalStore

KEYS = [f"key-{i}" for i in range(8)]
STEPS = 24
FILES = EpochLimits(inline_run_bytes=0)
POINTS = ("reports_collected", "before_publish", "published", "released")


class Move(hr.Record):
    key: str
    n: int


class Sums(hr.Process[Move, Move, str]):
    total: hr.ValueState[int]
    seen: hr.MapState[str, int]

    def on_event(self, event: Move, ctx: hr.Context[str]) -> Any:
        self.total.set((self.total.get() or 0) + event.n)
        self.seen["all"] = self.seen.get("all", 0) + 1


Totals = dict[str, int]


class Model:
    """The job, and beside it what it should have come to."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.totals: Totals = {}
        self.past: dict[int, Totals] = {}
        self.read: dict[int, list[Move]] = {}
        """What each epoch of the present lineage has read."""
        self.waiting: list[Move] = []
        self.start(2)

    def start(self, parallelism: int) -> None:
        app = hr.App("moves")
        self.moves = app.read("moves", hr.source.items([]), Move)
        self.sums = self.moves.key_by(Move.key).process(Sums()).named("sums")
        limits = self.random.choice([EpochLimits(), FILES])
        self.h = hr.testing.Harness(app, store=self.folder, parallelism=parallelism, limits=limits)
        self.began = self.h.published
        """Rows that epochs up to this one have read are no longer at hand."""

    # --- what may happen

    def epoch(self) -> None:
        self.push()
        self.h.epoch()
        self.note()

    def push(self) -> None:
        moves = [Move(self.random.choice(KEYS), self.random.randint(1, 9)) for _ in range(self.random.randint(0, 6))]
        self.h.push(self.moves, *moves)
        self.waiting += moves

    def note(self) -> None:
        """An epoch has read all that waited."""
        for move in self.waiting:
            self.totals[move.key] = self.totals.get(move.key, 0) + move.n
        self.read[self.h.published], self.waiting = self.waiting, []
        self.past[self.h.published] = dict(self.totals)

    def die(self) -> None:
        self.push()
        before = self.h.published
        self.h.crash(at=self.random.choice(POINTS))
        if self.h.published > before:
            self.note()

    def edit(self) -> None:
        if self.h.published < 0:
            return
        with self.h.edit() as edit:
            for key in self.random.sample(KEYS, self.random.randint(1, 3)):
                if self.random.random() < 0.3:
                    edit.delete("sums.total", key)
                    self.totals.pop(key, None)
                else:
                    self.totals[key] = self.random.randint(100, 999)
                    edit.set("sums.total", key, self.totals[key])
        self.read[edit.epoch] = []
        self.past[edit.epoch] = dict(self.totals)

    def rewind(self) -> None:
        kept = [epoch for epoch in Store(self.folder).epochs() if self.began <= epoch < self.h.published]
        if not kept:
            return
        epoch = self.random.choice(kept)
        self.h.rewind(epoch, again=True)
        self.waiting = [move for each in sorted(self.read) if each > epoch for move in self.read[each]] + self.waiting
        self.read = {each: moves for each, moves in self.read.items() if each <= epoch}
        self.past = {each: totals for each, totals in self.past.items() if each <= epoch}
        self.totals = dict(self.past[epoch])
        # A rewind is complete with the first epoch behind it.
        self.h.epoch()
        self.note()

    def maintain(self) -> None:
        self.h.maintain()

    def savepoint(self) -> None:
        if self.h.published >= 0:
            self.h.savepoint()

    def rescale(self) -> None:
        if self.waiting:
            self.epoch()
        self.h.close()
        self.start(self.random.choice([1, 2, 3, 5]))

    def erase(self) -> None:
        if self.h.published < 0:
            return
        if self.waiting:
            self.epoch()
        self.h.close()
        key = self.random.choice(KEYS)
        done = erase_key(LocalStore(self.folder, durable=False), key)
        for totals in (self.totals, *self.past.values()):
            totals.pop(key, None)
        self.past[done.epoch] = dict(self.totals)
        self.read[done.epoch] = []
        self.start(2)

    # --- what has to hold

    def check(self) -> None:
        if self.h.published < 0:
            return
        assert {key: self.h.state(self.sums, Sums.total, key) for key in KEYS} == {
            key: self.totals.get(key) for key in KEYS
        }
        for epoch in Store(self.folder).epochs():
            try:
                view = Store(self.folder).at(epoch).state("sums.total", int)
            except MissingFile:
                continue
            assert {key: view.get(key) for key in KEYS} == {key: self.past[epoch].get(key) for key in KEYS}, epoch


@pytest.mark.parametrize("seed", range(4))
def test_a_job_comes_to_what_a_dictionary_says(seed: int, tmp_path: Path) -> None:
    model = Model(tmp_path / "store", seed)
    kinds = [model.epoch] * 4 + [model.edit] * 3 + [model.die, model.rewind, model.rewind, model.maintain,
                                                    model.savepoint, model.rescale, model.erase]  # fmt: skip
    done = []
    try:
        for _ in range(STEPS):
            what = model.random.choice(kinds)
            done.append(what.__name__)
            what()
            model.check()
    except (AssertionError, StoreError) as error:
        raise AssertionError(f"seed {seed}, behind {', '.join(done)}: {error}") from error
    finally:
        model.h.close()
