"""The runs of one step and shard, read as one state: newest wins, tombstones hide, clear markers end.

`Layers` answers by key in bulk, by single key, by map, by time and in order. It holds no values; the same object serves
a task, a query or a fold. Expiry is answered, not applied: only the caller knows the clock.

Bulk lookup (`find_values`) sorts the keys by hash once and goes through the runs, newest first: per batch one
``searchsorted`` proposes a row for each key, one comparison confirms the keys, one ``take`` gathers the values. Hashes
that collide are looked up one by one. The index of timers is a hint without tombstones: a timer that was deleted or
moved still has its row there, and the caller checks against the state of the timer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StoreError
from headrace.model.job import DeclaredState
from headrace.model.report import RunRef
from headrace.state import entries, merge
from headrace.state.adapters import Adapters, ValueAdapter
from headrace.state.block import Block
from headrace.state.format import BY_TIME, DUE, PANES, ROWS, hash_bounds, table_schema
from headrace.state.run import RunTable, StateRun, open_ref
from headrace.state.store import StoreFiles
from headrace.state.view import TableView

Indexes = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


def find_values(
    views: Sequence[TableView], hashes: Hashes, keys: pa.BinaryArray
) -> tuple[pa.BinaryArray, pa.Int64Array | None]:
    """For each key its newest value, null where there is none or a tombstone; and the expiry if any table has one."""
    search = _Search(hashes, keys, expires=any(view.table.has_expires for view in views))
    for view in views:
        if len(search.rest) == 0:
            break
        search.look_into(view)
    return search.answer()


class _Search:
    def __init__(self, hashes: Hashes, keys: pa.BinaryArray, *, expires: bool) -> None:
        self.keys = keys
        self.rest: Indexes
        """Needles not found yet, as positions in ``keys``, in the order of their hashes …"""
        self.rest_hash: Hashes
        """… and those hashes."""
        if np.all(hashes[1:] >= hashes[:-1]):
            self.rest, self.rest_hash = np.arange(len(hashes)), hashes
        else:
            self.rest = np.argsort(hashes)
            self.rest_hash = hashes[self.rest]
        self._places: Indexes = np.full(len(hashes), -1)
        self._found = 0
        self._values: list[pa.BinaryArray] = []
        self._expires: list[pa.Int64Array] | None = [] if expires else None

    def look_into(self, view: TableView) -> None:
        start, end = view.needles(self.rest_hash)
        hashes = self.rest_hash[start:end]
        left = np.ones(len(self.rest), bool)
        cuts = np.append(np.searchsorted(hashes, view.table.first_array), len(hashes)) + start
        for index in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
            first, last = int(cuts[index]), int(cuts[index + 1])
            hit = self._look_into_block(view, view.table.block(index), first, last)
            left[first:last][hit] = False
        self.rest, self.rest_hash = self.rest[left], self.rest_hash[left]

    def _look_into_block(self, view: TableView, block: Block, first: int, last: int) -> Indexes:
        """Gathers what the block has for needles first … last; answers which of them it had."""
        wanted = self.rest_hash[first:last]
        rows = np.searchsorted(block.hash, wanted)
        np.minimum(rows, block.rows - 1, out=rows)
        hit = np.flatnonzero(block.hash[rows] == wanted)
        if len(hit) == 0:
            return hit
        rows, needles = rows[hit], self.rest[first:last][hit]
        same = pc.equal(
            pc.take(self.keys, pa.array(needles), boundscheck=False),
            pc.take(block.key, pa.array(rows), boundscheck=False),
        ).to_numpy(zero_copy_only=False)
        if not same.all():
            hit, rows, needles = self._resolve_collisions(block, hit, rows, needles, same)
        self._places[needles] = np.arange(self._found, self._found + len(needles))
        self._found += len(needles)
        self._gather(view, block, pa.array(rows))
        return hit

    def _resolve_collisions(
        self, block: Block, hit: Indexes, rows: Indexes, needles: Indexes, same: npt.NDArray[Any]
    ) -> tuple[Indexes, Indexes, Indexes]:
        """The first row of a hash is another key: it may be a later one, or absent."""
        for index in np.flatnonzero(~same).tolist():
            hash_ = int(block.hash[rows[index]])
            rows[index] = block.find(hash_, self.keys[int(needles[index])].as_py())
        found = rows >= 0
        return hit[found], rows[found], needles[found]

    def _gather(self, view: TableView, block: Block, rows: pa.Int64Array) -> None:
        values = pc.take(block.value, rows, boundscheck=False)
        if isinstance(view.adapter, ValueAdapter):
            values = view.adapter.array(values, pc.take(block.key, rows, boundscheck=False))
        self._values.append(values)
        if self._expires is not None:
            if block.expires is None:
                self._expires.append(pa.nulls(len(rows), pa.int64()))
            else:
                self._expires.append(pc.take(block.expires, rows, boundscheck=False))

    def answer(self) -> tuple[pa.BinaryArray, pa.Int64Array | None]:
        """Found values in the order the caller asked."""
        places = pa.array(self._places, mask=self._places < 0)
        if not self._values:
            return pa.nulls(len(places), pa.binary()), None
        values = pc.take(pa.concat_arrays(self._values), places, boundscheck=False)
        if self._expires is None:
            return values, None
        return values, pc.take(pa.concat_arrays(self._expires), places, boundscheck=False)


SCHEMA = table_schema(DUE, expires=False)


def find_due(views: Sequence[TableView], after_us: int, upto_us: int) -> pa.Table:
    """Index rows with after < time ≤ upto, run by run; each run's rows are in time order."""
    batches = [batch for view in views for batch in _due_in(view, after_us, upto_us)]
    return pa.Table.from_batches(batches, SCHEMA)


def find_next_due(views: Sequence[TableView], after_us: int) -> int | None:
    """The earliest time after ``after_us`` in the index."""
    times = [time for view in views if (time := _next_due_in(view, after_us)) is not None]
    return min(times, default=None)


def _due_in(view: TableView, after_us: int, upto_us: int) -> Iterator[pa.RecordBatch]:
    table = view.table
    first = max(0, bisect_left(table.firsts, after_us) - 1)
    for index in range(first, bisect_right(table.firsts, upto_us)):
        block = table.block(index)
        start = int(np.searchsorted(block.sort, after_us, "right"))
        end = int(np.searchsorted(block.sort, upto_us, "right"))
        batch = block.batch.slice(start, end - start)
        mine = view.in_range(block.hash[start:end])
        if not mine.all():
            batch = batch.filter(pa.array(mine))
        if batch.num_rows:
            yield batch


def _next_due_in(view: TableView, after_us: int) -> int | None:
    table = view.table
    for index in range(max(0, bisect_left(table.firsts, after_us) - 1), len(table)):
        block = table.block(index)
        start = int(np.searchsorted(block.sort, after_us, "right"))
        mine = np.flatnonzero(view.in_range(block.hash[start:]))
        if len(mine):
            return int(block.sort[start + mine[0]])
    return None


FEW: Final = 256
"""Up to this many needles are looked up one by one: the set-up of a bulk lookup costs more."""


class Layers:
    """The runs of one step, newest first, as the shard of key groups [lo, hi) sees them."""

    def __init__(
        self,
        runs: Sequence[tuple[RunRef, StateRun]],
        *,
        lo: int,
        hi: int,
        groups: int,
        states: Mapping[str, DeclaredState] | None = None,
        hidden: Mapping[str, int] | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        """``states``: what the step declares. Runs written before hold tables and columns under their former names.

        ``hidden``: table, by the name it lies under → the epoch before which runs that hold it do not count.
        ``adapters``: what is done with values of runs of older versions; None: nothing.
        """
        self._adapters = adapters
        self.lo, self.hi, self.groups = lo, hi, groups
        self._states = dict(states or {})
        self._hidden = dict(hidden or {})
        self._runs: tuple[tuple[RunRef, StateRun], ...] = ()
        self._views: dict[str, tuple[TableView, ...]] = {}
        self._only: int | None = None
        """The hash that alone is seen, where a task is about one key."""
        for ref, run in reversed(runs):
            self.prepend(ref, run)

    def adapted_by(self, adapters: Adapters) -> Layers:
        """The same runs, their values adapted in another way."""
        return Layers(
            self._runs, lo=self.lo, hi=self.hi, groups=self.groups, states=self._states, hidden=self._hidden,
            adapters=adapters,
        )  # fmt: skip

    def prepend(self, ref: RunRef, run: StateRun) -> None:
        """Adds a run that is newer than all others: an overlay that was spilled."""
        if run.groups != self.groups or not run.lo <= ref.lo < ref.hi <= run.hi:
            raise StoreError(
                "a reference does not fit its run",
                where=run.name,
                expected=f"key groups inside [{run.lo}, {run.hi}) of {run.groups}",
                found=f"[{ref.lo}, {ref.hi}) of {self.groups}",
                next_move="the manifest and the file do not belong together; restore both from one copy",
            )
        self._runs = ((ref, run), *self._runs)
        self._views = {}

    @property
    def runs(self) -> tuple[tuple[RunRef, StateRun], ...]:
        """The runs and how they are referred to, newest first."""
        return self._runs

    @property
    def states(self) -> Mapping[str, DeclaredState]:
        """What the step declares, by the names that tables have now."""
        return self._states

    def names_of(self, table: str) -> tuple[str, ...]:
        """The name of a table and those it had before, the newest first."""
        declared = self._states.get(table)
        return (table,) if declared is None else (table, *declared.was)

    @property
    def hidden(self) -> Mapping[str, int]:
        """Table that was dropped → the epoch before which runs that hold it do not count."""
        return self._hidden

    @property
    def tables(self) -> dict[str, str]:
        """Name → kind of every table that any of the runs holds, by its present name."""
        present = {was: name for name, state in self._states.items() for was in state.was}
        return {
            present.get(name, name): table.kind
            for ref, run in reversed(self._runs)
            for name, table in run.tables.items()
            if self._counts(ref, name)
        }

    def _counts(self, ref: RunRef, table: str) -> bool:
        return not self._hidden or ref.epoch >= self._hidden.get(table, ref.epoch)

    def views(self, table: str) -> tuple[TableView, ...]:
        """The runs that hold a table, newest first, each cut to the key groups it speaks for."""
        found = self._views.get(table)
        if found is None:
            found = self._views[table] = tuple(self._cut_views(table))
        return found

    def narrow(self, hash_: int) -> None:
        """From now on sees keys of one hash only, as if there were no others."""
        self._only, self._views = hash_, {}

    def _cut_views(self, table: str) -> Iterator[TableView]:
        for ref, run in self._runs:
            lo, hi = max(self.lo, ref.lo), min(self.hi, ref.hi)
            if lo >= hi:
                continue
            # Within one run the present name is the newer one: a fold may have put both side by side.
            for name in self.names_of(table):
                if name in run.tables and self._counts(ref, name):
                    stored = self._present_columns(table, run.tables[name], ref.version)
                    adapter = None if self._adapters is None else self._adapters.of(table, ref.version)
                    low, high = hash_bounds(lo, hi, self.groups)
                    if self._only is None:
                        yield TableView(stored, low, high, adapter, ref.version)
                    elif low <= self._only <= high:
                        yield TableView(stored, self._only, self._only, adapter, ref.version)

    def _present_columns(self, table: str, stored: RunTable, version: int) -> RunTable:
        """A table of partial aggregates with the names that they have now."""
        if stored.kind != PANES or table not in self._states:
            return stored
        names = self._states[table].aggregates_since(version)
        return stored if names is None else stored.renamed(names)

    def get_many(self, table: str, hashes: Hashes, keys: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.Int64Array | None]:
        """Values of distinct keys, in the order asked: null where there is none. Expiry is ``None`` if none has one."""
        views = self.views(table)
        if not views or len(keys) == 0:
            return pa.nulls(len(keys), pa.binary()), None
        if len(keys) > FEW:
            return find_values(views, np.asarray(hashes, np.uint64), keys)
        found = [self.get(table, hash_, key) for hash_, key in zip(hashes.tolist(), keys.to_pylist())]
        values = pa.array([value for value, _ in found], pa.binary())
        if not any(view.table.has_expires for view in views):
            return values, None
        return values, pa.array([expires for _, expires in found], pa.int64())

    def get(self, table: str, hash_: int, key: bytes) -> tuple[bytes | None, int | None]:
        """Value and expiry of one key."""
        for view in self.views(table):
            found = view.find(hash_, key)
            if found is not None:
                block, row = found
                value = block.values.at(row)
                if value is None:
                    return None, None
                return value if view.adapter is None else view.adapted(value, key), block.expires_at(row)
        return None, None

    def entries_many(
        self, table: str, hashes: Hashes, keys: pa.BinaryArray, limit: int
    ) -> list[dict[bytes, tuple[bytes, int | None]] | None]:
        """Whole maps of distinct keys, in the order asked: sub → (value, expiry) in sub order, empty where nothing is.

        ``None`` where the runs hold more than ``limit`` rows for the key: then ``entry`` and ``entries`` are the way.
        Rows count before merging, so a map that was rewritten often may be ``None`` with fewer entries.
        """
        return entries.find_maps(self.views(table), np.asarray(hashes, np.uint64), keys, limit)

    def entry(self, table: str, hash_: int, key: bytes, sub: bytes) -> tuple[bytes | None, int | None]:
        """Value and expiry of one entry of a map."""
        return entries.find_entry(self.views(table), hash_, key, sub)

    def entries(self, table: str, hash_: int, key: bytes) -> Iterator[tuple[bytes, bytes, int | None]]:
        """(sub, value, expiry) of a map in sub order, however large it is."""
        return entries.walk_entries(self.views(table), hash_, key)

    def due(self, table: str, after_us: int, upto_us: int) -> pa.Table:
        """Rows of a timer index with after < time ≤ upto: a hint, to be checked against the timers' own state."""
        return find_due(self.views(table), after_us, upto_us)

    def next_due(self, table: str, after_us: int) -> int | None:
        """The earliest time after ``after_us`` in a timer index: a hint too, never later than the truth."""
        return find_next_due(self.views(table), after_us)

    def scan(self, table: str, now_us: int | None = None, *, dead: bool = False) -> Iterator[pa.RecordBatch]:
        """The live rows of a value or entries table in (hash, key, sub) order, without expired ones if told the time.

        Rows of a timer index come in time order, dead ones included; partial aggregates by slice, merged. ``dead``:
        with the rows that say a key or entry was deleted, as far as folds have left any.
        """
        views = self.views(table)
        if not views:
            return
        kind = views[0].table.kind
        for batch in merge.merge_views(views, kind):
            if kind not in BY_TIME and kind != ROWS and not dead:
                batch = merge.drop_dead(batch if now_us is None else merge.drop_expired(batch, now_us))
            if batch.num_rows:
                yield batch


def open_layers(
    store: StoreFiles,
    refs: Sequence[RunRef],
    *,
    lo: int,
    hi: int,
    groups: int,
    states: Mapping[str, DeclaredState] | None = None,
    hidden: Mapping[str, int] | None = None,
    adapters: Adapters | None = None,
) -> Layers:
    """Opens what a manifest lists for a step; references that do not touch the shard are not even opened."""
    wanted = [ref for ref in refs if ref.lo < hi and lo < ref.hi]
    runs = [(ref, open_ref(store, ref)) for ref in wanted]
    return Layers(runs, lo=lo, hi=hi, groups=groups, states=states, hidden=hidden, adapters=adapters)
