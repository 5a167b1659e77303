"""Exact decimals, kept as unscaled 128-bit integers beside the precision and scale of their type.

Where a product or quotient can outgrow 128 bits on the way, the rows are computed with Python's integers instead; that
is decided by the types, while nothing has been computed yet. Rounding is half away from zero everywhere, as in Spark.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from headrace.sql import types as t
from headrace.sql.evaluate.scope import EvalScope, both, by_row, pick
from headrace.sql.nodes import ExprTree
from headrace.sql.types import SqlType

_RANGE = "decimal out of range"


def whole_series(value: int) -> pl.Series:
    return pl.Series("", [value], dtype=pl.Int128)


def fits(node: ExprTree, scope: EvalScope, value: pl.Series, kind: SqlType) -> pl.Series:
    """The value, where it has no more digits than its type."""
    limit = 10**kind.precision
    bad = (value >= whole_series(limit)) | (value <= whole_series(-limit))
    return scope.settle(node, value, bad, f"a value that {kind} cannot hold")


def shift_up(value: pl.Series, digits: int) -> pl.Series:
    return value * whole_series(10**digits) if digits else value


def shift_down(value: pl.Series, digits: int, back: bool = False) -> pl.Series:
    """Drop digits and round half away from zero; with `back` zeros take their place."""
    if digits > t.MAX_PRECISION:
        return value * whole_series(0)
    unit: int = 10**digits
    size = value.abs()
    kept = size // whole_series(unit)
    kept = kept + ((size - kept * whole_series(unit)) * whole_series(2) >= whole_series(unit)).cast(pl.Int128)
    kept = kept * whole_series(unit) if back else kept
    return pick((value < whole_series(0)).fill_null(False), kept * whole_series(-1), kept)  # type: ignore[no-any-return]


def rescale(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    """A decimal in another precision and scale."""
    digits = target.scale - source.scale
    if digits <= 0:
        return fits(node, scope, shift_down(value, -digits) if digits else value, target)
    # Scaling up must stay inside of 128 bits, so what cannot fit is sorted out before.
    limit = whole_series(10 ** (target.precision - digits)) if target.precision >= digits else whole_series(1)
    bad = (value >= limit) | (value <= limit * whole_series(-1))
    room = pick(bad.fill_null(False), whole_series(0), value)
    return scope.settle(node, shift_up(room, digits), bad, f"a value that {target} cannot hold")


def arithmetic(op: str, node: ExprTree, scope: EvalScope) -> pl.Series:
    one, two = both(node, scope, right_first=op in ("div", "mod"))
    first, second = node.args[0].type, node.args[1].type
    if op in ("div", "mod"):
        zero = two == whole_series(0)
        zero = zero & one.is_not_null()
        if zero.any():
            cleared = pick(zero.fill_null(False), two.clear(1), two)
            two = scope.settle(node, cleared, zero, "division by zero")
    kind = node.type
    work, digits = _WORK[op](first, second, kind)
    if digits <= t.MAX_PRECISION:
        result = work.native(one, two)
    else:
        result = by_row(_bounded(work.exact), kind, one, two)
        bad = result.is_null() & one.is_not_null() & two.is_not_null()
        if bad.any():
            result = scope.settle(node, result, bad, _RANGE)
    return fits(node, scope, result, kind)


class _Work:
    """One operation on unscaled values, in 128 bits and in Python's integers."""

    def __init__(self, native: Callable[..., pl.Series], exact: Callable[[int, int], int]) -> None:
        self.native = native
        self.exact = exact


def _bounded(exact: Callable[[int, int], int]) -> Callable[[int, int], int | None]:
    """Null instead of a number that 128 bits cannot hold; a decimal that large is out of range anyway."""

    def compute(one: int, two: int) -> int | None:
        result = exact(one, two)
        return result if -(1 << 127) <= result < 1 << 127 else None

    return compute


def _rounded(value: int, digits: int) -> int:
    if digits <= 0:
        return value
    unit: int = 10**digits
    kept, rest = divmod(abs(value), unit)
    kept += int(2 * rest >= unit)
    return kept if value >= 0 else -kept


def _sum_work(sign: int) -> Callable[[SqlType, SqlType, SqlType], tuple[_Work, int]]:
    def make(one: SqlType, two: SqlType, kind: SqlType) -> tuple[_Work, int]:
        scale = max(one.scale, two.scale)
        up, also, down = scale - one.scale, scale - two.scale, scale - kind.scale

        def native(a: pl.Series, b: pl.Series) -> pl.Series:
            total = shift_up(a, up) + shift_up(b, also) * whole_series(sign)
            return shift_down(total, down) if down else total

        def exact(a: int, b: int) -> int:
            return _rounded(a * 10**up + sign * b * 10**also, down)

        return _Work(native, exact), max(one.precision + up, two.precision + also) + 1

    return make


def _product_work(one: SqlType, two: SqlType, kind: SqlType) -> tuple[_Work, int]:
    down = one.scale + two.scale - kind.scale

    def native(a: pl.Series, b: pl.Series) -> pl.Series:
        return shift_down(a * b, down) if down else a * b

    return _Work(native, lambda a, b: _rounded(a * b, down)), one.precision + two.precision


def _quotient_work(one: SqlType, two: SqlType, kind: SqlType) -> tuple[_Work, int]:
    up = kind.scale + two.scale - one.scale
    grown = max(up, 0)

    def native(a: pl.Series, b: pl.Series) -> pl.Series:
        top, bottom = shift_up(a.abs(), grown), shift_up(b.abs(), grown - up)
        kept = top // bottom
        kept = kept + ((top - kept * bottom) * whole_series(2) >= bottom).cast(pl.Int128)
        minus = (a < whole_series(0)) != (b < whole_series(0))
        return pick(minus.fill_null(False), kept * whole_series(-1), kept)  # type: ignore[no-any-return]

    def exact(a: int, b: int) -> int:
        top: int = abs(a) * 10**grown
        bottom: int = abs(b) * 10 ** (grown - up)
        kept, rest = divmod(top, bottom)
        kept += int(2 * rest >= bottom)
        return kept if (a < 0) == (b < 0) else -kept

    return _Work(native, exact), max(one.precision + grown, two.precision + grown - up) + 1


def _rest_work(one: SqlType, two: SqlType, kind: SqlType) -> tuple[_Work, int]:
    scale = max(one.scale, two.scale)
    up, also, down = scale - one.scale, scale - two.scale, scale - kind.scale

    def native(a: pl.Series, b: pl.Series) -> pl.Series:
        top, bottom = shift_up(a, up), shift_up(b, also)
        rest = top.abs() - (top.abs() // bottom.abs()) * bottom.abs()
        signed = pick((top < whole_series(0)).fill_null(False), rest * whole_series(-1), rest)
        return shift_down(signed, down) if down else signed

    def exact(a: int, b: int) -> int:
        top, bottom = a * 10**up, b * 10**also
        rest = abs(top) % abs(bottom)
        return _rounded(rest if top >= 0 else -rest, down)

    return _Work(native, exact), max(one.precision + up, two.precision + also)


_WORK: dict[str, Callable[[SqlType, SqlType, SqlType], tuple[_Work, int]]] = {
    "add": _sum_work(1),
    "sub": _sum_work(-1),
    "mul": _product_work,
    "div": _quotient_work,
    "mod": _rest_work,
}


def to_whole(value: pl.Series, scale: int, *, up: bool) -> pl.Series:
    """The next integer above or below."""
    unit = whole_series(10**scale)
    if not up:
        return value // unit
    return ((value * whole_series(-1)) // unit) * whole_series(-1)


def rounded(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, places: int) -> pl.Series:
    if places >= source.scale:
        return value
    if places >= 0:
        return fits(node, scope, shift_down(value, source.scale - places), node.type)
    whole = shift_down(value, source.scale - places)
    return fits(node, scope, shift_up(whole, -places), node.type)
