"""``JOIN shops FOR SYSTEM_TIME AS OF o.proc AS s``: each row beside what a table outside holds for one value *now*.

The other side is not read as a stream. It is asked for the value of one of its columns, by `Stream.lookup`; which
tables can be asked is said by their connectors, or by whoever gives a function to the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import ProgramError
from headrace.model.record import row_type
from headrace.model.rows import RowCodec, codec_of
from headrace.model.shapes import split_optional
from headrace.sql.expr import quote_name
from headrace.sql.parse import column_path
from headrace.tables.context import QueryContext, free_name
from headrace.tables.scope import AtTree, Relation, ScopeColumn, expression_sql, find_column, lookup
from headrace.tables.wall_clock import is_clock

Refuse = Callable[..., ProgramError]


@dataclass(frozen=True)
class LookupTable:
    """A table that is asked for single values."""

    name: str
    codec: RowCodec
    """The rows that it answers with."""
    ask: Callable[[str], Any]
    """Column → the function that awaits the row with a value in that column."""
    key: str | None = None
    """The only column that can be asked for; None: any."""
    arguments: Any = ()
    """Further arguments of `Stream.lookup`: how answers are remembered, how often and how long is asked."""


def lookup_of(name: str, fn: Any, output: Any) -> LookupTable:
    """The table that a function of a program is, which finds rows by their first column."""
    codec = codec_of(split_optional(output)[0])
    return LookupTable(name, codec, lambda column: fn, codec.names[0])


def lookup_table(ctx: QueryContext, left: Relation, join: Any) -> LookupTable | None:
    """The table that a join asks as of the wall clock; None: it is another join."""
    from sqlglot import exp

    table = join.this
    version = table.args.get("version") if isinstance(table, exp.Table) else None
    if version is None or not is_clock(left, version.args.get("expression")):
        return None
    low = table.name.lower()
    declared = ctx.catalog.lookups.get(low)
    found = ctx.tables.get(low) or (declared() if declared is not None else None)
    if isinstance(found, LookupTable):
        return found
    given = {name for name, each in ctx.tables.items() if isinstance(each, LookupTable)}
    known = sorted({*ctx.catalog.lookups, *given})
    raise ctx.place.error(
        table, f"{table.name} cannot be asked for what it holds now",
        expected=f"one of {', '.join(known)}" if known else "a table in Postgres, or a function that awaits",
        next_move="a stream is joined as of the event time of the row, FOR SYSTEM_TIME AS OF o.time; or without it",
    )  # fmt: skip


def looked_up(
    ctx: QueryContext, left: Relation, table: LookupTable, join: Any, how: str, conditions: Iterable[Any]
) -> Relation:
    """Each row of the left side with the columns of the row that was found."""
    place = ctx.place
    if how not in ("inner", "left"):
        raise place.error(join.this, "a lookup join is INNER or LEFT", expected="JOIN, or LEFT JOIN")
    if left.stream.node.kind.corrects:
        raise place.error(
            join.this, "rows that are taken back cannot ask again for what they were joined with",
            expected="rows that each stand for themselves", next_move="look up first, and aggregate behind it",
        )  # fmt: skip
    alias = join.this.alias or join.this.name
    names = list(table.codec.names)
    right = [ScopeColumn(alias, name, f"right.{quote_name(name)}") for name in names]
    both = replace(left, columns=(*left.columns, *right))
    key, asked, rest = _key(ctx, left, both, table, join, list(conditions))
    if rest and how == "left":
        raise place.error(
            rest[0], "a lookup join that keeps rows without a partner takes no further condition",
            expected=f"ON one equality with a column of {alias}",
            next_move="CASE WHEN … END in the select list; or join INNER",
        )  # fmt: skip
    with AtTree(place, join.this):
        field = next((name for name in left.fields if quote_name(name) == asked), None)
        stream = left.stream
        if field is None:
            field = free_name("asked", left.fields)
            stream = stream.with_columns(**{field: asked})
        pairs = stream.lookup(table.ask(key), by=field, output=table.codec.type, **dict(table.arguments))
        relation = _selected(left, pairs, table, alias, how, key)
    for condition in rest:
        text = expression_sql(relation, condition, place)
        with AtTree(place, condition):
            relation = relation.over(relation.stream.where(text))
    return relation


def _key(
    ctx: QueryContext, left: Relation, both: Relation, table: LookupTable, join: Any, conditions: list[Any]
) -> tuple[str, str, list[Any]]:
    """The column that is asked for, the text of its value, and the conditions that are left."""
    from sqlglot import exp

    for condition in conditions:
        for node in condition.find_all(exp.Column):
            find_column(both, node, ctx.place)
        plain = condition
        while isinstance(plain, exp.Paren):
            plain = plain.this
        if not isinstance(plain, exp.EQ):
            continue
        for mine, theirs in ((plain.this, plain.expression), (plain.expression, plain.this)):
            name = _own_column(both, theirs)
            columns = list(mine.find_all(exp.Column))
            outer = all(not isinstance(lookup(left, column_path(each)), list) for each in columns)
            if name is None or not columns or not outer or (table.key or name) != name:
                continue
            rest = [each for each in conditions if each is not condition]
            return name, expression_sql(left, mine, ctx.place), rest
    wanted = table.key or "key"
    alias = join.this.alias or join.this.name
    raise ctx.place.error(
        join.args.get("on") or join.this, f"{alias} is asked for the value of one column",
        expected=f"ON o.{wanted} = {alias}.{wanted}",
        next_move=f"{table.name} finds rows by {wanted} alone" if table.key else "add an equality with a column of it",
    )  # fmt: skip


def _own_column(both: Relation, tree: Any) -> str | None:
    """The column of the other side that an expression is nothing but the name of."""
    from sqlglot import exp

    if not isinstance(tree, exp.Column):
        return None
    found = lookup(both, column_path(tree))
    if isinstance(found, list) or found[1] or not found[0].text.startswith("right."):
        return None
    return found[0].name


def _selected(left: Relation, pairs: Any, table: LookupTable, alias: str, how: str, key: str) -> Relation:
    texts = {name: f"left.{quote_name(name)}" for name in left.fields}
    types = {name: left.stream.node.codec.annotations[name] for name in left.fields}
    columns = []
    for name in table.codec.names:
        field = name if name not in texts else free_name(f"{alias}_{name}", texts)
        texts[field] = f"right.{quote_name(name)}"
        types[field] = table.codec.annotations[name] | None
        columns.append(ScopeColumn(alias, name, quote_name(field)))
    stream = pairs.select(row_type("Row", types), **texts)
    if how == "inner":
        there = next(column.text for column in columns if column.name == key)
        stream = stream.where(f"{there} IS NOT NULL")
    return left.over(stream, tuple(columns))
