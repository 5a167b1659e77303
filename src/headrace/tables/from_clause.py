"""The joins of a FROM, one after the other, and the part that conditions of WHERE take in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from headrace.tables.context import QueryContext
from headrace.tables.dialect import is_call
from headrace.tables.expanding import in_windows, unnested
from headrace.tables.hints import check_names
from headrace.tables.joining import JoinParts, joined, sides_of
from headrace.tables.lookup_joins import looked_up, lookup_table
from headrace.tables.python_functions import with_calls
from headrace.tables.scope import Relation, conjuncts, lookup
from headrace.tables.semi_joins import is_membership
from headrace.tables.table_functions import PythonTableFunction, with_rows_of

_EXPLODING: Final = ("explode", "explode_outer", "posexplode", "posexplode_outer", "unnest")


def with_joins(ctx: QueryContext, select: Any, relation: Relation, conditions: list[Any]) -> tuple[Relation, list[Any]]:
    """The rows of FROM with all its joins, and the conditions that took no part in them."""
    joins = list(select.args.get("joins") or ())
    laterals = list(select.args.get("laterals") or ())
    if not joins and not laterals:
        return relation, conditions
    relation = in_windows(ctx, relation, select)
    needed = needed_names(select, joins)
    # Behind an outer join a condition of WHERE is one over rows without a partner, too.
    free = all(_how(join) in ("inner", "left", "semi", "anti") for join in joins)
    for join in joins:
        relation, conditions = _with_join(ctx, relation, join, conditions if free else [], needed, conditions)
    check_names(ctx, {column.table.lower() for column in relation.columns if column.table})
    for lateral in laterals:
        relation = _exploded(ctx, relation, lateral, lateral, inner=not lateral.args.get("outer"))
    return relation, conditions


def needed_names(select: Any, joins: list[Any]) -> frozenset[str] | None:
    """All names of columns that a query uses, in small letters; None where it asks for all."""
    from sqlglot import exp

    for each in select.expressions:
        if isinstance(each, exp.Star) or (isinstance(each, exp.Column) and isinstance(each.this, exp.Star)):
            return None
    if any(str(join.args.get("method") or "").upper() == "NATURAL" for join in joins):
        return None
    names = {part.name.lower() for column in select.find_all(exp.Column) for part in column.parts}
    return frozenset(names | {each.name.lower() for join in joins for each in join.args.get("using") or ()})


def _with_join(
    ctx: QueryContext, left: Relation, join: Any, pool: list[Any], needed: frozenset[str] | None, conditions: list[Any]
) -> tuple[Relation, list[Any]]:
    from sqlglot import exp

    how = _how(join)
    if isinstance(join.this, exp.Unnest | exp.Lateral):
        return _exploded(ctx, left, join.this, join, inner=how == "inner"), conditions
    if (table := lookup_table(ctx, left, join)) is not None:
        if join.args.get("on") is None:
            raise ctx.place.error(join.this, "a lookup join says by what", expected="JOIN … ON o.id = t.id")
        return looked_up(ctx, left, table, join, how, conjuncts(join.args["on"])), conditions
    right = in_windows(ctx, ctx.lower(ctx, join.this), join.this)
    mine = _on_conditions(left, right, join, ctx)
    if how == "inner":
        parts = JoinParts(ctx, left, right, how, join)
        taken = [each for each in pool if not is_membership(each) and sides_of(parts, each)]
        mine += taken
        conditions = [each for each in conditions if not any(each is one for one in taken)]
    relation = joined(ctx, left, right, how, join, mine, needed)
    using = {each.name.lower() for each in join.args.get("using") or ()}
    if str(join.args.get("method") or "").upper() == "NATURAL":
        using = {c.name.lower() for c in left.columns} & {c.name.lower() for c in right.columns}
    if using and how == "full":
        raise ctx.place.error(join, "FULL JOIN takes no USING", expected="FULL JOIN … ON a.k = b.k")
    if using and how not in ("semi", "anti"):
        relation = _merged(relation, left if how == "right" else right, using)
    return relation, conditions


def _merged(relation: Relation, side: Relation, using: set[str]) -> Relation:
    """USING: one column stands for both; that of the given side has to be asked for with its table."""
    tables = {c.table.lower() for c in side.columns}
    columns = [
        replace(c, hidden=True) if c.name.lower() in using and c.table.lower() in tables else c
        for c in relation.columns
    ]
    return replace(relation, columns=tuple(columns))


def _how(join: Any) -> str:
    side, kind = str(join.args.get("side") or "").lower(), str(join.args.get("kind") or "").lower()
    if kind in ("semi", "anti"):
        return kind
    return side if side in ("left", "right", "full") else "inner"


def _exploded(ctx: QueryContext, relation: Relation, tree: Any, join: Any, *, inner: bool) -> Relation:
    """UNNEST(…), LATERAL TABLE(EXPLODE(…)) and LATERAL VIEW EXPLODE(…)."""
    from sqlglot import exp

    alias = tree.args.get("alias")
    if isinstance(tree, exp.Unnest):
        names = tree.args.get("offset")
        counted = bool(names)
        if counted and isinstance(names, exp.Identifier) and alias is not None:
            alias = alias.copy()
            alias.append("columns", names.copy())
        if len(tree.expressions) != 1:
            raise ctx.place.error(tree, "UNNEST takes one array", expected="CROSS JOIN UNNEST(t.items) AS u(item)")
        return unnested(
            ctx, relation, tree.expressions[0], alias, join, outer=not inner, position=1 if counted else None
        )
    call = tree.this
    if is_call(call, "table") and len(call.expressions) == 1:
        call = call.expressions[0]
    name = str(call.this).lower() if isinstance(call, exp.Anonymous) else type(call).__name__.lower()
    if isinstance(function := ctx.catalog.functions.get(name), PythonTableFunction):
        relation, call = with_calls(ctx, relation, call)
        return with_rows_of(ctx, relation, function, call, alias, outer=not inner)
    if name not in _EXPLODING and name not in ("explodeouter", "posexplodeouter"):
        raise ctx.place.error(
            call, f"there is no table function {name}()", expected="EXPLODE(an array), POSEXPLODE(an array)",
            next_move="rows made by Python: CREATE FUNCTION of one that yields",
        )  # fmt: skip
    arguments = list(call.expressions) or [call.this]
    outer = not inner or "outer" in name
    position = 0 if name.startswith("pos") else None
    return unnested(ctx, relation, arguments[0], alias, join, outer=outer, position=position)


def _on_conditions(left_side: Relation, right_side: Relation, join: Any, ctx: QueryContext) -> list[Any]:
    """The conditions of ON, or those that USING and NATURAL stand for."""
    from sqlglot import exp

    if (on := join.args.get("on")) is not None:
        return conjuncts(on)
    names = [each.name for each in join.args.get("using") or ()]
    if str(join.args.get("method") or "").upper() == "NATURAL":
        left = {c.name.lower() for c in left_side.columns}
        names = [c.name for c in right_side.columns if c.name.lower() in left]
    made = []
    for name in names:
        left_tree, right_tree = (_named_column(relation, name, join, ctx) for relation in (left_side, right_side))
        made.append(exp.EQ(this=left_tree, expression=right_tree))
    return made


def _named_column(relation: Relation, name: str, join: Any, ctx: QueryContext) -> Any:
    from sqlglot import exp

    found = lookup(relation, (name,))
    if isinstance(found, list):
        raise ctx.place.error(join, f"one side has no single column {name!r}", expected="a column that both sides have")
    table = exp.to_identifier(found[0].table) if found[0].table else None
    return exp.Column(this=exp.to_identifier(found[0].name), table=table)
