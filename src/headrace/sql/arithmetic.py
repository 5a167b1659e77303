"""The types of ``+ - * / % div`` by Spark's rules: numbers, decimals, text that holds numbers, dates and intervals."""

from __future__ import annotations

from headrace.sql import types as t
from headrace.sql.nodes import ExprTree, Unsupported, cast_to
from headrace.sql.types import SqlType


def arithmetic(op: str, one: ExprTree, two: ExprTree, text: str, safe: bool = False) -> ExprTree:
    """`one op two`; with `safe` an error in this operation gives NULL (``try_divide`` and its like)."""
    node = _with_times(op, one, two, text)
    if node is None:
        node = _with_numbers(op, one, two, text)
    return node._replace(value="try", text=text) if safe else node._replace(text=text)


def negate(node: ExprTree, text: str) -> ExprTree:
    node = cast_to(node, t.DOUBLE) if node.type == t.STRING else node
    if not (t.is_numeric(node.type) or t.is_interval(node.type)):
        raise Unsupported(f"{text} would negate {node.type}")
    return ExprTree("neg", node.type, (node,), None, text)


def _with_numbers(op: str, one: ExprTree, two: ExprTree, text: str) -> ExprTree:
    one, two = _number(one, two, text), _number(two, one, text)
    if op == "intdiv":
        if not (t.is_integral(one.type) and t.is_integral(two.type)):
            raise Unsupported(f"{text} divides {one.type} by {two.type}; div is for integers")
        return ExprTree(op, t.BIGINT, (cast_to(one, t.BIGINT), cast_to(two, t.BIGINT)))
    exact = t.is_decimal(one.type) or t.is_decimal(two.type)
    if exact and not (t.is_fractional(one.type) or t.is_fractional(two.type)):
        left, right = _as_decimal(one), _as_decimal(two)
        return ExprTree(op, t.decimal_result(op, left.type, right.type), (left, right))
    kind = t.DOUBLE if op == "div" else t.common_type(one.type, two.type)
    assert kind is not None
    return ExprTree(op, kind, (cast_to(one, kind), cast_to(two, kind)))


def _number(node: ExprTree, other: ExprTree, text: str) -> ExprTree:
    """Text next to a number is read as a number of the other's family; NULL takes the other's type."""
    if node.type == t.NULL and t.is_numeric(other.type):
        return cast_to(node, other.type)
    if node.type == t.STRING and t.is_numeric(other.type):
        return cast_to(node, t.BIGINT if t.is_integral(other.type) else t.DOUBLE)
    if not t.is_numeric(node.type):
        raise Unsupported(f"{text} calculates with {node.type} and {other.type}")
    return node


def _as_decimal(node: ExprTree) -> ExprTree:
    """An integer literal needs only its own digits; any other integer those of its type."""
    if node.op == "literal" and isinstance(node.value, int) and t.is_integral(node.type):
        return cast_to(node, t.decimal(len(str(abs(node.value))), 0))
    return cast_to(node, t.as_decimal(node.type))


# --- dates, timestamps, intervals -------------------------------------------------------------------------------------

_TIMES = (t.DATE, t.TIMESTAMP)
_SHORT_INTEGERS = (t.TINYINT, t.SMALLINT, t.INT)


def _with_times(op: str, one: ExprTree, two: ExprTree, text: str) -> ExprTree | None:
    if op == "add" and one.type not in _TIMES and two.type in _TIMES:
        one, two = two, one
    kinds = (one.type, two.type)
    if op in ("add", "sub") and one.type in _TIMES:
        return _move(op, one, two, text)
    if op in ("add", "sub") and all(map(t.is_interval, kinds)):
        kind = kinds[0] if kinds[0] == kinds[1] else t.INTERVAL
        return ExprTree(op, kind, (cast_to(one, kind), cast_to(two, kind)))
    if op == "mul" and any(map(t.is_interval, kinds)):
        span, count = (one, two) if t.is_interval(one.type) else (two, one)
        if t.is_integral(count.type):
            return ExprTree("mul", t.INTERVAL, (cast_to(span, t.INTERVAL), cast_to(count, t.BIGINT)))
    return None


def _move(op: str, at: ExprTree, by: ExprTree, text: str) -> ExprTree | None:
    """A date or timestamp moved by something, or the distance of two."""
    if op == "sub" and by.type in _TIMES:
        if at.type == by.type == t.DATE:
            return ExprTree("days_between", t.DAYS, (at, by))
        return ExprTree("time_between", t.INTERVAL, (cast_to(at, t.TIMESTAMP), cast_to(by, t.TIMESTAMP)))
    if by.type == t.MONTHS:
        months = by._replace(type=t.INT, value=by.value if op == "add" else -by.value)
        return ExprTree("add_months", at.type, (at, months))
    if op == "sub" and (t.is_interval(by.type) or by.type in _SHORT_INTEGERS):
        by = negate(by, text)
    if at.type == t.DATE and by.type in _SHORT_INTEGERS:
        return ExprTree("date_add", t.DATE, (at, cast_to(by, t.INT)))
    if at.type == t.DATE and by.type == t.DAYS:
        return ExprTree("date_add", t.DATE, (at, ExprTree("whole_days", t.INT, (by,))))
    if t.is_interval(by.type):
        return ExprTree("time_add", t.TIMESTAMP, (cast_to(at, t.TIMESTAMP), cast_to(by, t.INTERVAL)))
    return None


def integer_like(kind: SqlType) -> bool:
    """Whether values of this type are kept as integers: the integral types and intervals in microseconds."""
    return t.is_integral(kind) or t.is_interval(kind)
