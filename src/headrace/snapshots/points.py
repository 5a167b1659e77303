"""Questions for single keys: ``SELECT … FROM table WHERE key = …``, answered without DuckDB.

A dashboard asks them by the thousand, and planning one costs more than looking its key up. What such a statement asks
for is read off its text once and remembered. Anything that is more than that is no such question, and DuckDB answers
it the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlglot
from sqlglot import exp

from headrace.snapshots.table import PUBLIC, TableName

if TYPE_CHECKING:
    from headrace.snapshots.table import StateTable

_LONGEST: Final = 2000
_MOST: Final = 4096


class EqualTo(NamedTuple):
    """A value that a column is compared with: a parameter, by its place from 0, or a literal."""

    place: int = -1
    literal: Any = None


class PointQuestion(NamedTuple):
    """One key of one table."""

    table: TableName
    names: tuple[tuple[str, str], ...]
    """Column and what it is called in the answer; none: every column."""
    equal: tuple[tuple[str, EqualTo], ...]
    """Columns and what each must be."""
    parameters: int


class PointPlan(NamedTuple):
    """A question to a table that there is."""

    names: tuple[str, ...]
    """Columns of the table, …"""
    titles: tuple[str, ...]
    """… and what they are called in the answer."""
    parts: tuple[EqualTo, ...]
    """The parts of the key."""


@lru_cache(_MOST)
def parse_point(statement: str) -> PointQuestion | None:
    """What a statement asks for, where that is one key of one table; None: it may be anything else."""
    if len(statement) > _LONGEST or "=" not in statement:
        return None
    try:
        trees = sqlglot.parse(statement, read="postgres")
    except sqlglot.errors.SqlglotError:
        return None
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Select):
        return None
    there = {name for name, part in tree.args.items() if part}
    if not there <= {"kind", "expressions", "from", "from_", "where"} or tree.args.get("kind"):
        return None
    return _question(tree)


def _question(tree: exp.Select) -> PointQuestion | None:
    source = tree.args.get("from_") or tree.args.get("from")
    table = None if source is None else source.this
    if not isinstance(table, exp.Table) or any(
        table.args.get(name) for name in ("catalog", "joins", "pivots", "laterals", "sample", "version", "when")
    ):
        return None
    alias = table.alias_or_name
    names = _names(tree.expressions, alias)
    where = tree.args.get("where")
    if names is None or where is None:
        return None
    equal = []
    for part in where.this.flatten() if isinstance(where.this, exp.And) else [where.this]:
        pair = _equality(part.unnest(), alias)
        if pair is None:
            return None
        equal.append(pair)
    places = [given.place for _, given in equal if given.place >= 0]
    name = TableName(table.db or PUBLIC, table.name)
    return PointQuestion(name, names, tuple(equal), max(places, default=-1) + 1)


def _names(expressions: Sequence[exp.Expr], alias: str) -> tuple[tuple[str, str], ...] | None:
    if len(expressions) == 1 and isinstance(expressions[0], exp.Star):
        return ()
    names = []
    for each in expressions:
        column = each.this if isinstance(each, exp.Alias) else each
        name = _column(column, alias)
        if name is None:
            return None
        names.append((name, each.alias if isinstance(each, exp.Alias) else name))
    return tuple(names)


def _column(node: exp.Expr, alias: str) -> str | None:
    plain = isinstance(node, exp.Column) and isinstance(node.this, exp.Identifier) and not node.args.get("db")
    return node.name if plain and node.text("table") in ("", alias) else None


def _equality(node: exp.Expr, alias: str) -> tuple[str, EqualTo] | None:
    if not isinstance(node, exp.EQ):
        return None
    for one, other in ((node.left, node.right), (node.right, node.left)):
        name, given = _column(one, alias), _comparand(other)
        if name is not None and given is not None:
            return name, given
    return None


def _comparand(node: exp.Expr) -> EqualTo | None:
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Parameter | exp.Placeholder | exp.Literal):
        text = node.to.sql("postgres").upper()
        if not text.startswith(("TEXT", "VARCHAR", "BIGINT", "INT")):
            return None
        found = _comparand(node.this)
        whole = text.startswith(("BIGINT", "INT"))
        return None if found is None or (found.place < 0 and whole != isinstance(found.literal, int)) else found
    if isinstance(node, exp.Parameter) and node.name.isdecimal():
        return EqualTo(place=int(node.name) - 1)
    if isinstance(node, exp.Literal):
        if node.is_string:
            return EqualTo(literal=node.this)
        return EqualTo(literal=int(node.this)) if node.this.isdecimal() else None
    return None


def plan_point(question: PointQuestion, tables: Mapping[TableName, StateTable]) -> PointPlan | None:
    """The plan of a question; None where it is not for one key of a table that there is."""
    table = tables.get(question.table)
    if table is None or not table.looks_up or not table.key_types or any(type.json for type in table.key_types):
        return None
    equal = dict(question.equal)
    if len(equal) != len(question.equal) or equal.keys() != set(table.key_names):
        return None
    names = question.names or tuple((column.name, column.name) for column in table.columns)
    if any(name not in table.by_name for name, _ in names):
        return None
    parts = tuple(equal[name] for name in table.key_names)
    return PointPlan(tuple(name for name, _ in names), tuple(title for _, title in names), parts)


def point_key(plan: PointPlan, table: StateTable, parameters: Sequence[Any]) -> bytes | None:
    """The key that is asked for; None where a value is compared in a way of its own: DuckDB knows it."""
    return table.key_bytes([part.literal if part.place < 0 else parameters[part.place] for part in plan.parts])
