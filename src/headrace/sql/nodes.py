"""Typed nodes: which operation, on which arguments, giving which type; and the rules that make the basic ones.

Every implicit cast that Spark would insert is an explicit ``cast`` node, so that evaluation never thinks about types.
What the worker cannot do raises `Unsupported` with the reason; nothing is approximated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from headrace.model.amounts import count_of
from headrace.sql import types as t
from headrace.sql.types import SqlType


class Unsupported(Exception):
    """The worker cannot evaluate this; the text says why, as the rest of a sentence."""


class WrongType(Unsupported):
    """An argument has a type that Spark does not take either."""

    def __init__(self, text: str, given: SqlType, expected: SqlType) -> None:
        super().__init__(f"{text} is given {given} where it needs {expected}")
        self.text = text
        self.given = given
        self.expected = expected


class WrongCount(Unsupported):
    """A call has more or fewer arguments than its function takes."""

    def __init__(self, text: str, count: int, wanted: str) -> None:
        super().__init__(f"{text} has {count_of(count, 'argument')} and needs {wanted}")
        self.text = text
        self.count = count
        self.wanted = wanted


class ExprTree(NamedTuple):
    """One operation. `value` is what it needs besides arguments; `text` is its SQL, for messages."""

    op: str
    type: SqlType
    args: tuple[ExprTree, ...] = ()
    value: Any = None
    text: str = ""


def literal(value: Any, kind: SqlType, text: str = "") -> ExprTree:
    return ExprTree("literal", kind, (), value, text)


def cast_to(node: ExprTree, kind: SqlType, safe: bool = False, text: str = "") -> ExprTree:
    """`node` as another type; the node itself where nothing changes."""
    if node.type == kind:
        return node
    if not t.can_cast(node.type, kind):
        raise Unsupported(f"{node.text or 'a value'} is {node.type}, which cannot be cast to {kind}")
    return ExprTree("cast", kind, (node,), "try" if safe else None, text or node.text)


def to_common(nodes: Sequence[ExprTree], what: str) -> list[ExprTree]:
    """All nodes in their least common type."""
    common = t.common_of([node.type for node in nodes])
    if common is None:
        raise Unsupported(f"{what} mixes {' and '.join(dict.fromkeys(str(node.type) for node in nodes))}")
    return [cast_to(node, common) for node in nodes]


def number(text: str) -> ExprTree:
    """A number literal with the type Spark gives it: INT, BIGINT, DECIMAL, or DOUBLE with an exponent."""
    if re.fullmatch(r"-?\d+", text):
        value = int(text)
        for kind in (t.INT, t.BIGINT):
            if -(1 << (t.BITS[kind] - 1)) <= value < 1 << (t.BITS[kind] - 1):
                return literal(value, kind, text)
    if re.search(r"[eE]", text):
        return literal(float(text), t.DOUBLE, text)
    exact = Decimal(text)
    digits, exponent = exact.as_tuple().digits, exact.as_tuple().exponent
    scale = max(-int(exponent), 0)
    precision = max(len(digits) if any(digits) else 1, scale)
    if precision > t.MAX_PRECISION:
        raise Unsupported(f"{text} has more than {t.MAX_PRECISION} digits")
    return literal(int(exact.scaleb(scale)), t.decimal(precision, scale), text)


def cast_or_fold(node: ExprTree, kind: SqlType, safe: bool, text: str) -> ExprTree:
    """A cast; a number literal such as 10L stays a literal, because decimals look at the digits of literals."""
    if node.op == "literal" and isinstance(node.value, int) and t.is_integral(node.type) and t.is_integral(kind):
        half = 1 << (t.BITS[kind] - 1)
        if -half <= node.value < half:
            return literal(node.value, kind, text)
    return cast_to(node, kind, safe, text)


def choose(conditions: list[ExprTree], results: list[ExprTree], default: ExprTree | None, text: str) -> ExprTree:
    """CASE: alternating conditions and results, the default last."""
    chosen = to_common([*results, default or literal(None, t.NULL)], text)
    pairs = [part for pair in zip(conditions, chosen[:-1], strict=True) for part in pair]
    return ExprTree("case", chosen[0].type, (*pairs, chosen[-1]), None, text)


def member(node: ExprTree, name: str) -> ExprTree:
    """``a.b``: the field of a struct, or the value of a map's key."""
    if node.type.name == "MAP":
        return element(node, literal(name, t.STRING), f"{node.text}.{name}")
    if node.type.name != "STRUCT":
        raise Unsupported(f"{node.text} is {node.type} and has no field {name}")
    exact = [i for i, each in enumerate(node.type.names) if each == name]
    same = exact or [i for i, each in enumerate(node.type.names) if each.lower() == name.lower()]
    if len(same) != 1:
        raise Unsupported(f"{node.text} has the fields {', '.join(node.type.names)}, not {name}")
    return ExprTree("field", node.type.parts[same[0]], (node,), same[0], f"{node.text}.{name}")


def element(base: ExprTree, key: ExprTree, text: str) -> ExprTree:
    """``array[index]`` counted from 0, or ``map[key]``."""
    if base.type.name == "ARRAY":
        if not t.is_integral(key.type):
            raise Unsupported(f"{text} needs an integer index")
        return ExprTree("item", base.type.parts[0], (base, cast_to(key, t.BIGINT)), None, text)
    if base.type.name == "MAP":
        kind, value = base.type.parts
        if t.is_nested(kind) or kind == t.OPAQUE:
            raise Unsupported(f"{text} looks up {kind}")
        return ExprTree("map_value", value, (base, cast_to(key, kind)), None, text)
    raise Unsupported(f"{base.text} is {base.type}, and has no elements")
