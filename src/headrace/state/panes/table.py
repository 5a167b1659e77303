"""Partial aggregates by slice of time and key: rows of a panes table, sorted, merged and told apart.

A panes table has the columns ``pane`` (start of a slice of time, µs), ``hash``, ``key``, and then accumulators, each
with the rule by which it merges (`headrace.aggregates.rules`). Unlike values, rows of one slice and key in several runs
do not replace each other: all of them count, and a reader merges them, older ones first. A table has one row for each
slice and key; several only where their sum would leave its column, since later rows may bring it back.

The schema's metadata says what a reader without the program must know: ``lasts_us``, how long after its start a slice
is needed, by which ``clock``, and whatever else the writer wants to tell (``about``, JSON).

Everything here works on whole columns; two keys of one hash are told apart by their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.rules import SINCE, live_rows, merge_columns, nothing, rule_of, split_sums
from headrace.errors import FunctionFailed, StoreError
from headrace.model.batch import Int64s, UInt64s
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.key_text import key_phrase
from headrace.model.keys import decode_key

SEEN: Final = "!seen.max"
"""Column: how far time had come when the newest row came, as its epoch began; only where rows may be late."""
PANE_COLUMNS: Final = ("pane", "hash", "key")
_BASE: Final = (
    pa.field("pane", pa.int64(), nullable=False),
    pa.field("hash", pa.uint64(), nullable=False),
    pa.field("key", pa.binary(), nullable=False),
)
_LASTS: Final = b"lasts_us"
_CLOCK: Final = b"clock"
_ABOUT: Final = b"about"
_FEW: Final = 1 << 16


def pane_schema(accs: Sequence[pa.Field], *, lasts_us: int, clock: str = "event", about: str = "{}") -> pa.Schema:
    """The schema of a panes table. A slice is over when the clock has reached its start + ``lasts_us``."""
    metadata = {_LASTS: str(lasts_us).encode(), _CLOCK: clock.encode(), _ABOUT: about.encode()}
    return pa.schema([*_BASE, *accs], metadata=metadata)


def read_about(schema: pa.Schema) -> str:
    """What the writer of a panes table says of it."""
    about: bytes = (schema.metadata or {}).get(_ABOUT, b"{}")
    return about.decode()


def with_about(schema: pa.Schema, about: str) -> pa.Schema:
    """The same schema, whose writer says something else of it."""
    return schema.with_metadata({**(schema.metadata or {}), _ABOUT: about.encode()})


def clock_of(schema: pa.Schema) -> str:
    """``event`` or ``wall``: which clock ends the slices of a table."""
    clock: bytes = (schema.metadata or {}).get(_CLOCK, b"event")
    return clock.decode()


def first_live_pane(schema: pa.Schema, now_us: int) -> int:
    """Slices that start before this are over, and neither read nor kept."""
    lasts_us = int((schema.metadata or {}).get(_LASTS, b"0"))
    return max(min(now_us - lasts_us + 1, MAX_TIME), MIN_TIME)


def drop_over(batch: pa.RecordBatch, now_us: Mapping[str, int]) -> pa.RecordBatch:
    """Without slices that are over; ``now_us``: clock → its time."""
    clock = clock_of(batch.schema)
    if clock not in now_us:
        return batch
    first = first_live_pane(batch.schema, now_us[clock])
    panes = batch.column("pane").to_numpy()
    start = int(np.searchsorted(panes, first, "left"))
    return batch.slice(start) if start else batch


class Groups(NamedTuple):
    """Rows put together by slice and key."""

    order: Int64s | None
    """The stable order by pane, hash and key; None: rows are in it."""
    starts: Int64s
    """Where each slice and key begins in that order."""


def merge_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sorted by pane, hash and key, each of them once. Of one slice and key, older rows must come before newer ones.

    Raises where a sum leaves its column, so it is for what becomes results.
    """
    return _merge(batch, splits=False)


def compact_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As `merge_rows`, but rows whose sum would leave its column stay several: for what is stored or travels."""
    return _merge(batch, splits=True)


def _merge(batch: pa.RecordBatch, *, splits: bool) -> pa.RecordBatch:
    if batch.num_rows < 2:
        return batch
    groups = find_groups(*base_columns(batch))
    columns = batch.columns
    if groups.order is not None:
        order = pa.array(groups.order)
        if len(groups.starts) < batch.num_rows:
            # Slice, hash and key are wanted only once per group: gathering the others would be in vain.
            firsts = pa.array(groups.order[groups.starts])
            base = [pc.take(column, firsts, boundscheck=False) for column in columns[:3]]
        else:
            base = [pc.take(column, order, boundscheck=False) for column in columns[:3]]
        accs = [pc.take(column, order, boundscheck=False) for column in columns[3:]]
    elif len(groups.starts) == batch.num_rows:
        return batch
    else:
        firsts = pa.array(groups.starts)
        base = [pc.take(column, firsts, boundscheck=False) for column in columns[:3]]
        accs = columns[3:]
    if len(groups.starts) < batch.num_rows:
        fields = list(batch.schema)[3:]
        accs, starts = _live(fields, accs, groups.starts)
        try:
            accs = merge_columns(fields, accs, starts)
        except FunctionFailed as error:
            if splits:
                cut = split_sums(fields, accs, starts)
                repeated = pa.array(np.searchsorted(starts, cut, "right") - 1)
                base = [pc.take(column, repeated, boundscheck=False) for column in base]
                accs = merge_columns(fields, accs, cut)
                return pa.RecordBatch.from_arrays([*base, *accs], schema=batch.schema)
            if error.stretch is not None:
                error.found = key_phrase(decode_key(base[2][error.stretch].as_py()))
            raise
    return pa.RecordBatch.from_arrays([*base, *accs], schema=batch.schema)


def base_columns(batch: pa.RecordBatch) -> tuple[Int64s, UInt64s, pa.BinaryArray]:
    """Slices, hashes and keys of a table's rows."""
    return batch.column(0).to_numpy(), batch.column(1).to_numpy(), batch.column(2)


def find_groups(panes: Int64s, hashes: UInt64s, keys: pa.BinaryArray) -> Groups:
    """Which rows belong together. Equal hashes are not trusted: their keys are compared."""
    order = _order(panes, hashes)
    ranked_panes = panes if order is None else panes[order]
    ranked = hashes if order is None else hashes[order]
    same = (ranked[1:] == ranked[:-1]) & (ranked_panes[1:] == ranked_panes[:-1])
    ties = np.flatnonzero(same)
    if len(ties):
        before, after = (ties, ties + 1) if order is None else (order[ties], order[ties + 1])
        equal = pc.equal(
            pc.take(keys, pa.array(before), boundscheck=False), pc.take(keys, pa.array(after), boundscheck=False)
        )
        if equal.true_count < len(ties):
            return _find_among_collisions(panes, hashes, keys)
    return Groups(order, np.append(0, np.flatnonzero(~same) + 1))


def concat_rows(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of several tables with the columns of this schema."""
    fitted = [fit_rows(batch, schema) for batch in batches]
    if len(fitted) == 1:
        return fitted[0]
    return pa.concat_batches(fitted) if fitted else pa.RecordBatch.from_pylist([], schema=schema)


def fit_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with the columns of this schema: an aggregate they do not have has seen nothing; others are left out."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    names = batch.schema.names
    columns = []
    for field in schema:
        if field.name not in names:
            columns.append(nothing(field, batch.num_rows))
            continue
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else _cast(column, field))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def sort_hashes(hashes: UInt64s) -> Int64s:
    """The stable order of hashes.

    Hashes are even, so their upper bits nearly say it: with the row's place in the lower bits they are sorted as plain
    numbers, which is several times faster than sorting places by hashes.
    """
    bits = np.uint64(max(len(hashes) - 1, 1).bit_length())
    packed = (hashes >> bits << bits) | np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    order: Int64s = (packed & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
    ranked = hashes[order]
    if bool(np.all(ranked[1:] >= ranked[:-1])):
        return order
    # Rows that share their upper bits with a neighbour: whole stretches of the order, which sorting keeps in place.
    upper = ranked >> bits
    same = upper[1:] == upper[:-1]
    places = np.flatnonzero(np.append(same, False) | np.append(False, same))
    some = order[places]
    order[places] = some[np.argsort(hashes[some], kind="stable")]
    return order


def _order(panes: Int64s, hashes: UInt64s) -> Int64s | None:
    rising = hashes[1:] >= hashes[:-1]
    one_pane = bool(np.all(panes == panes[0]))
    if bool(np.all(rising if one_pane else (panes[1:] > panes[:-1]) | ((panes[1:] == panes[:-1]) & rising))):
        return None
    order = sort_hashes(hashes)
    if one_pane:
        return order
    ranked = panes[order]
    distinct = np.unique(panes)
    if len(distinct) <= _FEW:
        ranked = np.searchsorted(distinct, ranked).astype(np.uint16)
    return order[np.argsort(ranked, kind="stable")]


def _find_among_collisions(panes: Int64s, hashes: UInt64s, keys: pa.BinaryArray) -> Groups:
    """Two keys share a hash: everything is sorted by the bytes of keys too. Rare enough to be slow."""
    table = pa.table({"pane": panes, "hash": hashes, "key": keys})
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in PANE_COLUMNS])
    ranked = table.take(order)
    new = np.zeros(len(panes), bool)
    new[0] = True
    for name in PANE_COLUMNS:
        column = ranked.column(name).combine_chunks()
        new[1:] |= pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy(zero_copy_only=False)
    indexes: Any = order.to_numpy().astype(np.int64)
    in_order = bool(np.all(indexes == np.arange(len(indexes))))
    return Groups(None if in_order else indexes, np.flatnonzero(new))


def _live(fields: Sequence[pa.Field], accs: list[pa.Array], starts: Int64s) -> tuple[list[pa.Array], Int64s]:
    """Rows that count, and where stretches of them begin."""
    for field, column in zip(fields, accs):
        if rule_of(field) == SINCE:
            live = live_rows(column, starts)
            return (accs, starts) if live is None else _only_live(accs, starts, live)
    return accs, starts


def _only_live(accs: list[pa.Array], starts: Int64s, live: npt.NDArray[np.bool_]) -> tuple[list[pa.Array], Int64s]:
    """Rows that still count. The last row of a stretch always does, so no stretch vanishes."""
    before = np.append(0, np.cumsum(live))
    mask = pa.array(live)
    return [column.filter(mask) for column in accs], before[starts]


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if pa.types.is_integer(column.type) and pa.types.is_floating(field.type):
            raise StoreError(
                f"a stored integer of the aggregate {field.name.rpartition('.')[0]!r} is none that a float can hold",
                expected="integers up to 2**53 where int became float",
                found=f"integers up to {pc.max(pc.abs(column)).as_py()}",
                next_move="keep the type int until the windows that hold it are closed, or give the aggregate another "
                "name: it begins anew then",
            ) from error
        raise StoreError(
            f"the aggregate {field.name.rpartition('.')[0]!r} was stored with another type",
            expected=str(field.type),
            found=str(column.type),
            next_move="give the aggregate another name; it begins anew then",
        ) from error
