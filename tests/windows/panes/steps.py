"""Windowed steps made by hand, and what they must give, computed from all rows one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import headrace as hr
from headrace.aggregates.declare import (
    Agg,
    avg,
    collect,
    count,
    count_distinct,
    first,
    last,
    max,
    min,
    quantile,
    sum,
    top,
)
from headrace.aggregates.sketch import buckets_of, quantile_of
from headrace.model.ids import MAX_TIME
from headrace.model.record import row_type
from headrace.model.rows import codec_of
from headrace.operators.spec import StepInfo
from headrace.testing.operators import EpochInput
from headrace.testing.rig import OperatorRig
from headrace.windows.kinds import Assigner
from headrace.windows.spec import WindowSpec

Timestamp = hr.Timestamp


class Sale(hr.Record):
    shop: str
    at: hr.Timestamp
    cents: int = 1
    weight: float | None = None
    what: str | None = None


TRIED = [
    EpochInput([Sale("a", 1, 1, 0.5), Sale("b", 3, 2, None, "x"), Sale("a", 12, 9)], watermark=3, clock=1),
    EpochInput([Sale("a", 2, 3, 1.5, "y"), Sale("c", 14, 1), Sale("b", 7, 5)], watermark=11, clock=6),
    EpochInput([Sale("a", 6, 3), Sale("c", 3, 1), Sale("c", 25, 4, 2.0)], watermark=14, clock=8),
    EpochInput([], watermark=16, clock=14),
    EpochInput([Sale("a", 12, 3), Sale("b", 30, 1), Sale("d", 2, 4)], watermark=31, clock=15),
    EpochInput([Sale("a", 29, 3), Sale("b", 30, 1)], watermark=MAX_TIME, clock=40, final=True),
]
"""Epochs for `verify_operator`: rows out of order, late and early, keys that come and go, an end."""


AGGS: Mapping[str, Agg[Any]] = {
    "rows": count(),
    "large": count(where="cents > 3"),
    "total": sum("cents"),
    "least": min("cents"),
    "heaviest": max("weight"),
    "mean": avg("weight"),
    "newest": last("what"),
    "oldest": first("cents"),
    "best": max("what", by="cents"),
    "name": min("what"),
    "kinds": count_distinct("what"),
    "sizes": count_distinct("weight", where="cents > 0"),
    "median": quantile("cents", 0.5),
    "light": quantile("weight", 0.1),
    "all": collect("cents"),
    "named": collect("what", where="cents > 0"),
    "greatest": top("cents", 2),
    "dearest": top("what", 2, by="cents"),
}


def info_of(aggs: Mapping[str, Agg[Any]], *, key_type: Any = str, key_fields: tuple[str, ...] = ("shop",)) -> StepInfo:
    taken = codec_of(Sale)
    fields: dict[str, Any] = {name: taken.annotations[name] for name in key_fields}
    fields |= {"window_start": Timestamp, "window_end": Timestamp, "pane": str}
    fields |= {name: agg.result_type(taken) | None for name, agg in aggs.items()}
    return StepInfo("sales", (taken,), codec_of(row_type("Result", fields)), key_type, key_fields)


def spec_of(assigner: Assigner, aggs: Mapping[str, Agg[Any]] = AGGS, **more: Any) -> WindowSpec:
    return replace(WindowSpec(assigner, aggs=aggs), **more)


def text(value: Any) -> Any:
    """A field, without the digits of a float that depend on the order of adding."""
    if isinstance(value, list):
        return tuple(value)
    return f"{value:.12g}" if isinstance(value, float) else value


def told(rig: OperatorRig, outlet: str) -> Counter[tuple[Any, ...]]:
    """What an outlet gave in the last epoch, as rows that can be compared."""
    return Counter(
        (row.at, *(text(getattr(row.value, name)) for name in row.value.__struct_fields__))
        for row in rig.out.get(outlet, [])
    )


def results(rig: OperatorRig, *names: str, outlet: str = "main") -> list[tuple[Any, ...]]:
    """Some columns of what an outlet gave in the last epoch, sorted."""
    return sorted(tuple(getattr(row.value, name) for name in names) for row in rig.out.get(outlet, []))


def naive(rows: Sequence[Sale]) -> tuple[Any, ...]:
    """What the aggregates of `AGGS` come to over rows in the order they came."""
    weights = [row.weight for row in rows if row.weight is not None]
    named = [row for row in rows if row.what is not None]
    cents = [row.cents for row in rows]
    by_time = sorted(range(len(rows)), key=lambda i: (rows[i].at, i))
    newest = sorted(range(len(named)), key=lambda i: (named[i].at, i))
    best = None if not named else next(row for row in named if row.cents == builtin_max(row.cents for row in named))
    return (
        len(rows),
        len([each for each in cents if each > 3]),
        builtin_sum(cents),
        builtin_min(cents),
        text(builtin_max(weights)) if weights else None,
        text(builtin_sum(weights) / len(weights)) if weights else None,
        named[newest[-1]].what if named else None,
        rows[by_time[0]].cents,
        None if best is None else best.what,
        builtin_min(row.what for row in named) if named else None,
        len({row.what for row in named}),
        len({row.weight for row in rows if row.weight is not None and row.cents > 0}),
        text(_quantile(cents, 0.5)),
        text(_quantile(weights, 0.1)),
        tuple(cents),
        tuple(row.what for row in named if row.cents > 0),
        tuple(sorted(cents, reverse=True)[:2]),
        tuple(row.what for row in sorted(named, key=lambda row: -row.cents)[:2]),
    )


def _quantile(numbers: Sequence[float], q: float) -> Any:
    return quantile_of(Counter(buckets_of(np.array(numbers, np.float64)).tolist()), q)


def builtin_sum(values: Any) -> Any:
    total = 0
    for value in values:
        total = total + value
    return total


def builtin_min(values: Any) -> Any:
    return sorted(values)[0]


def builtin_max(values: Any) -> Any:
    return sorted(values)[-1]
