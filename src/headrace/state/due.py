"""The index of timers: rows sorted by time, so that what is due is a range of each run.

The index is a hint. It has no tombstones: a timer that was deleted or moved still has its row here, and one that was
set in two epochs may have two. The truth is in the table of the timer's state; the caller checks against it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.state.format import DUE, table_schema
from headrace.state.view import TableView

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
