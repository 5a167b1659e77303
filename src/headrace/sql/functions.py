"""The functions of the subset by name: what they take, what they give, and which operation evaluates them.

A name that is not in `FUNCTIONS` is not in the subset. The operations are evaluated in `headrace.operators`; a test
holds the two tables against each other, and another one holds both against Spark.
"""

from __future__ import annotations

from headrace.model.nearest import nearest
from headrace.sql import types as t
from headrace.sql.arithmetic import arithmetic
from headrace.sql.calls import Rule, all_of, as_type, constant, count_args, fixed, implicit
from headrace.sql.functions_text import TEXT_FUNCTIONS
from headrace.sql.functions_time import TIME_FUNCTIONS
from headrace.sql.nodes import ExprTree, Unsupported, cast_to, choose, element, literal, to_common


def call(name: str, args: list[ExprTree], text: str) -> ExprTree:
    """The node of one call."""
    rule = FUNCTIONS.get(name)
    if rule is not None:
        return rule(args, text)
    near = nearest(name, FUNCTIONS)
    hint = f" (is it {' or '.join(near)}?)" if near else ""
    raise Unsupported(f"the worker knows no function {name}(){hint}")


def _numeric(node: ExprTree, text: str) -> ExprTree:
    node = cast_to(node, t.DOUBLE) if node.type in (t.STRING, t.NULL) else node
    if not t.is_numeric(node.type):
        raise Unsupported(f"{text} calculates with {node.type}")
    return node


def _abs(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 1, 1, text)
    node = _numeric(args[0], text)
    return ExprTree("abs", node.type, (node,), None, text)


def _to_whole(op: str) -> Rule:
    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, 1, 1, text)
        node = _numeric(args[0], text)
        if t.is_integral(node.type):
            return cast_to(node, t.BIGINT)
        if t.is_decimal(node.type):
            digits = min(node.type.precision - node.type.scale + 1, t.MAX_PRECISION)
            return ExprTree(op, t.decimal(digits, 0), (node,), None, text)
        return ExprTree(op, t.BIGINT, (cast_to(node, t.DOUBLE),), None, text)

    return rule


def _round(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 1, 2, text)
    node = _numeric(args[0], text)
    places = constant(args[1], text, "number of places") if len(args) > 1 else 0
    if not isinstance(places, int) or not -30 <= places <= 30:
        raise Unsupported(f"{text} rounds to {places} places")
    kind = node.type
    if kind == t.FLOAT:
        raise Unsupported(f"{text} rounds a FLOAT; cast it to DOUBLE first")
    if t.is_decimal(kind):
        whole = kind.precision - kind.scale + 1
        scale = max(min(kind.scale, places), 0)
        digits = max(whole, 1 - places) if places < 0 else whole + scale
        kind = t.decimal(min(digits, t.MAX_PRECISION), scale)
    return ExprTree("round", kind, (node,), places, text)


def _log(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 1, 2, text)
    taken = tuple(implicit(arg, t.DOUBLE, text) for arg in args)
    return ExprTree("log" if len(taken) == 2 else "ln", t.DOUBLE, taken)


def _extreme(op: str) -> Rule:
    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, 2, None, text)
        taken = to_common(args, text)
        if t.is_nested(taken[0].type) or taken[0].type in (t.OPAQUE, t.MONTHS):
            raise Unsupported(f"{text} compares {taken[0].type}")
        return ExprTree(op, taken[0].type, tuple(taken))

    return rule


def _operator(op: str, safe: bool = False) -> Rule:
    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, 2, 2, text)
        return arithmetic(op, args[0], args[1], text, safe)

    return rule


def _pmod(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 2, text)
    node = arithmetic("mod", args[0], args[1], text)
    if not t.is_integral(node.type):
        raise Unsupported(f"{text} is for integers in the worker")
    return node._replace(op="pmod")


def _bit_not(args: list[ExprTree], text: str) -> ExprTree:
    if not t.is_integral(args[0].type):
        raise Unsupported(f"{text} needs an integer")
    return ExprTree("bit_not", args[0].type, (args[0],))


def _coalesce(low: int, high: int | None) -> Rule:
    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, low, high, text)
        taken = to_common(args, text)
        return ExprTree("coalesce", taken[0].type, tuple(taken))

    return rule


def _nullif(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 2, text)
    pair = to_common(args, text)
    if t.is_nested(pair[0].type) or pair[0].type in (t.OPAQUE, t.MONTHS):
        raise Unsupported(f"{text} compares {pair[0].type}")
    same = ExprTree("eq", t.BOOLEAN, tuple(pair))
    return choose([same], [literal(None, t.NULL)], args[0], text)


def _nvl2(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 3, 3, text)
    return choose([ExprTree("is_null", t.BOOLEAN, (args[0],))], [args[2]], args[1], text)


def _is_null(wanted: bool) -> Rule:
    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, 1, 1, text)
        node = ExprTree("is_null", t.BOOLEAN, (args[0],))
        return node if wanted else ExprTree("not", t.BOOLEAN, (node,))

    return rule


def _nested(node: ExprTree, names: tuple[str, ...], text: str) -> ExprTree:
    if node.type.name not in names:
        raise Unsupported(f"{text} is given {node.type}")
    return node


def _size(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 1, 1, text)
    return ExprTree("size", t.INT, (_nested(args[0], ("ARRAY", "MAP"), text),))


def _element_at(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 2, text)
    base = _nested(args[0], ("ARRAY", "MAP"), text)
    if base.type.name == "MAP":
        return element(base, args[1], text)
    if args[1].type not in (t.TINYINT, t.SMALLINT, t.INT):
        raise Unsupported(f"{text} is given an index of {args[1].type}; Spark wants INT")
    return ExprTree("element_at", base.type.parts[0], (base, cast_to(args[1], t.BIGINT)), None, text)


def _get(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 2, text)
    base = _nested(args[0], ("ARRAY",), text)
    return ExprTree("item", base.type.parts[0], (base, implicit(args[1], t.BIGINT, text)), "try", text)


def _array_contains(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 2, text)
    kind, value = _nested(args[0], ("ARRAY",), text).type.parts[0], args[1].type
    common = t.common_type(kind, value)
    mixed = (kind == t.STRING) != (value == t.STRING)
    if common is None or mixed or value == t.NULL or t.is_nested(common) or common == t.OPAQUE:
        raise Unsupported(f"{text} looks for {value} among {kind}")
    return ExprTree("array_contains", t.BOOLEAN, (args[0], cast_to(args[1], common)), kind)


def _map_contains_key(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 2, text)
    found = element(_nested(args[0], ("MAP",), text), args[1], text)
    return ExprTree("map_contains_key", t.BOOLEAN, found.args)


def _array(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 1, None, text)
    taken = to_common(args, text)
    if taken[0].type in (t.NULL, t.OPAQUE, t.MONTHS) or t.is_interval(taken[0].type):
        raise Unsupported(f"{text} is an array of {taken[0].type}")
    return ExprTree("array", t.array(taken[0].type), tuple(taken))


FUNCTIONS: dict[str, Rule] = {
    **TEXT_FUNCTIONS,
    **TIME_FUNCTIONS,
    "abs": _abs,
    **all_of(_to_whole("ceil"), "ceil", "ceiling"),
    "floor": _to_whole("floor"),
    "round": _round,
    **{name: fixed(name, t.DOUBLE, t.DOUBLE) for name in ("sqrt", "exp", "ln", "log10", "log2")},
    **all_of(fixed("sign", t.DOUBLE, t.DOUBLE), "sign", "signum"),
    "log": _log,
    **all_of(fixed("pow", t.DOUBLE, t.DOUBLE, t.DOUBLE), "pow", "power"),
    "greatest": _extreme("greatest"),
    "least": _extreme("least"),
    "isnan": fixed("isnan", t.BOOLEAN, t.DOUBLE),
    "mod": _operator("mod"),
    "pmod": _pmod,
    "~": _bit_not,
    "try_add": _operator("add", safe=True),
    "try_subtract": _operator("sub", safe=True),
    "try_multiply": _operator("mul", safe=True),
    "try_divide": _operator("div", safe=True),
    "coalesce": _coalesce(1, None),
    **all_of(_coalesce(2, 2), "ifnull", "nvl"),
    "nvl2": _nvl2,
    "nullif": _nullif,
    "isnull": _is_null(True),
    "isnotnull": _is_null(False),
    **all_of(_size, "size", "cardinality", "array_size"),
    "element_at": _element_at,
    "get": _get,
    "array_contains": _array_contains,
    "map_contains_key": _map_contains_key,
    "array": _array,
    "boolean": as_type(t.BOOLEAN),
    "tinyint": as_type(t.TINYINT),
    "smallint": as_type(t.SMALLINT),
    "int": as_type(t.INT),
    "bigint": as_type(t.BIGINT),
    "float": as_type(t.FLOAT),
    "double": as_type(t.DOUBLE),
    "string": as_type(t.STRING),
    "binary": as_type(t.BINARY),
    "date": as_type(t.DATE),
    "timestamp": as_type(t.TIMESTAMP),
}
