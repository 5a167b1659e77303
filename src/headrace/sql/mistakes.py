"""Mistakes in an expression that show before it runs: unknown functions, methods of Python, types that do not fit.

Only what is wrong for Spark too, or fails with the first row, is refused. A function that Spark has and the worker does
not is left alone, and so is everything around it whose type is then not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import ExpressionError
from headrace.model.amounts import count_of
from headrace.model.nearest import nearest
from headrace.model.user_line import user_line
from headrace.sql import types as t
from headrace.sql.bind import Binder, text_of
from headrace.sql.evaluate.text_values import parse_date, parse_timestamp
from headrace.sql.functions import FUNCTIONS
from headrace.sql.nodes import ExprTree, Unsupported, WrongCount, WrongType
from headrace.sql.parse import blank_quoted, point_at
from headrace.sql.spark_functions import SPARK_FUNCTIONS

if TYPE_CHECKING:
    from headrace.sql.expr import ParsedExpression

_COMPARISONS: Final = ("EQ", "NEQ", "GT", "GTE", "LT", "LTE", "NullSafeEQ", "In", "Between")
_ARITHMETIC: Final = ("Add", "Sub", "Mul", "Div", "Mod", "IntDiv")
_LOGIC: Final = ("And", "Or", "Not")
_CALLS: Final = ("Anonymous", "Substring", "Trim", "StrPosition", "Ceil", "Floor")
# Functions that Spark gives more forms than the worker knows: other numbers of arguments are left to Spark.
_LONGER_IN_SPARK: Final = (
    "array", "ceil", "ceiling", "floor", "regexp_replace", "date_add", "dateadd", "datediff", "date_diff", "to_date",
    "to_timestamp", "trim",
)  # fmt: skip
_BOOLEANS: Final = frozenset(["t", "true", "y", "yes", "1", "f", "false", "n", "no", "0"])
# Spark reads these in TIMESTAMP '…', and times without a day or with a year of more than four digits.
_SPECIAL_TIMES: Final = ("epoch", "now", "today", "tomorrow", "yesterday")
_UNJUDGED_TIME: Final = re.compile(r"[-+]|t?\d{1,2}:|\d{5}")
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
_TAKING_TEXT: Final = ("startswith", "endswith", "contains")


def check_meaning(parsed: ParsedExpression, schema: pa.Schema, where: str) -> None:
    """Raise ExpressionError for the first mistake in an expression whose columns are known."""
    _check_brackets(parsed.sql, where)
    for tree in parsed.tree.walk():
        kind = type(tree).__name__
        if kind == "Dot":
            _check_method(tree, parsed.sql, schema, where)
        elif kind == "Anonymous" and type(tree.parent).__name__ != "Dot":
            _check_function(str(tree.this), parsed.sql, where)
    binder = Binder(schema, {name.lower(): name for name in schema.names} | {name: name for name in schema.names})
    for tree in reversed(list(parsed.tree.walk())):
        _check_forms(tree, binder, parsed.sql, where)
        _check_types(tree, binder, parsed.sql, where)


def unchecked_functions(parsed: ParsedExpression) -> list[str]:
    """Functions of Spark that the worker does not know, so that their arguments and results could not be checked."""
    calls = (tree for tree in parsed.tree.walk() if type(tree).__name__ == "Anonymous")
    return sorted({str(tree.this).lower() for tree in calls} - set(FUNCTIONS))


def _check_method(tree: Any, text: str, schema: pa.Schema, where: str) -> None:
    """``page.startswith('a')`` calls a method of a column, as in Python."""
    call = tree.expression
    root = tree
    while type(root).__name__ == "Dot":
        root = root.this
    if type(call).__name__ != "Anonymous":
        return
    names = {name.lower() for name in schema.names}
    first, method = str(getattr(root, "name", "")), str(call.this)
    args = [text_of(arg) for arg in call.expressions]
    if first.lower() not in names and type(root).__name__ not in ("Column", "Paren"):
        # A function of one's own is called by its qualified name, session.f(x), and is given its column.
        misspelt = nearest(first, schema.names)
        known = method.lower() in _METHODS or method.lower() in FUNCTIONS
        if misspelt or (known and not args):
            raise ExpressionError(
                f"there is no column {first!r}",
                where=where,
                expected="one of " + ", ".join(schema.names[:12]),
                found=point_at(text, _position(rf"(?<![\w.]){re.escape(first)}(?!\w)", text)),
                next_move=f"did you mean {' or '.join(misspelt)}? Columns have no methods in SQL: "
                f"write {_as_sql_call(method, misspelt[0], args)}"
                if misspelt
                else "name a column of the stream as it is at this step",
            )
        return
    column = text_of(tree.this)
    raise ExpressionError(
        f"columns have no methods in SQL, and {method} is called as one",
        where=where,
        expected="functions that are given the column",
        found=point_at(text, _position(rf"\.\s*{re.escape(method)}\s*\(", text)),
        next_move=f"write {_as_sql_call(method, column, args)}; filter(…) takes a Python function",
    )


class UnknownMethod(ExpressionError, AttributeError):
    """A method that ``hr.col(…)`` does not have."""


def unknown_method(column: str, method: str) -> UnknownMethod:
    """The answer to ``hr.col("page").startswith``, which is a method of Python's text."""
    count = _METHODS.get(method.lower(), "{0}").count("{") - 1
    takes_value = count or method.lower() in _TAKING_TEXT
    call = _as_sql_call(method, column, ["…"] if takes_value else [])
    return UnknownMethod(
        f"columns have no method {method!r}",
        where=user_line(),
        expected="operators such as ==, > and &; or is_null, is_not_null, is_in, between, like and cast",
        found=f"{method} of {column}",
        next_move=f"write SQL as text: {call}; filter(…) and map(…) take Python functions",
    )


def _as_sql_call(method: str, column: str, args: list[str]) -> str:
    form = _METHODS.get(method.lower())
    if form is not None and form.count("{") == 1 + len(args):
        return form.format(column, *args)
    called = f"{method.lower()}({', '.join([column, *args])})"
    if method.lower() in _TAKING_TEXT and len(args) == 1 and args[0][:1] == "'":
        inner = args[0][1:-1]
        before, after = method.lower() != "startswith", method.lower() != "endswith"
        return f"{called} or {column} LIKE '{'%' if before else ''}{inner}{'%' if after else ''}'"
    return called


def _check_function(name: str, text: str, where: str) -> None:
    if name.lower() in FUNCTIONS or name.lower() in SPARK_FUNCTIONS:
        return
    near = nearest(name, sorted(SPARK_FUNCTIONS | set(FUNCTIONS)))
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
    if kind in _COMPARISONS or (kind == "Case" and tree.args.get("this") is not None):
        operands = list(_operands(tree, binder))
        for other in operands[1:]:
            reason = _mismatch(operands[0], other, "compares")
            if reason:
                raise _type_error(tree, *reason, text, where)
    elif kind in _ARITHMETIC:
        one, two = (_node_of(binder, each) for each in (tree.this, tree.expression))
        if one is not None and two is not None:
            if one.type == two.type == t.STRING and kind == "Add":
                joined = f"{text_of(tree.this)} || {text_of(tree.expression)}"
                raise _type_error(tree, "adds text to text", f"texts are joined by ||: {joined}", text, where)
            reason = _mismatch(one, two, "combines") if t.STRING in (one.type, two.type) else None
            if reason:
                raise _type_error(tree, *reason, text, where)
    elif kind in _LOGIC:
        for each in (tree.this, tree.args.get("expression")):
            if each is not None:
                _check_condition(tree, each, binder, text, where)
    elif kind == "If" and not (type(tree.parent).__name__ == "Case" and tree.parent.args.get("this") is not None):
        _check_condition(tree.this, tree.this, binder, text, where)
    elif kind in ("Cast", "TryCast") and not tree.args.get("safe"):
        _check_cast(tree, binder, text, where)
    elif kind in _CALLS:
        _check_call(tree, binder, text, where)


def _check_condition(tree: Any, part: Any, binder: Binder, text: str, where: str) -> None:
    node = _node_of(binder, part)
    if node is not None and (t.is_numeric(node.type) or node.type in (t.DATE, t.TIMESTAMP)):
        what = f"has {node.type} where it needs a condition" if tree is not part else f"is {node.type}, not a condition"
        raise _type_error(tree, what, f"compare it with something: {text_of(part)} <> 0", text, where)


def _check_cast(tree: Any, binder: Binder, text: str, where: str) -> None:
    """``TIMESTAMP '2024-13-01'``, which is a cast of a literal."""
    try:
        node = binder.node(tree)
    except Unsupported:
        return
    if node.op != "cast" or node.args[0].op != "literal" or node.args[0].type != t.STRING:
        return
    literal = str(node.args[0].value)
    if node.type in (t.DATE, t.TIMESTAMP) and literal.strip().lower() not in _SPECIAL_TIMES:
        reason = _unreadable(literal, node.type)
        if reason:
            raise _type_error(tree, *reason, text, where)


def _check_call(tree: Any, binder: Binder, text: str, where: str) -> None:
    name = str(tree.this).lower() if type(tree).__name__ == "Anonymous" else type(tree).__name__.lower()
    try:
        binder.node(tree)
    except WrongType as wrong:
        raise ExpressionError(
            "a function is given a value of another type than it takes",
            where=where,
            expected=f"{wrong.expected} for {wrong.text.partition('(')[0].lower()}()",
            found=f"{wrong.given}, in {text!r}",
            next_move=f"cast it, or take another column: CAST(… AS {wrong.expected})",
        ) from None
    except WrongCount as wrong:
        if name not in _LONGER_IN_SPARK:
            raise ExpressionError(
                f"{name}() is given {count_of(wrong.count, 'argument')}",
                where=where,
                expected=f"{wrong.wanted} {'argument' if wrong.wanted == '1' else 'arguments'}",
                found=point_at(text, _position(rf"(?<![\w.]){re.escape(name)}\s*\(", text)),
                next_move="docs/reference/expressions.md lists what the functions take",
            ) from None
    except Unsupported:
        _check_places(name, tree, binder, text, where)


def _check_places(name: str, tree: Any, binder: Binder, text: str, where: str) -> None:
    """``round(n, s)``: how many places is the same for all rows."""
    places = tree.expressions[1] if name == "round" and len(tree.expressions) == 2 else None
    if places is not None and any(type(each).__name__ == "Column" for each in places.walk()):
        number = text_of(tree.expressions[0])
        raise ExpressionError(
            "round() takes a fixed number of places",
            where=where,
            expected=f"a whole number: round({number}, 2)",
            found=point_at(text, _position(rf"(?<![\w.]){re.escape(text_of(places))}(?!\w)", text)),
            next_move="write the number of places",
        )


def _check_forms(tree: Any, binder: Binder, text: str, where: str) -> None:
    """Python's ``s[0]``, ``s[1:3]``, ``'a' in s`` and ``s is 'x'``, which Spark's grammar or types do not have."""
    kind = type(tree).__name__
    if kind == "Bracket":
        base = _node(binder, tree.this)
        key = tree.expressions[0] if len(tree.expressions) == 1 else None
        is_text = base is not None and base.type == t.STRING
        if type(key).__name__ == "Slice":
            what, form = "takes a slice, as in Python", _slice_call(text_of(tree.this), key, is_text)
        elif is_text and key is not None:
            what, form = "takes a part of a text by its place", _slice_call(text_of(tree.this), key, True)
        else:
            return
        raise ExpressionError(
            f"{text_of(tree.this)}[…] {what}",
            where=where,
            expected="a function; SQL counts from 1",
            found=point_at(text, _position(r"\[", text)),
            next_move=f"write {form}",
        )
    if kind == "In" and tree.args.get("field") is not None:
        holder, item = text_of(tree.args["field"]), text_of(tree.this)
        base = _node(binder, tree.args["field"])
        functions = {"ARRAY": "array_contains", "MAP": "map_contains_key", "STRING": "contains"}
        function = functions.get(base.type.name if base is not None else "")
        raise ExpressionError(
            "IN needs a list of values",
            where=where,
            expected=f"values in brackets: {item} IN (1, 2)" if base is None else "values in brackets, or a function",
            found=point_at(text, _position(r"(?<!\w)in(?!\w)", text)),
            next_move=f"write {function}({holder}, {item})"
            if function
            else f"write {item} IN ({holder}), or {item} = {holder}",
        )
    if kind == "Is" and type(tree.expression).__name__ not in ("Null", "Boolean"):
        sign = "<>" if type(tree.parent).__name__ == "Not" else "="
        raise ExpressionError(
            "IS compares with NULL, TRUE and FALSE only",
            where=where,
            expected="IS NULL, IS NOT NULL, IS TRUE or IS FALSE",
            found=point_at(text, _position(r"(?<!\w)is(?!\w)", text)),
            next_move=f"write {text_of(tree.this)} {sign} {text_of(tree.expression)}",
        )


def _slice_call(column: str, key: Any, is_text: bool) -> str:
    """The call that takes what Python's brackets would take."""
    function = "substring" if is_text else "slice"
    if type(key).__name__ != "Slice":
        first = _whole(key)
        start = "…" if first is None else str(first + 1 if first >= 0 else first)
        return f"{function}({column}, {start}, 1)"
    low, high = key.this, key.expression
    first, end = 0 if low is None else _whole(low), None if high is None else _whole(high)
    if first is None or first < 0 or (high is not None and (end is None or end < 0)):
        return f"{function}({column}, start, length)"
    length = "" if end is None else f", {max(end - first, 0)}"
    return f"{function}({column}, {first + 1}{length or ('' if is_text else f', size({column})')})"


def _whole(tree: Any) -> int | None:
    text = text_of(tree)
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _check_brackets(text: str, where: str) -> None:
    """``s in ['a']``: the parser takes it, and Spark does not."""
    plain = blank_quoted(text)
    match = re.search(r"(?<!\w)in\s*\[", plain, re.IGNORECASE)
    if match is not None:
        end = plain.find("]", match.end())
        inner = text[match.end() : end if end >= 0 else len(text)]
        raise ExpressionError(
            "a list of values stands in round brackets",
            where=where,
            expected="IN (…)",
            found=point_at(text, match.end() - 1),
            next_move=f"write IN ({inner})",
        )


def _node(binder: Binder, tree: Any) -> ExprTree | None:
    try:
        return binder.node(tree)
    except Unsupported:
        return None


def _operands(tree: Any, binder: Binder) -> Iterator[ExprTree]:
    parts = [tree.this, *(tree.args.get("expressions") or [])]
    parts += [branch.this for branch in tree.args.get("ifs") or []]
    parts += [part for name in ("expression", "low", "high") if (part := tree.args.get(name)) is not None]
    nodes = [_node_of(binder, part) for part in parts]
    if nodes[0] is not None:
        yield from (node for node in nodes if node is not None)


def _node_of(binder: Binder, tree: Any) -> ExprTree | None:
    """The node of a part; None where its type is not known here."""
    try:
        node = binder.node(tree)
    except Unsupported:
        return None
    return None if t.is_nested(node.type) or node.type in (t.OPAQUE, t.NULL) else node


def _mismatch(one: ExprTree, two: ExprTree, does: str) -> tuple[str, str] | None:
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
    for literal, other in ((one, two), (two, one)):
        if does == "compares" and literal.op == "literal" and literal.type == t.STRING:
            reason = _unreadable(str(literal.value), other.type)
            if reason:
                return reason
    if does == "compares" and t.common_of([one.type, two.type]) is None:
        if t.TIMESTAMP in (one.type, two.type):
            return f"{does} {one.type} with {two.type}", "a time is written TIMESTAMP '2024-01-01 12:00:00'"
        return f"{does} {one.type} with {two.type}", "cast one of them, or take another column"
    return None


def _unreadable(literal: str, kind: t.SqlType) -> tuple[str, str] | None:
    """What is wrong with a text that is to be read as another type, and the next move."""
    plain = literal.strip().lower()
    if kind == t.BOOLEAN and plain not in _BOOLEANS:
        return "compares BOOLEAN with text that is none", f"{literal!r} is not true or false: write TRUE or FALSE"
    if kind in (t.DATE, t.TIMESTAMP) and not _UNJUDGED_TIME.match(plain):
        read = parse_date if kind == t.DATE else parse_timestamp
        if read(literal.strip()) is None:
            form = "DATE '2024-01-31'" if kind == t.DATE else "TIMESTAMP '2024-01-31 12:00:00'"
            return (
                f"has a text that is no {kind}",
                f"{literal!r} names no {'day' if kind == t.DATE else 'time'}: write {form}",
            )
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
    match = re.search(pattern, blank_quoted(text), re.IGNORECASE) or re.search(pattern, text, re.IGNORECASE)
    return 0 if match is None else match.end() - len(match.group().lstrip(". "))
