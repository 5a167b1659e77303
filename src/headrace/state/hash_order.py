"""Where the rows of a key lie in a table that is sorted by something else: found once per run, kept while it is open.

A panes table lies by slice. Of sessions nearly every row is a slice of its own, so looking for a key slice by slice, or
over all rows, would take too long for somebody who asks for one key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from weakref import WeakKeyDictionary

import numpy as np

from headrace.model.batch import Int64s
from headrace.state.block import Block
from headrace.state.panes.table import sort_hashes
from headrace.state.run import RunTable
from headrace.state.view import TableView


class HashOrder:
    """The rows of one table by the hashes of their keys."""

    def __init__(self, table: RunTable) -> None:
        hashes = [table.block(number).hash for number in range(len(table))]
        together = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
        self._rows: Int64s = sort_hashes(together) if len(together) else np.zeros(0, np.int64)
        self._hashes = memoryview(together[self._rows].data)
        self._firsts: list[int] = np.cumsum([0, *(len(each) for each in hashes)]).tolist()

    def find(self, hash_: int) -> Iterator[tuple[int, int]]:
        """Batch and row of each row with this hash."""
        place = bisect_left(self._hashes, hash_)
        while place < len(self._rows) and self._hashes[place] == hash_:
            row = int(self._rows[place])
            number = bisect_left(self._firsts, row + 1) - 1
            yield number, row - self._firsts[number]
            place += 1


_orders: WeakKeyDictionary[RunTable, HashOrder] = WeakKeyDictionary()


def rows_of_key(view: TableView, hash_: int, key: bytes) -> Iterator[tuple[int, Block, int]]:
    """Every row of a key in a panes table: its batch by number, and its place there."""
    if not view.low <= hash_ <= view.high:
        return
    order = _orders.get(view.table)
    if order is None:
        order = _orders[view.table] = HashOrder(view.table)
    for number, row in order.find(hash_):
        block = view.table.block(number)
        if block.keys.equals(row, key):
            yield number, block, row
