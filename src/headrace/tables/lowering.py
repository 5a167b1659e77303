"""From the tree of a query to the relation that it is: SELECT clause by clause, each as a verb of streams.

The order is SQL's own: FROM and its joins, WHERE, GROUP BY with HAVING, window functions, QUALIFY, the select list,
DISTINCT, ORDER BY with LIMIT. Every clause is lowered in a module of its own; here they are put together.

What this module deliberately does not do: optimise. What runs where is for the planner, as for any program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from headrace.dataflow.update_kinds import let_withdraw
from headrace.sql.expr import quote_name
from headrace.tables.aggregate_calls import aggregates_in
from headrace.tables.catalog import Table, closed_windows
from headrace.tables.clauses import check_clauses
from headrace.tables.context import QueryContext
from headrace.tables.dialect import ParsedStatement, render
from headrace.tables.expanding import in_windows
from headrace.tables.from_clause import with_joins
from headrace.tables.grouping import gives_again, grouped, is_grouped
from headrace.tables.hints import check_emits, check_names, with_hints
from headrace.tables.match_recognize import recognized, without_match
from headrace.tables.ordering import has_order, in_order, order_items
from headrace.tables.overs import rewritten, windows_in, with_windows
from headrace.tables.python_aggregates import with_own_names
from headrace.tables.python_functions import with_calls
from headrace.tables.ranks import inner_names, rank_bounds
from headrace.tables.scalar_queries import has_scalars, with_scalars
from headrace.tables.scope import AtTree, Relation, conjuncts, expression_sql, relation_of
from headrace.tables.select_list import SelectItem, project, select_items, uses_windows, with_aliases
from headrace.tables.semi_joins import is_membership, with_members
from headrace.tables.set_operations import combined, distinct, is_set_operation
from headrace.tables.wall_clock import without_clocks
from headrace.tables.window_tables import window_call, windowed
from headrace.tables.written_rows import one_row, written_rows


def lower(ctx: QueryContext, tree: Any) -> Relation:
    """The relation of a query, or of anything that can stand in FROM."""
    from sqlglot import exp

    if tree.args.get("with_") is not None:
        ctx = _with_named(ctx, tree)
    match tree:
        case exp.Select():
            return _lower_once(ctx, tree, lower_select)
        case exp.Subquery() | exp.Paren():
            relation = lower(ctx if not has_order(tree) else replace(ctx, ranks={}), tree.this)
            return _aliased(ctx, _in_order(ctx, relation, tree), tree)
        case exp.Values():
            return _aliased(ctx, written_rows(ctx, tree), tree)
        case exp.Table():
            call = window_call(tree)
            return _table(ctx, tree) if call is None else _aliased(ctx, windowed(ctx, call), tree)
    if is_set_operation(tree):
        return _lower_once(ctx, tree, _set_operation)
    raise _refused(ctx, tree)


def _lower_once(ctx: QueryContext, tree: Any, lowering: Callable[[QueryContext, Any], Relation]) -> Relation:
    """A query that stands in another twice, over the same tables, is one relation with two readers."""
    asked = (render(tree), id(ctx.tables), tuple(ctx.ranks.items()), ctx.views[-1:])
    if asked not in ctx.lowered:
        # The tables are kept beside, so that no others can ever have their identity.
        ctx.lowered[asked] = lowering(ctx, tree), ctx.tables
    relation: Relation = ctx.lowered[asked][0]
    return relation


def lower_select(ctx: QueryContext, select: Any) -> Relation:
    """One SELECT."""
    select = with_own_names(ctx, select)
    where = select.args.get("where")
    ctx = with_hints(ctx, select)
    inner = replace(ctx, ranks={})
    relation = rows_of(inner, select, conjuncts(where.this) if where is not None else [])
    select = without_match(select)
    relation, select = with_calls(inner, relation, select)
    grouped_by = is_grouped(select)
    relation, select = _scalars_before(inner, relation, select, grouped_by=grouped_by)
    select, clocks = without_clocks(relation, select)
    rewrite: Callable[[Any], Any] | None = None
    if grouped_by:
        rows = relation
        relation, rewrite = grouped(inner, select, rows)
        if (having := select.args.get("having")) is not None:
            conditions = [with_aliases(each, select, rows) for each in conjuncts(having.this)]
            relation = filtered(inner, relation, [rewrite(each) for each in conditions], rewrite)
    check_emits(ctx, select, windowed=grouped_by and gives_again(relation))
    items = select_items(select, relation, ctx.place, rewrite)
    relation, items = _scalars_behind(inner, relation, items, rewrite)
    relation, items = _calls_behind(inner, relation, items) if grouped_by else (relation, items)
    if uses_windows(relation, *(item.tree for item in items if _computes(item.tree))):
        relation = in_windows(inner, relation, select)
        items = select_items(select, relation, ctx.place, rewrite)
    relation, items = _over(ctx, select, relation, items, rewrite)
    extra, ordered = order_items(select, items, rewrite, ctx.place)
    if select.args.get("distinct") is not None:
        if extra:
            raise ctx.place.error(extra[0].tree, "rows of SELECT DISTINCT are ordered by what is selected")
        relation = project(inner, relation, items, select)
        relation = distinct(inner, in_windows(inner, relation, select), select)
    else:
        relation = project(inner, relation, [*items, *extra], select)
    if has_order(select):
        relation = in_order(inner, in_windows(inner, relation, select), ordered, select, [item.name for item in items])
    return replace(relation, clocks=clocks)


def _scalars_before(ctx: QueryContext, relation: Relation, select: Any, *, grouped_by: bool) -> tuple[Relation, Any]:
    """Queries for one value that stand in a SELECT over rows; of one with groups, those its aggregates are given."""
    if not grouped_by:
        return with_scalars(ctx, relation, select, rows_of)
    select = select.copy()
    for call in [call for part in select.expressions for call in aggregates_in(part) if has_scalars(call)]:
        relation, made = with_scalars(ctx, relation, call, rows_of)
        call.replace(made)
    return relation, select


def _scalars_behind(
    ctx: QueryContext, relation: Relation, items: list[SelectItem], rewrite: Callable[[Any], Any] | None
) -> tuple[Relation, list[SelectItem]]:
    """The same behind the groups: what such queries are equal to is a column of the groups."""
    made = []
    for item in items:
        if item.column is None and has_scalars(item.tree):
            relation, tree = with_scalars(ctx, relation, item.tree, rows_of, rewrite)
            item = item._replace(tree=tree)
        made.append(item)
    return relation, made


def _calls_behind(ctx: QueryContext, relation: Relation, items: list[SelectItem]) -> tuple[Relation, list[SelectItem]]:
    """Functions of Python that are called with results of groups."""
    made = []
    for item in items:
        if item.column is None:
            relation, tree = with_calls(ctx, relation, item.tree)
            item = item._replace(tree=tree)
        made.append(item)
    return relation, made


def _set_operation(ctx: QueryContext, tree: Any) -> Relation:
    """UNION and its like, in order and up to a limit."""
    return _in_order(ctx, combined(ctx, tree), tree)


def _in_order(ctx: QueryContext, relation: Relation, tree: Any) -> Relation:
    """The rows of a query that is whole, in the order and up to the limit that stand behind it."""
    if not has_order(tree):
        return relation
    relation = settled(ctx, relation, tree)
    items = [SelectItem(column.name, tree, column) for column in relation.columns]
    extra, ordered = order_items(tree, items, None, ctx.place)
    if extra:
        raise ctx.place.error(
            extra[0].tree, "rows of a whole query are ordered by its columns", expected="ORDER BY a column"
        )
    return in_order(ctx, relation, ordered, tree, [item.name for item in items])


def _over(
    ctx: QueryContext, select: Any, relation: Relation, items: list[SelectItem], rewrite: Callable[[Any], Any] | None
) -> tuple[Relation, list[SelectItem]]:
    """The results of window functions as columns, and the rows that QUALIFY lets through."""
    if select.args.get("limit") is not None:
        # Rows are counted before a condition outside leaves some out.
        ctx = replace(ctx, ranks={})
    qualify = select.args.get("qualify")
    condition = None if qualify is None else qualify.this if rewrite is None else rewrite(qualify.this)
    parts = [(item.name, item.tree) for item in items]
    if condition is not None:
        named = {item.name.lower(): item.tree for item in items if next(windows_in(item.tree), None) is item.tree}
        ctx = replace(ctx, ranks={**ctx.ranks, **rank_bounds([condition])})
        condition = condition.transform(lambda node: _meant(node, named))
        parts.append(("", condition))
    if not any(True for _, tree in parts for _ in windows_in(tree)):
        if condition is not None:
            raise ctx.place.error(
                condition, "QUALIFY chooses by a window function", expected="QUALIFY ROW_NUMBER() OVER (…) <= 3",
                next_move="a condition on groups stands in HAVING, one on rows in WHERE",
            )  # fmt: skip
        return relation, items
    relation, results = with_windows(ctx, select, in_windows(ctx, relation, select), parts)
    items = [item._replace(tree=rewritten(item.tree, results)) for item in items]
    if condition is not None:
        relation = filtered(replace(ctx, ranks={}), relation, conjuncts(rewritten(condition, results)))
    return relation, items


def _meant(node: Any, named: dict[str, Any]) -> Any:
    """QUALIFY may name a column of the select list."""
    from sqlglot import exp

    plain = isinstance(node, exp.Column) and not node.table
    return named[node.name.lower()].copy() if plain and node.name.lower() in named else node


def _computes(tree: Any) -> bool:
    """Whether an item of a select list is more than a column."""
    from sqlglot import exp

    return not isinstance(tree, exp.Column | exp.Star)


def settled(ctx: QueryContext, relation: Relation, tree: Any) -> Relation:
    """The relation of a whole query: rows that were to be put in windows are in them."""
    relation = in_windows(ctx, relation, tree)
    wanted = [(column.name, column.text) for column in relation.columns]
    if wanted == [(name, quote_name(name)) for name in relation.fields]:
        return relation
    return project(ctx, relation, [SelectItem(c.name, tree, c) for c in relation.columns], tree)


def filtered(
    ctx: QueryContext, relation: Relation, conditions: Iterable[Any], rewrite: Callable[[Any], Any] | None = None
) -> Relation:
    """The rows for which conditions hold, one after the other: those over single rows first, so that less is kept."""
    for each in sorted(conditions, key=lambda each: is_membership(each) or has_scalars(each)):
        if is_membership(each):
            relation = with_members(ctx, relation, each, rows_of)
            continue
        relation, each = with_scalars(ctx, relation, each, rows_of, rewrite)
        if uses_windows(relation, each):
            relation = in_windows(ctx, relation, each)
        relation, condition = with_calls(ctx, relation, each)
        text = expression_sql(relation, condition, ctx.place)
        with AtTree(ctx.place, each):
            relation = relation.over(relation.stream.where(text))
            let_withdraw(relation.stream.node, ctx.place.site)
    return relation


# --- FROM


def rows_of(ctx: QueryContext, select: Any, conditions: list[Any]) -> Relation:
    """What FROM and its joins give, and of that the rows for which conditions of WHERE hold."""
    source = select.args.get("from_")
    # A bound on numbers of rows is one on the query that numbers them.
    alone = source is not None and not any(select.args.get(part) for part in ("joins", "laterals", "match"))
    ranks = inner_names(source.this, rank_bounds(conditions)) if alone else {}
    relation = one_row(ctx) if source is None else lower(replace(ctx, ranks=ranks), source.this)
    ctx = replace(ctx, ranks={})
    if (clause := select.args.get("match")) is not None:
        relation = recognized(ctx, clause, in_windows(ctx, relation, select))
    if not select.args.get("joins"):
        check_names(ctx, set())
    relation, left_over = with_joins(ctx, select, relation, conditions)
    return filtered(ctx, relation, left_over)


def _table(ctx: QueryContext, tree: Any) -> Relation:
    name = tree.name
    found = ctx.tables.get(name.lower()) or ctx.catalog.find(name)
    if isinstance(found, Table):
        relation = relation_of(found.stream, found.name, found.time, closed_windows(found.stream.node))
        relation = replace(relation, clocks=frozenset(name.lower() for name in found.clocks))
    elif isinstance(found, ParsedStatement):
        relation = _view(ctx, name, found, tree)
    elif isinstance(found, NamedQuery):
        relation = found.relation(name, ctx.ranks)
    elif found is not None:
        raise ctx.place.error(
            tree, f"{name} is asked for single rows, and not read", expected="a stream",
            next_move=f"JOIN {name} FOR SYSTEM_TIME AS OF PROCTIME() AS x ON o.id = x.id",
        )  # fmt: skip
    else:
        error = ctx.catalog.missing(name, ctx.tables)
        raise ctx.place.error(tree, error.what, expected=error.expected, next_move=error.next_move)
    return _aliased(ctx, relation.named(name), tree)


def _view(ctx: QueryContext, name: str, statement: ParsedStatement, tree: Any) -> Relation:
    if name.lower() in ctx.views:
        raise ctx.place.error(
            tree, f"the view {name!r} reads itself", expected="a view over tables and other views",
            next_move="rows that come back are a loop: app.loop(…)",
        )  # fmt: skip
    inner = replace(ctx.of_view(name.lower(), statement), ranks=ctx.ranks)
    check_clauses(inner.place, statement.tree)
    return lower(inner, statement.tree).named(name)


class NamedQuery:
    """A query under a name of WITH: lowered when it is first read, and once."""

    def __init__(self, ctx: QueryContext, tree: Any, columns: list[Any]) -> None:
        self._ctx, self._tree, self._columns = replace(ctx, ranks={}), tree, columns
        self._relation: Relation | None = None

    def relation(self, name: str, ranks: Mapping[str, int]) -> Relation:
        """``ranks``: how many rows are wanted by their number; a query without such numbers is the same to all."""
        ranks = {} if self._columns else ranks
        if ranks and any(type(node).__name__ == "Window" for node in self._tree.walk()):
            return _named(self._ctx, lower(replace(self._ctx, ranks=ranks), self._tree), name, self._columns)
        if self._relation is None:
            self._relation = lower(self._ctx, self._tree)
        return _named(self._ctx, self._relation, name, self._columns)


def _with_named(ctx: QueryContext, tree: Any) -> QueryContext:
    with_ = tree.args["with_"]
    if with_.args.get("recursive"):
        raise ctx.place.error(
            with_, "WITH RECURSIVE cannot be had over streams", expected="WITH name AS (SELECT …)",
            next_move="rows that come back are a loop: app.loop(…)",
        )  # fmt: skip
    for each in with_.expressions:
        query = NamedQuery(ctx, each.this, each.args["alias"].columns)
        ctx = ctx.with_tables({each.alias.lower(): query})
    return ctx


def _aliased(ctx: QueryContext, relation: Relation, tree: Any) -> Relation:
    alias = tree.args.get("alias")
    if alias is None:
        return relation
    return _named(ctx, relation, alias.name or "", alias.columns)


def _named(ctx: QueryContext, relation: Relation, name: str, columns: list[Any]) -> Relation:
    """The relation under a name, and with names of columns where some are given."""
    if len(columns) > len(relation.columns):
        raise ctx.place.error(
            columns[len(relation.columns)], f"{name} has {len(relation.columns)} columns, and {len(columns)} names",
            expected=f"at most {len(relation.columns)} names",
        )  # fmt: skip
    return relation.named(name, [column.name for column in columns])


def _refused(ctx: QueryContext, tree: Any) -> Any:
    return ctx.place.error(
        tree, f"{type(tree).__name__.upper()} is not part of streaming SQL",
        expected="SELECT, WITH … SELECT, UNION, INTERSECT or EXCEPT",
        next_move="see the guide Streaming SQL for what can be said",
    )  # fmt: skip
