"""Merge rules of columns whose cells are lists: sets, sketches, lists in the order of arrival, the greatest of many.

Like all rules (`headrace.aggregates.rules`) they make one cell of each stretch of rows, of all stretches at once: the
values of all cells are laid in a row, each with the number of its stretch, sorted, reduced, and cut into cells again.
A cell that is null or empty says nothing.

============  ===========================================  =========================================================
rule          values of a cell                             cell of a stretch
============  ===========================================  =========================================================
``set``       any type with columns of its own             each value once; not-a-number is one value; −0.0 is 0.0
``sketch``    struct of ``bucket`` and ``count``           the sum of the counts of each bucket, buckets in order
``list``      any type                                     all values, those of older rows first
``arrivals``  struct of ``came`` and ``value``             all values in the order of ``came``
``top``       any type that has an order, or a struct of   the greatest ``n``, the greatest first; of equal ones the
              ``by``, ``value`` and perhaps ``came``       one that came first, or else that of the older row
============  ===========================================  =========================================================

`merge_lists` merges columns; `merge_list_cells` the cells of a single key. Few values are merged in plain Python, which
takes as long as Arrow needs to begin; many as columns are. In Python a cell is what rolling aggregates keep:

============  =================================================
``set``       a set
``sketch``    a dict: bucket → count
``list``      a list
``arrivals``  a list of (came, value)
``top``       a list of (by, value), (by, came, value) or (value,)
============  =================================================

What this module deliberately does not do: bound the size of a cell. A set has as many values as there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.numbers import NUMBER_BITS, float_ranks, numbers_of, order_by, order_of, ranks_of
from headrace.model.batch import Int64s
from headrace.model.columns import as_int64, decimal_column

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

_FEW_VALUES: Final = 2048
"""Up to so many values of one key are merged in Python."""


class FlatValues(NamedTuple):
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


def values_of(column: pa.ListArray) -> FlatValues:
    """What cells hold; null is as good as empty."""
    counts = pc.list_value_length(column)
    if counts.null_count:
        counts = counts.fill_null(0)
    return FlatValues(column.flatten(), counts.to_numpy(zero_copy_only=False).astype(np.int64))


def merge_lists(rule: str, field: pa.Field, column: pa.ListArray, starts: Int64s) -> pa.ListArray:
    """One cell for each stretch of cells; ``starts`` tells where the stretches begin."""
    flat, counts = values_of(column)
    joined = FlatValues(flat, np.add.reduceat(counts, starts) if len(starts) else counts)
    if not len(flat):
        return lists(field.type, flat, joined.counts)
    merged = _MERGE[rule](field, joined)
    return lists(field.type, *merged)


def _merge_list(field: pa.Field, values: FlatValues) -> FlatValues:
    return values


def _merge_arrivals(field: pa.Field, values: FlatValues) -> FlatValues:
    order = _by_arrival(values, values.flat.field(CAME))
    return values if order is None else FlatValues(_take(values.flat, order), values.counts)


def _merge_sets(field: pa.Field, values: FlatValues) -> FlatValues:
    owners, flat = values.owners, values.flat
    kinds, kind = pa.types, flat.type
    if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_temporal(kind)):
        found = _encode(flat)
        low, packed = _pack(owners, found.indices.to_numpy(zero_copy_only=False))
        assert packed is not None, "places in an array are numbers of 32 bits"
        left = _distinct(packed)
        return FlatValues(_take(found.dictionary, (left & packed.mask) + low), _count(left >> packed.bits, values))
    numbers, _ = numbers_of(flat)
    if kinds.is_floating(kind):
        numbers, low, packed = float_ranks(numbers), 0, None
    else:
        low, packed = _pack(owners, numbers)
    if packed is None:
        order = np.lexsort((numbers, owners))
        kept = order[_fresh(owners[order], numbers[order])]
        return FlatValues(_take(flat, kept), _count(owners[kept], values))
    left = _distinct(packed)
    made = pa.array(((left & packed.mask) + low).astype(numbers.dtype))
    return FlatValues(made if made.type == kind else made.view(kind), _count(left >> packed.bits, values))


def _distinct(packed: _PackedRows) -> Int64s:
    packed.numbers.sort()
    return packed.numbers[_fresh(packed.numbers)]


def _count(owners: Int64s, values: FlatValues) -> Int64s:
    """How many values each cell has left."""
    return np.bincount(owners, minlength=len(values.counts))


def _encode(flat: pa.Array) -> pa.DictionaryArray:
    """A number for each value, the same for the same; low ones where there are few."""
    if pa.types.is_boolean(flat.type):
        return pa.DictionaryArray.from_arrays(flat.cast(pa.int8()), pa.array([False, True]))
    return flat.dictionary_encode()


def _merge_sketches(field: pa.Field, values: FlatValues) -> FlatValues:
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
        order = order_of(packed.numbers, packed.wide)
        ranked = packed.numbers[order]
        starts = np.flatnonzero(_fresh(ranked))
        sums = np.add.reduceat(rows[order], starts)
        left = ranked[starts]
    made = pa.StructArray.from_arrays(
        [pa.array(((left & packed.mask) + low).astype(np.int32)), pa.array(sums)], fields=list(values.flat.type)
    )
    return FlatValues(made, _count(left >> packed.bits, values))


def _merge_tops(field: pa.Field, values: FlatValues) -> FlatValues:
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
    order = order_by(owners, ranks)
    if came is not None:
        order = came[order]
    before = np.cumsum(values.counts) - values.counts
    kept = order[np.arange(len(order)) - np.repeat(before, values.counts) < most]
    return FlatValues(_take(values.flat, kept), np.minimum(values.counts, most))


def cut_top(field: pa.Field, column: pa.ListArray) -> pa.ListArray:
    """Cells with no more values than are asked for now: they may be of a time when more were."""
    most = int(field.metadata[MOST])
    return column if (pc.max(pc.list_value_length(column)).as_py() or 0) <= most else pc.list_slice(column, 0, most)


def _by_arrival(values: FlatValues, came: pa.Array) -> Int64s | None:
    """The order of values by when they came, within their cells; None: they are in it."""
    numbers = came.to_numpy(zero_copy_only=False)
    owners = values.owners
    if bool(np.all((numbers[1:] >= numbers[:-1]) | (owners[1:] != owners[:-1]))):
        return None
    return np.lexsort((numbers, owners))


class _PackedRows(NamedTuple):
    """Cell and value of each row in one number, in the order of both."""

    numbers: Int64s
    bits: int
    """How many bits the value takes."""
    wide: int
    """How many bits the whole takes."""

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1


def _pack(owners: Int64s, numbers: npt.NDArray[Any]) -> tuple[int, _PackedRows | None]:
    """The least number, and each number's distance from it packed with its cell; None where 63 bits are too few."""
    low = int(numbers.min())
    bits = (int(numbers.max()) - low).bit_length()
    wide = bits + int(owners[-1]).bit_length()
    if wide > NUMBER_BITS:
        return low, None
    distances = numbers.astype(np.int64) - low if low or numbers.dtype != np.int64 else numbers
    return low, _PackedRows((owners << bits) | distances, bits, wide)


def _fresh(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Rows that differ from the one before in some column."""
    fresh = np.ones(len(columns[0]), bool)
    fresh[1:] = False
    for column in columns:
        fresh[1:] |= column[1:] != column[:-1]
    return fresh


def _take(flat: pa.Array, places: Int64s) -> pa.Array:
    return pc.take(flat, pa.array(places), boundscheck=False)


_MERGE: Final[Mapping[str, Callable[[pa.Field, FlatValues], FlatValues]]] = {
    SET: _merge_sets,
    SKETCH: _merge_sketches,
    LIST: _merge_list,
    ARRIVALS: _merge_arrivals,
    TOP: _merge_tops,
}
LIST_RULES: Final = frozenset(_MERGE)


# --- the same rules for the cells of one key

ListCell = Any
"""The values of a cell: an array, or in Python as the head of this module says."""


def merge_list_cells(rule: str, field: pa.Field, cells: Sequence[ListCell | None]) -> ListCell | None:
    """One cell out of several, the oldest first; None where there is no value. Cells may be arrays or Python's."""
    present = [cell for cell in cells if cell is not None and len(cell)]
    if len(present) < 2:
        return present[0] if present else None
    if sum(map(len, present)) <= _FEW_VALUES or not all(isinstance(cell, pa.Array) for cell in present):
        return merge_python_lists(rule, most_of(field), [python_list(rule, cell) for cell in present])
    element = field.type.value_type
    fitting = [cell if cell.type == element else cell.cast(element) for cell in present]
    column = lists(field.type, pa.concat_arrays(fitting), np.array([len(cell) for cell in present]))
    return merge_lists(rule, field, column, np.zeros(1, np.int64)).flatten()


def merge_python_lists(rule: str, most: int, cells: Sequence[Any]) -> Any:
    """The rules in Python, the oldest cell first; ``most``: how many values ``top`` keeps."""
    if rule == SKETCH:
        sketch: dict[int, int] = dict(cells[0])
        for cell in cells[1:]:
            for bucket, count in cell.items():
                sketch[bucket] = sketch.get(bucket, 0) + count
        return sketch
    if rule == SET:
        return distinct(set().union(*cells))
    values = cells[0] + cells[1] if len(cells) == 2 else list(chain.from_iterable(cells))
    if rule == ARRIVALS:
        values.sort(key=itemgetter(0))
    elif rule == TOP:
        if len(values[0]) == 3:
            values.sort(key=itemgetter(1))
        # Sorting leaves equal ones in their order, backwards too.
        is_float = type(values[0][0]) is float
        values.sort(key=_order_of if is_float else itemgetter(0), reverse=True)
        del values[most:]
    return values


def python_list(rule: str, cell: ListCell) -> Any:
    """A cell in Python."""
    if not isinstance(cell, pa.Array):
        return cell
    if rule == SET:
        return distinct(set(plain_values(cell)))
    if pa.types.is_struct(cell.type) and rule != LIST:
        parts = zip(*(plain_values(cell.field(i)) for i in range(cell.type.num_fields)))
        return dict(parts) if rule == SKETCH else list(parts)
    values = plain_values(cell)
    return [(value,) for value in values] if rule == TOP else values


def list_cell(column: pa.ListArray) -> Callable[[int], ListCell | None]:
    """How the values of a row's cell are found; they stay in the memory of the run."""
    if column.null_count:
        return lambda row: column[row].values
    bounds, flat = memoryview(column.offsets.to_numpy()), column.values
    return lambda row: flat.slice(bounds[row], bounds[row + 1] - bounds[row])


def most_of(field: pa.Field) -> int:
    """How many values a cell has at most, by the rule ``top``."""
    return int((field.metadata or {}).get(MOST, b"0"))


def distinct(values: set[Any]) -> set[Any]:
    """A set in which not-a-number is one value."""
    if type(next(iter(values), None)) is float and any(map(math.isnan, values)):
        return {math.nan if value != value else value for value in values}
    return values


def compare(older: Any, newer: Any) -> int:
    """1 where the newer value is greater, −1 where it is less, 0 where they are equal; not-a-number is the greatest."""
    if newer == older:
        return 0
    is_nan, was_nan = newer != newer, older != older
    if is_nan or was_nan:
        return int(is_nan) - int(was_nan)
    return 1 if newer > older else -1


def plain_values(column: pa.Array) -> list[Any]:
    """Values as plain Python, also inside of lists, maps and structs.

    Times are microseconds, as everywhere, and decimals have no zeros behind them.
    """
    kind = column.type
    if pa.types.is_timestamp(kind):
        return as_int64(column).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_decimal(kind):
        return decimal_column().decode(column)
    if pa.types.is_nested(kind) and not _is_plain(kind):
        if pa.types.is_struct(kind):
            names = [field.name for field in kind]
            rows: Iterable[Any] = (dict(zip(names, row)) for row in zip(*map(plain_values, column.flatten())))
        else:
            rows = _plain_cells(column)
        return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist())]
    return column.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]


def _plain_cells(column: pa.ListArray | pa.MapArray) -> Iterator[Any]:
    """The cells of lists as lists, of maps as dicts; null as empty."""
    kind = column.type
    if pa.types.is_map(kind):
        pairs = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
        cells = _plain_cells(column.cast(pa.list_(pairs)))
        return ({pair["key"]: pair["value"] for pair in cell} for cell in cells)
    flat, ends = plain_values(column.flatten()), np.cumsum(values_of(column).counts).tolist()
    return (flat[start:end] for start, end in pairwise([0, *ends]))


def _is_plain(kind: pa.DataType) -> bool:
    """Whether there are no times and no decimals inside of a nested type."""
    if pa.types.is_nested(kind):
        return all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))
    return not (pa.types.is_timestamp(kind) or pa.types.is_decimal(kind))


def _order_of(row: tuple[Any, ...]) -> tuple[bool, Any]:
    unordered = row[0] != row[0]
    return unordered, 0 if unordered else row[0]
