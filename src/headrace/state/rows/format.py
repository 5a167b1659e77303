"""How tables of whole rows are laid out: kept by key and time, appended to, never changed.

A table of this kind has typed columns of its own beside those that every such table has: ``hash`` and ``key``, ``at``
(the row's event time), ``seq`` (when it came: the epoch in the upper 32 bits, a count in the lower) and, where rows
expire, ``expires``. Rows are sorted by (hash, key, at, seq), so that the rows of a key lie together in the order of
time. No row replaces another; what may go is said by the table's own metadata, so that a fold needs no program:

- ``clock``: the timer index (``!event``, ``!wall``) whose clock decides about ``expires``;
- ``keeps``: ``all`` rows; or those at most of which a ``newest`` one at or before the clock is wanted, so that those
  before it may go; or only the ``latest`` row of each key; or what rows come to, ``net``: here ``at`` is the hash of
  the row, and its numbers are added up (`headrace.state.rows.netting`).

What this module deliberately does not do: search (`headrace.state.rows.find`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StoreError
from headrace.state.rows.netting import add_up

Keeps = Literal["all", "newest", "latest", "net"]

FIELD: Final = "="
"""Before the name of a row's own column, so that none is mistaken for one of ours."""
EPOCH_BITS: Final = 32

_HEAD: Final = {"hash": pa.uint64(), "key": pa.binary(), "at": pa.int64(), "seq": pa.int64()}
_CLOCK: Final = b"clock"
_KEEPS: Final = b"keeps"


def rows_schema(
    fields: Iterable[pa.Field], extra: Iterable[pa.Field] = (), *, clock: str = "", keeps: Keeps = "all"
) -> pa.Schema:
    """The columns of a table for rows with these fields; ``clock``: rows expire by it."""
    columns = [pa.field(name, type_, nullable=False) for name, type_ in _HEAD.items()]
    if clock:
        columns.append(pa.field("expires", pa.int64()))
    columns += extra
    columns += [pa.field(FIELD + field.name, field.type, metadata=field.metadata) for field in fields]
    return pa.schema(columns, metadata={_CLOCK: clock.encode(), _KEEPS: keeps.encode()})


def common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of several tables folded together: those of the newest, which stands first.

    A column that only older ones have belongs to a field that the program has dropped. Expiry is the exception: it is
    ours, and rows written with one keep it.
    """
    newest = schemas[0]
    if "expires" not in newest.names and any("expires" in schema.names for schema in schemas):
        expiring = next(schema for schema in schemas if "expires" in schema.names)
        newest = newest.insert(len(_HEAD), pa.field("expires", pa.int64()))
        newest = newest.with_metadata({**(newest.metadata or {}), _CLOCK: (expiring.metadata or {}).get(_CLOCK, b"")})
    return newest


def sort_kept(rows: pa.Table | pa.RecordBatch, where: str = "") -> pa.RecordBatch:
    """One sorted batch. Rows that come sorted, as from a join, are not moved."""
    batch = _one_batch(rows)
    if batch.num_rows < 2:
        return batch
    order = _order(batch)
    if order is not None:
        batch = batch.take(pa.array(order))
    if _ties(batch).any():
        raise StoreError("two rows came at once", where=where, next_move="this is a defect; please report it")
    return batch


def _one_batch(rows: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        return rows
    batches = rows.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


def _order(batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    hashes, at, seq = (batch.column(name).to_numpy() for name in ("hash", "at", "seq"))
    same = hashes[1:] == hashes[:-1]
    in_order = (hashes[1:] > hashes[:-1]) | (same & ((at[1:] > at[:-1]) | ((at[1:] == at[:-1]) & (seq[1:] > seq[:-1]))))
    order = None if in_order.all() else np.lexsort((seq, at, hashes))
    keys = batch.column("key")
    if order is not None:
        keys = keys.take(pa.array(order))
        ranked = hashes[order]
        same = ranked[1:] == ranked[:-1]
    if (
        not same.any()
        or pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)[same].all()
    ):
        return order
    # Several keys of one hash lie between each other: the slow way, which hardly ever comes.
    columns = {name: batch.column(name) for name in _HEAD}
    by_all: Any = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    return np.asarray(by_all.to_numpy(), dtype=np.int64)


def _ties(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Neighbours of one time and arrival: two rows that are the same row."""
    hashes, at, seq = (batch.column(name).to_numpy() for name in ("hash", "at", "seq"))
    tied: npt.NDArray[np.bool_] = (hashes[1:] == hashes[:-1]) & (at[1:] == at[:-1]) & (seq[1:] == seq[:-1])
    if tied.any():
        keys = batch.column("key")
        tied &= pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return tied


# --- what a fold leaves out


def drop_unwanted(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, clocks: Mapping[str, int]
) -> Iterator[pa.RecordBatch]:
    """Sorted batches of one table without the rows that nobody can want any more.

    ``clocks``: timer index → its time.
    """
    said = schema.metadata or {}
    now_us = clocks.get(said.get(_CLOCK, b"").decode())
    keeps = said.get(_KEEPS, b"all").decode()
    live = batches if now_us is None else (_drop_expired(batch, now_us) for batch in batches)
    if keeps == "latest":
        return _drop_replaced(live, None)
    if keeps == "net":
        return add_up(live)
    event_us = clocks.get("!event")
    if keeps == "newest" and event_us is not None:
        return _drop_replaced(live, event_us)
    return iter(live)


def _drop_expired(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    if "expires" not in batch.schema.names:
        return batch
    live = pc.greater(batch.column("expires"), now_us).fill_null(True)
    return batch if live.true_count == batch.num_rows else batch.filter(live)


def _drop_replaced(batches: Iterable[pa.RecordBatch], upto_us: int | None) -> Iterator[pa.RecordBatch]:
    """Without rows that another of their key follows, at or before the time given."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = batch if held is None else pa.concat_batches([held, batch])
        last = rows.num_rows - 1
        # Whether the last one is replaced is for the next batch to say.
        held = rows.slice(last)
        if last:
            replaced = _same_key_as_next(rows)
            if upto_us is not None:
                replaced &= rows.column("at").to_numpy()[1:] <= upto_us
            yield rows.slice(0, last).filter(pa.array(~replaced))
    if held is not None:
        yield held


def _same_key_as_next(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    hashes, keys = rows.column("hash").to_numpy(), rows.column("key")
    same: npt.NDArray[np.bool_] = hashes[1:] == hashes[:-1]
    if same.any():
        same &= pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return same
