"""Dates and timestamps, always in UTC; intervals are microseconds."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from headrace.sql import types as t
from headrace.sql.evaluate.scope import EvalScope, Value, both, dtype_of, spread
from headrace.sql.nodes import ExprTree

_DAY_US = 86_400_000_000
_MINUTE_US = 60_000_000
_TIMESTAMP = dtype_of(t.TIMESTAMP)


def _arg(node: ExprTree, scope: EvalScope) -> pl.Series:
    return scope.value(node.args[0])  # type: ignore[no-any-return]


def _micros(node: ExprTree, scope: EvalScope, wide: pl.Series) -> pl.Series:
    """128-bit microseconds as a timestamp."""
    result = wide.cast(pl.Int64, strict=False)
    if result.null_count() != wide.null_count():
        result = scope.settle(node, result, result.is_null() & wide.is_not_null(), "a time out of range")
    return result.cast(_TIMESTAMP)


def _time_add(node: ExprTree, scope: EvalScope) -> pl.Series:
    at, by = both(node, scope)
    return _micros(node, scope, at.cast(pl.Int64).cast(pl.Int128) + by.cast(pl.Int128))


def _time_between(node: ExprTree, scope: EvalScope) -> pl.Series:
    end, start = both(node, scope)
    wide = end.cast(pl.Int64).cast(pl.Int128) - start.cast(pl.Int64).cast(pl.Int128)
    return _micros(node, scope, wide).cast(pl.Int64)


def _days_between(node: ExprTree, scope: EvalScope) -> pl.Series:
    end, start = both(node, scope)
    return (end.cast(pl.Int64) - start.cast(pl.Int64)) * _DAY_US


def _datediff(node: ExprTree, scope: EvalScope) -> pl.Series:
    end, start = both(node, scope)
    return (end.cast(pl.Int64) - start.cast(pl.Int64)).cast(pl.Int32)


def _date_add(node: ExprTree, scope: EvalScope) -> pl.Series:
    at, days = both(node, scope)
    moved = at.cast(pl.Int64) + days.cast(pl.Int64)
    result = moved.cast(pl.Int32, strict=False)
    bad = result.is_null() & moved.is_not_null()
    return scope.settle(node, result, bad, "a date out of range").cast(pl.Date)


def _add_months(node: ExprTree, scope: EvalScope) -> pl.Series:
    at, months = both(node, scope)
    rows = max(len(at), len(months))
    by = spread(months, rows).cast(pl.String) + "mo"
    return spread(at, rows).dt.offset_by(by)  # type: ignore[no-any-return]


def _timestamp_of(node: ExprTree, scope: EvalScope) -> pl.Series:
    wide = _arg(node, scope).cast(pl.Int128) * pl.Series("", [node.value], dtype=pl.Int128)
    return _micros(node._replace(value=None), scope, wide)


def _timestamp_seconds(node: ExprTree, scope: EvalScope) -> pl.Series:
    micros = _arg(node, scope) * 1e6
    # Java's conversion to a long stops at its ends; what is no number is null.
    finite = micros.zip_with(micros.is_finite().fill_null(True), pl.Series("", [None], dtype=pl.Float64))
    whole = finite.clip(-(2.0**63), 2.0**63).cast(pl.Int128)
    return whole.clip(-(2**63), 2**63 - 1).cast(pl.Int64).cast(_TIMESTAMP)


def _field(name: str, add: int = 0) -> Callable[[ExprTree, EvalScope], pl.Series]:
    def evaluate(node: ExprTree, scope: EvalScope) -> pl.Series:
        value = getattr(_arg(node, scope).dt, name)().cast(pl.Int32)
        return value + add if add else value  # type: ignore[no-any-return]

    return evaluate


def _day_of_week(node: ExprTree, scope: EvalScope) -> pl.Series:
    # polars counts Monday as 1, Spark's dayofweek counts Sunday as 1.
    return (_arg(node, scope).dt.weekday().cast(pl.Int32) % 7) + 1


def _seconds(node: ExprTree, scope: EvalScope) -> pl.Series:
    return (_arg(node, scope).cast(pl.Int64) % _MINUTE_US).cast(pl.Int128)


EVALUATORS: dict[str, Callable[[ExprTree, EvalScope], Value]] = {
    "time_add": _time_add,
    "time_between": _time_between,
    "days_between": _days_between,
    "whole_days": lambda node, scope: (_arg(node, scope) // _DAY_US).cast(pl.Int32),
    "date_add": _date_add,
    "add_months": _add_months,
    "datediff": _datediff,
    "last_day": lambda node, scope: _arg(node, scope).dt.month_end(),
    "unix": lambda node, scope: _arg(node, scope).cast(pl.Int64) // node.value,
    "unix_date": lambda node, scope: _arg(node, scope).cast(pl.Int32),
    "date_from_unix_date": lambda node, scope: _arg(node, scope).cast(pl.Date),
    "timestamp_of": _timestamp_of,
    "timestamp_seconds": _timestamp_seconds,
    "date_trunc": lambda node, scope: _arg(node, scope).dt.truncate(node.value),
    "date_format": lambda node, scope: _arg(node, scope).dt.strftime(node.value),
    "trunc": lambda node, scope: _arg(node, scope).dt.truncate(node.value),
    "year": _field("year"),
    "quarter": _field("quarter"),
    "month": _field("month"),
    "dayofmonth": _field("day"),
    "dayofyear": _field("ordinal_day"),
    "weekday": _field("weekday", add=-1),
    "dayofweek": _day_of_week,
    "weekofyear": _field("week"),
    "hour": _field("hour"),
    "minute": _field("minute"),
    "second": _field("second"),
    "seconds": _seconds,
}
