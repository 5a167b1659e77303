"""Cells that are lists, for readers of one key: merged by the rules of many, and read as results.

Few values are merged in plain Python, which takes as long as Arrow needs to begin; many as columns are, by the rules of
`headrace.state.pane_lists` themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.model.columns import as_int64, decimal_column
from headrace.model.sketches import Sketch, quantile_of
from headrace.state.pane_lists import ARRIVALS, BUCKET, BY, CAME, COUNT, MOST, VALUE, lists, merge_lists
from headrace.state.pane_results import COLLECT, COUNT_DISTINCT, QUANTILE, TOP, read_lists
from headrace.state.pane_rules import rule_of

FEW_VALUES: Final = 2048
"""Up to so many values are merged in Python."""

Cell: TypeAlias = Any
"""An array: the values of a cell."""


def list_cell(column: pa.ListArray) -> Callable[[int], Cell | None]:
    """How the values of a row's cell are found; they stay in the memory of the run."""
    if column.null_count:
        return lambda row: column[row].values
    bounds, flat = memoryview(column.offsets.to_numpy()), column.values
    return lambda row: flat.slice(bounds[row], bounds[row + 1] - bounds[row])


def finish_cells(kind: str, field: pa.Field, cells: Sequence[Cell | None], more: Sequence[str]) -> Any:
    """What cells of one key come to, older ones first given; ``kind`` and ``more`` as a table says it of results."""
    there = [cell for cell in cells if cell is not None and len(cell)]
    if kind == COUNT_DISTINCT and len(there) < 2:
        return len(there[0]) if there else 0
    if sum(map(len, there)) <= FEW_VALUES:
        return _FINISH[kind](field, there, more)
    element = field.type.value_type
    fitting = [cell if cell.type == element else cell.cast(element) for cell in there]
    column = lists(field.type, pa.concat_arrays(fitting), np.array([len(cell) for cell in there]))
    merged = merge_lists(rule_of(field), field, column, np.zeros(1, np.int64))
    return plain_values(read_lists(kind, field, merged, more))[0]


def plain_values(column: pa.Array) -> list[Any]:
    """Values as plain Python; times are microseconds, as everywhere, and decimals have no zeros behind them."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return as_int64(column).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_decimal(kind):
        return decimal_column().decode(column)
    if pa.types.is_list(kind) and not column.null_count:
        flat, ends = plain_values(column.flatten()), np.cumsum(column.value_lengths().to_numpy()).tolist()
        return [flat[start:end] for start, end in zip([0, *ends], ends)]
    return column.to_pylist()  # type: ignore[no-any-return]


def _count_distinct(field: pa.Field, cells: Sequence[Cell], more: Sequence[str]) -> int:
    return len(set(chain.from_iterable(map(plain_values, cells))))


def _quantile(field: pa.Field, cells: Sequence[Cell], more: Sequence[str]) -> Any:
    sketch: Sketch = {}
    for cell in cells:
        for bucket, count in zip(_part(cell, BUCKET), _part(cell, COUNT)):
            sketch[bucket] = sketch.get(bucket, 0) + count
    return quantile_of(sketch, float(more[0]))


def _collect(field: pa.Field, cells: Sequence[Cell], more: Sequence[str]) -> list[Any]:
    if rule_of(field) != ARRIVALS:
        return list(chain.from_iterable(map(plain_values, cells)))
    pairs = [pair for cell in cells for pair in zip(_part(cell, CAME), _part(cell, VALUE))]
    return [value for _, value in sorted(pairs, key=itemgetter(0))]


def _top(field: pa.Field, cells: Sequence[Cell], more: Sequence[str]) -> list[Any]:
    most, element = int(field.metadata[MOST]), field.type.value_type
    if not pa.types.is_struct(element):
        return sorted(chain.from_iterable(map(plain_values, cells)), key=_order, reverse=True)[:most]
    rows = [row for cell in cells for row in zip(_part(cell, BY), _part(cell, VALUE))]
    if element.get_field_index(CAME) >= 0:
        came = list(chain.from_iterable(_part(cell, CAME) for cell in cells))
        rows = [rows[i] for i in sorted(range(len(rows)), key=came.__getitem__)]
    # Sorting leaves equal ones in their order, backwards too.
    return [value for _, value in sorted(rows, key=lambda row: _order(row[0]), reverse=True)[:most]]


def _part(cell: pa.StructArray, name: str) -> list[Any]:
    return plain_values(cell.field(name))


def _order(value: Any) -> tuple[bool, Any]:
    """Values in the order of their column: not-a-number last."""
    unordered = isinstance(value, float) and math.isnan(value)
    return unordered, 0 if unordered else value


_FINISH: Final[Mapping[str, Callable[[pa.Field, Sequence[Cell], Sequence[str]], Any]]] = {
    COUNT_DISTINCT: _count_distinct,
    QUANTILE: _quantile,
    COLLECT: _collect,
    TOP: _top,
}
