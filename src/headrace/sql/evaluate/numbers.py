"""Arithmetic and mathematics on integers and doubles, with ANSI errors; decimals are in `decimals`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.sql import types as t
from headrace.sql.arithmetic import integer_like
from headrace.sql.evaluate import decimals
from headrace.sql.evaluate.scope import EvalScope, Value, both, divide, dtype_of, pick, spread
from headrace.sql.nodes import ExprTree
from headrace.sql.types import SqlType

_OVERFLOW = "integer overflow"
_BY_ZERO = "division by zero"


def _wide(series: pl.Series, kind: SqlType) -> pl.Series:
    """With room for one addition or multiplication."""
    return series.cast(pl.Int64 if t.BITS.get(kind, 64) < 64 else pl.Int128)


def _narrow(node: ExprTree, scope: EvalScope, wide: pl.Series) -> pl.Series:
    result = wide.cast(dtype_of(node.type), strict=False)
    if result.null_count() == wide.null_count():
        return result
    return scope.settle(node, result, result.is_null() & wide.is_not_null(), _OVERFLOW)


def _arithmetic(name: str, apply: Callable[[Any, Any], Any]) -> Callable[[ExprTree, EvalScope], pl.Series]:
    def evaluate(node: ExprTree, scope: EvalScope) -> pl.Series:
        if t.is_decimal(node.type):
            return decimals.arithmetic(name, node, scope)
        one, two = both(node, scope)
        if integer_like(node.type):
            return _narrow(node, scope, apply(_wide(one, node.type), _wide(two, node.type)))
        return apply(one, two)  # type: ignore[no-any-return]

    return evaluate


def _div(node: ExprTree, scope: EvalScope) -> pl.Series:
    if t.is_decimal(node.type):
        return decimals.arithmetic("div", node, scope)
    one, two = both(node, scope, right_first=True)
    return scope.settle(node, divide(one, two), (two == 0) & one.is_not_null(), _BY_ZERO)


def _truncated(one: pl.Series, two: pl.Series) -> pl.Series:
    """The remainder with the sign of the dividend, as Java has it; null for a divisor of zero."""
    floored = one % two
    wrong = (floored != 0) & ((floored < 0) != (one < 0))
    return pick(wrong.fill_null(False), floored - two, floored)  # type: ignore[no-any-return]


def _fmod(one: pl.Series, two: pl.Series) -> pl.Series:
    with np.errstate(invalid="ignore"):
        values = np.fmod(one.to_numpy(), two.to_numpy())
    valid = one.is_not_null() & two.is_not_null()
    return pick(valid, pl.Series("", values), pl.Series("", [None], dtype=one.dtype))  # type: ignore[no-any-return]


def _mod(node: ExprTree, scope: EvalScope) -> pl.Series:
    if t.is_decimal(node.type):
        return decimals.arithmetic("mod", node, scope)
    one, two = both(node, scope, right_first=True)
    rest = _truncated(one, two) if t.is_integral(node.type) else _fmod(one, two)
    return scope.settle(node, rest, (two == 0) & one.is_not_null(), _BY_ZERO)


def _pmod(node: ExprTree, scope: EvalScope) -> pl.Series:
    one, two = both(node, scope, right_first=True)
    rest = _truncated(one, two)
    above = _truncated((_wide(rest, node.type) + _wide(two, node.type)), _wide(two, node.type)).cast(rest.dtype)
    result = pick((rest < 0).fill_null(False), above, rest)
    return scope.settle(node, result, (two == 0) & one.is_not_null(), _BY_ZERO)


def _intdiv(node: ExprTree, scope: EvalScope) -> pl.Series:
    one, two = both(node, scope, right_first=True)
    zero = (two == 0) & one.is_not_null()
    if zero.any():
        scope.settle(node, one, zero, _BY_ZERO)
    wide, by = one.cast(pl.Int128), two.cast(pl.Int128)
    floored = wide // by
    below = (floored * by != wide) & ((wide < 0) != (by < 0))
    return _narrow(node, scope, floored + below.cast(pl.Int128))


def _neg(node: ExprTree, scope: EvalScope) -> pl.Series:
    value = scope.value(node.args[0])
    if t.is_fractional(node.type):
        # Zero minus x would make 0.0 of 0.0, and Java makes -0.0.
        return value * -1.0  # type: ignore[no-any-return]
    if t.is_decimal(node.type):
        return value * pl.Series("", [-1], dtype=pl.Int128)  # type: ignore[no-any-return]
    wide = _wide(value, node.type)
    return _narrow(node, scope, wide * pl.Series("", [-1], dtype=wide.dtype))


def _abs(node: ExprTree, scope: EvalScope) -> pl.Series:
    value = scope.value(node.args[0])
    if not t.is_integral(node.type):
        return value.abs()  # type: ignore[no-any-return]
    return _narrow(node, scope, _wide(value, node.type).abs())


def _to_whole(name: str) -> Callable[[ExprTree, EvalScope], pl.Series]:
    def evaluate(node: ExprTree, scope: EvalScope) -> pl.Series:
        value = scope.value(node.args[0])
        if t.is_decimal(node.type):
            return decimals.to_whole(value, node.args[0].type.scale, up=name == "ceil")
        whole = value.ceil() if name == "ceil" else value.floor()
        # Java takes NaN to zero on its way to a long.
        whole = pick(whole.is_nan().fill_null(False), pl.Series("", [0.0]), whole)
        result = whole.cast(pl.Int64, strict=False)
        return scope.settle(node, result, result.is_null() & whole.is_not_null(), _OVERFLOW)

    return evaluate


def _round(node: ExprTree, scope: EvalScope) -> pl.Series:
    value, places = scope.value(node.args[0]), node.value
    source = node.args[0].type
    if t.is_decimal(source):
        return decimals.rounded(node, scope, value, source, places)
    if t.is_integral(source):
        if places >= 0:
            return value  # type: ignore[no-any-return]
        return _narrow(node, scope, decimals.shift_down(value.cast(pl.Int128), -places, back=True))
    if places == 0:
        rounded = value.round(0, mode="half_away_from_zero")
    else:
        rounded = pl.Series("", round_half_up(value.to_numpy(), places), nan_to_null=False)
    # BigDecimal knows no negative zero.
    rounded = pick((rounded == 0.0).fill_null(False), pl.Series("", [0.0]), rounded)
    return pick(value.is_not_null(), rounded, pl.Series("", [None], dtype=pl.Float64))  # type: ignore[no-any-return]


def round_half_up(values: npt.NDArray[np.float64], places: int) -> npt.NDArray[np.float64]:
    """Round as Java's BigDecimal does: by the shortest decimal text of the number, half away from zero.

    Only numbers close to a half can differ from plain scaling; those few take the exact way.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        scale = 10.0 ** abs(places)
        scaled = values * scale if places > 0 else values / scale
        whole = np.trunc(scaled + np.copysign(0.5, scaled))
        result = whole / scale if places > 0 else whole * scale
        doubt = 4 * np.spacing(np.abs(scaled))
        unsure = ~(np.abs(np.abs(scaled - np.trunc(scaled)) - 0.5) > doubt) | ~(np.abs(scaled) < 2.0**52)
    if abs(places) > 15:
        unsure[:] = True
    for at in np.flatnonzero(unsure & np.isfinite(values)):
        result[at] = _round_exact(float(values[at]), places)
    return np.where(np.isfinite(values), result, values)


_EXACT = Context(prec=700, rounding=ROUND_HALF_UP)


def _round_exact(value: float, places: int) -> float:
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), context=_EXACT))


def _function(apply: Callable[[pl.Series], Any]) -> Callable[[ExprTree, EvalScope], pl.Series]:
    return lambda node, scope: apply(scope.value(node.args[0]))


def _positive(value: pl.Series) -> pl.Series:
    """Null where a logarithm has no value; NaN stays NaN."""
    return pick((value <= 0).fill_null(False), pl.Series("", [None], dtype=pl.Float64), value)  # type: ignore[no-any-return]


def _by_numpy(apply: Callable[[Any], Any], value: pl.Series) -> pl.Series:
    """For functions that polars computes from others, less exactly: its log10(1000) is not 3."""
    result = pl.Series("", apply(value.to_numpy()), nan_to_null=False)
    return pick(value.is_not_null(), result, pl.Series("", [None], dtype=pl.Float64))  # type: ignore[no-any-return]


def _log(node: ExprTree, scope: EvalScope) -> pl.Series:
    base, value = both(node, scope)
    return divide(_positive(value).log(), _positive(base).log())


def _pow(node: ExprTree, scope: EvalScope) -> pl.Series:
    base, exponent = both(node, scope)
    # In full length: a single exponent of 0.5 is taken for a square root, which keeps the sign of -0.0.
    rows = max(len(base), len(exponent))
    base, exponent = spread(base, rows), spread(exponent, rows)
    with np.errstate(all="ignore"):
        result = pl.Series("", np.power(base.to_numpy(), exponent.to_numpy()))
    result = pick(base.is_not_null() & exponent.is_not_null(), result, pl.Series("", [None], dtype=pl.Float64))
    # C says 1 ** NaN is 1 and (-1) ** inf is 1; Java says NaN for both.
    odd = exponent.is_nan() | (exponent.is_infinite() & (base.abs() == 1))
    return pick(odd.fill_null(False), pl.Series("", [float("nan")]), result)  # type: ignore[no-any-return]


def _bits(apply: Callable[[Any, Any], Any]) -> Callable[[ExprTree, EvalScope], pl.Series]:
    return lambda node, scope: apply(*both(node, scope))


EVALUATORS: dict[str, Callable[[ExprTree, EvalScope], Value]] = {
    "add": _arithmetic("add", operator.add),
    "sub": _arithmetic("sub", operator.sub),
    "mul": _arithmetic("mul", operator.mul),
    "div": _div,
    "mod": _mod,
    "pmod": _pmod,
    "intdiv": _intdiv,
    "neg": _neg,
    "abs": _abs,
    "ceil": _to_whole("ceil"),
    "floor": _to_whole("floor"),
    "round": _round,
    "sqrt": _function(pl.Series.sqrt),
    "exp": _function(pl.Series.exp),
    "ln": _function(lambda value: _positive(value).log()),
    "log10": _function(lambda value: _by_numpy(np.log10, _positive(value))),
    "log2": _function(lambda value: _by_numpy(np.log2, _positive(value))),
    "log": _log,
    "pow": _pow,
    "sign": _function(pl.Series.sign),
    "isnan": _function(lambda value: value.is_nan().fill_null(False)),
    "bit_and": _bits(operator.and_),
    "bit_or": _bits(operator.or_),
    "bit_xor": _bits(operator.xor),
    "bit_not": _function(operator.invert),
}
