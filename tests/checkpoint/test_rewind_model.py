"""Any interleaving of epochs, deaths, savepoints, copies, rewinds, forks, rescales, edits and sweeps, with a reader
attached, equals a model.

The model is two lists: whatever happened, state is the sum of the rows that were read and of the edits that led to the
present, and each row went out once. What holds rows back cannot pass an edit, so one world has an output that holds,
and the other edits, and an output that is brought back by state.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import Refused
from headrace.model import crash
from headrace.read.follow import Follower
from headrace.read.snapshot import Snapshot
from headrace.read.store import Store
from headrace.read.view import StateView
from headrace.state.copying import copy_savepoint
from headrace.state.layout import ManifestName
from headrace.state.lineage import derive_lineage, is_going_back, is_in
from headrace.state.record import read_record
from headrace.state.savepoints import delete_savepoint, list_savepoints
from headrace.state.store import LocalStore
from headrace.testing import Harness
from headrace.testing.playing import read_counts
from tests.checkpoint.keyed_table import KeyedTable
from tests.checkpoint.test_rewind import AppendOnly

DEATHS = ["in_function", "reports_collected", "manifest_written", "manifest_answer_lost", "published", "released"]
REWINDS = [point for point in crash.POINTS if point.startswith("rewind_")]


class Numbered(hr.Record):
    number: int
    key: str


class World:
    """The job, all rows there ever were, and what a reader saw."""

    def __init__(self, folder: Path, rng: random.Random, *, edits: bool) -> None:
        self.folder, self.rng, self.edits = folder, rng, edits
        self.edited: list[tuple[ManifestName, str, int]] = []
        """Where each edit became true, and what it added to which key."""
        self.table = KeyedTable("key")
        self.store = folder / "store"
        self.rows: list[Numbered] = []
        self.held = AppendOnly()
        self.names = 0
        self.follower: Follower | None = None
        self.seen: Snapshot | None = None
        self.h = self.start()

    def start(self, start_from: str = "", again: bool = False) -> Harness:
        app = hr.App("numbers")
        self.source = app.read("rows", hr.source.items([]), Numbered)
        self.totals = self.source.key_by(Numbered.key).aggregate(sum=hr.sum("number")).named("totals")
        self.source.write(hr.sink.files(self.folder / "out", format="json"), name="files")
        if self.edits:
            self.totals.write(self.table, name="table")
        else:
            self.source.write(self.held, name="held")
        hold = ["held"] if start_from and not self.edits else []
        h = Harness(
            app, store=self.store, sinks=True, parallelism=self.rng.randint(1, 3), start_from=start_from, hold=hold,
            again=again,
        )  # fmt: skip
        # A source that can be read again: everything behind what the job has read.
        h.push(self.source, *self.rows[self.read_by(h) :])
        return h

    @staticmethod
    def read_by(h: Harness) -> int:
        state = h._coordinator.state
        return 0 if state is None else read_counts(state.manifest.offsets).get("rows", 0)

    def sum(self, key: str, count: int, place: ManifestName | None) -> int | None:
        """What the first rows, and the edits that lead to a place, come to; None where there is nothing."""
        record = read_record(LocalStore(self.store))
        assert record is not None
        lineage = () if place is None else derive_lineage(record, place)
        added = [delta for at, of, delta in self.edited if of == key and is_in(at, lineage)]
        numbers = [row.number for row in self.rows[:count] if row.key == key]
        return sum(numbers) + sum(added) if numbers else None

    @property
    def present(self) -> ManifestName | None:
        state = self.h._coordinator.state
        return None if state is None else state.manifest.place

    def anew(self, start_from: str = "") -> None:
        self.h.close()
        self.h = self.start(start_from, again=bool(start_from) and self.rng.random() < 0.5)

    # --- what may happen

    def epoch(self) -> None:
        fresh = [Numbered(len(self.rows) + n, self.rng.choice("ab")) for n in range(self.rng.randint(0, 3))]
        self.rows += fresh
        self.h.push(self.source, *fresh)
        self.h.epoch()

    def edit(self) -> None:
        """Adds to a sum by hand, maybe after an attempt that died; a row of the key follows, so outputs hear of it."""
        key = self.rng.choice("ab")
        before = None if self.present is None else self.h.state(self.totals, key=key)
        if not self.edits or before is None or is_going_back(LocalStore(self.store)):
            return
        delta = self.rng.randint(-50, 50)

        def change() -> None:
            with self.h.edit() as edit:
                edit.patch("totals", key, {"sum": before.sum + delta})

        if self.rng.random() < 0.3:
            self.die("offline_written", change)
            assert self.h.state(self.totals, key=key).sum == before.sum
        change()
        assert self.present is not None
        self.edited.append((self.present, key, delta))
        self.rows.append(Numbered(len(self.rows), key))
        self.h.push(self.source, self.rows[-1])
        self.h.epoch()

    def die_in_epoch(self) -> None:
        self.die(self.rng.choice(DEATHS), self.epoch)
        self.h.restart()

    def savepoint(self) -> None:
        self.names += 1
        if self.h.published >= 0:
            self.h.savepoint(f"point-{self.names}")

    def delete(self) -> None:
        """A savepoint that nobody wants any more, the end of an abandoned timeline among them."""
        points = list_savepoints(LocalStore(self.store))
        if len(points) > 2:
            delete_savepoint(LocalStore(self.store), self.rng.choice(points).name)

    def copy(self) -> None:
        """A store of its own, made in two attempts, and a job that goes on in it."""
        points = list_savepoints(LocalStore(self.store))
        if not points:
            return
        self.names += 1
        point, target = self.rng.choice(points), self.folder / f"copy-{self.names}"
        copying = partial(copy_savepoint, LocalStore(self.store), point, LocalStore(target, durable=False))
        self.die(self.rng.choice(["copying", "copy_written"]), copying)
        copying()
        self.check_second(target, "", point.place)

    def fork(self) -> None:
        """A second job that begins with a savepoint or the newest epoch, beside this one; maybe it dies on its way."""
        points = list_savepoints(LocalStore(self.store))
        if not points:
            return
        self.names += 1
        point = self.rng.choice([None, self.rng.choice(points)])
        moment = "" if point is None else f"@{point.name}"
        place = self.present if point is None else point.place
        self.check_second(self.folder / f"fork-{self.names}", f"{self.store}{moment}", place)
        if self.rng.random() < 0.3:
            shutil.rmtree(self.folder / f"fork-{self.names}")

    def check_second(self, store: Path, start_from: str, place: ManifestName | None) -> None:
        """A job in another store reads what is left, and comes to the same. ``place``: what it begins with."""

        def start() -> tuple[Harness, Any, Any]:
            app = hr.App("numbers")
            source = app.read("rows", hr.source.items([]), Numbered)
            totals = source.key_by(Numbered.key).aggregate(sum=hr.sum("number")).named("totals")
            h = Harness(app, store=store, start_from=start_from, parallelism=self.rng.randint(1, 3))
            return h, source, totals

        def come_and_go() -> None:
            start()[0].close()

        if start_from:
            self.die(self.rng.choice(["copying", "copy_written", "fork_made", "none"]), come_and_go)
        h, source, totals = start()
        with h:
            read = self.read_by(h)
            h.push(source, *self.rows[read:])
            h.epoch()
            for key in {row.key for row in self.rows}:
                assert h.state(totals, key=key).sum == self.sum(key, len(self.rows), place)
        mine, other = read_record(LocalStore(store)), read_record(LocalStore(self.store))
        assert mine is not None and other is not None and mine.query != other.query
        assert not any(point.name.startswith("fork-of") for point in list_savepoints(LocalStore(self.store)))

    def rescale(self) -> None:
        self.anew()

    def sweep(self) -> None:
        # A driver sweeps behind an epoch that it has published.
        if not is_going_back(LocalStore(self.store)):
            self.h.maintain()

    def rewind(self) -> None:
        points = [point.name for point in list_savepoints(LocalStore(self.store))]
        if not points or is_going_back(LocalStore(self.store)):
            return
        self.h.close()
        moment, dies = self.rng.choice(points), self.rng.random() < 0.5
        try:
            if dies:
                self.die(self.rng.choice(REWINDS), lambda: self.start(moment, again=True).close())
                self.h = self.start()
            else:
                self.h = self.start(moment, again=self.rng.random() < 0.5)
        except Refused as refused:
            if "was abandoned by an earlier rewind" not in refused.what:
                raise
            self.h = self.start()

    def die(self, point: str, call: Callable[[], object]) -> None:
        def strike(reached: str, epoch: int) -> None:
            if reached == point:
                raise crash.Crash(point)

        with suppress(crash.Crash), crash.planned(strike):
            call()

    # --- what has to be true

    def check(self) -> None:
        self.look()
        if is_going_back(LocalStore(self.store)):
            return
        count = self.read_by(self.h)
        read = self.rows[:count]
        expected = {key: self.sum(key, count, self.present) for key in "ab"}
        found = {key: self.h.state(self.totals, key=key) for key in "ab"}
        assert {key: None if row is None else row.sum for key, row in found.items()} == expected
        if self.edits:
            shown = {key: row.sum for key, row in self.table.rows.items()}
            assert shown == {key: total for key, total in expected.items() if total is not None}
        else:
            assert sorted(row.number for row in self.held.rows) == [row.number for row in read]
        files = (self.folder / "out").glob("part-*")
        lines = [line for file in files for line in file.read_text().splitlines()]
        assert sorted(msgspec.json.decode(line)["number"] for line in lines) == [row.number for row in read]

    def look(self) -> None:
        """The reader never goes back, and what it sees is the truth of the epoch that it says."""
        if self.follower is None and self.h.published >= 0:
            self.follower = Follower(Store(self.store), clock=lambda: self.rng.random() * 1e9)
        snapshot = None if self.follower is None else self.follower.look()
        if snapshot is None:
            return
        assert self.seen is None or snapshot is self.seen or snapshot.is_newer_than(self.seen)
        assert self.seen is None or snapshot.version >= self.seen.version
        manifest = snapshot.state.manifest
        count = read_counts(manifest.offsets)["rows"]
        table = snapshot.table("totals")
        found = {} if table is None else {key: row["sum"] for key, row in StateView(table).items()}
        sums = {key: self.sum(key, count, manifest.place) for key in "ab"}
        assert found == {key: total for key, total in sums.items() if total is not None}
        self.seen = snapshot


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("edits", [False, True], ids=["held", "edited"])
def test_whatever_happens_state_is_what_was_read_and_each_row_went_out_once(
    seed: int, edits: bool, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    world = World(tmp_path, rng, edits=edits)
    kinds = [world.epoch] * 5 + [world.rewind] * 3 + [world.savepoint] * 2
    kinds += (
        [world.edit] * 2 * edits
        + [world.die_in_epoch] * 2
        + [world.rescale, world.sweep, world.copy, world.fork, world.delete]
    )
    story = []
    for _ in range(30):
        step = rng.choice(kinds)
        story.append(step.__name__)
        try:
            step()
            world.check()
        except (AssertionError, hr.HeadraceError) as error:
            raise AssertionError(f"seed {seed}: {story}") from error
    world.h.close()
