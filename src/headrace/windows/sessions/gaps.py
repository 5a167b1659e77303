"""Sessions: rows become windows of their own, and windows of one key that overlap or touch become one.

A batch is put together in bulk: first the rows of each key among themselves, then what came of that with the sessions
that are open. That gives the same as taking row after row, except in two cases, which `hard_rows` finds: a row that is
late by itself counts only if what came before it reaches it; and contents that depend on order do so where rows do not
come in order of time. The rows of such keys are taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.batch import Int64s, Rows
from headrace.sql.evaluate.expressions import compile_exprs
from headrace.state.panes.fragments import join_stretches
from headrace.windows.by_row.window_state import OpenWindow, WindowName
from headrace.windows.kinds import Session

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

Bools = npt.NDArray[np.bool_]
OpenOf = Callable[[int], list[tuple[WindowName, OpenWindow]]]


class Union(NamedTuple):
    """Sessions of one key that a batch makes one."""

    slot: int
    olds: list[tuple[WindowName, OpenWindow]]
    """Those that were open, by start; none: the session is new."""
    name: WindowName
    """Bounds of the one they become."""


class Gaps:
    """How long each row keeps its session open."""

    def __init__(self, assigner: Session, taken: RowCodec, step: str) -> None:
        self._gap_us = assigner.gap_us
        self._compute = None
        if assigner.gap_sql is not None:
            wanted = pa.schema([("gap", pa.int64())])
            self._compute = compile_exprs({"gap": assigner.gap_sql}, taken.schema, wanted, f"step {step}")

    def of(self, rows: Rows) -> Int64s:
        """In microseconds; 0 where a row says none that could be one."""
        if self._gap_us is not None:
            return np.full(len(rows), self._gap_us, np.int64)
        assert self._compute is not None
        found = self._compute(rows.record_batch).column(0).fill_null(0).to_numpy(zero_copy_only=False)
        gaps: Int64s = np.maximum(found, 0)
        return gaps


class Clusters(NamedTuple):
    """Rows of a batch put together among themselves."""

    of_row: Int64s
    """Which cluster each row is in."""
    slots: list[int]
    starts: list[int]
    ends: list[int]


def find_clusters(slots: Int64s, starts: Int64s, ends: Int64s) -> Clusters:
    """Rows of one key whose stretches overlap or touch, directly or through others; slots never fall."""
    found = join_stretches(slots, starts, ends)
    of_cluster = np.empty(len(found.starts), np.int64)
    of_cluster[found.of_row] = slots
    return Clusters(found.of_row, of_cluster.tolist(), found.starts.tolist(), found.ends.tolist())


def find_unions(clusters: Clusters, open_of: OpenOf) -> tuple[list[Union], Int64s, Int64s]:
    """What clusters become together with open sessions; and for each cluster the bounds of the session it is in."""
    count = len(clusters.slots)
    starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    unions: list[Union] = []
    first = 0
    while first < count:
        slot = clusters.slots[first]
        last = first
        while last < count and clusters.slots[last] == slot:
            last += 1
        for members, union in _join(slot, range(first, last), clusters, open_of(slot)):
            unions.append(union)
            for cluster in members:
                starts[cluster], ends[cluster] = union.name
        first = last
    return unions, starts, ends


def _join(
    slot: int, mine: range, clusters: Clusters, olds: list[tuple[WindowName, OpenWindow]]
) -> list[tuple[list[int], Union]]:
    """A sweep over open sessions and clusters of one key, by start; gives those groups that have a cluster."""
    if not olds:
        return [([i], Union(slot, [], (clusters.starts[i], clusters.ends[i]))) for i in mine]
    items: list[tuple[int, int, int, Any]] = [(name[0], name[1], -1, (name, held)) for name, held in olds]
    items += [(clusters.starts[i], clusters.ends[i], i, None) for i in mine]
    items.sort(key=lambda item: item[:2])
    groups: list[tuple[list[int], Union]] = []
    members: list[int] = []
    joined: list[tuple[WindowName, OpenWindow]] = []
    start = end = 0

    def close() -> None:
        if members:
            groups.append((list(members), Union(slot, list(joined), (start, end))))

    for begin, stop, cluster, old in items:
        if begin > end or not (members or joined):
            close()
            members.clear()
            joined.clear()
            start, end = begin, stop
        end = max(end, stop)
        if old is None:
            members.append(cluster)
        else:
            joined.append(old)
    close()
    return groups


def hard_rows(slots: Int64s, times: Int64s, late: Bools, in_order: bool, open_of: OpenOf) -> Bools:
    """Which rows belong to keys that have to be taken row by row.

    ``late``: rows that are late by themselves. ``in_order``: contents depend on the order of rows.
    """
    hard = np.zeros(len(slots), np.bool_)
    if late.any():
        hard |= np.isin(slots, slots[late])
    if in_order:
        back = np.flatnonzero((slots[1:] == slots[:-1]) & (times[1:] < times[:-1])) + 1
        if len(back):
            hard |= np.isin(slots, slots[back])
        firsts = np.append(0, np.flatnonzero(slots[1:] != slots[:-1]) + 1)
        behind = [
            slot for slot, time in zip(slots[firsts].tolist(), times[firsts].tolist())
            if any(time < name[0] for name, _ in open_of(slot))
        ]  # fmt: skip
        if behind:
            hard |= np.isin(slots, np.array(behind))
    return hard
