"""From a syntax tree and a schema to typed nodes (`nodes`), by the class of each part of the tree.

Here is what SQL's grammar has words and signs for; functions by name are in `functions`, the types of arithmetic
in `arithmetic`. What is not in the documented subset raises `Unsupported`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.sql import types as t
from headrace.sql.arithmetic import arithmetic, negate
from headrace.sql.functions import call
from headrace.sql.functions_text import trim
from headrace.sql.functions_time import extract
from headrace.sql.nodes import (
    ExprTree,
    Unsupported,
    cast_or_fold,
    cast_to,
    choose,
    element,
    literal,
    member,
    number,
    to_common,
)
from headrace.sql.parse import column_path
from headrace.sql.types import SqlType

__all__ = ["ExprTree", "Unsupported", "bind"]


def bind(parsed: Any, schema: pa.Schema) -> ExprTree:
    """The typed form of a checked expression (`expr.check`)."""
    names = {name.lower(): name for name in schema.names} | {name: name for name in schema.names}
    return Binder(schema, names).node(parsed.tree)


_COMPARISONS = {"EQ": "eq", "NEQ": "ne", "GT": "gt", "GTE": "ge", "LT": "lt", "LTE": "le"}
_ARITHMETIC = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Mod": "mod", "IntDiv": "intdiv"}
_BITS = {"BitwiseAnd": "bit_and", "BitwiseOr": "bit_or", "BitwiseXor": "bit_xor"}
_CLOCKS = ("now", "current_timestamp", "current_date", "curdate", "localtimestamp", "rand", "random", "randn", "uuid")
_CAST_NAMES = {
    "BOOLEAN": t.BOOLEAN, "TINYINT": t.TINYINT, "SMALLINT": t.SMALLINT, "INT": t.INT, "BIGINT": t.BIGINT,
    "FLOAT": t.FLOAT, "DOUBLE": t.DOUBLE, "TEXT": t.STRING, "VARCHAR": t.STRING, "BINARY": t.BINARY, "DATE": t.DATE,
    "TIMESTAMPTZ": t.TIMESTAMP, "TIMESTAMP": t.TIMESTAMP,
}  # fmt: skip


class Binder:
    """Turns one tree into nodes, by the class of each of its parts."""

    def __init__(self, schema: pa.Schema, names: dict[str, str]) -> None:
        self.schema = schema
        self.names = names

    def node(self, tree: Any) -> ExprTree:
        kind = type(tree).__name__
        if kind in _COMPARISONS:
            return self.comparison(tree, _COMPARISONS[kind])
        if kind in _ARITHMETIC:
            return arithmetic(_ARITHMETIC[kind], self.node(tree.this), self.node(tree.expression), text_of(tree))
        if kind in _BITS:
            args = to_common([self.node(tree.this), self.node(tree.expression)], text_of(tree))
            if not t.is_integral(args[0].type):
                raise Unsupported(f"{text_of(tree)} needs integers")
            return ExprTree(_BITS[kind], args[0].type, tuple(args))
        rule = _RULES.get(kind)
        if rule is None:
            raise Unsupported(f"{text_of(tree)} is not in the subset of SQL that the worker evaluates")
        return rule(self, tree)

    def nodes(self, trees: Sequence[Any]) -> list[ExprTree]:
        return [self.node(tree) for tree in trees]

    # --- names and literals ---

    def column(self, tree: Any) -> ExprTree:
        root, *path = column_path(tree)
        name = self.names.get(root) or self.names.get(root.lower()) or root
        node = ExprTree("column", t.from_field(self.schema.field(name)), (), name, name)
        for part in path:
            node = member(node, part)
        return node

    def dot(self, tree: Any) -> ExprTree:
        name = getattr(tree.expression, "this", None)
        if not isinstance(name, str):
            raise Unsupported(f"{text_of(tree)} is not in the subset of SQL that the worker evaluates")
        return member(self.node(tree.this), name)

    def number(self, tree: Any) -> ExprTree:
        return literal(tree.this, t.STRING, text_of(tree)) if tree.is_string else number(tree.this)

    def negation(self, tree: Any) -> ExprTree:
        inner = tree.this
        if type(inner).__name__ == "Literal" and not inner.is_string:
            return number("-" + inner.this)
        return negate(self.node(inner), text_of(tree))

    def interval(self, tree: Any) -> ExprTree:
        return interval(tree, text_of(tree))

    # --- logic ---

    def comparison(self, tree: Any, op: str) -> ExprTree:
        args = to_common([self.node(tree.this), self.node(tree.expression)], text_of(tree))
        kind = args[0].type
        if t.is_nested(kind) or kind in (t.OPAQUE, t.MONTHS):
            raise Unsupported(f"{text_of(tree)} compares {kind}")
        return ExprTree(op, t.BOOLEAN, tuple(args), None, text_of(tree))

    def boolean(self, tree: Any) -> ExprTree:
        node = self.node(tree)
        if node.type not in (t.BOOLEAN, t.NULL):
            raise Unsupported(f"{text_of(tree)} is {node.type} where a condition is needed")
        return cast_to(node, t.BOOLEAN)

    def logic(self, op: str, tree: Any) -> ExprTree:
        return ExprTree(op, t.BOOLEAN, (self.boolean(tree.this), self.boolean(tree.expression)))

    def inside(self, tree: Any) -> ExprTree:
        if not tree.expressions:
            raise Unsupported("IN needs a list of values")
        args = to_common([self.node(tree.this), *self.nodes(tree.expressions)], text_of(tree))
        if t.is_nested(args[0].type) or args[0].type == t.OPAQUE:
            raise Unsupported(f"{text_of(tree)} compares {args[0].type}")
        return ExprTree("in", t.BOOLEAN, tuple(args), None, text_of(tree))

    def between(self, tree: Any) -> ExprTree:
        what, low, high = (self.node(tree.args[name]) for name in ("this", "low", "high"))
        above = ExprTree("ge", t.BOOLEAN, tuple(to_common([what, low], text_of(tree))))
        below = ExprTree("le", t.BOOLEAN, tuple(to_common([what, high], text_of(tree))))
        if t.is_nested(above.args[0].type) or t.OPAQUE in (above.args[0].type, below.args[0].type):
            raise Unsupported(f"{text_of(tree)} compares {what.type}")
        return ExprTree("and", t.BOOLEAN, (above, below))

    def is_(self, tree: Any) -> ExprTree:
        asked = type(tree.expression).__name__
        if asked == "Null":
            return ExprTree("is_null", t.BOOLEAN, (self.node(tree.this),))
        if asked == "Boolean":
            yes = literal(tree.expression.this, t.BOOLEAN)
            return ExprTree("eq_null_safe", t.BOOLEAN, (self.boolean(tree.this), yes))
        raise Unsupported(f"{text_of(tree)} is not in the subset of SQL that the worker evaluates")

    def case(self, tree: Any) -> ExprTree:
        subject = tree.args.get("this")
        conditions, results = [], []
        for branch in tree.args["ifs"]:
            conditions.append(self._when(subject, branch.this, text_of(tree)))
            results.append(self.node(branch.args["true"]))
        default = tree.args.get("default")
        return choose(conditions, results, self.node(default) if default else None, text_of(tree))

    def _when(self, subject: Any, asked: Any, text: str) -> ExprTree:
        if subject is None:
            if self.node(asked).type == t.NULL:
                raise Unsupported("Spark takes no bare NULL for a condition after WHEN")
            return self.boolean(asked)
        return ExprTree("eq", t.BOOLEAN, tuple(to_common([self.node(subject), self.node(asked)], text)))

    def if_(self, tree: Any) -> ExprTree:
        other = tree.args.get("false")
        results = [self.node(tree.args["true"])]
        return choose([self.boolean(tree.this)], results, self.node(other) if other else None, text_of(tree))

    # --- casts and access ---

    def cast(self, tree: Any) -> ExprTree:
        safe = type(tree).__name__ == "TryCast" and bool(tree.args.get("safe"))
        return cast_or_fold(self.node(tree.this), type_named(tree.args["to"]), safe, text_of(tree))

    def bracket(self, tree: Any) -> ExprTree:
        if len(tree.expressions) != 1:
            raise Unsupported(f"{text_of(tree)} is not in the subset of SQL that the worker evaluates")
        base, key = self.node(tree.this), self.node(tree.expressions[0])
        if base.type.name == "STRUCT" and key.op == "literal" and key.type == t.STRING:
            return member(base, key.value)
        return element(base, key, text_of(tree))

    # --- calls ---

    def call(self, tree: Any) -> ExprTree:
        return self.function(str(tree.this).lower(), list(tree.expressions), text_of(tree))

    def function(self, name: str, args: list[Any], text: str) -> ExprTree:
        if name in _CLOCKS:
            raise Unsupported(f"{name}() gives another value when an epoch is replayed; a process function has ctx.now")
        return call(name, self.nodes(args), text)

    def special(self, tree: Any, name: str, *parts: str) -> ExprTree:
        given = [tree.args.get(part) for part in parts]
        return self.function(name, [part for part in given if part is not None], text_of(tree))

    def like(self, tree: Any) -> ExprTree:
        escape = None
        inner = tree
        if type(tree).__name__ == "Escape":
            inner, escape = tree.this, tree.expression
        name = type(inner).__name__.lower()
        trees = [inner.this, inner.expression, *([escape] if escape is not None else [])]
        node = self.function(name, trees, text_of(tree))
        return ExprTree("not", t.BOOLEAN, (node,)) if inner.args.get("negate") else node

    def trim(self, tree: Any) -> ExprTree:
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(tree.args.get("position") or "").upper(), "btrim")
        chars = tree.args.get("expression")
        args = self.nodes([tree.this] + ([chars] if chars is not None else []))
        return trim(name, args, text_of(tree))

    def position(self, tree: Any) -> ExprTree:
        return self.special(tree, "locate", "substr", "this", "position")

    def extract(self, tree: Any) -> ExprTree:
        return extract(str(tree.this.name), self.node(tree.expression), text_of(tree))

    def rounding(self, tree: Any) -> ExprTree:
        if tree.args.get("to") is not None:
            raise Unsupported(f"{text_of(tree)} is not in the subset of SQL that the worker evaluates")
        return self.special(tree, type(tree).__name__.lower(), "this", "decimals")


_RULES: dict[str, Callable[[Binder, Any], ExprTree]] = {
    "Column": Binder.column,
    "Dot": Binder.dot,
    "Literal": Binder.number,
    "Paren": lambda self, tree: self.node(tree.this),
    "Boolean": lambda self, tree: literal(bool(tree.this), t.BOOLEAN),
    "Null": lambda self, tree: literal(None, t.NULL, "NULL"),
    "HexString": lambda self, tree: literal(bytes.fromhex(tree.this.zfill(-(-len(tree.this) // 2) * 2)), t.BINARY),
    "Concat": lambda self, tree: literal("".join(part.this for part in tree.expressions), t.STRING),
    "Neg": Binder.negation,
    "BitwiseNot": lambda self, tree: self.function("~", [tree.this], text_of(tree)),
    "Interval": Binder.interval,
    "And": lambda self, tree: self.logic("and", tree),
    "Or": lambda self, tree: self.logic("or", tree),
    "Not": lambda self, tree: ExprTree("not", t.BOOLEAN, (self.boolean(tree.this),)),
    "NullSafeEQ": lambda self, tree: self.comparison(tree, "eq_null_safe"),
    "NullSafeNEQ": lambda self, tree: ExprTree("not", t.BOOLEAN, (self.comparison(tree, "eq_null_safe"),)),
    "In": Binder.inside,
    "Between": Binder.between,
    "Is": Binder.is_,
    "Case": Binder.case,
    "If": Binder.if_,
    "Cast": Binder.cast,
    "TryCast": Binder.cast,
    "Bracket": Binder.bracket,
    "Anonymous": Binder.call,
    "DPipe": lambda self, tree: self.special(tree, "concat", "this", "expression"),
    "Like": Binder.like,
    "ILike": Binder.like,
    "Escape": Binder.like,
    "RegexpLike": lambda self, tree: self.special(tree, "rlike", "this", "expression"),
    "Trim": Binder.trim,
    "Substring": lambda self, tree: self.special(tree, "substring", "this", "start", "length"),
    "StrPosition": Binder.position,
    "Extract": Binder.extract,
    "Ceil": Binder.rounding,
    "Floor": Binder.rounding,
    "CurrentTimestamp": lambda self, tree: self.function("current_timestamp", [], "current_timestamp"),
    "CurrentDate": lambda self, tree: self.function("current_date", [], "current_date"),
}


def text_of(tree: Any) -> str:
    text: str = tree.sql(dialect="spark")
    return text if len(text) <= 200 else text[:197] + "…"


def type_named(to: Any) -> SqlType:
    name = to.this.name if hasattr(to.this, "name") else str(to.this)
    if name == "DECIMAL":
        sizes = [int(part.this.this) for part in to.expressions]
        return t.decimal(sizes[0] if sizes else 10, sizes[1] if len(sizes) > 1 else 0)
    if name in ("ARRAY", "MAP") and to.expressions:
        return SqlType(name, parts=tuple(type_named(part) for part in to.expressions))
    if name == "STRUCT" and to.expressions:
        fields = [(part.this.this, type_named(part.args["kind"])) for part in to.expressions]
        return SqlType(name, parts=tuple(kind for _, kind in fields), names=tuple(field for field, _ in fields))
    kind = _CAST_NAMES.get(name)
    if kind is None:
        raise Unsupported(f"the worker knows no type {to.sql(dialect='spark')}")
    return kind


# --- interval literals: microseconds for days to seconds, months for years and months; never both in one


_DAY_US = 86_400_000_000
_UNITS_US = {
    "WEEK": 7 * _DAY_US, "DAY": _DAY_US, "HOUR": 3_600_000_000, "MINUTE": 60_000_000, "SECOND": 1_000_000,
    "MILLISECOND": 1_000, "MICROSECOND": 1,
}  # fmt: skip
_UNITS_MONTHS = {"YEAR": 12, "MONTH": 1}
_NUMBER = r"[+-]?\d+(?:\.\d*)?"
_PAIR = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+)")
_CLOCK = r"(?P<{}>\d+)"
_ORDER = ("DAY", "HOUR", "MINUTE", "SECOND")


def interval(tree: Any, text: str) -> ExprTree:
    """The value of one INTERVAL literal."""
    amount = getattr(tree.this, "this", None)
    if type(tree.this).__name__ != "Literal" or not isinstance(amount, str):
        raise Unsupported(f"{text} is not a literal; write n * INTERVAL 1 SECOND")
    unit = tree.args.get("unit")
    if unit is None:
        return _sum(_PAIR.findall(amount), _PAIR.sub("", amount), text)
    if type(unit).__name__ == "IntervalSpan":
        return _span(amount.strip(), unit.this.name.upper(), unit.expression.name.upper(), text)
    return _sum([(amount.strip(), unit.name)], "", text)


def _sum(pairs: list[tuple[str, str]], left_over: str, text: str) -> ExprTree:
    units = [unit.upper().removesuffix("S") for _, unit in pairs]
    if not pairs or left_over.strip().lower() not in ("", "interval"):
        raise Unsupported(f"{text} is not an interval the worker can read")
    if all(unit in _UNITS_MONTHS for unit in units):
        months = sum(_whole(amount, text) * _UNITS_MONTHS[unit] for (amount, _), unit in zip(pairs, units, strict=True))
        return literal(months, t.MONTHS, text)
    if not all(unit in _UNITS_US for unit in units):
        raise Unsupported(f"{text} mixes months with days, or has a unit the worker does not know")
    micros = 0
    for (amount, _), unit in zip(pairs, units, strict=True):
        exact = _exact(amount, text) if unit == "SECOND" else Decimal(_whole(amount, text))
        micros += int(exact * _UNITS_US[unit])
    return literal(micros, t.DAYS if set(units) <= {"DAY", "WEEK"} else t.INTERVAL, text)


def _exact(amount: str, text: str) -> Decimal:
    if not re.fullmatch(_NUMBER, amount):
        raise Unsupported(f"{text} is not an interval the worker can read")
    return Decimal(amount)


def _whole(amount: str, text: str) -> int:
    exact = _exact(amount, text)
    if exact != exact.to_integral_value():
        raise Unsupported(f"{text} has a fraction of something other than seconds")
    return int(exact)


def _span(amount: str, first: str, last: str, text: str) -> ExprTree:
    """``'1 02:03:04' DAY TO SECOND`` and ``'1-2' YEAR TO MONTH``."""
    if (first, last) == ("YEAR", "MONTH"):
        years = re.fullmatch(r"([+-]?)(\d+)-(\d+)", amount)
        if years is None:
            raise Unsupported(f"{text} is not an interval the worker can read")
        months = int(years[2]) * 12 + int(years[3])
        return literal(-months if years[1] == "-" else months, t.MONTHS, text)
    units = _ORDER[_ORDER.index(first) : _ORDER.index(last) + 1] if {first, last} <= set(_ORDER) else ()
    if len(units) < 2:
        raise Unsupported(f"{text} is not an interval the worker can read")
    pieces = [_CLOCK.format(unit) if unit != "SECOND" else r"(?P<SECOND>\d+(?:\.\d{1,9})?)" for unit in units]
    pattern = ":".join(pieces) if units[0] != "DAY" else pieces[0] + r"\s+" + ":".join(pieces[1:])
    found = re.fullmatch(r"(?P<sign>[+-]?)" + pattern, amount)
    if found is None:
        raise Unsupported(f"{text} is not an interval the worker can read")
    micros = sum(int(Decimal(found[unit]) * _UNITS_US[unit]) for unit in units)
    return literal(-micros if found["sign"] == "-" else micros, t.INTERVAL, text)
