"""Steps with horizons in tests, and the same computed from all rows, one result after the other.

Rows are written ``a5@12``: key a, value 5 (``a-@12``: none), time 12 µs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

import headrace as hr
from headrace.aggregates.sketch import buckets_of, quantile_of
from headrace.dataflow.graph import KeyedNode
from headrace.operators.contract import Operator
from headrace.plan.build import operator_builder
from headrace.testing.rig import EmittedRow, OperatorRig

ROW = re.compile(r"(\w)(-|-?\d+)@(-?\d+)")


class Tx(hr.Record):
    card: str
    n: int | None
    at: hr.Timestamp
    rate: float = 0.0
    price: Decimal = Decimal(0)
    shop: str = ""


def tx(card: str, n: int | None, at: int) -> Tx:
    """A row whose other fields follow from its number, in ways that make order and rounding show."""
    if n is None:
        return Tx(card, None, hr.Timestamp(at))
    return Tx(card, n, hr.Timestamp(at), n * 0.1, Decimal(n) / 100, "xyz"[n % 3] + str(n))


def rows_of(text: str) -> list[Tx]:
    made = [tx(card, None if n == "-" else int(n), int(at)) for card, n, at in ROW.findall(text)]
    assert len(made) == len(text.split()), f"not all of {text!r} are rows"
    return made


def us(n: int) -> hr.Duration:
    return hr.Duration(n)


def step_of(
    aggs: dict[str, hr.types.Agg[Any]], *, per_row: bool = False, timed: bool = True
) -> hr.types.StepStream[Any, Tx]:
    app = hr.App("features")
    txs = app.read("txs", hr.source.items([]), Tx, time=Tx.at if timed else None)
    return txs.key_by(Tx.card).aggregate(fire=hr.per_row() if per_row else None, **aggs).named("step")


def operator_of(aggs: dict[str, hr.types.Agg[Any]], *, per_row: bool = False) -> Operator:
    node = step_of(aggs, per_row=per_row).node
    assert isinstance(node, KeyedNode)
    return operator_builder(node)()


def rig_of(aggs: dict[str, hr.types.Agg[Any]], *, per_row: bool = False, **options: Any) -> OperatorRig:
    options.setdefault("ttl", {"value": "event"} if all(over_of(agg) for agg in aggs.values()) else {})
    return OperatorRig(operator_of(aggs, per_row=per_row), Tx, lambda row: row.card, **options)


def told(emitted: Sequence[EmittedRow]) -> list[tuple[Any, ...]]:
    """Results as (key, aggregates, time); those of each key in the order in which they came."""
    return sorted(((*_fields(each.value), each.at) for each in emitted), key=lambda result: str(result[0]))


def _fields(row: Any) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in row.__struct_fields__)


# --- the same, from all rows

GOING_ON: dict[str, hr.types.Agg[Any]] = {
    "count_4": hr.count(over=us(4)),
    "count_25": hr.count(over=us(25)),
    "even_25": hr.count(where="n % 2 = 0", over=us(25)),
    "sum_10": hr.sum("n", over=us(10)),
    "few_25": hr.sum("n * 2", where="n > 5", over=us(25)),
    "mean_25": hr.avg("n", over=us(25)),
    "price_10": hr.sum("price", over=us(10)),
}
ANEW: dict[str, hr.types.Agg[Any]] = {
    "min_10": hr.min("n", over=us(10)),
    "max_4": hr.max("rate", over=us(4)),
    "late_10": hr.max("at", over=us(10)),
    "name_10": hr.min("shop", over=us(10)),
    "by_10": hr.max("shop", by="n", over=us(10)),
    "first_10": hr.first("n", over=us(10)),
    "last_4": hr.last("shop", where="n < 3", over=us(4)),
    "kinds_10": hr.count_distinct("n", over=us(10)),
    "all_10": hr.collect("n", over=us(10)),
    "top_10": hr.top("n", 2, over=us(10)),
    "best_10": hr.top("shop", 2, by="n", over=us(10)),
    "median_10": hr.quantile("n", 0.5, over=us(10)),
    "rate_10": hr.sum("rate", over=us(10)),
    "rates_4": hr.avg("rate", over=us(4)),
}
TOTALS: dict[str, hr.types.Agg[Any]] = {"total": hr.sum("n"), "rows": hr.count()}
MIXES = {
    "counts and sums": GOING_ON,
    "all kinds": {**GOING_ON, **ANEW},
    "beside totals": {**GOING_ON, **TOTALS},
    "kinds beside totals": {**ANEW, **TOTALS},
}


def over_of(agg: Any) -> int:
    return int(getattr(agg, "over_us", None) or 0)


class Came(NamedTuple):
    row: Tx
    order: int
    forgotten: bool
    """So late that no horizon counts it."""


class Model:
    """Remembers every row, and goes through all of them for every result."""

    def __init__(self, aggs: dict[str, hr.types.Agg[Any]], *, per_row: bool) -> None:
        self.aggs = aggs
        self.per_row = per_row
        longest = max(over_of(agg) for agg in aggs.values())
        self.keep = longest + longest // 8 + 1
        self.only_horizons = all(over_of(agg) for agg in aggs.values())
        self.watermark: int | None = None
        self.came: dict[str, list[Came]] = {}

    def epoch(self, rows: Sequence[Tx], watermark: int | None) -> list[tuple[Any, ...]]:
        results = []
        floor = None if self.watermark is None else self.watermark - self.keep
        for card in sorted({row.card for row in rows}):
            held = self.came.setdefault(card, [])
            newest = max((int(each.row.at) for each in held), default=None)
            if newest is not None and floor is not None and newest <= floor and self.only_horizons:
                held.clear()  # Nothing that was known of the key is left.
            mine = sorted((row for row in rows if row.card == card), key=lambda row: int(row.at))
            for row in mine:
                held.append(Came(row, len(held), floor is not None and int(row.at) <= floor))
            if self.per_row:
                results += [self._result(card, int(each.row.at), floor, each.order) for each in held[-len(mine) :]]
            else:
                results.append(self._result(card, max(int(each.row.at) for each in held), floor, len(held)))
        if watermark is not None:
            self.watermark = watermark if self.watermark is None else max(watermark, self.watermark)
        return results

    def _result(self, card: str, at: int, floor: int | None, order: int) -> tuple[Any, ...]:
        """Horizons take all rows up to a time, totals all that came up to a row."""
        found: list[Any] = [card]
        for name, agg in self.aggs.items():
            rows = [each for each in self.came[card] if each.order <= order]
            if over_of(agg):
                rows = self.came[card]
                low = at - over_of(agg) if floor is None else max(at - over_of(agg), floor)
                rows = [each for each in rows if low < int(each.row.at) <= at and not each.forgotten]
                rows = sorted(rows, key=lambda each: (int(each.row.at), each.order))
            found.append(PLAIN[name]([each.row for each in rows]))
        return (*found, at)


def _ns(rows: list[Tx]) -> list[int]:
    return [row.n for row in rows if row.n is not None]


def _some(rows: list[Tx]) -> list[Tx]:
    return [row for row in rows if row.n is not None]


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _median(numbers: list[int]) -> Any:
    if not numbers:
        return None
    return quantile_of(Counter(buckets_of(np.array(numbers, dtype=np.float64)).tolist()), 0.5)


def _float_sum(rows: list[Tx]) -> float:
    return float(np.add.reduce(np.array([row.rate for row in rows]))) if rows else 0.0


PLAIN: dict[str, Any] = {
    "count_4": len,
    "count_25": len,
    "rows": len,
    "even_25": lambda rows: sum(n % 2 == 0 for n in _ns(rows)),
    "sum_10": lambda rows: sum(_ns(rows)),
    "total": lambda rows: sum(_ns(rows)),
    "few_25": lambda rows: sum(2 * n for n in _ns(rows) if n > 5),
    "mean_25": lambda rows: _mean(_ns(rows)),
    "price_10": lambda rows: sum((row.price for row in rows), Decimal(0)),
    "min_10": lambda rows: min(_ns(rows), default=None),
    "max_4": lambda rows: max((row.rate for row in rows), default=None),
    "late_10": lambda rows: max((int(row.at) for row in rows), default=None),
    "name_10": lambda rows: min((row.shop for row in rows), default=None),
    "by_10": lambda rows: max(_some(rows), key=lambda row: row.n or 0, default=tx("", None, 0)).shop or None,
    "first_10": lambda rows: next(iter(_ns(rows)), None),
    "last_4": lambda rows: next((row.shop for row in reversed(_some(rows)) if (row.n or 0) < 3), None),
    "kinds_10": lambda rows: len(set(_ns(rows))),
    "all_10": _ns,
    "top_10": lambda rows: sorted(_ns(rows), reverse=True)[:2],
    "best_10": lambda rows: [row.shop for row in sorted(_some(rows), key=lambda row: -(row.n or 0))[:2]],
    "median_10": lambda rows: _median(_ns(rows)),
    "rate_10": _float_sum,
    "rates_4": lambda rows: _float_sum(rows) / len(rows) if rows else None,
}
