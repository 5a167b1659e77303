"""Arrays and maps. They stay Arrow arrays: what is asked of them is a position among their flat elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.sql.evaluate.casts import convert
from headrace.sql.evaluate.scope import EvalScope, Value, pick, spread, to_array, to_value
from headrace.sql.nodes import ExprTree

Int64s = npt.NDArray[np.int64]


def _starts_and_lengths(array: Any) -> tuple[Int64s, Int64s]:
    """Where the elements of each row begin in the flat values, and how many there are (0 for a null row)."""
    offsets = np.asarray(array.offsets.to_numpy(), dtype=np.int64)
    lengths = np.diff(offsets)
    lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return offsets[:-1], lengths


def _values(array: Any) -> pa.Array:
    """The flat values that offsets count in (`flatten` would leave out those of null rows)."""
    return array.items if pa.types.is_map(array.type) else array.values


def _size(node: ExprTree, scope: EvalScope) -> pl.Series:
    array = scope.value(node.args[0])
    _, lengths = _starts_and_lengths(array)
    sizes = pl.Series("", lengths.astype(np.int32))
    return pick(~pl.Series("", array.is_null()), sizes, pl.Series("", [None], dtype=pl.Int32))  # type: ignore[no-any-return]


def _take(values: pa.Array, positions: Int64s, valid: npt.NDArray[np.bool_]) -> pa.Array:
    return values.take(pa.array(np.where(valid, positions, 0), pa.int64(), mask=~valid))


def _item(node: ExprTree, scope: EvalScope) -> Value:
    """``array[index]`` from 0 (`try`: get(), null outside), and ``element_at`` from 1 or from the end."""
    array, index = scope.value(node.args[0]), scope.value(node.args[1])
    rows = max(len(array), len(index))
    array, index = spread(array, rows), spread(index, rows)
    starts, lengths = _starts_and_lengths(array)
    asked = index.fill_null(0).to_numpy().astype(np.int64)
    if node.op == "element_at":
        asked = np.where(asked > 0, asked - 1, np.where(asked < 0, lengths + asked, -1))
    known = ~np.asarray(array.is_null()) & index.is_not_null().to_numpy()
    inside = known & (asked >= 0) & (asked < lengths)
    found = to_value(_take(_values(array), starts + asked, inside), node.type)
    outside = pl.Series("", known & ~inside)
    if node.value != "try" and outside.any():
        scope.settle(node, outside, outside, "an index outside of the array")
    return found


def _match(node: ExprTree, scope: EvalScope) -> tuple[Any, Int64s, npt.NDArray[np.bool_], pl.Series]:
    """The map; each row's key among the flat entries: its position, whether it is there; where nothing is null."""
    array, key = scope.value(node.args[0]), scope.value(node.args[1])
    rows = max(len(array), len(key))
    array, key = spread(array, rows), spread(key, rows)
    starts, lengths = _starts_and_lengths(array)
    rows_of = np.repeat(np.arange(rows), lengths)
    entries = np.arange(len(rows_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + np.repeat(starts, lengths)
    keys = to_value(array.keys.take(pa.array(entries)), node.args[0].type.parts[0])
    hit = np.flatnonzero((keys == key.gather(rows_of)).fill_null(False).to_numpy())
    position, there = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    # The first of equal keys wins, so they are written from the last to the first.
    position[rows_of[hit][::-1]] = entries[hit][::-1]
    there[rows_of[hit]] = True
    known = ~pl.Series("", array.is_null()) & key.is_not_null()
    return array, position, there, known


def _map_value(node: ExprTree, scope: EvalScope) -> Value:
    array, position, there, _ = _match(node, scope)
    return to_value(_take(array.items, position, there), node.type)


def _map_contains_key(node: ExprTree, scope: EvalScope) -> pl.Series:
    _, _, there, known = _match(node, scope)
    return pick(known, pl.Series("", there), pl.Series("", [None], dtype=pl.Boolean))  # type: ignore[no-any-return]


def _array_contains(node: ExprTree, scope: EvalScope) -> pl.Series:
    array, wanted = scope.value(node.args[0]), scope.value(node.args[1])
    rows = max(len(array), len(wanted))
    array, wanted = spread(array, rows), spread(wanted, rows)
    _, lengths = _starts_and_lengths(array)
    rows_of = np.repeat(np.arange(rows), lengths)
    everywhere = EvalScope(scope.batch, scope.text, scope.evaluate)
    items = convert(node, everywhere, to_value(array.flatten(), node.value), node.value, node.args[1].type)
    same = items == wanted.gather(rows_of)
    there, unsure = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    there[rows_of[same.fill_null(False).to_numpy()]] = True
    unsure[rows_of[items.is_null().to_numpy()]] = True
    known = ~pl.Series("", array.is_null()) & wanted.is_not_null() & pl.Series("", there | ~unsure)
    return pick(known, pl.Series("", there), pl.Series("", [None], dtype=pl.Boolean))  # type: ignore[no-any-return]


def _array(node: ExprTree, scope: EvalScope) -> pa.Array:
    kind = node.type.parts[0]
    values = [scope.value(arg) for arg in node.args]
    rows = max(len(value) for value in values)
    count = len(values)
    stacked = pa.concat_arrays([to_array(spread(value, rows), kind) for value in values])
    order = np.arange(count * rows).reshape(count, rows).T.ravel()
    offsets = pa.array(np.arange(rows + 1) * count, pa.int32())
    return pa.ListArray.from_arrays(offsets, stacked.take(pa.array(order)))


EVALUATORS: dict[str, Callable[[ExprTree, EvalScope], Value]] = {
    "size": _size,
    "item": _item,
    "element_at": _item,
    "map_value": _map_value,
    "map_contains_key": _map_contains_key,
    "array_contains": _array_contains,
    "array": _array,
}
