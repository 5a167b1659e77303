"""Results: what merged columns of partial aggregates come to, in bulk and for one key, without the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.distinct_numbers import (
    AVG_DISTINCT,
    SUM_DISTINCT,
    distinct_mean,
    distinct_total,
    read_distinct,
    zero_of,
)
from headrace.aggregates.list_rules import (
    ARRIVALS,
    BUCKET,
    COUNT,
    LIST,
    VALUE,
    FlatValues,
    cut_top,
    list_of,
    lists,
    most_of,
    python_list,
    values_of,
)
from headrace.aggregates.mean import AVG, mean, means
from headrace.aggregates.rules import rule_of
from headrace.aggregates.sketch import quantile_of, quantiles_of
from headrace.model.columns import shortest_decimal

COUNT_DISTINCT: Final = "count_distinct"
QUANTILE: Final = "quantile"
COLLECT: Final = "collect"
TOP: Final = "top"
EXACT: Final = "exact"
"""What a description of results says last where values are decimals, because those are stored as text."""
LISTED: Final = frozenset({COUNT_DISTINCT, SUM_DISTINCT, AVG_DISTINCT, QUANTILE, COLLECT, TOP})
"""Kinds of aggregates whose column has lists for cells."""


def read_results(merged: pa.RecordBatch, results: Mapping[str, Sequence[str]]) -> dict[str, pa.Array]:
    """The results of merged rows, each a column."""
    made: dict[str, pa.Array] = {}
    for name, (kind, *columns) in results.items():
        if kind in LISTED:
            made[name] = read_lists(kind, merged.schema.field(columns[0]), merged.column(columns[0]), columns[1:])
            continue
        parts = [merged.column(column) for column in columns]
        if kind == AVG:
            made[name] = means(*parts)
        elif len(parts) == 2:
            made[name] = _beside(*parts)
        else:
            made[name] = parts[0]
    return made


def read_lists(kind: str, field: pa.Field, column: pa.ListArray, more: Sequence[str]) -> pa.Array:
    """What cells that are lists come to; ``more``: what results say behind the name of the column."""
    if kind == TOP:
        column = cut_top(field, column)
    held = values_of(column)
    if kind == COUNT_DISTINCT:
        return pa.array(held.counts)
    if kind in (SUM_DISTINCT, AVG_DISTINCT):
        return read_distinct(kind, held)
    if kind == QUANTILE:
        return _quantiles(held, float(more[0]))
    flat = held.flat
    # What somebody collects may be a struct, too.
    if pa.types.is_struct(flat.type) and rule_of(field) != LIST:
        flat = flat.field(VALUE)
    return lists(list_of(flat.type), flat, held.counts)


def _quantiles(held: FlatValues, q: float) -> pa.Array:
    """The number at rank q · (n − 1) of each sketch, null for a sketch of nothing."""
    some = held.counts > 0
    if not len(held.flat):
        return pa.nulls(len(some), pa.float64())
    buckets, counts = (held.flat.field(name).to_numpy(zero_copy_only=False) for name in (BUCKET, COUNT))
    quantiles = np.zeros(len(some))
    quantiles[some] = quantiles_of(buckets, counts, held.counts[some], q)
    return pa.array(quantiles, mask=~some)


def _beside(chosen_by: pa.Array, values: pa.Array) -> pa.Array:
    """Values of the rows that were chosen, null where there was none to choose."""
    if not chosen_by.null_count:
        return values
    return pc.if_else(chosen_by.is_valid(), values, pa.scalar(None, values.type))


# --- the same for one key


class RowFinish:
    """Results of one key, off its merged cells: the scalar form of `read_results`."""

    def __init__(self, results: Mapping[str, Sequence[str]], fields: Sequence[pa.Field]) -> None:
        named = {field.name: field for field in fields}
        self._finish = [(name, _cell_finish(named, *told)) for name, told in results.items()]

    def finish(self, merged: Mapping[str, Any]) -> dict[str, Any]:
        """``merged``: column → cell (`headrace.aggregates.rules.RowMerge`)."""
        return {name: finish(merged) for name, finish in self._finish}


def _cell_finish(named: Mapping[str, pa.Field], kind: str, *columns: str) -> Callable[[Mapping[str, Any]], Any]:
    first = columns[0]
    if kind in LISTED:
        rule, most = rule_of(named[first]), most_of(named[first])
        zeros = [zero_of(named[first].type.value_type)] if kind == SUM_DISTINCT else []
        finish_list = finish_of(kind, *columns[1:], *zeros)

        def finish(merged: Mapping[str, Any]) -> Any:
            cell = merged[first]
            if cell is None or kind == COUNT_DISTINCT:
                return finish_list(cell)
            values = python_list(rule, cell if kind != TOP else cell[:most])
            return finish_list([value for _, value in values] if rule == ARRIVALS else values)

        return finish
    finish_cell = finish_of(kind, *(["by"] if len(columns) == 2 else []))
    if len(columns) == 1:
        return lambda merged: finish_cell(merged[first])
    second = columns[1]
    return lambda merged: finish_cell(None if merged[first] is None else (merged[first], merged[second]))


def finish_of(kind: str, *more: Any) -> Callable[[Any], Any]:
    """How the accumulator of a key becomes its result; None is the accumulator of nothing.

    ====================  =======================================  =================================================
    kind, and more        accumulator                              result
    ====================  =======================================  =================================================
    ``count``             a number                                 it, or 0
    ``sum``, zero         a number                                 it, or the zero that is given
    ``avg``               (sum, rows)                              their quotient
    ``min``, ``max``      a value                                  it
    ``min``, ``"by"``     (what rows are compared by, value)       the value; ``max``, ``"by"`` likewise
    ``first``, ``last``   (time, value)                            the value
    ``count_distinct``    values, each once                        how many
    ``sum_distinct``, 0   values, each once                        their sum, or the zero that is given
    ``avg_distinct``      values, each once                        their mean
    ``collect``           values                                   them
    ``top``               (compared by, value), the greatest first the values
    ``quantile``, q       bucket → how many                        the number at that rank
    anything else         of the user's own                        as it is
    ====================  =======================================  =================================================

    A Decimal is stored as text. So where ``"exact"`` stands last, and where the zero of a sum is text, values that are
    text are decimals.
    """
    if more[-1:] == (EXACT,):
        finish = finish_of(kind, *more[:-1])
        return lambda acc: _as_decimals(finish(acc))
    if kind == "count":
        return lambda acc: acc or 0
    if kind == "sum":
        zero = more[0] if more else 0
        if isinstance(zero, str):
            return lambda acc: _as_decimals(zero if acc is None else acc)
        return lambda acc: zero if acc is None else shortest_decimal(acc) if isinstance(acc, Decimal) else acc
    if kind == AVG:
        return lambda acc: None if acc is None else mean(*acc)
    if kind in ("first", "last") or more[:1] == ("by",):
        return lambda acc: None if acc is None else acc[1]
    if kind == COUNT_DISTINCT:
        return lambda acc: len(acc or ())
    if kind == SUM_DISTINCT:
        return partial(_total_of, more[0] if more else 0)
    if kind == AVG_DISTINCT:
        return distinct_mean
    if kind == COLLECT:
        return lambda acc: acc or []
    if kind == TOP:
        return lambda acc: [row[-1] for row in acc or ()]
    if kind == QUANTILE:
        q = float(more[0]) if more else 0.5
        return lambda acc: None if acc is None else quantile_of(acc, q)
    return as_it_is


def _total_of(zero: Any, acc: Any) -> Any:
    return distinct_total(acc or (), zero)


def as_it_is(acc: Any) -> Any:
    """The result of an accumulator that is its own result."""
    return acc


def _as_decimals(value: Any) -> Any:
    """A result whose decimals are text, with decimals."""
    if isinstance(value, list):
        return [_as_decimals(each) for each in value]
    return shortest_decimal(Decimal(value)) if isinstance(value, str) else value
