"""Runs of an epoch that no task of Spark's writes: rows of any key groups, cut by the shards of the job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from headrace.model.job import derive_version
from headrace.model.keys import group_range
from headrace.model.report import RunRef
from headrace.state import layout
from headrace.state.encode import describe_run, encode_run
from headrace.state.format import TableData, hash_bounds
from headrace.state.manifest import Manifest
from headrace.state.store import StoreFiles

INLINE_BYTES: Final = 16 * 1024
"""A run of at most this size travels inside of the manifest …"""
INLINE_ALL_BYTES: Final = 64 * 1024
"""… as long as all of one writer's together have no more than this."""


class RunWriter:
    """Writes runs of one epoch. Until a manifest names them, they are files that a sweep deletes."""

    def __init__(self, store: StoreFiles, like: Manifest, *, epoch: int, fence: int) -> None:
        """``like``: a manifest of the job, with the shards and key groups that it has now."""
        self._store = store
        self._like = like
        self._epoch = epoch
        self._fence = fence
        self._inline_left = INLINE_ALL_BYTES

    def run_path(self, step: str, first_group: int) -> str:
        """A fresh name for a run."""
        return layout.run(step, self._epoch, first_group, layout.new_uid(self._fence))

    def write_runs(self, step: str, tables: Sequence[TableData]) -> list[RunRef]:
        """Makes rows of any key groups durable: a run for each shard that has some, or one of a broadcast state."""
        like = self._like
        if layout.is_broadcast(step):
            return [self.write_run(step, tables, lo=0, hi=like.key_groups)]
        refs = []
        for shard in range(like.parallelism):
            groups = group_range(shard, like.parallelism, like.key_groups)
            mine = [part for table in tables if (part := _cut(table, groups, like.key_groups)).batch.num_rows]
            if mine:
                refs.append(self.write_run(step, mine, lo=groups.start, hi=groups.stop))
        return refs

    def write_run(
        self, step: str, tables: Sequence[TableData], *, lo: int, hi: int, version: int | None = None
    ) -> RunRef:
        """Makes rows of the key groups [lo, hi) durable, in one run; a small one is inside of its reference.

        ``version``: that of the types of their values, where it is not the newest of the step.
        """
        data = encode_run(tables, lo=lo, hi=hi, groups=self._like.key_groups)
        path = ""
        if len(data) <= min(INLINE_BYTES, self._inline_left):
            self._inline_left -= len(data)
        else:
            path = self.run_path(step, lo)
            self._store.write(path, data)
        if version is None:
            version = derive_version(self._like.states.get(layout.step_of(step), {}))
        return replace(describe_run(data, epoch=self._epoch, file=path), version=version)


def _cut(table: TableData, groups: range, key_groups: int) -> TableData:
    low, high = hash_bounds(groups.start, groups.stop, key_groups)
    hashes = table.batch.column("hash").to_numpy()
    return TableData(table.name, table.kind, table.batch.filter(pa.array((hashes >= low) & (hashes <= high))))
