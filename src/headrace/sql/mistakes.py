"""Mistakes in an expression that show before it runs: unknown functions, methods of Python, types that do not fit.

Only what is wrong for Spark too, or fails with the first row, is refused. A function that Spark has and the worker does
not is left alone, and so is everything around it whose type is then not known.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import ExpressionError
from headrace.sql import types as t
from headrace.sql.bind import Binder, text_of
from headrace.sql.functions import FUNCTIONS
from headrace.sql.nodes import Node, Unsupported, WrongType
from headrace.sql.parse import point_at
from headrace.sql.spark_functions import SPARK_FUNCTIONS

if TYPE_CHECKING:
    from headrace.sql.expr import Parsed

_COMPARISONS: Final = ("EQ", "NEQ", "GT", "GTE", "LT", "LTE", "NullSafeEQ", "In", "Between")
_ARITHMETIC: Final = ("Add", "Sub", "Mul", "Div", "Mod", "IntDiv")
_LOGIC: Final = ("And", "Or", "Not")
# Methods of Python's str whose function in SQL has another name or needs another form.
_METHODS: Final = {
    "strip": "trim({0})",
    "lstrip": "ltrim({0})",
    "rstrip": "rtrim({0})",
    "find": "instr({0}, {1}) - 1",
    "title": "initcap({0})",
    "isin": "{0} IN ({1})",
    "is_in": "{0} IN ({1})",
    "isnull": "{0} IS NULL",
    "is_null": "{0} IS NULL",
}


def check_meaning(parsed: Parsed, schema: pa.Schema, where: str) -> None:
    """Raise ExpressionError for the first mistake in an expression whose columns are known."""
    for tree in parsed.tree.walk():
        kind = type(tree).__name__
        if kind == "Dot":
            _check_method(tree, parsed.sql, schema, where)
        elif kind == "Anonymous" and type(tree.parent).__name__ != "Dot":
            _check_function(str(tree.this), parsed.sql, where)
    binder = Binder(schema, {name.lower(): name for name in schema.names} | {name: name for name in schema.names})
    for tree in parsed.tree.walk():
        _check_types(tree, binder, parsed.sql, where)


def unchecked_functions(parsed: Parsed) -> list[str]:
    """Functions of Spark that the worker does not know, so that their arguments and results could not be checked."""
    calls = (tree for tree in parsed.tree.walk() if type(tree).__name__ == "Anonymous")
    return sorted({str(tree.this).lower() for tree in calls} - set(FUNCTIONS))


def _check_method(tree: Any, text: str, schema: pa.Schema, where: str) -> None:
    """``page.startswith('a')`` calls a method of a column, as in Python."""
    call = tree.expression
    root = tree
    while type(root).__name__ == "Dot":
        root = root.this
    names = {name.lower() for name in schema.names}
    is_column = str(getattr(root, "name", "")).lower() in names or type(root).__name__ in ("Column", "Paren")
    if type(call).__name__ != "Anonymous" or not is_column:
        return
    method, column = str(call.this), text_of(tree.this)
    args = [text_of(arg) for arg in call.expressions]
    raise ExpressionError(
        f"columns have no methods in SQL, and {method} is called as one",
        where=where,
        expected="functions that are given the column",
        found=point_at(text, _position(rf"\.\s*{re.escape(method)}\s*\(", text)),
        next_move=f"write {_as_sql_call(method, column, args)}; filter(…) takes a Python function",
    )


def _as_sql_call(method: str, column: str, args: list[str]) -> str:
    form = _METHODS.get(method.lower())
    if form is not None and form.count("{") == 1 + len(args):
        return form.format(column, *args)
    called = f"{method.lower()}({', '.join([column, *args])})"
    if method.lower() in ("startswith", "endswith", "contains") and len(args) == 1 and args[0][:1] == "'":
        inner = args[0][1:-1]
        before, after = method.lower() != "startswith", method.lower() != "endswith"
        return f"{called} or {column} LIKE '{'%' if before else ''}{inner}{'%' if after else ''}'"
    return called


def _check_function(name: str, text: str, where: str) -> None:
    if name.lower() in FUNCTIONS or name.lower() in SPARK_FUNCTIONS:
        return
    near = difflib.get_close_matches(name.lower(), sorted(SPARK_FUNCTIONS | set(FUNCTIONS)), n=2, cutoff=0.75)
    meant = f"did you mean {' or '.join(f'{each}()' for each in near)}?" if near else ""
    raise ExpressionError(
        f"SQL has no function {name}()",
        where=where,
        expected="a function of Spark SQL",
        found=point_at(text, _position(rf"(?<![\w.]){re.escape(name)}\s*\(", text)),
        next_move=meant or "map(…) and filter(…) take Python functions",
    )


def _check_types(tree: Any, binder: Binder, text: str, where: str) -> None:
    kind = type(tree).__name__
    if kind in _COMPARISONS:
        operands = list(_operands(tree, binder))
        for other in operands[1:]:
            reason = _mismatch(operands[0], other, "compares")
            if reason:
                raise _type_error(tree, *reason, text, where)
    elif kind in _ARITHMETIC:
        one, two = (_typed(binder, each) for each in (tree.this, tree.expression))
        if one is not None and two is not None:
            if one.type == two.type == t.STRING and kind == "Add":
                joined = f"{text_of(tree.this)} || {text_of(tree.expression)}"
                raise _type_error(tree, "adds text to text", f"texts are joined by ||: {joined}", text, where)
            reason = _mismatch(one, two, "combines") if t.STRING in (one.type, two.type) else None
            if reason:
                raise _type_error(tree, *reason, text, where)
    elif kind in _LOGIC:
        for each in (tree.this, tree.args.get("expression")):
            node = None if each is None else _typed(binder, each)
            if node is not None and (t.is_numeric(node.type) or node.type in (t.DATE, t.TIMESTAMP)):
                what = f"has {node.type} where it needs a condition"
                raise _type_error(tree, what, f"compare it with something: {text_of(each)} <> 0", text, where)
    elif kind == "Anonymous" and str(tree.this).lower() in FUNCTIONS:
        try:
            binder.node(tree)
        except WrongType as wrong:
            raise ExpressionError(
                "a function is given a value of another type than it takes",
                where=where,
                expected=f"{wrong.expected} for {tree.this}()",
                found=f"{wrong.given}, in {text!r}",
                next_move=f"cast it, or take another column: CAST(… AS {wrong.expected})",
            ) from None
        except Unsupported:
            pass


def _operands(tree: Any, binder: Binder) -> Iterator[Node]:
    parts = [tree.this, *(tree.args.get("expressions") or [])]
    parts += [part for name in ("expression", "low", "high") if (part := tree.args.get(name)) is not None]
    nodes = [_typed(binder, part) for part in parts]
    if nodes[0] is not None:
        yield from (node for node in nodes if node is not None)


def _typed(binder: Binder, tree: Any) -> Node | None:
    """The node of a part; None where its type is not known here."""
    try:
        node = binder.node(tree)
    except Unsupported:
        return None
    return None if t.is_nested(node.type) or node.type in (t.OPAQUE, t.NULL) else node


def _mismatch(one: Node, two: Node, does: str) -> tuple[str, str] | None:
    """What is wrong with two values beside each other, and the next move."""
    for text, other in ((one, two), (two, one)):
        if text.type != t.STRING or not t.is_numeric(other.type):
            continue
        if text.op != "literal":
            cast = f"CAST({text.text} AS {'BIGINT' if t.is_integral(other.type) else 'DOUBLE'})"
            quoted = (
                f", or compare it with text: '{other.text}'" if other.op == "literal" and does == "compares" else ""
            )
            return f"{does} text with a number", f"if {text.text} holds numbers, say so: {cast}{quoted}"
        if not re.fullmatch(r"\s*[-+]?[\d.]+([eE][-+]?\d+)?\s*", str(text.value)):
            return f"{does} a number with text that is none", f"{text.value!r} is not a number"
    if does == "compares" and t.common_of([one.type, two.type]) is None:
        if t.TIMESTAMP in (one.type, two.type):
            return f"{does} {one.type} with {two.type}", "a time is written TIMESTAMP '2024-01-01 12:00:00'"
        return f"{does} {one.type} with {two.type}", "cast one of them, or take another column"
    return None


def _type_error(tree: Any, what: str, next_move: str, text: str, where: str) -> ExpressionError:
    column = next((each.name for each in tree.walk() if type(each).__name__ == "Column"), "")
    return ExpressionError(
        f"{text_of(tree)} {what}",
        where=where,
        expected="values of types that go together",
        found=point_at(text, _position(rf"(?<![\w.]){re.escape(column)}(?!\w)", text) if column else 0),
        next_move=next_move,
    )


def _position(pattern: str, text: str) -> int:
    match = re.search(pattern, text, re.IGNORECASE)
    return 0 if match is None else match.end() - len(match.group().lstrip(". "))
