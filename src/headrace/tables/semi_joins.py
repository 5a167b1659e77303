"""IN (SELECT …) and EXISTS (SELECT …) in WHERE: rows with a partner in the inner query, or without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from headrace.sql.parse import column_path
from headrace.tables.aggregate_calls import may_be_null
from headrace.tables.context import QueryContext
from headrace.tables.expanding import in_windows
from headrace.tables.grouping import is_grouped
from headrace.tables.joining import joined
from headrace.tables.scope import Relation, conjuncts, lookup

RowsOf = Callable[[QueryContext, Any, list[Any]], Relation]
_MEMBER: Final = "\ue002member"
"""Names of the inner columns, which no outer one can have."""


def is_membership(tree: Any) -> bool:
    """Whether a condition is one about the rows of a query."""
    from sqlglot import exp

    tree = _without_not(tree)[0]
    return isinstance(tree, exp.Exists) or (isinstance(tree, exp.In) and tree.args.get("query") is not None)


def with_members(ctx: QueryContext, relation: Relation, tree: Any, rows_of: RowsOf) -> Relation:
    """The rows for which such a condition holds. ``rows_of``: what FROM and some conditions of a SELECT give."""
    from sqlglot import exp

    condition, negated = _without_not(tree)
    how = "anti" if negated else "semi"
    relation = in_windows(ctx, relation, tree)
    if isinstance(condition, exp.Exists):
        inner, correlated = _correlated(ctx, condition.this, rows_of)
        return joined(ctx, relation, inner, how, tree, correlated, None)
    query = condition.args["query"]
    inner = in_windows(ctx, ctx.lower(replace(ctx, ranks={}), query), query)
    if len(inner.columns) != 1:
        raise ctx.place.error(query, "IN takes a query of one column", expected="x IN (SELECT y FROM …)")
    inner = replace(inner, columns=(replace(inner.columns[0], table="", name=_MEMBER, hidden=False),))
    member = exp.column(_MEMBER)
    equal: Any = exp.EQ(this=condition.this, expression=member)
    if negated and (may_be_null(relation, condition.this) or may_be_null(inner, member)):
        # NOT IN is not true where a side is null, so every row is held against every member.
        unknown = [exp.Is(this=each.copy(), expression=exp.null()) for each in (condition.this, member)]
        equal = exp.Paren(this=exp.or_(equal, *unknown))
    return joined(ctx, relation, inner, how, tree, [equal], None)


def _without_not(tree: Any) -> tuple[Any, bool]:
    from sqlglot import exp

    negated = False
    while isinstance(tree, exp.Paren | exp.Not):
        negated ^= isinstance(tree, exp.Not)
        tree = tree.this
    return tree, negated


def _correlated(ctx: QueryContext, select: Any, rows_of: RowsOf) -> tuple[Relation, list[Any]]:
    """The rows of a query inside EXISTS, and its conditions that read the outer row, with names that are its own."""
    from sqlglot import exp

    refused = ("group", "having", "distinct", "limit", "qualify", "offset", "with_")
    plain = isinstance(select, exp.Select) and not any(select.args.get(each) for each in refused)
    # A query of aggregates gives a row whether or not there are any.
    if not plain or is_grouped(select):
        raise ctx.place.error(
            select, "EXISTS takes a plain query", expected="EXISTS (SELECT 1 FROM t WHERE t.a = outer.a AND …)",
            next_move="name the query by WITH, and read that",
        )  # fmt: skip
    where = select.args.get("where")
    conditions = conjuncts(where.this) if where is not None else []
    scope = rows_of(replace(ctx, ranks={}), select, [])
    reads_outer = [
        any(isinstance(lookup(scope, column_path(each)), list) for each in condition.find_all(exp.Column))
        for condition in conditions
    ]
    own = [condition for condition, outer in zip(conditions, reads_outer, strict=True) if not outer]
    inner = in_windows(ctx, rows_of(replace(ctx, ranks={}), select, own) if own else scope, select)
    columns = tuple(replace(each, table="", name=f"{_MEMBER}{i}") for i, each in enumerate(inner.columns))

    def renamed(node: Any) -> Any:
        if isinstance(node, exp.Column):
            found = lookup(inner, column_path(node))
            if not isinstance(found, list) and not found[1]:
                made = exp.column(columns[inner.columns.index(found[0])].name)
                made.this.meta.update(node.this.meta)
                return made
        return node

    trees = [each.copy() for each, outer in zip(conditions, reads_outer, strict=True) if outer]
    return replace(inner, columns=columns), [each.transform(renamed, copy=False) for each in trees]
