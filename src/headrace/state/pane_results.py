"""What a panes table says of itself, and what its merged columns come to: results without the program that wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.sketches import middle_of
from headrace.state.pane_lists import BUCKET, COUNT, LIST, VALUE, Values, cut_top, list_of, lists, values_of
from headrace.state.pane_rules import rule_of
from headrace.state.panes import read_about

AVG: Final = "avg"
COUNT_DISTINCT: Final = "count_distinct"
QUANTILE: Final = "quantile"
COLLECT: Final = "collect"
TOP: Final = "top"
LISTED: Final = frozenset({COUNT_DISTINCT, QUANTILE, COLLECT, TOP})
"""Kinds of aggregates whose column has lists for cells."""

TUMBLING: Final = "tumbling"
SLIDING: Final = "sliding"
CUMULATING: Final = "cumulating"
SESSION: Final = "session"


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the windows of a table lie in time, and what its columns are for."""

    windows: str = TUMBLING
    """``tumbling``, ``sliding``, ``cumulating`` or ``session``."""
    size_us: int = 1
    every_us: int = 0
    offset_us: int = 0
    key: list[str] = []
    """Names of the columns that the key is made of."""
    results: dict[str, list[str]] = {}
    """Name of a result → its kind of aggregate, then the columns it is made of; behind that of a quantile its share."""
    pane: bool = False
    """Whether results say if they come before, at or after the end of their window."""
    emptied: str = ""
    """When windows that give each row once are emptied before their end; what is left of them is told by that."""
    late_us: int = 0
    """How long sessions are kept after their end …"""
    clock: str = ""
    """… and by which clock they end."""

    @property
    def spans(self) -> str:
        """How the windows lie in time, for comparing and for people."""
        every = f" every {self.every_us}" if self.every_us else ""
        emptied = f", emptied {self.emptied}" if self.emptied else ""
        if self.windows == SESSION:
            # How long a gap is stands in each row. How long sessions are kept does not.
            return f"sessions by {self.clock} time, kept for {self.late_us} µs"
        return f"{self.windows} windows of {self.size_us}{every} µs, moved by {self.offset_us}{emptied}"

    def start_of(self, end_us: int) -> int:
        """Where the window that ends there begins."""
        if self.windows == CUMULATING:
            return _aligned(end_us - 1, self.size_us, self.offset_us)
        return end_us - self.size_us

    def windows_of(self, pane_us: int) -> Iterator[tuple[int, int]]:
        """Start and end of every window that holds a slice."""
        if self.windows == SLIDING:
            start = _aligned(pane_us, self.every_us, self.offset_us)
            while start + self.size_us > pane_us:
                yield start, start + self.size_us
                start -= self.every_us
            return
        base = _aligned(pane_us, self.size_us, self.offset_us)
        if self.windows == TUMBLING:
            yield base, base + self.size_us
            return
        first = _aligned(pane_us, self.every_us, base) + self.every_us
        for end in range(first, base + self.size_us + 1, self.every_us):
            yield base, end


@lru_cache(256)
def parse_about(text: str) -> About:
    """What a table says of itself."""
    return msgspec.json.decode(text, type=About)


def spans_of(schema: pa.Schema) -> str:
    """How the windows of a table lie in time."""
    return parse_about(read_about(schema)).spans


def read_results(merged: pa.RecordBatch, results: Mapping[str, Sequence[str]]) -> dict[str, pa.Array]:
    """The results of merged rows, each a column."""
    made: dict[str, pa.Array] = {}
    for name, (kind, *columns) in results.items():
        if kind in LISTED:
            made[name] = read_lists(kind, merged.schema.field(columns[0]), merged.column(columns[0]), columns[1:])
            continue
        parts = [merged.column(column) for column in columns]
        if kind == AVG:
            made[name] = _mean(*parts)
        elif len(parts) == 2:
            made[name] = _beside(*parts)
        else:
            made[name] = parts[0]
    return made


def read_lists(kind: str, field: pa.Field, column: pa.ListArray, more: Sequence[str]) -> pa.Array:
    """What cells that are lists come to; ``more``: what results say behind the name of the column."""
    if kind == TOP:
        column = cut_top(field, column)
    held = values_of(column)
    if kind == COUNT_DISTINCT:
        return pa.array(held.counts)
    if kind == QUANTILE:
        return _quantiles(held, float(more[0]))
    flat = held.flat
    # What somebody collects may be a struct, too.
    if pa.types.is_struct(flat.type) and rule_of(field) != LIST:
        flat = flat.field(VALUE)
    return lists(list_of(flat.type), flat, held.counts)


def _quantiles(held: Values, q: float) -> pa.Array:
    """The number at rank q · (n − 1) of each sketch, null for a sketch of nothing."""
    there = held.counts > 0
    if not len(held.flat):
        return pa.nulls(len(there), pa.float64())
    buckets, counts = (held.flat.field(name).to_numpy(zero_copy_only=False) for name in (BUCKET, COUNT))
    sizes = held.counts[there]
    starts = np.cumsum(sizes) - sizes
    seen = np.cumsum(counts)
    before = (seen - counts)[starts]
    ranks = q * (np.add.reduceat(counts, starts) - 1)
    beyond = seen - np.repeat(before, sizes) > np.repeat(ranks, sizes)
    chosen = buckets[np.minimum.reduceat(np.where(beyond, np.arange(len(buckets)), len(buckets) - 1), starts)]
    # There are a few hundred buckets, however many sketches.
    found, places = np.unique(chosen, return_inverse=True)
    made = np.zeros(len(there))
    made[there] = np.array([middle_of(bucket) for bucket in found.tolist()])[places]
    return pa.array(made, mask=~there)


def _mean(totals: pa.Array, counts: pa.Array) -> pa.Array:
    rows = counts.to_numpy(zero_copy_only=False)
    nothing = rows == 0
    return pa.array(totals.to_numpy(zero_copy_only=False) / np.where(nothing, 1, rows), mask=nothing)


def _beside(chosen_by: pa.Array, values: pa.Array) -> pa.Array:
    """Values of the rows that were chosen, null where there was none to choose."""
    if not chosen_by.null_count:
        return values
    return pc.if_else(chosen_by.is_valid(), values, pa.scalar(None, values.type))


def _aligned(time_us: int, size_us: int, offset_us: int) -> int:
    return time_us - (time_us - offset_us) % size_us
