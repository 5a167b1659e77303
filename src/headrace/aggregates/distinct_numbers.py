"""Sums and means of different values: ``sum_distinct`` and ``avg_distinct``, which keep what ``count_distinct`` keeps.

Sums of floats are rounded once, over all values, so that they do not depend on the order in which a set holds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.aggregates.list_rules import FlatValues
from headrace.aggregates.mean import mean
from headrace.aggregates.numbers import summing
from headrace.aggregates.rules import SUM, merge_field
from headrace.model.columns import DECIMAL, shortest_decimal

SUM_DISTINCT: Final = "sum_distinct"
AVG_DISTINCT: Final = "avg_distinct"
_ADDING: Final = {kind: summing(merge_field("DISTINCT.sum", kind, SUM)) for kind in (pa.int64(), DECIMAL)}


def distinct_total(values: Iterable[Any], zero: Any) -> Any:
    """The sum of values that are different; decimals may be text, as they are stored."""
    plain: list[Any] = [Decimal(each) if isinstance(each, str) else each for each in values]
    if not plain:
        return shortest_decimal(Decimal(zero)) if isinstance(zero, str | Decimal) else zero
    if isinstance(plain[0], float):
        return _float_total(plain)
    exact = isinstance(plain[0], Decimal)
    total = _ADDING[DECIMAL if exact else pa.int64()](plain)
    return shortest_decimal(total) if exact else total


def distinct_mean(values: Iterable[Any] | None) -> Any:
    """The mean of values that are different; None where there is none."""
    plain = [Decimal(each) if isinstance(each, str) else each for each in values or ()]
    if not plain or isinstance(plain[0], Decimal):
        return mean(distinct_total(plain, Decimal(0)), len(plain))
    return _float_total(list(map(float, plain))) / len(plain)


def read_distinct(kind: str, held: FlatValues) -> pa.Array:
    """The same for cells that are lists."""
    values, bounds = held.flat.to_pylist(), [0, *np.cumsum(held.counts).tolist()]
    cells = [values[start:end] for start, end in pairwise(bounds)]
    if kind == AVG_DISTINCT:
        exact = pa.types.is_decimal(held.flat.type)
        return pa.array(map(distinct_mean, cells), held.flat.type if exact else pa.float64())
    zero = zero_of(held.flat.type)
    return pa.array([distinct_total(cell, zero) for cell in cells], held.flat.type)


def zero_of(kind: pa.DataType) -> int | float | Decimal:
    """The sum of no values of a type."""
    return Decimal(0) if pa.types.is_decimal(kind) else 0.0 if pa.types.is_floating(kind) else 0


def _float_total(values: list[float]) -> float:
    special = [value for value in values if not math.isfinite(value)]
    if special:
        return sum(special)
    try:
        return math.fsum(values)
    except OverflowError:
        return math.copysign(math.inf, sum(value / 2 for value in values))
