"""The same meaning for one row: a bound expression as a Python function of its columns' values.

For whoever has to ask about single rows in turn, where a batch of one row would cost a hundred times as much. It knows
comparisons, logic and arithmetic over numbers, text, times, spans and booleans; anything else it leaves to the columns
(`headrace.sql.evaluate.expressions`), with which one property test holds it together.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from headrace.errors import ExpressionError
from headrace.sql import types as t
from headrace.sql.nodes import ExprTree
from headrace.sql.types import SqlType

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
Read = Callable[[str], Any]
"""The value of a column, by name."""
Scalar = Callable[[Read], Any]

_PLAIN: Final = (t.BOOLEAN, *t.INTEGRALS, t.DOUBLE, t.STRING, t.TIMESTAMP, t.INTERVAL, t.DAYS, t.NULL)
"""Types whose values Python compares as SQL does."""
_COMPARISONS: Final = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_ARITHMETIC: Final = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


def compile_scalar(node: ExprTree) -> Scalar | None:
    """The expression as a function; None where only columns can evaluate it."""
    if node.type not in _PLAIN:
        return None
    if node.op == "column":
        name = node.value
        if node.type == t.TIMESTAMP or t.is_interval(node.type):
            return lambda read: _micros(read(name))
        return lambda read: read(name)
    if node.op == "literal":
        value = node.value
        return None if node.type == t.TIMESTAMP else lambda read: value
    made = [compile_scalar(arg) for arg in node.args]
    args = [each for each in made if each is not None]
    if len(args) < len(made):
        return None
    if node.op in _COMPARISONS:
        # Java puts NaN above all numbers, and equal to itself.
        return None if node.args[0].type == t.DOUBLE and _may_be_nan(node) else _compare(_COMPARISONS[node.op], *args)
    if node.op in _ARITHMETIC and (t.is_integral(node.type) or node.type == t.DOUBLE):
        return _calculate(_ARITHMETIC[node.op], node, *args)
    match node.op:
        case "time_add" | "time_between":
            return _move(operator.add if node.op == "time_add" else operator.sub, node, *args)
        case "div" if node.type == t.DOUBLE and node.value != "try":
            return _divide(node, *args)
        case "and":
            return _both(*args)
        case "or":
            return _either(*args)
        case "not":
            return _negate(args[0])
        case "neg" if t.is_interval(node.type):
            return _move(lambda span, nought: nought - span, node, args[0], lambda read: 0)
        case "is_null":
            first = args[0]
            return lambda read: first(read) is None
        case "cast" if node.value is None and _widens(node.args[0].type, node.type):
            return _widen(args[0], node.type)
    return None


def _may_be_nan(node: ExprTree) -> bool:
    """Whether a side is a column of floats: what is calculated of whole numbers is none, and division by 0 an error."""
    if node.op == "column":
        return node.type == t.DOUBLE
    return any(_may_be_nan(arg) for arg in node.args)


def _widens(old: SqlType, new: SqlType) -> bool:
    if t.is_integral(old) and t.is_integral(new):
        return t.BITS[old] <= t.BITS[new]
    if t.is_interval(old):
        return t.is_interval(new)
    return t.is_integral(old) and new == t.DOUBLE


def _widen(arg: Scalar, kind: SqlType) -> Scalar:
    if kind != t.DOUBLE:
        return arg

    def widen(read: Read) -> Any:
        value = arg(read)
        return None if value is None else float(value)

    return widen


def _compare(compare: Callable[[Any, Any], Any], left: Scalar, right: Scalar) -> Scalar:
    def apply(read: Read) -> Any:
        one, two = left(read), right(read)
        return None if one is None or two is None else compare(one, two)

    return apply


def _calculate(calculate: Callable[[Any, Any], Any], node: ExprTree, left: Scalar, right: Scalar) -> Scalar:
    limit = 1 << (t.BITS[node.type] - 1) if t.is_integral(node.type) else 0
    safe = node.value == "try"

    def apply(read: Read) -> Any:
        one, two = left(read), right(read)
        if one is None or two is None:
            return None
        value = calculate(one, two)
        if limit and not -limit <= value < limit:
            if safe:
                return None
            raise _no_value(node, "the result is too large for its type")
        return value

    return apply


def _micros(value: Any) -> Any:
    """Times and spans as microseconds, whatever a Record holds them as."""
    if isinstance(value, datetime):
        return (value - _EPOCH if value.tzinfo is not None else value - _EPOCH.replace(tzinfo=None)) // _MICROSECOND
    return value // _MICROSECOND if isinstance(value, timedelta) else value


def _move(calculate: Callable[[Any, Any], Any], node: ExprTree, left: Scalar, right: Scalar) -> Scalar:
    def apply(read: Read) -> Any:
        one, two = left(read), right(read)
        if one is None or two is None:
            return None
        value = calculate(one, two)
        if not -(1 << 63) <= value < 1 << 63:
            raise _no_value(node, "a time out of range")
        return value

    return apply


def _divide(node: ExprTree, left: Scalar, right: Scalar) -> Scalar:
    def apply(read: Read) -> Any:
        two, one = right(read), left(read)
        if one is None or two is None:
            return None
        if two == 0:
            raise _no_value(node, "division by zero")
        return one / two

    return apply


def _both(left: Scalar, right: Scalar) -> Scalar:
    def apply(read: Read) -> Any:
        one = left(read)
        if one is False:
            return False
        two = right(read)
        return False if two is False else None if one is None or two is None else True

    return apply


def _either(left: Scalar, right: Scalar) -> Scalar:
    def apply(read: Read) -> Any:
        one = left(read)
        if one is True:
            return True
        two = right(read)
        return True if two is True else None if one is None or two is None else False

    return apply


def _negate(arg: Scalar) -> Scalar:
    def apply(read: Read) -> Any:
        value = arg(read)
        return None if value is None else not value

    return apply


def _no_value(node: ExprTree, what: str) -> ExpressionError:
    return ExpressionError(
        f"{what} in {node.text or node.op}",
        expected="rows for which the expression has a value (Spark's ANSI mode)",
        found="a row for which it has none",
        next_move="guard it with CASE WHEN or NULLIF, use try_cast or try_divide, or filter such rows before",
    )
