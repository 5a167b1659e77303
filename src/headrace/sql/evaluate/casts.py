"""CAST among the types of columns, as Spark does it in ANSI mode: what cannot be converted is an error, never null."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import polars as pl
import pyarrow as pa

from headrace.sql import types as t
from headrace.sql.evaluate import decimals
from headrace.sql.evaluate.scope import EvalScope, Value, by_row, divide, dtype_of, in_arrow, pick, to_array, to_value
from headrace.sql.evaluate.text_values import double_text, float_text, parse_date, parse_timestamp
from headrace.sql.nodes import ExprTree
from headrace.sql.types import SqlType

Convert = Callable[[ExprTree, EvalScope, pl.Series, SqlType, SqlType], pl.Series]

_BLANKS = "".join(map(chr, range(33))) + "\x7f"
_WHOLE = r"^[+-]?[0-9]+$"
_REAL = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?$"
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}
_NOT_FINITE |= {"+inf": math.inf, "+infinity": math.inf}
_TRUE = ["t", "true", "y", "yes", "1"]
_FALSE = ["f", "false", "n", "no", "0"]
_DAY_US = 86_400_000_000
_SECOND_US = 1_000_000


def cast(node: ExprTree, scope: EvalScope) -> Value:
    value, source, target = scope.value(node.args[0]), node.args[0].type, node.type
    return convert(node, scope, value, source, target)


def convert(node: ExprTree, scope: EvalScope, value: Value, source: SqlType, target: SqlType) -> Value:
    if source == target:
        return value
    if source == t.NULL:
        return _nulls(len(value), target)
    if source.name == target.name == "ARRAY":
        return _convert_array(node, scope, value, source, target)
    return _CONVERT[_family(source), _family(target)](node, scope, value, source, target)


def _nulls(rows: int, target: SqlType) -> Value:
    if in_arrow(target):
        return pa.nulls(rows, t.to_arrow(target))
    return pl.Series("", [None] * rows, dtype=dtype_of(target))


def _convert_array(node: ExprTree, scope: EvalScope, value: pa.ListArray, source: SqlType, target: SqlType) -> pa.Array:
    inner = to_value(value.flatten(), source.parts[0])
    # The elements are not the rows of the batch, so no row can be named and none is left out.
    everywhere = EvalScope(scope.batch, scope.text, scope.evaluate)
    items = to_array(convert(node, everywhere, inner, source.parts[0], target.parts[0]), target.parts[0])
    offsets = value.offsets.to_numpy() - value.offsets[0].as_py()
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, mask=value.is_null())


def _family(kind: SqlType) -> str:
    if t.is_integral(kind) or t.is_interval(kind):
        return "integer"
    return "float" if t.is_fractional(kind) else kind.name.lower()


def _invalid(node: ExprTree, scope: EvalScope, value: pl.Series, result: pl.Series, target: SqlType) -> pl.Series:
    """Nulls that were none before are values that could not be converted."""
    if result.null_count() == value.null_count():
        return result
    return scope.settle(node, result, result.is_null() & value.is_not_null(), f"a value that is no {target}")


# --- numbers ----------------------------------------------------------------------------------------------------------


def _plain(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    """Where polars says null for what does not fit, and means the same otherwise."""
    return _invalid(node, scope, value, value.cast(dtype_of(target), strict=False), target)


def _float_integer(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    result = value.cast(dtype_of(target), strict=False)
    if target == t.BIGINT:
        # 2**63 is the nearest double to the largest long, and Java takes it for that.
        result = pick((value == 2.0**63).fill_null(False), pl.Series("", [2**63 - 1]), result)
    return _invalid(node, scope, value, result, target)


def _integer_decimal(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    return decimals.rescale(node, scope, value.cast(pl.Int128), t.decimal(20, 0), target)


def _boolean_decimal(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    return decimals.rescale(node, scope, value.cast(pl.Int8).cast(pl.Int128), t.decimal(1, 0), target)


def _decimal_decimal(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    return decimals.rescale(node, scope, value, source, target)


def _decimal_integer(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    whole = value.abs() // decimals.whole_series(10**source.scale)
    minus = (value < decimals.whole_series(0)).fill_null(False)
    whole = pick(minus, whole * decimals.whole_series(-1), whole)
    return _invalid(node, scope, value, whole.cast(dtype_of(target), strict=False), target)


def _decimal_float(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    # Below 2**53 both numbers are exact as doubles, so one division rounds once; above, the long way is the exact one.
    if source.scale <= 22 and not (value.abs() >= decimals.whole_series(2**53)).any():
        return divide(value.cast(pl.Float64), pl.Series("", [10.0**source.scale])).cast(dtype_of(target))
    unit = 10**source.scale
    return by_row(lambda whole: whole / unit, t.DOUBLE, value).cast(dtype_of(target))


_WIDE = Context(prec=400, rounding=ROUND_HALF_UP)


def _unscaled(exact: Decimal, target: SqlType) -> int | None:
    """The unscaled value of a decimal in this type; None where it has too many digits."""
    whole = int(exact.scaleb(target.scale, _WIDE).to_integral_value(ROUND_HALF_UP, _WIDE))
    return whole if abs(whole) < 10**target.precision else None


def _float_decimal(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    # NaN and the infinities become null even in ANSI mode.
    finite = pick(value.is_finite().fill_null(False), value, _nulls(1, source))
    result = by_row(lambda number: _unscaled(Decimal(repr(number)), target), target, finite)
    return _invalid(node, scope, finite, result, target)


def _is_not_zero(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    return value != pl.Series("", [0], dtype=value.dtype)


# --- from text --------------------------------------------------------------------------------------------------------


def _trimmed(value: pl.Series) -> pl.Series:
    return value.str.strip_chars(_BLANKS)


def _text_integer(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    text = _trimmed(value)
    digits = pick(text.str.contains(_WHOLE).fill_null(False), text.str.strip_prefix("+"), _nulls(1, t.STRING))
    return _invalid(node, scope, value, digits.cast(dtype_of(target), strict=False), target)


def _text_float(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    text = _trimmed(value)
    plain = pick(text.str.contains(_REAL).fill_null(False), text.str.strip_chars_end("dDfF"), _nulls(1, t.STRING))
    number = plain.cast(pl.Float64, strict=False)
    if number.null_count() != value.null_count():
        special = by_row(lambda word: _NOT_FINITE.get(word.lower()), t.DOUBLE, text)
        number = pick(number.is_null(), special, number)
    return _invalid(node, scope, value, number.cast(dtype_of(target)), target)


def _text_decimal(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    def one(text: str) -> int | None:
        try:
            exact = Decimal(text.strip(_BLANKS))
        except ArithmeticError:
            return None
        return _unscaled(exact, target) if exact.is_finite() and abs(exact.adjusted()) < 300 else None

    return _invalid(node, scope, value, by_row(one, target, value), target)


def _text_boolean(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    words = dict.fromkeys(_TRUE, True) | dict.fromkeys(_FALSE, False)
    result = by_row(lambda text: words.get(text.strip(_BLANKS).lower()), t.BOOLEAN, value)
    return _invalid(node, scope, value, result, target)


def _text_date(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    days = by_row(lambda text: parse_date(text.strip(_BLANKS)), t.INT, value)
    return _invalid(node, scope, value, days.cast(pl.Date), target)


def _text_timestamp(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    micros = by_row(lambda text: parse_timestamp(text.strip(_BLANKS)), t.BIGINT, value)
    return _invalid(node, scope, value, micros.cast(dtype_of(t.TIMESTAMP)), target)


# --- to text ----------------------------------------------------------------------------------------------------------


def _to_text(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    return value.cast(pl.String)


def _float_text(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    return by_row(float_text if source == t.FLOAT else double_text, t.STRING, value)


def _decimal_text(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    return by_row(lambda whole: f"{Decimal(whole).scaleb(-source.scale, _WIDE):f}", t.STRING, value)


def _timestamp_text(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    # Without the zeros at the end of the fraction, and without its point when nothing is left.
    return value.dt.strftime("%Y-%m-%d %H:%M:%S%.6f").str.replace(r"\.?0{1,6}$", "")


def _binary_text(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    def one(raw: bytes) -> str | None:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return None

    return _invalid(node, scope, value, by_row(one, t.STRING, value), target)


# --- times ------------------------------------------------------------------------------------------------------------


def _timestamp_integer(
    node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType
) -> pl.Series:
    return value.cast(pl.Int64) // _SECOND_US


def _timestamp_float(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    return divide(value.cast(pl.Int64).cast(pl.Float64), pl.Series("", [float(_SECOND_US)]))


def _integer_timestamp(
    node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType
) -> pl.Series:
    micros = value.cast(pl.Int128) * decimals.whole_series(_SECOND_US)
    # Java's conversion of seconds stops at the ends of a long instead of failing.
    return micros.clip(-(2**63), 2**63 - 1).cast(pl.Int64).cast(dtype_of(t.TIMESTAMP))


def _float_timestamp(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    micros = (value * float(_SECOND_US)).cast(pl.Int64, strict=False)
    return _invalid(node, scope, value, micros.cast(dtype_of(t.TIMESTAMP)), target)


def _date_timestamp(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    return (value.cast(pl.Int64) * _DAY_US).cast(dtype_of(t.TIMESTAMP))


def _timestamp_date(node: ExprTree, scope: EvalScope, value: pl.Series, source: SqlType, target: SqlType) -> pl.Series:
    return (value.cast(pl.Int64) // _DAY_US).cast(pl.Int32).cast(pl.Date)


_CONVERT: dict[tuple[str, str], Convert] = {
    ("integer", "integer"): _plain,
    ("integer", "float"): _plain,
    ("float", "integer"): _float_integer,
    ("float", "float"): _plain,
    ("boolean", "integer"): _plain,
    ("boolean", "float"): _plain,
    ("boolean", "decimal"): _boolean_decimal,
    ("integer", "boolean"): _is_not_zero,
    ("float", "boolean"): _is_not_zero,
    ("decimal", "boolean"): _is_not_zero,
    ("integer", "decimal"): _integer_decimal,
    ("decimal", "decimal"): _decimal_decimal,
    ("decimal", "integer"): _decimal_integer,
    ("decimal", "float"): _decimal_float,
    ("float", "decimal"): _float_decimal,
    ("string", "integer"): _text_integer,
    ("string", "float"): _text_float,
    ("string", "decimal"): _text_decimal,
    ("string", "boolean"): _text_boolean,
    ("string", "date"): _text_date,
    ("string", "timestamp"): _text_timestamp,
    ("string", "binary"): _plain,
    ("integer", "string"): _to_text,
    ("boolean", "string"): _to_text,
    ("date", "string"): _to_text,
    ("float", "string"): _float_text,
    ("decimal", "string"): _decimal_text,
    ("timestamp", "string"): _timestamp_text,
    ("binary", "string"): _binary_text,
    ("timestamp", "integer"): _timestamp_integer,
    ("timestamp", "float"): _timestamp_float,
    ("integer", "timestamp"): _integer_timestamp,
    ("float", "timestamp"): _float_timestamp,
    ("date", "timestamp"): _date_timestamp,
    ("timestamp", "date"): _timestamp_date,
}

EVALUATORS: dict[str, Callable[[ExprTree, EvalScope], Any]] = {"cast": cast}
