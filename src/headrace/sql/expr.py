"""SQL expressions as the user gives them: text, `hr.col(...)` or a field of a Record; read, checked and typed.

Everything here works on text and Arrow schemas, before anything runs: `parse` reads, `check` finds unknown columns,
`infer` says the type of the result, `supported` says whether the worker can evaluate it without a JVM. Where the JVM
evaluates, the text goes to Spark as it is. Evaluation in the worker is `headrace.sql.evaluate.expressions`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import FunctionType, MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from headrace.errors import ExpressionError, ProgramError
from headrace.model.nearest import nearest
from headrace.sql import types
from headrace.sql.parse import parse_tree, quote_text, root_columns

WAYS_OUT = (
    "put it directly after read(), where Spark evaluates any SQL, or use map()/filter() with a Python function; "
    "in a test, Harness(app, spark=session) evaluates it in Spark"
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORD_TEXT = """all alter and anti any array as between both by case cast create cross current_date
current_timestamp current_user date describe distinct div drop else end except exists extract false fetch filter for
from full glob grant group having ilike in inner insert intersect interval into is join lateral left like limit minus
natural not notnull null on or order outer partitioned_by qualify regexp returning revoke right rlike rollback select
semi serdeproperties session_user some struct substring table tablesample then timestamp to trim true uncache union
unique using values when where with xor"""
_KEYWORDS = frozenset(_KEYWORD_TEXT.split())


class Expr:
    """A SQL expression built in Python: ``hr.col("n") > 0`` is the text ``n > 0``. Combine with ``& | ~``."""

    __slots__ = ("sql",)

    def __init__(self, sql: str) -> None:
        self.sql = sql

    def _binary(self, op: str, other: object, *, swap: bool = False) -> Expr:
        left, right = (literal_sql(other), self.sql) if swap else (self.sql, literal_sql(other))
        return Expr(f"({left} {op} {right})")

    def __add__(self, other: object) -> Expr:
        return self._binary("+", other)

    def __radd__(self, other: object) -> Expr:
        return self._binary("+", other, swap=True)

    def __sub__(self, other: object) -> Expr:
        return self._binary("-", other)

    def __rsub__(self, other: object) -> Expr:
        return self._binary("-", other, swap=True)

    def __mul__(self, other: object) -> Expr:
        return self._binary("*", other)

    def __rmul__(self, other: object) -> Expr:
        return self._binary("*", other, swap=True)

    def __truediv__(self, other: object) -> Expr:
        return self._binary("/", other)

    def __rtruediv__(self, other: object) -> Expr:
        return self._binary("/", other, swap=True)

    def __mod__(self, other: object) -> Expr:
        return self._binary("%", other)

    def __rmod__(self, other: object) -> Expr:
        return self._binary("%", other, swap=True)

    def __neg__(self) -> Expr:
        return Expr(f"(- {self.sql})")

    def __gt__(self, other: object) -> Expr:
        return self._binary(">", other)

    def __ge__(self, other: object) -> Expr:
        return self._binary(">=", other)

    def __lt__(self, other: object) -> Expr:
        return self._binary("<", other)

    def __le__(self, other: object) -> Expr:
        return self._binary("<=", other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return self._binary("=", other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return self._binary("<>", other)

    def __and__(self, other: object) -> Expr:
        return self._binary("AND", other)

    def __rand__(self, other: object) -> Expr:
        return self._binary("AND", other, swap=True)

    def __or__(self, other: object) -> Expr:
        return self._binary("OR", other)

    def __ror__(self, other: object) -> Expr:
        return self._binary("OR", other, swap=True)

    def __invert__(self) -> Expr:
        return Expr(f"(NOT {self.sql})")

    def __getitem__(self, key: object) -> Expr:
        """An element of an array (from 0), the value of a map's key, or the field of a struct."""
        return Expr(f"{self.sql}[{literal_sql(key)}]")

    def __hash__(self) -> int:
        return hash(self.sql)

    def __bool__(self) -> bool:
        raise TypeError("a SQL expression has no truth value in Python: combine with & | ~ instead of and/or/not")

    def __iter__(self) -> Any:
        raise TypeError("a SQL expression cannot be iterated over")

    def __repr__(self) -> str:
        return f"Expr({self.sql!r})"

    def is_null(self) -> Expr:
        return Expr(f"({self.sql} IS NULL)")

    def is_not_null(self) -> Expr:
        return Expr(f"({self.sql} IS NOT NULL)")

    def is_in(self, values: Any) -> Expr:
        listed = ", ".join(literal_sql(value) for value in values)
        return Expr(f"({self.sql} IN ({listed}))") if listed else Expr("FALSE")

    def between(self, low: object, high: object) -> Expr:
        return Expr(f"({self.sql} BETWEEN {literal_sql(low)} AND {literal_sql(high)})")

    def like(self, pattern: str) -> Expr:
        return self._binary("LIKE", pattern)

    def cast(self, kind: str) -> Expr:
        """This value as another SQL type: ``hr.col("n").cast("double")``."""
        return Expr(f"CAST({self.sql} AS {kind})")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or name in Expr.__slots__:
                raise AttributeError(name)
            from headrace.sql.mistakes import unknown_method

            raise unknown_method(self.sql, name)


def col(name: str) -> Expr:
    """A column by name, to build an expression with Python operators; dots reach into structs."""
    return Expr(".".join(quote_name(part) for part in name.split(".")))


def quote_name(name: str) -> str:
    """A column name as SQL text, in backticks where it needs them."""
    plain = _PLAIN_NAME.fullmatch(name) is not None and name.lower() not in _KEYWORDS
    return name if plain else "`" + name.replace("`", "``") + "`"


def literal_sql(value: object) -> str:
    """A Python value as a Spark literal; an Expr is its text."""
    if isinstance(value, Expr):
        return value.sql
    if isinstance(value, MemberDescriptorType):
        return quote_name(value.__name__)
    if isinstance(value, Enum):
        return literal_sql(value.value)
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "FALSE"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value!r}D" if math.isfinite(value) else f"double('{value}')"
    if isinstance(value, (str, UUID)):
        return quote_text(str(value))
    return _other_literal(value)


def _other_literal(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return f"X'{value.hex()}'"
    if isinstance(value, Decimal) and value.is_finite():
        return f"{value:f}BD"
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return f"TIMESTAMP '{aware.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f')}Z'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, timedelta):
        micros = value // timedelta(microseconds=1)
        sign, rest = ("-", -micros) if micros < 0 else ("", micros)
        return f"INTERVAL '{sign}{rest // 1_000_000}.{rest % 1_000_000:06}' SECOND"
    raise ExpressionError(
        "this value cannot stand in an expression",
        expected="None, bool, int, float, str, bytes, Decimal, datetime, date, timedelta, UUID or an Enum of these",
        found=f"{type(value).__name__} {value!r:.100}",
    )


def as_sql(column: object) -> str:
    """The SQL text of what a user may give for a column: text, an Expr, or a field such as ``Impression.at``."""
    if isinstance(column, Expr):
        return column.sql
    if isinstance(column, str):
        return column.strip()
    if isinstance(column, MemberDescriptorType):
        return quote_name(column.__name__)
    expected = 'SQL text, hr.col("name"), or a field of the Record such as Impression.at'
    if isinstance(column, FunctionType | MethodType):
        found, next_move = f"the function {column.__name__}", "filter(…), map(…) and flat_map(…) take Python functions"
    else:
        found, next_move = f"{type(column).__name__} {column!r:.100}", ""
    raise ProgramError("this is not a column", expected=expected, found=found, next_move=next_move)


@dataclass(frozen=True, slots=True)
class ParsedExpression:
    """Text that was read: the columns it needs (without the path behind a dot) and its syntax tree."""

    sql: str
    columns: frozenset[str]
    tree: Any = field(repr=False, compare=False)


def parse(text: str, where: str = "") -> ParsedExpression:
    """Read the text; raises ExpressionError with `where` when it is not one expression."""
    try:
        tree = parse_tree(text)
    except ExpressionError as error:
        error.where = where
        raise
    return ParsedExpression(text, root_columns(tree), tree)


def check(text: str, schema: pa.Schema, where: str = "") -> ParsedExpression:
    """`resolve`, and functions and types must fit as far as they are known before anything runs."""
    from headrace.sql.mistakes import check_meaning

    parsed = resolve(text, schema, where)
    check_meaning(parsed, schema, where)
    return parsed


def resolve(text: str, schema: pa.Schema, where: str = "") -> ParsedExpression:
    """`parse`, and every column must exist. Names are found without regard to case, as in Spark.

    The result's `columns` are spelled as the schema spells them.
    """
    parsed = parse(text, where)
    names = frozenset(resolve_name(name, schema.names, where, text) for name in sorted(parsed.columns))
    return ParsedExpression(parsed.sql, names, parsed.tree)


def resolve_name(name: str, known: list[str], where: str, text: str) -> str:
    if name in known:
        return name
    same = [each for each in known if each.lower() == name.lower()]
    if len(same) == 1:
        return same[0]
    spelled = nearest(name, known)
    next_move = "name a column of the stream as it is at this step"
    if name == "None":
        next_move = "SQL's word is NULL: write IS NULL, or IS NOT NULL"
    elif spelled and not same:
        next_move = f"did you mean {' or '.join(spelled)}?"
    listed = known[:12]
    raise ExpressionError(
        f"there is no column {name!r}" if not same else f"{name!r} could be {' or '.join(map(repr, same))}",
        where=where,
        expected=("one of " if len(listed) > 1 else "") + ", ".join(listed) + (" …" if len(known) > 12 else ""),
        found=f"{name} in {text!r}",
        next_move=next_move,
    )


def infer(text: str, schema: pa.Schema) -> pa.DataType | None:
    """The column type of the result as Spark would give it, in Headrace's column types; None when it is not known."""
    from headrace.sql.bind import Unsupported, bind

    try:
        node = bind(resolve(text, schema), schema)
    except Unsupported:
        return None
    return schema.field(node.value).type if node.op == "column" else types.to_arrow(node.type)


def supported(text: str, schema: pa.Schema) -> str | None:
    """None when the worker can evaluate this text; otherwise the reason why it cannot."""
    from headrace.sql.bind import Unsupported, bind

    try:
        node = bind(resolve(text, schema), schema)
    except Unsupported as reason:
        return str(reason)
    if types.to_arrow(node.type) is None and node.op != "column" and node.type != types.NULL:
        return f"the result is {node.type}, and no column can hold that"
    return None


def check_supported(text: str, schema: pa.Schema, where: str = "") -> None:
    """Raise ExpressionError with the ways out when the worker cannot evaluate this text."""
    check(text, schema, where)
    reason = supported(text, schema)
    if reason is not None:
        raise unsupported_error(text, reason, where)


def unsupported_error(text: str, reason: str, where: str = "") -> ExpressionError:
    return ExpressionError(
        f"this expression cannot be evaluated outside of Spark: {reason}",
        where=where,
        expected="the documented subset of SQL (docs/reference/expressions.md)",
        found=repr(text),
        next_move=WAYS_OUT,
    )


def check_result(text: str, schema: pa.Schema, column: pa.Field, where: str = "") -> None:
    """Raise ExpressionError when the result is known not to fit the declared column without an explicit CAST."""
    from headrace.sql.bind import Unsupported, bind

    try:
        found = bind(check(text, schema, where), schema).type
    except Unsupported:
        return
    declared = types.from_field(column)
    if types.OPAQUE in (found, declared) or types.can_store(found, declared):
        return
    raise ExpressionError(
        f"column {column.name!r} is declared as {declared}, and the expression gives {found}",
        where=where,
        expected=str(declared),
        found=f"{text!r}, which is {found}",
        next_move=f"write CAST({text} AS {declared}) if that is what you mean, or change the field's type",
    )
