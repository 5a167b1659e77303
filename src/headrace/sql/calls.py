"""How a function takes its arguments: how many, as which types, and what Spark casts without being told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.sql import types as t
from headrace.sql.nodes import ExprTree, Unsupported, WrongCount, WrongType, cast_or_fold, cast_to
from headrace.sql.types import SqlType

Rule = Callable[[list[ExprTree], str], ExprTree]


def implicit(node: ExprTree, kind: SqlType, text: str) -> ExprTree:
    """An argument as the type its function wants, where Spark would cast it without being told."""
    source = node.type
    allowed = source in (kind, t.NULL) or source == t.STRING
    if kind == t.STRING:
        allowed = allowed or t.is_numeric(source) or source in (t.BOOLEAN, t.DATE, t.TIMESTAMP)
    elif t.is_integral(kind):
        allowed = allowed or t.is_integral(source)
    elif kind == t.DOUBLE:
        allowed = allowed or t.is_numeric(source)
    elif kind in (t.DATE, t.TIMESTAMP):
        allowed = allowed or source in (t.DATE, t.TIMESTAMP)
    if not allowed:
        times, plain = (t.DATE, t.TIMESTAMP), t.is_numeric(source) or source == t.BOOLEAN
        if (kind in times and plain) or (t.is_numeric(kind) and source in (*times, t.BOOLEAN)):
            raise WrongType(text, source, kind)
        raise Unsupported(f"{text} is given {source} where it needs {kind}")
    return cast_to(node, kind)


def exactly(node: ExprTree, kinds: tuple[SqlType, ...], text: str) -> ExprTree:
    """An argument that Spark does not cast on its own."""
    if node.type not in (*kinds, t.NULL):
        raise Unsupported(f"{text} is given {node.type} where it needs {kinds[-1]}")
    return cast_to(node, kinds[-1])


def count_args(args: list[ExprTree], low: int, high: int | None, text: str) -> None:
    if len(args) < low or (high is not None and len(args) > high):
        wanted = str(low) if high == low else f"{low} to {high}" if high is not None else f"{low} or more"
        raise WrongCount(text, len(args), wanted)


def fixed(op: str, result: SqlType, *kinds: SqlType, optional: int = 0) -> Rule:
    """A function whose arguments and result have one type each; the last `optional` ones may be left out."""

    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, len(kinds) - optional, len(kinds), text)
        taken = tuple(implicit(arg, kind, text) for arg, kind in zip(args, kinds))
        return ExprTree(op, result, taken, None, text)

    return rule


def constant(node: ExprTree, text: str, what: str) -> Any:
    if node.op != "literal" or node.value is None:
        raise Unsupported(f"{text} needs a literal for the {what}")
    return node.value


def as_type(kind: SqlType) -> Rule:
    """``int(x)`` and its like are casts."""

    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, 1, 1, text)
        return cast_or_fold(args[0], kind, False, text)

    return rule


def all_of(rule: Rule, *names: str) -> dict[str, Rule]:
    """One function under several names."""
    return dict.fromkeys(names, rule)
