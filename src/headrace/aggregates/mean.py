"""``avg``: its columns, how rows are lifted and merged, and what sums and counts come to, in bulk and for one key.

Programs need the class, readers without a program only the functions behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.aggregates.declare import Declared
from headrace.aggregates.lifting import NUMBERS, PaneAggregate, amounts, ones, some_rows
from headrace.aggregates.numbers import adder, summing
from headrace.aggregates.rules import SUM, merge_field
from headrace.model.batch import Int64s, Rows
from headrace.model.columns import DECIMAL, shortest_decimal

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

AVG: Final = "avg"
_QUOTIENT: Final = Context(prec=77, rounding=ROUND_HALF_UP)
_SCALE: Final = Decimal(1).scaleb(-DECIMAL.scale)


class MeanAggregate(PaneAggregate):
    """The sum and the number of rows. Whole numbers beyond 2**53 are rounded to the nearest float, as in Spark."""

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str, *, several: bool) -> None:
        super().__init__(name, agg, codec, where)
        exact = self.values.type is Decimal
        self.in_columns = self.values.type in (*NUMBERS, Decimal)
        self.acc_type = tuple[Decimal if exact else float, int]  # type: ignore[misc]
        self.type = DECIMAL if exact else pa.float64()
        self.fields = [
            merge_field(f"{name}.total", self.type, SUM),
            merge_field(f"{name}.rows", pa.int64(), SUM),
        ]
        add_two, add_all = adder(self.fields[0]), summing(self.fields[0])
        self.merge = lambda older, newer: (add_two(older[0], newer[0]), older[1] + newer[1])
        self.gather = lambda part: (add_all(part if exact else list(map(float, part))), len(part))

    def lift(self, rows: Rows) -> list[pa.Array]:
        array = self.values.array(rows)
        taken = self.taken_rows(rows, array)
        if pa.types.is_integer(array.type):
            array = array.cast(pa.float64(), safe=False)
        return [amounts(array, taken, self.type), ones(len(rows), taken)]

    def accumulators(self, merged: Sequence[pa.Array]) -> tuple[Int64s, list[Any]]:
        present = np.flatnonzero(merged[1].to_numpy())
        totals, rows = some_rows(merged, present)
        sums = self.values.objects(totals) if pa.types.is_decimal(totals.type) else totals.to_numpy().tolist()
        return present, list(zip(sums, rows.to_numpy().tolist()))


def means(totals: pa.Array, counts: pa.Array) -> pa.Array:
    """``avg`` of merged columns, null where no row was counted."""
    rows = counts.to_numpy(zero_copy_only=False)
    if pa.types.is_decimal(totals.type):
        return pa.array(list(map(mean, totals.to_pylist(), rows.tolist())), totals.type)
    empty = rows == 0
    return pa.array(totals.to_numpy(zero_copy_only=False) / np.where(empty, 1, rows), mask=empty)


def mean(total: Any, rows: int) -> Any:
    """``avg`` of one key: a float, or of decimals a Decimal, rounded half up to the digits of its column."""
    if not rows:
        return None
    if isinstance(total, Decimal):
        return shortest_decimal(_QUOTIENT.divide(total, Decimal(rows)).quantize(_SCALE, context=_QUOTIENT))
    # A Decimal is stored as text.
    return mean(Decimal(total), rows) if isinstance(total, str) else total / rows
