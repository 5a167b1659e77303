"""Rules of columns whose cells are lists: sets, sketches, lists in the order of arrival, and the greatest of many.

Like all rules (`headrace.state.pane_rules`) they make one cell of each stretch of rows, of all stretches at once: the
values of all cells are laid in a row, each with the number of its stretch, sorted, reduced, and cut into cells again.
A cell that is null or empty says nothing.

============  ===========================================  =========================================================
rule          values of a cell                             cell of a stretch
============  ===========================================  =========================================================
``set``       any type with columns of its own             each value once; not-a-number is equal to nothing
``sketch``    struct of ``bucket`` and ``count``           the sum of the counts of each bucket, buckets in order
``list``      any type                                     all values, those of older rows first
``arrivals``  struct of ``came`` and ``value``             all values in the order of ``came``
``top``       any type that has an order, or a struct of   the greatest ``n``, the greatest first; of equal ones the
              ``by``, ``value`` and perhaps ``came``       one that came first, or else that of the older row
============  ===========================================  =========================================================

What this module deliberately does not do: bound the size of a cell. A set has as many values as there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.batch import Int64s
from headrace.state.pane_ranks import numbers_of, ranks_of

SET: Final = "set"
SKETCH: Final = "sketch"
LIST: Final = "list"
ARRIVALS: Final = "arrivals"
TOP: Final = "top"

BUCKET: Final = "bucket"
COUNT: Final = "count"
CAME: Final = "came"
BY: Final = "by"
VALUE: Final = "value"

MOST: Final = b"n"
"""Metadata of a column by the rule ``top``: how many values are kept."""

_BITS: Final = 63
"""What a whole number has room for."""


class Values(NamedTuple):
    """The values of all cells in a row, and how many of them each cell has."""

    flat: pa.Array
    counts: Int64s

    @property
    def owners(self) -> Int64s:
        """The number of the cell of each value."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


def list_of(kind: pa.DataType) -> pa.DataType:
    """The type of cells that are lists of this, as it comes back from Spark, too."""
    return pa.list_(pa.field("element", kind))


def lists(kind: pa.DataType, flat: pa.Array, counts: Int64s) -> pa.ListArray:
    """Cells of so many values each."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=kind)


def values_of(column: pa.ListArray) -> Values:
    """What cells hold; null is as good as empty."""
    counts = pc.list_value_length(column)
    if counts.null_count:
        counts = counts.fill_null(0)
    return Values(column.flatten(), counts.to_numpy(zero_copy_only=False).astype(np.int64))


def merge_lists(rule: str, field: pa.Field, column: pa.ListArray, starts: Int64s) -> pa.ListArray:
    """One cell for each stretch of cells; ``starts`` tells where the stretches begin."""
    flat, counts = values_of(column)
    joined = Values(flat, np.add.reduceat(counts, starts) if len(starts) else counts)
    if not len(flat):
        return lists(field.type, flat, joined.counts)
    merged = _MERGE[rule](field, joined)
    return lists(field.type, *merged)


def _merge_list(field: pa.Field, values: Values) -> Values:
    return values


def _merge_arrivals(field: pa.Field, values: Values) -> Values:
    order = _by_arrival(values, values.flat.field(CAME))
    return values if order is None else Values(_take(values.flat, order), values.counts)


def _merge_sets(field: pa.Field, values: Values) -> Values:
    owners, flat = values.owners, values.flat
    kinds, kind = pa.types, flat.type
    if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_temporal(kind)):
        found = _encode(flat)
        low, packed = _pack(owners, found.indices.to_numpy(zero_copy_only=False))
        assert packed is not None, "places in an array are numbers of 32 bits"
        left = _distinct(packed)
        return Values(_take(found.dictionary, (left & packed.mask) + low), _count(left >> packed.bits, values))
    numbers, _ = numbers_of(flat)
    low, packed = (0, None) if kinds.is_floating(kind) else _pack(owners, numbers)
    if packed is None:
        order = np.lexsort((numbers, owners))
        kept = order[_fresh(owners[order], numbers[order])]
        return Values(_take(flat, kept), _count(owners[kept], values))
    left = _distinct(packed)
    made = pa.array(((left & packed.mask) + low).astype(numbers.dtype))
    return Values(made if made.type == kind else made.view(kind), _count(left >> packed.bits, values))


def _distinct(packed: _Packed) -> Int64s:
    packed.numbers.sort()
    return packed.numbers[_fresh(packed.numbers)]


def _count(owners: Int64s, values: Values) -> Int64s:
    """How many values each cell has left."""
    return np.bincount(owners, minlength=len(values.counts))


def _encode(flat: pa.Array) -> pa.DictionaryArray:
    """A number for each value, the same for the same; low ones where there are few."""
    if pa.types.is_boolean(flat.type):
        return pa.DictionaryArray.from_arrays(flat.cast(pa.int8()), pa.array([False, True]))
    return flat.dictionary_encode()


def _merge_sketches(field: pa.Field, values: Values) -> Values:
    owners = values.owners
    buckets = values.flat.field(BUCKET).to_numpy(zero_copy_only=False)
    rows = values.flat.field(COUNT).to_numpy(zero_copy_only=False)
    low, packed = _pack(owners, buckets)
    assert packed is not None, "buckets are numbers of 32 bits"
    if rows.max() == 1:
        # Rows that were lifted a moment ago: how often each bucket is there says it all.
        packed.numbers.sort()
        starts = np.flatnonzero(_fresh(packed.numbers))
        sums = np.diff(np.append(starts, len(rows)))
        left = packed.numbers[starts]
    else:
        order = _order(packed)
        ranked = packed.numbers[order]
        starts = np.flatnonzero(_fresh(ranked))
        sums = np.add.reduceat(rows[order], starts)
        left = ranked[starts]
    made = pa.StructArray.from_arrays(
        [pa.array(((left & packed.mask) + low).astype(np.int32)), pa.array(sums)], fields=list(values.flat.type)
    )
    return Values(made, _count(left >> packed.bits, values))


def _merge_tops(field: pa.Field, values: Values) -> Values:
    most = int(field.metadata[MOST])
    if values.counts.max() <= 1:
        return values
    by, came = values.flat, None
    if pa.types.is_struct(values.flat.type):
        by = values.flat.field(BY)
        if values.flat.type.get_field_index(CAME) >= 0:
            came = _by_arrival(values, values.flat.field(CAME))
    # The greatest first; null is no value of a cell, so no rank is the least there is.
    ranks = -ranks_of(by)
    owners = values.owners
    if came is not None:
        ranks = ranks[came]
    _, packed = _pack(owners, ranks)
    order = np.lexsort((ranks, owners)) if packed is None else _order(packed)
    if came is not None:
        order = came[order]
    before = np.cumsum(values.counts) - values.counts
    kept = order[np.arange(len(order)) - np.repeat(before, values.counts) < most]
    return Values(_take(values.flat, kept), np.minimum(values.counts, most))


def cut_top(field: pa.Field, column: pa.ListArray) -> pa.ListArray:
    """Cells with no more values than are asked for now: they may be of a time when more were."""
    most = int(field.metadata[MOST])
    return column if (pc.max(pc.list_value_length(column)).as_py() or 0) <= most else pc.list_slice(column, 0, most)


def _by_arrival(values: Values, came: pa.Array) -> Int64s | None:
    """The order of values by when they came, within their cells; None: they are in it."""
    numbers = came.to_numpy(zero_copy_only=False)
    owners = values.owners
    if bool(np.all((numbers[1:] >= numbers[:-1]) | (owners[1:] != owners[:-1]))):
        return None
    return np.lexsort((numbers, owners))


class _Packed(NamedTuple):
    """Cell and value of each row in one number, in the order of both."""

    numbers: Int64s
    bits: int
    """How many bits the value takes."""
    wide: int
    """How many bits the whole takes."""

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1


def _pack(owners: Int64s, numbers: npt.NDArray[Any]) -> tuple[int, _Packed | None]:
    """The least number, and each number's distance from it packed with its cell; None where 63 bits are too few."""
    low = int(numbers.min())
    bits = (int(numbers.max()) - low).bit_length()
    wide = bits + int(owners[-1]).bit_length()
    if wide > _BITS:
        return low, None
    distances = numbers.astype(np.int64) - low if low or numbers.dtype != np.int64 else numbers
    return low, _Packed((owners << bits) | distances, bits, wide)


def _order(packed: _Packed) -> Int64s:
    """The stable order. Plain numbers are sorted many times faster than places by numbers, so places are put in."""
    count = len(packed.numbers)
    bits = max(count - 1, 1).bit_length()
    if packed.wide + bits > _BITS:
        return np.argsort(packed.numbers, kind="stable")
    placed = (packed.numbers << bits) | np.arange(count)
    placed.sort()
    order: Int64s = placed & ((1 << bits) - 1)
    return order


def _fresh(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Rows that differ from the one before in some column; not-a-number differs from everything."""
    fresh = np.ones(len(columns[0]), bool)
    fresh[1:] = False
    for column in columns:
        fresh[1:] |= column[1:] != column[:-1]
    return fresh


def _take(flat: pa.Array, places: Int64s) -> pa.Array:
    return pc.take(flat, pa.array(places), boundscheck=False)


_MERGE: Final[Mapping[str, Callable[[pa.Field, Values], Values]]] = {
    SET: _merge_sets,
    SKETCH: _merge_sketches,
    LIST: _merge_list,
    ARRIVALS: _merge_arrivals,
    TOP: _merge_tops,
}
LIST_RULES: Final = frozenset(_MERGE)
