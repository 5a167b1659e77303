"""ORDER BY and LIMIT: rows in the order of their time, and the first rows by any order.

Rows of a stream that goes on have no last one, so an order alone is that of event time, by a step through which all
rows go. With LIMIT the first rows are kept, and taken back when others come before them. LIMIT alone takes the first
rows by their unique key, or by their columns, so that the answer does not depend on how rows came.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.dataflow.keyed import KeyedStream
from headrace.dataflow.update_kinds import let_withdraw
from headrace.model.keyspec import WHOLE_STREAM
from headrace.sql.expr import quote_name
from headrace.tables.context import QueryContext, free_name
from headrace.tables.over_rows import RowsBefore, over_rows
from headrace.tables.ranks import order_sql
from headrace.tables.scope import AtTree, QueryPlace, Relation
from headrace.tables.select_list import SelectItem, with_aliases


class OrderedBy(NamedTuple):
    """One expression of ORDER BY, as a column of the result."""

    field: str
    descending: bool
    nulls_first: bool
    tree: Any


def has_order(tree: Any) -> bool:
    return any(tree.args.get(each) is not None for each in ("order", "limit", "offset"))


def order_items(
    select: Any, items: list[SelectItem], rewrite: Any, place: QueryPlace
) -> tuple[list[SelectItem], list[OrderedBy]]:
    """What rows are ordered by, and the columns that have to be there for it beside those of the select list."""
    from sqlglot import exp

    extra: list[SelectItem] = []
    ordered = []
    order = select.args.get("order")
    for each in order.expressions if order is not None else ():
        name = _among(each.this, items, select)
        if name is None and isinstance(each.this, exp.Literal) and not each.this.is_string:
            raise place.error(
                each, f"there is no column {each.this.this} in the select list", expected=f"1 to {len(items)}"
            )
        if name is None:
            name = free_name("ordered_by", [item.name for item in [*items, *extra]])
            meant = with_aliases(each.this, select)
            if meant.find(exp.Window) is not None:
                raise place.error(
                    each, "rows are ordered by columns, and by expressions without window functions",
                    expected="ORDER BY a column of the select list",
                )  # fmt: skip
            extra.append(SelectItem(name, meant if rewrite is None else rewrite(meant)))
        way = (bool(each.args.get("desc")), bool(each.args.get("nulls_first")))
        ordered.append(OrderedBy(name, *way, each))
    return extra, ordered


def _among(tree: Any, items: list[SelectItem], select: Any) -> str | None:
    from sqlglot import exp

    if isinstance(tree, exp.Literal) and not tree.is_string and str(tree.this).isdigit():
        number = int(tree.this)
        return items[number - 1].name if 1 <= number <= len(items) else None
    if isinstance(tree, exp.Column) and not tree.table:
        names = {item.name.lower(): item.name for item in items}
        if tree.name.lower() in names:
            return names[tree.name.lower()]
    plain = [each.this if isinstance(each, exp.Alias) else each for each in select.expressions]
    if len(plain) == len(items) and tree in plain:
        return items[plain.index(tree)].name
    return None


def in_order(ctx: QueryContext, relation: Relation, ordered: list[OrderedBy], tree: Any, wanted: list[str]) -> Relation:
    """The rows in order, as many as LIMIT says; of their columns the wanted ones."""
    if (offset := tree.args.get("offset")) is not None:
        raise ctx.place.error(offset, "OFFSET cannot be had over streams", expected="LIMIT n")
    limit = tree.args.get("limit")
    if limit is not None:
        relation = _first(ctx, relation, ordered, _number(ctx, limit), tree)
    else:
        relation = _by_time(ctx, relation, ordered, tree)
    if relation.fields != wanted:
        with AtTree(ctx.place, tree):
            stream = relation.stream.select(*wanted)
            let_withdraw(stream.node, ctx.place.site)
        columns = tuple(c for c in relation.columns if c.name in wanted)
        texts = {c.text for c in columns}
        relation = replace(
            relation, stream=stream, columns=columns, time=relation.time if relation.time in texts else None
        )
    return relation


def _number(ctx: QueryContext, limit: Any) -> int:
    from sqlglot import exp

    value = limit.expression if isinstance(limit, exp.Limit) else limit.args.get("count")
    if isinstance(value, exp.Literal) and str(value.this).isdigit() and int(value.this) > 0:
        return int(value.this)
    raise ctx.place.error(limit, "LIMIT takes a whole number from 1", expected="LIMIT 10")


def _first(ctx: QueryContext, relation: Relation, ordered: list[OrderedBy], most: int, tree: Any) -> Relation:
    by = [order_sql(each.field, descending=each.descending, nulls_first=each.nulls_first) for each in ordered]
    with AtTree(ctx.place, tree):
        stream = relation.stream
        schema = stream.node.codec.schema
        if not by:
            plain = [name for name in schema.names if not pa.types.is_nested(schema.field(name).type)]
            by = [quote_name(name) for name in stream.node.kind.key or plain]
        if not by:
            raise ctx.place.error(
                tree, "nothing says which rows come first", expected="ORDER BY … LIMIT n",
                next_move="order by a part of a column: ORDER BY items[0]",
            )  # fmt: skip
        made: Any = KeyedStream(stream, WHOLE_STREAM).top(most, by=by)
    ctx.steps.add(made, "first", tree, ", ".join(by))
    return replace(relation, stream=made, time=None, closed=None)


def _by_time(ctx: QueryContext, relation: Relation, ordered: list[OrderedBy], tree: Any) -> Relation:
    first = ordered[0]
    if quote_name(first.field) != relation.time or first.descending:
        raise ctx.place.error(
            first.tree, "rows of a stream are put in order by their event time, ascending",
            expected="ORDER BY the event time; or LIMIT behind another order",
            next_move="ORDER BY … LIMIT 10 keeps the first ten rows",
        )  # fmt: skip
    if relation.stream.node.kind.corrects:
        raise ctx.place.error(first.tree, "rows that are taken back have no order", expected="ORDER BY … LIMIT n")
    ties = [each.field for each in ordered[1:]]
    with AtTree(ctx.place, tree):
        codec = relation.stream.node.codec
        function = over_rows(RowsBefore({}, (), {}), codec, type(None), {})
        by: Any = ("time", *ties) if ties else "time"
        made: Any = KeyedStream(relation.stream, WHOLE_STREAM).process(function, order=by)
    ctx.steps.add(made, "in_order", tree, "")
    return relation.over(made)
