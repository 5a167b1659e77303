"""Rows whose numbers are added up: what a fold makes of a table that keeps rows which can be taken out again.

Such a table is written without being read: an entry says by how much the number of a row (``count``) and the number of
its partners (``met``) have changed. Entries of one row have the same ``at``, its hash, so that they lie side by side.
What a row comes to is the sum of its entries, in whatever runs they are; a row whose sums are both zero is gone, and
only then: entries of older runs may still stand against those that are folded here. Entries that expire at different
times stay apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

COUNT: Final = "count"
"""How many rows more, or fewer."""
MET: Final = "met"
"""How many partners more, or fewer, each of them has."""
_NEVER: Final = (1 << 63) - 1
NET_FIELDS: Final = (pa.field(COUNT, pa.int64()), pa.field(MET, pa.int64()))


def add_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sorted batches with one entry for each row that is left."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = batch if held is None else pa.concat_batches([held, batch])
        summed = _summed(rows)
        # Entries of the last row may go on in the next batch.
        held = summed.slice(summed.num_rows - 1)
        yield _left(summed.slice(0, summed.num_rows - 1))
    if held is not None:
        yield _left(held)


def _summed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """One entry for each row; it is the first one, so that the order stays."""
    starts = np.append(0, np.flatnonzero(~_same_row_as_next(rows)) + 1)
    if len(starts) == rows.num_rows:
        return rows
    first = rows.take(pa.array(starts))
    for name in (COUNT, MET):
        sums = np.add.reduceat(rows.column(name).to_numpy(), starts)
        index = rows.schema.get_field_index(name)
        first = first.set_column(index, rows.schema.field(index), pa.array(sums))
    return first


def _left(rows: pa.RecordBatch) -> pa.RecordBatch:
    some = (rows.column(COUNT).to_numpy() != 0) | (rows.column(MET).to_numpy() != 0)
    return rows if some.all() else rows.filter(pa.array(some))


def _same_row_as_next(rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    hashes, at, keys = rows.column("hash").to_numpy(), rows.column("at").to_numpy(), rows.column("key")
    same: np.ndarray[tuple[int], np.dtype[np.bool_]] = (hashes[1:] == hashes[:-1]) & (at[1:] == at[:-1])
    if same.any():
        same &= pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    if "expires" in rows.schema.names and same.any():
        expires = rows.column("expires").fill_null(_NEVER).to_numpy()
        same &= expires[1:] == expires[:-1]
    return same
