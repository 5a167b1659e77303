"""ROW_NUMBER(), RANK() and DENSE_RANK() with a bound: the first rows of each key, by any order. One is deduplication.

How many rows are wanted is said behind the number: in WHERE of the query around, ``rn <= 3``, or in QUALIFY. Rows of
results of windows that are closed come all at once, so the first ones of a window are final when they come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from headrace.operators.changelogs.top_spec import Ties
from headrace.sql.expr import quote_name
from headrace.tables.context import QueryContext, free_name
from headrace.tables.dialect import is_call
from headrace.tables.scope import AtTree, Relation, bare_field, conjuncts, expression_sql

NUMBERS: Final[dict[str, Ties]] = {"row_number": "broken", "rank": "shared", "dense_rank": "dense"}
"""Functions that number rows, and what becomes of rows that are equal by the order."""


def rank_bounds(conditions: Iterable[Any]) -> dict[str, int]:
    """Up to which number rows are wanted, by the name of the column: what conditions like ``rn <= 3`` say."""
    from sqlglot import exp

    bounds: dict[str, int] = {}
    for each in conditions:
        for part in conjuncts(each):
            found = _bound(part)
            if found is not None and isinstance(found[0], exp.Column):
                name = found[0].name.lower()
                bounds[name] = min(found[1], bounds.get(name, found[1]))
    return bounds


def inner_names(source: Any, bounds: dict[str, int]) -> dict[str, int]:
    """Bounds by the names that columns have in a query, where FROM gives them others: ``(SELECT …) AS t (a, rn)``."""
    from sqlglot import exp

    alias = source.args.get("alias")
    given = [column.name.lower() for column in alias.columns] if alias is not None else []
    if not given or not bounds:
        return bounds
    select = source.this
    if not isinstance(select, exp.Select) or any(each.is_star for each in select.expressions):
        return {}
    names = [each.alias_or_name.lower() for each in select.expressions]
    return {name: bounds[new] for name, new in zip(names, given, strict=False) if new in bounds}


def qualify_bound(condition: Any, window: Any) -> int | None:
    """The bound that the condition of QUALIFY says for a window function that stands in it."""
    for part in conjuncts(condition):
        found = _bound(part)
        if found is not None and found[0] == window:
            return found[1]
    return None


def _bound(tree: Any) -> tuple[Any, int] | None:
    from sqlglot import exp

    while isinstance(tree, exp.Paren):
        tree = tree.this
    if isinstance(tree, exp.Between):
        return _bound(exp.LTE(this=tree.this, expression=tree.args["high"]))
    if not isinstance(tree, exp.LTE | exp.LT | exp.EQ | exp.GTE | exp.GT):
        return None
    one, two = tree.this, tree.expression
    number = two if isinstance(two, exp.Literal) else one
    other = one if number is two else two
    if not isinstance(number, exp.Literal) or number.is_string or not str(number.this).isdigit():
        return None
    value, below = int(number.this), (exp.LTE, exp.LT) if number is two else (exp.GTE, exp.GT)
    if isinstance(tree, (exp.EQ, below[0])):
        return other, value
    return (other, value - 1) if isinstance(tree, below[1]) else None


def number_function(window: Any) -> str:
    """The function by which a window numbers its rows; empty where it does something else."""
    return str(window.this.this).lower() if is_call(window.this, *NUMBERS) else ""


def ranked(ctx: QueryContext, relation: Relation, window: Any, most: int, name: str) -> tuple[Relation, str]:
    """The first rows of each partition, and the text of their number."""
    place = ctx.place
    order = window.args.get("order")
    if order is None:
        function = number_function(window).upper()
        raise place.error(window, f"{function}() needs an order", expected="OVER (PARTITION BY … ORDER BY …)")
    keys = [_field_of(ctx, relation, tree) for tree in window.args.get("partition_by") or ()]
    computed = {field: text for field, text in keys if text}
    by = []
    for each in order.expressions:
        field, text = _field_of(ctx, relation, each.this, taken=computed)
        computed |= {field: text} if text else {}
        by.append(order_sql(field, descending=each.args.get("desc"), nulls_first=each.args.get("nulls_first")))
    fields = [field for field, _ in keys]
    with AtTree(place, window):
        stream = relation.stream.with_columns(**computed) if computed else relation.stream
        if not fields:
            whole = free_name("one_key", stream.node.codec.names)
            stream, fields = stream.with_columns(**{whole: "1"}), [whole]
        keyed = stream.key_by(*fields)
        rank = free_name(name, stream.node.codec.names) if most > 1 else ""
        ties = NUMBERS[number_function(window)]
        made: Any = keyed.top(most, by=by, rank=rank, ties=ties) if rank else keyed.top(most, by=by, ties=ties)
        ctx.steps.add(made, "top", window, ", ".join(fields))
        if _is_final(relation, fields):
            made = made.changes()
    final = _is_final(relation, fields)
    numbered = replace(
        relation, stream=made, time=relation.time if final else None, closed=relation.closed if final else None
    )
    return numbered, quote_name(rank) if rank else "1"


def order_sql(field: str, *, descending: object, nulls_first: object) -> str:
    """One column of an order, as ``top`` takes it."""
    return f"{quote_name(field)} {'desc' if descending else 'asc'} nulls {'first' if nulls_first else 'last'}"


def _is_final(relation: Relation, fields: list[str]) -> bool:
    """Whether all rows of a partition come at once: results of a window, numbered by window."""
    return relation.fires and relation.closed is not None and set(relation.closed) <= {quote_name(f) for f in fields}


def _field_of(ctx: QueryContext, relation: Relation, tree: Any, taken: Any = ()) -> tuple[str, str]:
    """The field of an expression, and its text where the field has to be made."""
    field = bare_field(relation, tree, ctx.place)
    if field is not None:
        return field, ""
    text = expression_sql(relation, tree, ctx.place)
    stem = tree.name if tree.name.isidentifier() else "order_value"
    return free_name(stem, [*relation.fields, *taken]), text
