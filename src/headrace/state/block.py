"""One record batch of a run, as the two kinds of lookup want to see it: numpy for bulk, memoryviews for single keys.

Nothing is copied: every view points into the mapped file. The views for single keys are made when first asked for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Block:
    """The columns of one batch; ``sort`` is the first sort column: the hash, a timer's time, or a slice."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        self.batch = batch
        self.rows: int = batch.num_rows
        self.key: pa.BinaryArray = batch.column("key")
        self.hash: npt.NDArray[np.uint64] = batch.column("hash").to_numpy()
        first = next((name for name in ("time", "pane") if name in names), "hash")
        self.sort: npt.NDArray[Any] = batch.column(first).to_numpy()
        self.value: pa.BinaryArray | None = batch.column("value") if "value" in names else None
        self.sub: pa.BinaryArray | None = batch.column("sub") if "sub" in names else None
        self.expires: pa.Int64Array | None = batch.column("expires") if "expires" in names else None

    def sorted_from(self, first: int) -> bool:
        sort = self.sort
        if not (self.rows > 0 and int(sort[0]) == first and bool(np.all(sort[1:] >= sort[:-1]))):
            return False
        if "pane" not in self.batch.schema.names:
            return True
        return not np.any((sort[1:] == sort[:-1]) & (self.hash[1:] < self.hash[:-1]))

    @cached_property
    def hashes(self) -> memoryview:
        """For bisect, which wants Python integers and no numpy scalars."""
        return memoryview(self.hash.data)

    @cached_property
    def keys(self) -> Cells:
        return Cells(self.key)

    @cached_property
    def subs(self) -> Cells:
        return Cells(self.batch.column("sub"))

    @cached_property
    def values(self) -> Cells:
        return Cells(self.batch.column("value"))

    def find(self, hash_: int, key: bytes) -> int:
        """The row of a key in a value table, or −1."""
        hashes = self.hashes
        row = bisect_left(hashes, hash_)
        while row < self.rows and hashes[row] == hash_:
            if self.keys.equals(row, key):
                return row
            row += 1
        return -1

    def key_range(self, hash_: int, key: bytes) -> tuple[int, int]:
        """The rows [start, end) of a key in an entries table; empty when start = end."""
        hashes = self.hashes
        start = bisect_left(hashes, hash_)
        if start == self.rows or hashes[start] != hash_:
            return start, start
        end = bisect_right(hashes, hash_, start)
        keys = self.keys
        if keys.equals(start, key) and keys.equals(end - 1, key):
            return start, end
        # A collision: rows of one hash are sorted by key.
        start = bisect_left(keys, key, start, end)
        return start, bisect_right(keys, key, start, end)

    def find_sub(self, start: int, end: int, sub: bytes) -> int:
        """The row of a sub among rows [start, end) of one key, without its clear marker; −1 if it is not there."""
        row = bisect_left(self.subs, sub, start, end)
        return row if row < end and self.subs.equals(row, sub) else -1

    def expires_at(self, row: int) -> int | None:
        if self.expires is None:
            return None
        found: int | None = self.expires[row].as_py()
        return found


class Cells:
    """A binary column by row, without going through Arrow scalars; works with bisect where there are no nulls."""

    __slots__ = ("_data", "_offsets", "_valid")

    def __init__(self, array: pa.BinaryArray) -> None:
        valid, offsets, data = array.buffers()
        if array.offset:
            raise ValueError("a block's columns start at offset 0")
        # Arrow says its bytes are signed, and a memoryview compares by value.
        self._valid = None if valid is None or array.null_count == 0 else memoryview(valid).cast("B")
        self._offsets = memoryview(offsets).cast("B").cast("i")
        self._data = memoryview(b"") if data is None else memoryview(data).cast("B")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def parts(self) -> tuple[memoryview, memoryview, memoryview | None]:
        """Offsets, bytes, and a bit for each row whether it is there (None: all are); for readers of single rows."""
        return self._offsets, self._data, self._valid

    def __getitem__(self, row: int) -> bytes:
        offsets = self._offsets
        return bytes(self._data[offsets[row] : offsets[row + 1]])

    def at(self, row: int) -> bytes | None:
        valid = self._valid
        if valid is not None and not valid[row >> 3] >> (row & 7) & 1:
            return None
        offsets = self._offsets
        return bytes(self._data[offsets[row] : offsets[row + 1]])

    def is_null(self, row: int) -> bool:
        valid = self._valid
        return valid is not None and not valid[row >> 3] >> (row & 7) & 1

    def equals(self, row: int, wanted: bytes) -> bool:
        offsets = self._offsets
        return self._data[offsets[row] : offsets[row + 1]] == wanted
