"""A table of one run as one reference sees it: only the key groups the reference and the shard share.

After rescaling several references may view one file through different ranges, and rows outside a reference's range are
not part of the state, whatever they say: every lookup goes through a view.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.row_adapter import RowAdapter
from headrace.state.adapters import ValueAdapter
from headrace.state.block import Block
from headrace.state.format import hash_bounds
from headrace.state.run import RunTable


class BlockRange(NamedTuple):
    """Rows [start, end) of a block."""

    block: Block
    start: int
    end: int


def share_of_range(amount: int, low: int, high: int, width: int) -> int:
    """The share of an amount that lies from ``low`` to ``high`` of a width; neighbouring shares add up to all of it."""
    return amount * high // width - amount * low // width


class TableView:
    """One table of one run, limited to hashes ``low`` … ``high``, both included."""

    def __init__(
        self,
        table: RunTable,
        low: int,
        high: int,
        adapter: ValueAdapter | RowAdapter | None = None,
        version: int = 0,
    ) -> None:
        self.table = table
        self.low = low
        self.high = high
        self.version = version
        """The version of its step in which its run was written."""
        self.adapter = adapter
        """What has to be done with values and rows that leave it, as they are of an older type; None: nothing."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of rows that leave it."""
        stored = self.table.schema
        return self.adapter.schema(stored) if isinstance(self.adapter, RowAdapter) else stored

    def adapted(self, value: bytes, key: bytes) -> bytes:
        """A stored value on its way out."""
        assert isinstance(self.adapter, ValueAdapter), "rows are adapted in batches"
        return self.adapter.one(value, key)

    @property
    def rows(self) -> int:
        """How many rows it sees; of a part of a run the share that its range has, which costs nothing to tell.

        Views that divide a run among them together see as many rows as it has.
        """
        run = self.table.run
        low, high = hash_bounds(run.lo, run.hi, run.groups)
        first, end = max(self.low, low) - low, min(self.high, high) + 1 - low
        return share_of_range(self.table.rows, first, max(first, end), high + 1 - low)

    def find(self, hash_: int, key: bytes) -> tuple[Block, int] | None:
        """The row of a key in a value table."""
        if not self.low <= hash_ <= self.high:
            return None
        index = bisect_right(self.table.firsts, hash_) - 1
        if index < 0:
            return None
        block = self.table.block(index)
        row = block.find(hash_, key)
        return None if row < 0 else (block, row)

    def pieces(self, hash_: int, key: bytes) -> Iterator[BlockRange]:
        """The rows of a key in an entries table, block by block."""
        if not self.low <= hash_ <= self.high:
            return
        firsts = self.table.firsts
        # Rows of one key may begin at the end of the batch before the first that starts with its hash.
        index = max(0, bisect_left(firsts, hash_) - 1)
        while index < len(firsts) and firsts[index] <= hash_:
            block = self.table.block(index)
            start, end = block.key_range(hash_, key)
            if start < end:
                yield BlockRange(block, start, end)
            index += 1

    def needles(self, hashes: npt.NDArray[np.uint64]) -> tuple[int, int]:
        """Which part of sorted hashes lies in the view."""
        start, end = 0, len(hashes)
        if end and int(hashes[0]) < self.low:
            start = int(np.searchsorted(hashes, np.uint64(self.low), "left"))
        if end and int(hashes[-1]) > self.high:
            end = int(np.searchsorted(hashes, np.uint64(self.high), "right"))
        return start, end

    def in_range(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        """Which of any hashes lie in the view."""
        mask: npt.NDArray[Any] = (hashes >= np.uint64(self.low)) & (hashes <= np.uint64(self.high))
        return mask
