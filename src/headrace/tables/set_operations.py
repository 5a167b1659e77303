"""UNION, INTERSECT and EXCEPT: columns by their position, in types that hold the values of both sides.

Without ALL rows are a set. INTERSECT and EXCEPT count, for each row that there is, how often either side has it; equal
rows are equal in all columns, nulls too.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

from headrace.aggregates.declare import count
from headrace.dataflow.update_kinds import let_withdraw
from headrace.model.record import row_type
from headrace.model.shapes import split_optional
from headrace.model.values import type_name
from headrace.sql.expr import quote_name
from headrace.tables.context import QueryContext, free_name
from headrace.tables.expanding import RepeatedRows, in_windows
from headrace.tables.scope import AtTree, Relation, ScopeColumn, relation_of

_NUMBERS: Final = (int, Decimal, float)


def is_set_operation(tree: Any) -> bool:
    from sqlglot import exp

    return isinstance(tree, exp.SetOperation)


def combined(ctx: QueryContext, tree: Any) -> Relation:
    """UNION, INTERSECT or EXCEPT of two queries."""
    from sqlglot import exp

    inner = replace(ctx, ranks={})
    sides = [in_windows(ctx, ctx.lower(inner, side), side) for side in (tree.this, tree.expression)]
    left, right = _alike(ctx, sides[0], sides[1], tree)
    every = not tree.args.get("distinct", True)
    if isinstance(tree, exp.Union):
        with AtTree(ctx.place, tree):
            union = left.stream.union(right.stream)
            let_withdraw(union.node, ctx.place.site)
        closed = left.closed if left.closed == right.closed else None
        relation = Relation(union, left.columns, left.time if left.time == right.time else None, closed=closed)
        return relation if every else distinct(ctx, relation, tree)
    return _counted(ctx, left, right, tree, every=every)


def distinct(ctx: QueryContext, relation: Relation, tree: Any) -> Relation:
    """Each row once: groups by all columns, of which nothing is asked."""
    fields = relation.fields
    with AtTree(ctx.place, tree):
        counted: Any = {free_name("rows_in_group", fields): count()}
        made: Any = relation.stream.key_by(*fields).aggregate(**counted)
        ctx.steps.add(made, "distinct", tree, ", ".join(fields))
        stream = made.select(*fields)
        let_withdraw(stream.node, ctx.place.site)
    return replace(relation, stream=stream, time=None, closed=None)


def _counted(ctx: QueryContext, left: Relation, right: Relation, tree: Any, *, every: bool) -> Relation:
    from sqlglot import exp

    names = left.fields
    side, ours, theirs, times = _free_names(names)
    role = "intersect" if isinstance(tree, exp.Intersect) else "except"
    with AtTree(ctx.place, tree):
        into = row_type("Row", {**left.stream.node.codec.annotations, side: int})
        tagged = [relation.stream.with_columns(into, **{side: str(i)}) for i, relation in enumerate((left, right))]
        aggs: Any = {ours: count(where=f"{side} = 0"), theirs: count(where=f"{side} = 1")}
        made: Any = tagged[0].union(tagged[1]).key_by(*names).aggregate(**aggs)
        ctx.steps.add(made, role, tree, ", ".join(names))
        if every:
            number = f"least({ours}, {theirs})" if role == "intersect" else f"greatest({ours} - {theirs}, 0)"
            both = {name: quote_name(name) for name in names}
            numbered = row_type("Row", {**left.stream.node.codec.annotations, times: int})
            wide = made.select(numbered, **both, **{times: number})
            let_withdraw(wide.node, ctx.place.site)
            stream = wide.map_batches(RepeatedRows(times), numbered, form="arrow")
        else:
            stream = made.where(f"{ours} > 0 AND {theirs} {'>' if role == 'intersect' else '='} 0")
            let_withdraw(stream.node, ctx.place.site)
        stream = stream.select(*names)
        let_withdraw(stream.node, ctx.place.site)
    return replace(relation_of(stream, ""), columns=left.columns)


def _free_names(names: list[str]) -> tuple[str, str, str, str]:
    taken = list(names)
    for stem in ("side", "in_first", "in_second", "times"):
        taken.append(free_name(stem, taken))
    return taken[-4], taken[-3], taken[-2], taken[-1]


def _alike(ctx: QueryContext, left: Relation, right: Relation, tree: Any) -> tuple[Relation, Relation]:
    """Both sides with the names of the first, in common types."""
    one, two = left.columns, right.columns
    if len(one) != len(two):
        raise ctx.place.error(
            tree.expression, f"{len(two)} columns cannot go under {len(one)}", expected="as many columns on both sides"
        )
    types: dict[str, Any] = {}
    for mine, theirs in zip(one, two, strict=True):
        kinds = [_annotation(relation, column) for relation, column in ((left, mine), (right, theirs))]
        types[mine.name] = _common(kinds[0], kinds[1])
        if types[mine.name] is None:
            raise ctx.place.error(
                tree.expression,
                f"{theirs.name} is {type_name(kinds[1])}, and {mine.name} above it {type_name(kinds[0])}",
                expected="columns of one type, or numbers", next_move=f"write CAST({theirs.name} AS …)",
            )  # fmt: skip
    into = row_type("Row", types)
    made = []
    for relation in (left, right):
        texts = {name: column.text for name, column in zip(types, relation.columns, strict=True)}
        with AtTree(ctx.place, tree):
            stream = relation.stream.select(into, **texts)
            let_withdraw(stream.node, ctx.place.site)
        moved = {text: quote_name(name) for name, text in reversed(texts.items())}
        columns = tuple(ScopeColumn("", name, quote_name(name)) for name in types)
        closed = relation.closed
        bounds = (moved[closed[0]], moved[closed[1]]) if closed and set(closed) <= set(moved) else None
        made.append(Relation(stream, columns, moved.get(relation.time or ""), closed=bounds))
    return made[0], made[1]


def _annotation(relation: Relation, column: ScopeColumn) -> Any:
    from headrace.dataflow.projection import column_annotation

    return column_annotation(relation.stream.node.codec, column.text, "")


def _common(one: Any, two: Any) -> Any:
    """The type that holds the values of both; None where there is none."""
    (bare, maybe), (other, other_maybe) = split_optional(one), split_optional(two)
    if bare is not other and bare != other:
        if bare not in _NUMBERS or other not in _NUMBERS:
            return None
        bare = max(bare, other, key=_NUMBERS.index)
    return bare | None if maybe or other_maybe else bare
