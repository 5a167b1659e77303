"""The runs of one step and shard, read as one state: newest wins, tombstones hide, clear markers end.

:class:`Layers` answers by key in bulk, by single key, by map, by time and in order.
It holds no values; the same object serves a task, a query or a fold. Expiry is answered, not applied: only the caller
knows the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import StoreError
from headrace.model.report import RunRef
from headrace.state import bulk, due, entries, merge
from headrace.state.format import BY_TIME, ROWS, hash_bounds
from headrace.state.run import Run, open_ref
from headrace.state.store import Store
from headrace.state.view import TableView

FEW: Final = 256
"""Up to this many needles are looked up one by one: the set-up of a bulk lookup costs more."""

Hashes = npt.NDArray[np.uint64]


class Layers:
    """The runs of one step, newest first, as the shard of key groups [lo, hi) sees them."""

    def __init__(
        self,
        runs: Sequence[tuple[RunRef, Run]],
        *,
        lo: int,
        hi: int,
        groups: int,
        renamed: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """``renamed`` maps a table to its former names, newest first: runs written before hold it under those."""
        self.lo, self.hi, self.groups = lo, hi, groups
        self._renamed = {name: tuple(was) for name, was in (renamed or {}).items()}
        self._runs: tuple[tuple[RunRef, Run], ...] = ()
        self._views: dict[str, tuple[TableView, ...]] = {}
        for ref, run in reversed(runs):
            self.prepend(ref, run)

    def prepend(self, ref: RunRef, run: Run) -> None:
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
    def renamed(self) -> Mapping[str, Sequence[str]]:
        """Table → its former names, newest first."""
        return self._renamed

    @property
    def tables(self) -> dict[str, str]:
        """Name → kind of every table that any of the runs holds, by its present name."""
        present = {was: name for name, formers in self._renamed.items() for was in formers}
        return {
            present.get(name, name): table.kind for _, run in reversed(self._runs) for name, table in run.tables.items()
        }

    def views(self, table: str) -> tuple[TableView, ...]:
        """The runs that hold a table, newest first, each cut to the key groups it speaks for."""
        found = self._views.get(table)
        if found is None:
            found = self._views[table] = tuple(self._cut_views(table))
        return found

    def _cut_views(self, table: str) -> Iterator[TableView]:
        for ref, run in self._runs:
            lo, hi = max(self.lo, ref.lo), min(self.hi, ref.hi)
            if lo >= hi:
                continue
            # Within one run the present name is the newer one: a fold may have put both side by side.
            for name in (table, *self._renamed.get(table, ())):
                if name in run.tables:
                    yield TableView(run.tables[name], *hash_bounds(lo, hi, self.groups))

    def get_many(self, table: str, hashes: Hashes, keys: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.Int64Array | None]:
        """Values of distinct keys, in the order asked: null where there is none. Expiry is ``None`` if none has one."""
        views = self.views(table)
        if not views or len(keys) == 0:
            return pa.nulls(len(keys), pa.binary()), None
        if len(keys) > FEW:
            return bulk.find_values(views, np.asarray(hashes, np.uint64), keys)
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
                return value, None if value is None else block.expires_at(row)
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
        return due.find_due(self.views(table), after_us, upto_us)

    def next_due(self, table: str, after_us: int) -> int | None:
        """The earliest time after ``after_us`` in a timer index: a hint too, never later than the truth."""
        return due.find_next_due(self.views(table), after_us)

    def scan(self, table: str, now_us: int | None = None) -> Iterator[pa.RecordBatch]:
        """The live rows of a value or entries table in (hash, key, sub) order, without expired ones if told the time.

        Rows of a timer index come in time order, dead ones included; partial aggregates by slice, merged.
        """
        views = self.views(table)
        if not views:
            return
        kind = views[0].table.kind
        for batch in merge.merge_views(views, kind):
            if kind not in BY_TIME and kind != ROWS:
                batch = merge.drop_dead(batch if now_us is None else merge.drop_expired(batch, now_us))
            if batch.num_rows:
                yield batch


def open_layers(
    store: Store,
    refs: Sequence[RunRef],
    *,
    lo: int,
    hi: int,
    groups: int,
    renamed: Mapping[str, Sequence[str]] | None = None,
) -> Layers:
    """Opens what a manifest lists for a step; references that do not touch the shard are not even opened."""
    wanted = [ref for ref in refs if ref.lo < hi and lo < ref.hi]
    return Layers([(ref, open_ref(store, ref)) for ref in wanted], lo=lo, hi=hi, groups=groups, renamed=renamed)
