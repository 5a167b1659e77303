"""What really lies in the tables of a store: asked only where a decision, or a person, needs to know.

`StoredTables` is what the decisions ask; `RunTables` answers from the runs of an epoch. Opening a run costs reading its
footer, and nothing is opened for a step that nobody asks about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.ids import MIN_TIME
from headrace.state import layout
from headrace.state.format import DUE, ENTRIES, PANES, ROWS, VALUE
from headrace.state.lookup import Layers, open_layers
from headrace.state.manifest import JobState
from headrace.state.panes.about import cut_of
from headrace.state.panes.table import clock_of, first_live_pane
from headrace.state.rows.find import rows_between
from headrace.state.staged_parts import open_part
from headrace.state.store import StoreFiles


class StoredValue(NamedTuple):
    """One stored value."""

    key: bytes
    sub: bytes | None
    """Of an entry of a list or a map, its name."""
    value: bytes
    version: int
    """Of the step, when it was written."""


class SampledRows(NamedTuple):
    """Whole rows of one run."""

    rows: pa.RecordBatch
    version: int


class StoredTables(Protocol):
    """What is stored for steps, by the names they have in the store."""

    def tables(self, step: str) -> tuple[str, ...]:
        """Tables that anything was written to, by their present names; broadcast states are among them."""

    def rows(self, step: str, table: str, versions: Collection[int] | None = None) -> int:
        """Rows of a table, before merging. ``versions``: only those in runs of these versions of the step."""

    def holds(self, step: str, table: str) -> bool:
        """Whether anything in a table still counts: a value, an entry, or a window that is open."""

    def waiting(self, step: str, table: str) -> int:
        """How many rows in a table of rows that wait for event time still do."""

    def cuts(self, step: str, table: str) -> frozenset[str]:
        """How partial aggregates that are still needed were cut (`headrace.state.panes.about.cut_of`)."""

    def aggregates(self, step: str, table: str) -> frozenset[str]:
        """Names of the aggregates whose partial results are still needed, where they lie in columns."""

    def largest_integer(self, step: str, table: str, aggregate: str) -> int:
        """The greatest whole number, without its sign, of the partial results of an aggregate that lie in columns."""

    def versions(self, step: str) -> frozenset[int]:
        """The versions of the step in which its runs were written."""

    def sample(self, step: str, table: str, count: int) -> Iterator[StoredValue]:
        """Some values of a table, from all over it."""

    def sample_rows(self, step: str, table: str, count: int) -> Iterator[SampledRows]:
        """Some rows of a table of whole rows, from all over it."""

    def sample_loop(self, loop: str, count: int) -> Iterator[pa.RecordBatch]:
        """Some of the rows that wait in a loop."""


class RunTables:
    """The tables of a published epoch."""

    def __init__(self, store: StoreFiles, state: JobState) -> None:
        self._store = store
        self._state = state
        self._layers: dict[str, tuple[Layers, ...]] = {}

    def tables(self, step: str) -> tuple[str, ...]:
        return tuple(
            name
            for layers in self._of(step)
            for name, kind in layers.tables.items()
            if kind != DUE and not name.startswith("!")
        )

    def rows(self, step: str, table: str, versions: Collection[int] | None = None) -> int:
        views = (view for layers in self._of(step) for view in layers.views(table))
        return sum(view.rows for view in views if versions is None or view.version in versions)

    def holds(self, step: str, table: str) -> bool:
        for layers in self._of(step):
            views = layers.views(table)
            if not views:
                continue
            if views[0].table.kind == PANES:
                return bool(self.cuts(step, table))
            if views[0].table.kind == ROWS or next(layers.scan(table), None) is not None:
                return True
        return False

    def waiting(self, step: str, table: str) -> int:
        reached = self._state.manifest.time.steps.get(step, MIN_TIME)
        count = 0
        for layers in self._of(step):
            if layers.tables.get(table) == VALUE:
                count += sum(batch.num_rows for batch in layers.scan(table))
                continue
            for view in layers.views(table):
                for rows in rows_between(view, view.low, view.high):
                    count += int(np.count_nonzero(rows.column("at").to_numpy() > reached))
        return count

    def cuts(self, step: str, table: str) -> frozenset[str]:
        return frozenset(map(cut_of, self._needed_panes(step, table)))

    def aggregates(self, step: str, table: str) -> frozenset[str]:
        columns = {name for schema in self._needed_panes(step, table) for name in schema.names}
        return frozenset(name.rpartition(".")[0] for name in columns if "." in name)

    def largest_integer(self, step: str, table: str, aggregate: str) -> int:
        largest = 0
        for layers in self._of(step):
            for view in layers.views(table):
                if view.table.kind != PANES or not self._is_needed(
                    step, view.table.schema, view.table.entries[-1].last
                ):
                    continue
                names = [name for name in view.table.schema.names if _holds_value(name, aggregate)]
                for number in range(len(view.table) if names else 0):
                    batch = view.table.block(number).batch
                    for column in map(batch.column, names):
                        if pa.types.is_integer(column.type):
                            ends = pc.min_max(column).values()
                            largest = max(largest, *(abs(end.as_py() or 0) for end in ends))
        return largest

    def sample(self, step: str, table: str, count: int) -> Iterator[StoredValue]:
        for batch, version in self._some_of(step, table, (VALUE, ENTRIES), count):
            yield from _values_in(batch, version)

    def sample_rows(self, step: str, table: str, count: int) -> Iterator[SampledRows]:
        for batch, version in self._some_of(step, table, (ROWS,), count):
            yield SampledRows(batch, version)

    def sample_loop(self, loop: str, count: int) -> Iterator[pa.RecordBatch]:
        for part in self._state.manifest.loops.get(loop, ()):
            if count <= 0:
                return
            with pa.ipc.open_stream(open_part(self._store, part)) as stream:
                for batch in stream:
                    some = batch.slice(0, count)
                    count -= some.num_rows
                    yield some

    def _some_of(
        self, step: str, table: str, kinds: tuple[str, ...], count: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """About so many rows of a table, from all of its blocks, with the version that their run was written in."""
        for layers in self._of(step):
            names = layers.names_of(table)
            tables = [(ref, run.tables[name]) for ref, run in layers.runs for name in names if name in run.tables]
            for ref, each in tables:
                most = max(1, count // (len(tables) * len(each)))
                for number in range(len(each) if each.kind in kinds else 0):
                    yield _some_rows(each.block(number).batch, most), ref.version

    def versions(self, step: str) -> frozenset[int]:
        return frozenset(ref.version for ref in self._state.runs_of(step))

    def _needed_panes(self, step: str, table: str) -> Iterator[pa.Schema]:
        """The columns of every run whose partial aggregates are still needed."""
        for layers in self._of(step):
            for view in layers.views(table):
                schema = view.table.schema
                if view.table.kind == PANES and self._is_needed(step, schema, view.table.entries[-1].last):
                    yield schema

    def _is_needed(self, step: str, schema: pa.Schema, newest: int | None) -> bool:
        manifest = self._state.manifest
        now_us = manifest.clock_us if clock_of(schema) == "wall" else manifest.time.steps.get(step, MIN_TIME)
        return newest is None or newest >= first_live_pane(schema, now_us)

    def _of(self, step: str) -> tuple[Layers, ...]:
        known = self._layers.get(step)
        if known is None:
            known = self._layers[step] = tuple(self._open(step))
        return known

    def _open(self, step: str) -> Iterator[Layers]:
        manifest = self._state.manifest
        groups = manifest.key_groups
        for name in (step, layout.broadcast(step)):
            if refs := self._state.runs.get(name):
                yield open_layers(
                    self._store, refs, lo=0, hi=groups, groups=groups, states=manifest.states.get(step),
                    hidden=manifest.hidden.get(step),
                )  # fmt: skip


def _holds_value(column: str, aggregate: str) -> bool:
    """Whether a column has what an aggregate is of, and not how many rows, or when they came."""
    name, _, part = column.rpartition(".")
    return name == aggregate and part in ("sum", "min", "max", "value")


def _some_rows(batch: pa.RecordBatch, most: int) -> pa.RecordBatch:
    """At most so many rows of a block, evenly from all over it."""
    return batch.take(pa.array(range(0, batch.num_rows, -(-batch.num_rows // most)), pa.int64()))


def _values_in(some: pa.RecordBatch, version: int) -> Iterator[StoredValue]:
    """The values of rows; tombstones hold none."""
    subs = some.column("sub").to_pylist() if "sub" in some.schema.names else [None] * some.num_rows
    for key, sub, value in zip(some.column("key").to_pylist(), subs, some.column("value").to_pylist(), strict=True):
        if value is not None:
            yield StoredValue(key, sub, value, version)
