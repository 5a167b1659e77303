"""Literals, columns, comparisons, three-valued logic and choices."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa

from headrace.sql import types as t
from headrace.sql.evaluate.scope import EvalScope, Value, both, dtype_of, field_array, is_null, pick, to_value
from headrace.sql.nodes import ExprTree

# Above this many literals one set lookup is cheaper than that many comparisons.
_LONG_LIST = 12


def _literal(node: ExprTree, scope: EvalScope) -> pl.Series:
    return pl.Series("", [node.value], dtype=dtype_of(node.type))


def _column(node: ExprTree, scope: EvalScope) -> Value:
    return scope.column(node.value, node.type)


def _compare(compare: Callable[[Any, Any], Any]) -> Callable[[ExprTree, EvalScope], pl.Series]:
    def evaluate(node: ExprTree, scope: EvalScope) -> pl.Series:
        one, two = both(node, scope)
        return compare(one, two)  # type: ignore[no-any-return]

    return evaluate


def _eq_null_safe(node: ExprTree, scope: EvalScope) -> pl.Series:
    one, two = scope.value(node.args[0]), scope.value(node.args[1])
    if node.args[0].type == t.NULL:
        return pl.Series("", [True])
    same: pl.Series = one.eq_missing(two)
    return same


def _and(node: ExprTree, scope: EvalScope) -> pl.Series:
    left = scope.value(node.args[0])
    # Null does not end it: null AND false is false, so the right side is looked at unless the left is false.
    return left & scope.within(left.fill_null(True)).value(node.args[1])  # type: ignore[no-any-return]


def _or(node: ExprTree, scope: EvalScope) -> pl.Series:
    left = scope.value(node.args[0])
    return left | scope.within(~left.fill_null(False)).value(node.args[1])  # type: ignore[no-any-return]


def _in(node: ExprTree, scope: EvalScope) -> pl.Series:
    what, *listed = node.args
    subject = scope.value(what)
    long = len(listed) > _LONG_LIST and not t.is_fractional(what.type)
    if long and all(item.op == "literal" and item.value is not None for item in listed):
        values = pl.Series("", [item.value for item in listed], dtype=dtype_of(what.type))
        among: pl.Series = subject.is_in(values.implode())
        return among
    found: pl.Series = subject == scope.value(listed[0])
    for item in listed[1:]:
        found = found | (subject == scope.within(~found.fill_null(False)).value(item))
    return found


def _case(node: ExprTree, scope: EvalScope) -> Value:
    branches = []
    for condition, result in zip(node.args[:-1:2], node.args[1::2], strict=True):
        holds = scope.value(condition).fill_null(False)
        branches.append((holds, scope.within(holds).value(result)))
        scope = scope.within(~holds)
    chosen = scope.value(node.args[-1])
    for holds, result in reversed(branches):
        chosen = pick(holds, result, chosen)
    return chosen


def _coalesce(node: ExprTree, scope: EvalScope) -> Value:
    found = scope.value(node.args[0])
    for arg in node.args[1:]:
        missing = is_null(found)
        if not missing.any():
            break
        found = pick(missing, scope.within(missing).value(arg), found)
    return found


def _extreme(better: Callable[[Any, Any], Any]) -> Callable[[ExprTree, EvalScope], pl.Series]:
    def evaluate(node: ExprTree, scope: EvalScope) -> pl.Series:
        best = scope.value(node.args[0])
        for arg in node.args[1:]:
            other = scope.value(arg)
            best = pick((best.is_null() | better(other, best)).fill_null(False), other, best)
        return best  # type: ignore[no-any-return]

    return evaluate


def _is_null(node: ExprTree, scope: EvalScope) -> pl.Series:
    return is_null(scope.value(node.args[0]))


def _field(node: ExprTree, scope: EvalScope) -> Value:
    base = node.args[0]
    if base.op == "column":
        return to_value(field_array(scope.batch, base.value, node.value), node.type)
    struct: pa.StructArray = scope.value(base)
    # Unlike field(), flatten() lets a null struct have null fields.
    return to_value(struct.flatten()[node.value], node.type)


EVALUATORS: dict[str, Callable[[ExprTree, EvalScope], Value]] = {
    "literal": _literal,
    "column": _column,
    "field": _field,
    "eq": _compare(operator.eq),
    "ne": _compare(operator.ne),
    "lt": _compare(operator.lt),
    "le": _compare(operator.le),
    "gt": _compare(operator.gt),
    "ge": _compare(operator.ge),
    "eq_null_safe": _eq_null_safe,
    "and": _and,
    "or": _or,
    "not": lambda node, scope: ~scope.value(node.args[0]),
    "in": _in,
    "is_null": _is_null,
    "case": _case,
    "coalesce": _coalesce,
    "greatest": _extreme(operator.gt),
    "least": _extreme(operator.lt),
}
