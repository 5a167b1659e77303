"""The select list: stars spread out, results named, and the projection that gives them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.dataflow.naming import proposal
from headrace.dataflow.update_kinds import let_withdraw
from headrace.sql.expr import quote_name
from headrace.sql.parse import column_path
from headrace.tables.aggregate_calls import is_aggregate
from headrace.tables.context import QueryContext, free_name
from headrace.tables.dialect import render
from headrace.tables.scope import AtTree, QueryPlace, Relation, ScopeColumn, bare_field, expression_sql, lookup


class SelectItem(NamedTuple):
    """One column of a result: its name, and the expression or the column that it is."""

    name: str
    tree: Any
    column: ScopeColumn | None = None
    """Where it comes from a star."""


def select_items(
    select: Any, relation: Relation, place: QueryPlace, rewrite: Callable[[Any], Any] | None = None
) -> list[SelectItem]:
    """The columns that a SELECT gives, in order, each with a name of its own; ``rewrite`` makes them ones of groups."""
    from sqlglot import exp

    items: list[SelectItem] = []
    for tree in select.expressions:
        if rewrite is not None and isinstance(tree, exp.Star):
            rewrite(tree)
        star = tree if isinstance(tree, exp.Star) else tree.this if isinstance(tree, exp.Column) else None
        if isinstance(star, exp.Star):
            table = "" if tree is star else tree.table
            items += _spread(relation, star, tree, table, place)
        else:
            value = tree.this if isinstance(tree, exp.Alias) else tree
            items.append(SelectItem(_name_of(tree), value if rewrite is None else rewrite(value)))
    taken: list[str] = []
    for i, item in enumerate(items):
        items[i] = item._replace(name=free_name(item.name, taken))
        taken.append(items[i].name)
    return items


def with_aliases(tree: Any, select: Any, relation: Relation | None = None) -> Any:
    """An expression in which the names of results are what they stand for, but for the arguments of aggregates.

    ``relation``: whose columns go before such names; None: the names of results go first.
    """
    from sqlglot import exp

    meant = {each.alias.lower(): each.this for each in select.expressions if isinstance(each, exp.Alias)}
    tree = exp.Paren(this=tree.copy())
    for node in list(tree.find_all(exp.Column)):
        value = None if node.table or isinstance(node.this, exp.Star) else meant.get(node.name.lower())
        if value is None or (relation is not None and lookup(relation, column_path(node)) != []):
            continue
        above = node.parent
        while above is not None and not is_aggregate(above) and not isinstance(above, exp.Window):
            above = above.parent
        if above is None:
            node.replace(exp.Paren(this=value.copy()))
    return tree.this


def _spread(relation: Relation, star: Any, tree: Any, table: str, place: QueryPlace) -> list[SelectItem]:
    columns = [c for c in relation.columns if (c.table.lower() == table.lower() if table else not c.hidden)]
    if not columns:
        known = ", ".join(sorted({c.table for c in relation.columns if c.table}))
        raise place.error(tree, f"there is no table {table!r} here", expected=f"one of {known}")
    without = star.args.get("except_") or ()
    left_out = {each.name.lower() for each in without}
    for each in without:
        if each.name.lower() not in {c.name.lower() for c in columns}:
            raise place.error(
                each, f"there is no column {each.name!r} to leave out", expected=", ".join(c.name for c in columns[:12])
            )
    return [SelectItem(c.name, tree, c) for c in columns if c.name.lower() not in left_out]


def _name_of(tree: Any) -> str:
    from sqlglot import exp

    if isinstance(tree, exp.Alias):
        return str(tree.alias)
    if isinstance(tree, exp.Column):
        return column_path(tree)[-1]
    if isinstance(tree, exp.Dot):
        return str(tree.expression.name)
    text = proposal(re.sub(r"\W+", "_", render(tree)))
    return text[:40].strip("_") or "value"


def project(ctx: QueryContext, relation: Relation, items: list[SelectItem], tree: Any) -> Relation:
    """The relation that has these columns and no others."""
    place = ctx.place
    waiting = {item.name: role for item in items if (role := _role(relation, item))}
    texts = {item.name: _text(relation, item, place) for item in items if item.name not in waiting}
    bare = {item.name: _bare(relation, item, place) for item in items if item.name not in waiting}
    session_keys = relation.session_keys if waiting else ()
    for text in (*map(quote_name, session_keys), *([relation.time] if waiting and relation.time else [])):
        # What windows are made of goes along, though nobody asked for it.
        if text not in texts.values():
            name = free_name("row_time" if text == relation.time else text.strip("`"), texts)
            texts[name] = text
            bare[name] = next((field for field in relation.fields if quote_name(field) == text), None)
    stream = relation.stream
    if [*bare.items()] != [(name, name) for name in relation.fields]:
        _check_names(items, place)
        with AtTree(place, tree):
            stream = stream.select(**texts)
            let_withdraw(stream.node, place.site)
    by_field = {field: name for name, field in reversed(bare.items()) if field is not None}
    by_text = {text: quote_name(name) for name, text in reversed(texts.items())}
    closed = relation.closed
    return Relation(
        stream,
        tuple(_result_column(item.name, waiting.get(item.name, "")) for item in items),
        time=by_text.get(relation.time or ""),
        assigner=relation.assigner if waiting else None,
        session_keys=tuple(by_field[key] for key in session_keys),
        closed=(by_text[closed[0]], by_text[closed[1]]) if closed and set(closed) <= set(by_text) else None,
        fires=relation.fires,
    )


def _result_column(name: str, role: str) -> ScopeColumn:
    return ScopeColumn("", name, "" if role else quote_name(name), role)


def _check_names(items: list[SelectItem], place: QueryPlace) -> None:
    for item in items:
        if not item.name.isidentifier() or item.name.startswith("__"):
            raise place.error(
                item.tree,
                f"a column of a result cannot be named {item.name!r}",
                expected="letters, digits and underscores, not two of them in front",
                next_move=f"name it: … AS {proposal(item.name) or 'value'}",
            )


def _role(relation: Relation, item: SelectItem) -> str:
    """Which bound of a window that rows are not in yet an item is."""
    from sqlglot import exp

    if item.column is not None:
        return "" if item.column.text else item.column.role
    if not isinstance(item.tree, exp.Column) or isinstance(item.tree.this, exp.Star):
        return ""
    found = lookup(relation, column_path(item.tree))
    return "" if isinstance(found, list) or found[0].text else found[0].role


def _text(relation: Relation, item: SelectItem, place: QueryPlace) -> str:
    return item.column.text if item.column is not None else expression_sql(relation, item.tree, place)


def _bare(relation: Relation, item: SelectItem, place: QueryPlace) -> str | None:
    if item.column is None:
        return bare_field(relation, item.tree, place)
    return {quote_name(name): name for name in relation.fields}.get(item.column.text)


def uses_windows(relation: Relation, *trees: Any) -> bool:
    """Whether an expression computes with bounds of windows that rows are not in yet."""
    from sqlglot import exp

    if relation.assigner is None:
        return False
    for tree in trees:
        for node in tree.find_all(exp.Column) if tree is not None else ():
            found = lookup(relation, column_path(node)) if not isinstance(node.this, exp.Star) else []
            if not isinstance(found, list) and not found[0].text:
                return True
    return False
