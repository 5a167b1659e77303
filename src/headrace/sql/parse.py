"""From SQL text to a syntax tree, by sqlglot in Spark's dialect.

Two things of sqlglot are turned off because they lose what was written: functions stay calls by the name the user gave
(instead of being translated to a neutral form), and string literals are read here by Spark's rules for escapes.
sqlglot is imported on first use, because an import of Headrace must stay cheap. Nothing here knows columns or types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

from headrace.errors import ExpressionError

# What may contain a quote without being the start of a literal is matched too, so that it is stepped over.
_PIECES = re.compile(
    r"""(?P<raw>(?<!\w)[rR](?:'[^']*'|"[^"]*"))
      | (?P<bytes>(?<!\w)[xX]'[^']*')
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<name>`(?:[^`]|``)*`)
      | (?P<note>--[^\n]*|/\*.*?\*/)
      | (?P<array>(?<![\w.])array(?=\s*\())""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_ESCAPES = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-1][0-7]{2}|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
# Stands for a literal while sqlglot reads the text; private-use characters, so that no text of a user looks like it.
_MARK = "\ue000{}\ue001"
# sqlglot takes array(…)[…] for a type with a literal and forgets the elements, so it must not see that name.
_ARRAY = "hr_array_"
_AGGREGATE_NAMES = "count sum avg mean min max first last collect_list collect_set count_if any_value"
_AGGREGATES = frozenset(_AGGREGATE_NAMES.split())


@lru_cache(maxsize=4096)
def parse_tree(text: str, *, aggregates: bool = False) -> Any:
    """The tree of one expression. Raises ExpressionError without `where`; callers must not change the tree.

    ``aggregates``: whether it may have calls of aggregates, which the caller takes out.
    """
    exp, dialect = _sqlglot()
    literals: list[str] = []
    if any(match.group().startswith("--") for match in _PIECES.finditer(text)):
        raise _not_one(text, "no comment to the end of the line; /* this */ is fine")
    masked = _PIECES.sub(lambda match: _mask(match, literals), text)
    root = _parse(f"SELECT (\n{masked}\n)", dialect, text)
    for node in root.find_all(exp.Literal):
        if node.is_string and node.this[:1] == _MARK[0]:
            node.set("this", literals[int(node.this[1:-1])])
    for node in root.find_all(exp.Anonymous):
        if node.this == _ARRAY:
            node.set("this", "array")
        if not aggregates and str(node.this).lower() in _AGGREGATES:
            raise _not_one(text, "no aggregate: an expression sees one row; use key_by(…).aggregate(…)")
    tree = _only_expression(root, exp, text)
    _regroup(tree, exp)
    return tree.this


@cache
def _sqlglot() -> tuple[Any, Any]:
    from sqlglot import exp
    from sqlglot.dialects.spark import Spark

    parser: Any = type("Parser", (Spark.Parser,), {"FUNCTIONS": {}})
    return exp, type("Calls", (Spark,), {"Parser": parser})


def _parse(text: str, dialect: Any, original: str) -> Any:
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        return sqlglot.parse_one(text, dialect=dialect)
    except SqlglotError as error:
        details = getattr(error, "errors", None) or [{}]
        raise _syntax_error(details[0], original) from None


_PYTHON_SIGNS = {"&&": "AND", "!": "NOT", "None": "NULL"}


def _syntax_error(detail: dict[str, Any], text: str) -> ExpressionError:
    """What is wrong with a text, from where the parser stopped: it calls things by the names of its own classes."""
    opened = _count_outside_literals(text)
    sign = next((sign for sign in _PYTHON_SIGNS if sign in _PIECES.sub("", text)), None)
    # The text stands alone on the second line of what is parsed; on the third its closing bracket.
    at_end = detail.get("line", 3) != 2 or "\n" in text
    highlight = str(detail.get("highlight", ""))
    at = len(text) if at_end else _unmask_position(text, detail.get("col", 0) - len(highlight))
    if opened > 0:
        reason = "a ) is missing"
    elif opened < 0:
        reason, at = "there is a ) too many", text.rindex(")")
    elif at_end:
        reason = "it ends too early"
    else:
        reason = f"{highlight!r} is not expected here" if highlight.isprintable() and highlight.isascii() else ""
    next_move = (
        "text is SQL, and a column named like a SQL word stands in `backticks`; filter(…) takes a Python function"
    )
    if sign is not None:
        next_move = f"write {_PYTHON_SIGNS[sign]} for {sign}"
    return ExpressionError(
        f"this is not a SQL expression{': ' if reason else ''}{reason}",
        expected="one expression in Spark SQL, such as n > 0",
        found=point_at(text, at),
        next_move=next_move,
    )


def blank_quoted(text: str) -> str:
    """The text with its literals, quoted names and comments blanked out; every other character keeps its place."""
    return _PIECES.sub(lambda match: match[0] if match.lastgroup == "array" else " " * len(match[0]), text)


def literal_pieces(text: str) -> Iterator[tuple[int, int, str | None]]:
    """Where each quoted literal of a text begins and ends, and what it stands for.

    None stands for the name ``array`` before its arguments, which a parser must not see as it is.
    """
    for match in _PIECES.finditer(text):
        if match.lastgroup == "array":
            yield match.start(), match.end(), None
        elif match.lastgroup in ("raw", "text"):
            piece = match.group()
            yield match.start(), match.end(), piece[2:-1] if match.lastgroup == "raw" else unescape(piece)


def point_at(text: str, at: int) -> str:
    """A text with a mark under one of its characters; the text alone where it has several lines."""
    return text if "\n" in text else f"{text}\n{' ' * (len('  found:    ') + at)}^"


def _count_outside_literals(text: str) -> int:
    plain = _PIECES.sub("", text)
    return plain.count("(") - plain.count(")")


def _unmask_position(text: str, masked_at: int) -> int:
    """The place in a text of a place in what the parser was given, where literals are masked."""
    literals: list[str] = []
    moved = 0
    for match in _PIECES.finditer(text):
        if match.start() - moved >= masked_at:
            break
        moved += len(match.group()) - len(_mask(match, literals))
    return min(max(masked_at + moved, 0), len(text))


def _only_expression(root: Any, exp: Any, text: str) -> Any:
    inner = root.expressions[0] if isinstance(root, exp.Select) and len(root.expressions) == 1 else None
    extra = [name for name, value in root.args.items() if value and name not in ("expressions", "kind")]
    if not isinstance(inner, exp.Paren) or extra:
        raise _not_one(text, "one expression")
    refused = {
        exp.Query: "no query inside an expression",
        exp.Window: "no window function: every row is looked at alone",
        exp.Star: "columns by name, not *",
        exp.Alias: "no AS: results are named by the keyword argument",
        exp.Tuple: "one expression",
        exp.Placeholder: "no parameters: put the value in with hr.col and Python operators",
        exp.Parameter: "no parameters: put the value in with hr.col and Python operators",
    }
    for kind, expected in refused.items():
        # A tuple may stand inside (x IN (1, 2) has none, but LIKE ANY has); only as the whole it is two expressions.
        found = inner.this if kind is exp.Tuple and isinstance(inner.this, kind) else None
        if found is not None or (kind is not exp.Tuple and inner.find(kind) is not None):
            raise _not_one(text, expected)
    return inner


def _regroup(tree: Any, exp: Any) -> None:
    """Give operators Spark's precedence where sqlglot has another.

    All comparisons bind alike and to the left, || binds like + and -, and & binds before ^ before |.
    """
    comparisons = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
    sums = (exp.DPipe, exp.Add, exp.Sub)
    for levels in ((comparisons,), (sums,), ((exp.BitwiseAnd,), (exp.BitwiseXor,), (exp.BitwiseOr,))):
        kinds = tuple(kind for level in levels for kind in level)
        for top in list(tree.find_all(*kinds)):
            if isinstance(top.parent, kinds) or not (exp.DPipe not in kinds or top.find(exp.DPipe)):
                continue
            operands, operators = _chain(top, kinds, exp)
            if len(operators) > 1:
                top.replace(_by_level(operands, operators, levels))


def _chain(node: Any, kinds: tuple[Any, ...], exp: Any) -> tuple[list[Any], list[Any]]:
    """Operands and operators of one run of operators, in the order they were written."""
    # A sum of intervals comes from INTERVAL 1 DAY 2 HOURS, which is one literal.
    if not isinstance(node, kinds) or isinstance(node.this, exp.Interval):
        return [node], []
    left, right = _chain(node.this, kinds, exp), _chain(node.expression, kinds, exp)
    return left[0] + right[0], [*left[1], type(node), *right[1]]


def _by_level(operands: list[Any], operators: list[Any], levels: tuple[tuple[Any, ...], ...]) -> Any:
    """The tree in which earlier levels bind tighter, and each level groups to the left."""
    operands, operators = [operand.copy() for operand in operands], list(operators)
    for level in levels:
        at = 0
        while at < len(operators):
            if operators[at] in level:
                operands[at : at + 2] = [operators.pop(at)(this=operands[at], expression=operands[at + 1])]
            else:
                at += 1
    return operands[0]


def _not_one(text: str, expected: str) -> ExpressionError:
    return ExpressionError("this text cannot be used as an expression", expected=expected, found=repr(text))


def _mask(match: re.Match[str], literals: list[str]) -> str:
    piece = match.group()
    if match.lastgroup == "array":
        return _ARRAY
    if match.lastgroup not in ("raw", "text"):
        return piece
    literals.append(piece[2:-1] if match.lastgroup == "raw" else unescape(piece))
    return "'" + _MARK.format(len(literals) - 1) + "'"


def unescape(literal: str) -> str:
    """The text that a quoted Spark literal stands for."""
    quote, inner = literal[0], literal[1:-1].replace(literal[0] * 2, literal[0])
    assert quote in "'\""
    return _ESCAPES.sub(_unescape_one, inner)


def _unescape_one(match: re.Match[str]) -> str:
    code = match.group(1)
    if len(code) == 1:
        return _ESCAPED.get(code, code)
    return chr(int(code[1:], 16) if code[0] in "uU" else int(code, 8))


def quote_text(text: str) -> str:
    """A Spark literal for this text; the other way round of `unescape`."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0") + "'"


def column_path(node: Any) -> tuple[str, ...]:
    """The names of ``a.b.c`` in the order they were written."""
    return tuple(part.this for name in ("catalog", "db", "table", "this") if (part := node.args.get(name)))


def root_columns(tree: Any) -> frozenset[str]:
    """The first name of every column path: the columns the expression reads, or, qualified, their structs."""
    exp, _ = _sqlglot()
    return frozenset(column_path(node)[0] for node in tree.find_all(exp.Column))
