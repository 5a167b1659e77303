"""From the tree of a query to the relation that it is: SELECT clause by clause, each as a verb of streams.

The order is SQL's own: FROM and its joins, WHERE, GROUP BY with HAVING, window functions, QUALIFY, the select list,
DISTINCT, ORDER BY with LIMIT. Every clause is lowered in a module of its own; here they are put together.

What this module deliberately does not do: optimise. What runs where is for the planner, as for any program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.aggregates.declare import count
from headrace.dataflow.update_kinds import let_withdraw
from headrace.tables.catalog import Table, closed_windows
from headrace.tables.context import QueryContext, free_name
from headrace.tables.dialect import ParsedStatement
from headrace.tables.grouping import grouped, is_grouped
from headrace.tables.scope import AtTree, Relation, conjuncts, expression_sql, relation_of
from headrace.tables.select_list import project, select_items
from headrace.tables.window_tables import window_call, windowed


def lower(ctx: QueryContext, tree: Any) -> Relation:
    """The relation of a query, or of anything that can stand in FROM."""
    from sqlglot import exp

    if tree.args.get("with_") is not None:
        ctx = _with_named(ctx, tree)
    match tree:
        case exp.Select():
            return lower_select(ctx, tree)
        case exp.Subquery():
            return _aliased(lower(ctx, tree.this), tree)
        case exp.Table():
            call = window_call(tree)
            return _table(ctx, tree) if call is None else _aliased(windowed(ctx, call), tree)
    raise _refused(ctx, tree)


def lower_select(ctx: QueryContext, select: Any) -> Relation:
    """One SELECT."""
    relation = _from(ctx, select)
    inner = replace(ctx, ranks={})
    if (where := select.args.get("where")) is not None:
        relation = filtered(inner, relation, where.this)
    rewrite: Callable[[Any], Any] | None = None
    if is_grouped(select):
        relation, rewrite = grouped(inner, select, relation)
        if (having := select.args.get("having")) is not None:
            relation = filtered(inner, relation, rewrite(having.this))
    items = select_items(select, relation, ctx.place, rewrite)
    relation = project(inner, relation, items, select)
    if select.args.get("distinct") is not None:
        relation = distinct(inner, relation, select)
    return relation


def distinct(ctx: QueryContext, relation: Relation, tree: Any) -> Relation:
    """Each row once: groups by all columns, of which nothing is asked."""
    with AtTree(ctx.place, tree):
        rows = free_name("rows_in_group", relation.fields)
        counted: Any = {rows: count()}
        made: Any = relation.stream.key_by(*relation.fields).aggregate(**counted)
        ctx.steps.add(made, "distinct", tree, ", ".join(relation.fields))
        stream = made.select(*relation.fields)
    return replace(relation, stream=stream, time=None, closed=None)


def settled(ctx: QueryContext, relation: Relation, tree: Any) -> Relation:
    """A relation whose windows, if its rows were to be put in some, are columns now."""
    return relation


def filtered(ctx: QueryContext, relation: Relation, condition: Any) -> Relation:
    """The rows for which a condition holds."""
    for each in conjuncts(condition):
        text = expression_sql(relation, each, ctx.place)
        with AtTree(ctx.place, each):
            relation = relation.over(relation.stream.where(text))
            let_withdraw(relation.stream.node, ctx.place.site)
    return relation


# --- FROM


def _from(ctx: QueryContext, select: Any) -> Relation:
    source = select.args.get("from_")
    if source is None:
        raise ctx.place.error(
            select, "a query over streams reads a table", expected="SELECT … FROM …", next_move="name a table in FROM"
        )
    return lower(replace(ctx, ranks={}), source.this)


def _table(ctx: QueryContext, tree: Any) -> Relation:
    name = tree.name
    found = ctx.tables.get(name.lower()) or ctx.catalog.find(name)
    if isinstance(found, Table):
        relation = relation_of(found.stream, found.name, found.time, closed_windows(found.stream.node))
    elif isinstance(found, ParsedStatement):
        relation = _view(ctx, name, found, tree)
    elif isinstance(found, NamedQuery):
        relation = found.relation(name)
    else:
        error = ctx.catalog.missing(name, ctx.tables)
        raise ctx.place.error(tree, error.what, expected=error.expected, next_move=error.next_move)
    return _aliased(relation.named(name), tree)


def _view(ctx: QueryContext, name: str, statement: ParsedStatement, tree: Any) -> Relation:
    if name.lower() in ctx.views:
        raise ctx.place.error(
            tree, f"the view {name!r} reads itself", expected="a view over tables and other views",
            next_move="rows that come back are a loop: app.loop(…)",
        )  # fmt: skip
    inner = ctx.of_view(name.lower(), statement)
    return lower(inner, statement.tree).named(name)


class NamedQuery:
    """A query under a name of WITH: lowered when it is first read, and once."""

    def __init__(self, ctx: QueryContext, tree: Any, columns: list[str]) -> None:
        self._ctx, self._tree, self._columns = ctx, tree, columns
        self._relation: Relation | None = None

    def relation(self, name: str) -> Relation:
        if self._relation is None:
            self._relation = lower(self._ctx, self._tree)
        return self._relation.named(name, self._columns)


def _with_named(ctx: QueryContext, tree: Any) -> QueryContext:
    with_ = tree.args["with_"]
    if with_.args.get("recursive"):
        raise ctx.place.error(
            with_, "WITH RECURSIVE cannot be had over streams", expected="WITH name AS (SELECT …)",
            next_move="rows that come back are a loop: app.loop(…)",
        )  # fmt: skip
    for each in with_.expressions:
        columns = [column.name for column in each.args["alias"].columns]
        ctx = ctx.with_tables({each.alias.lower(): NamedQuery(ctx, each.this, columns)})
    return ctx


def _aliased(relation: Relation, tree: Any) -> Relation:
    alias = tree.args.get("alias")
    if alias is None:
        return relation
    return relation.named(alias.name or "", [column.name for column in alias.columns])


def _refused(ctx: QueryContext, tree: Any) -> Any:
    return ctx.place.error(
        tree, f"{type(tree).__name__.upper()} is not part of streaming SQL", expected="SELECT, VALUES, UNION, …",
        next_move="see the guide Streaming SQL for what can be said",
    )  # fmt: skip
