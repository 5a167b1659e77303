"""Queries that stand for one value: ``cents > (SELECT AVG(cents) FROM tx)``, alone or by a column of the row outside.

Each becomes a LEFT JOIN with the rows of that query, by what is equal inside and outside, and a column in its place.
It has to be clear that the query gives one row at most: it aggregates, takes the first row, or is by its unique key.
Where there is no row the value is null, and of an aggregate what it is of no rows, which a COUNT makes 0.

EXISTS and IN over a query become counts, where they stand for a value: under OR, in CASE, in a select list. As a whole
condition of WHERE they are joins of their own (`headrace.tables.semi_joins`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.sql.expr import quote_name
from headrace.sql.parse import column_path
from headrace.tables.aggregate_calls import aggregates_in, value_of_nothing
from headrace.tables.context import QueryContext
from headrace.tables.expanding import in_windows
from headrace.tables.grouping import is_grouped
from headrace.tables.joining import joined
from headrace.tables.scope import Relation, conjuncts, lookup

RowsOf = Callable[[QueryContext, Any, list[Any]], Relation]
Rewrite = Callable[[Any], Any]
_VALUE: Final = "scalar_value"
_FOUND: Final = "scalar_found"
_KEY: Final = "scalar_key"
_TABLE: Final = "\ue004scalar"
"""What the columns of such a query are found under: no star shows them, and no name of a query meets them."""
_REFUSED: Final = ("having", "qualify", "offset", "with_", "windows")


@dataclass(frozen=True)
class Correlation:
    """An equality between a query and the row outside of it."""

    inner: Any
    outer: Any


def has_scalars(tree: Any) -> bool:
    """Whether a part of a query holds a query that stands for a value."""
    return next(_scalars(tree), None) is not None


def with_scalars(
    ctx: QueryContext, relation: Relation, tree: Any, rows_of: RowsOf, rewrite: Rewrite | None = None
) -> tuple[Relation, Any]:
    """The relation with a column for each such query in a part of a query, and that part with columns in their place.

    ``rows_of``: what FROM and some conditions of a SELECT give; ``rewrite`` makes columns of rows ones of their groups.
    """
    if not has_scalars(tree):
        return relation, tree
    relation = in_windows(ctx, relation, tree)
    tree = tree.copy()
    while (query := next(_scalars(tree), None)) is not None:
        relation, value = _joined(ctx, relation, _as_value(ctx, query), rows_of, rewrite)
        if query is tree:
            return relation, value
        query.replace(value)
    return relation, tree


def _scalars(tree: Any) -> Iterator[Any]:
    """The queries of a part, the outermost ones; of a SELECT those outside of FROM and WHERE."""
    from sqlglot import exp

    if isinstance(tree, exp.Subquery | exp.Exists) or _is_member(tree):
        yield tree
        return
    for child in tree.iter_expressions():
        if not isinstance(child, exp.From | exp.Join | exp.Where | exp.With | exp.Lateral | exp.Having | exp.Qualify):
            yield from _scalars(child)


def _is_member(tree: Any) -> bool:
    from sqlglot import exp

    return isinstance(tree, exp.In) and tree.args.get("query") is not None


# --- EXISTS and IN as values


def _as_value(ctx: QueryContext, tree: Any) -> Any:
    """An expression that says the same by queries that give one row each."""
    from sqlglot import exp

    if isinstance(tree, exp.Exists):
        query = tree.this
        if not isinstance(query, exp.Select) or is_grouped(query) or query.args.get("limit") is not None:
            raise ctx.place.error(
                query, "EXISTS takes a plain query", expected="EXISTS (SELECT 1 FROM t WHERE t.a = outer.a AND …)",
                next_move="name the query by WITH, and read that",
            )  # fmt: skip
        return exp.Paren(this=exp.GT(this=_counted(query), expression=exp.Literal.number(0)))
    if not _is_member(tree):
        return tree
    return _membership(tree)


def _counted(query: Any) -> Any:
    from sqlglot import exp

    counted = query.copy()
    for part in ("distinct", "order"):
        counted.set(part, None)
    counted.set("expressions", [_call("count", exp.Star())])
    return exp.Subquery(this=counted)


def _membership(tree: Any) -> Any:
    """True where it is a member, null where a null on either side leaves that open, and false where it is none."""
    from sqlglot import exp

    name = exp.to_identifier("\ue004member")
    alias = exp.TableAlias(this=exp.to_identifier("\ue004members"), columns=[name])
    query = tree.args["query"]
    members = exp.Subquery(this=query.this if isinstance(query, exp.Subquery) else query, alias=alias)
    member = exp.Column(this=name, table=exp.to_identifier("\ue004members"))

    def count(condition: Any, *arguments: Any) -> Any:
        select = exp.select(_call("count", *arguments)).from_(members.copy())
        return exp.Subquery(this=select if condition is None else select.where(condition, copy=False))

    one, number, boolean = exp.Star(), exp.Literal.number(0), exp.Boolean
    equal = exp.GT(this=count(exp.EQ(this=member, expression=tree.this.copy()), one), expression=number)
    some, known = count(None, one.copy()), count(None, member.copy())
    null_here = exp.and_(
        exp.Is(this=tree.this.copy(), expression=exp.null()), exp.GT(this=some, expression=number.copy()), copy=False
    )
    null_there = exp.LT(this=known, expression=some.copy())
    made = exp.Case(
        ifs=[
            exp.If(this=equal, true=boolean(this=True)),
            exp.If(this=exp.or_(null_here, null_there, copy=False), true=exp.null()),
        ],
        default=boolean(this=False),
    )
    return exp.Paren(this=made)


def _call(name: str, *arguments: Any) -> Any:
    from sqlglot import exp

    return exp.Anonymous(this=name, expressions=list(arguments))


# --- one query


def _joined(
    ctx: QueryContext, relation: Relation, tree: Any, rows_of: RowsOf, rewrite: Rewrite | None
) -> tuple[Relation, Any]:
    """The relation beside the value of a query, and the expression that reads it."""
    from sqlglot import exp

    if not isinstance(tree, exp.Subquery):
        # EXISTS and IN hold several queries, each of one row.
        return with_scalars(ctx, relation, tree, rows_of, rewrite)
    query = tree
    while isinstance(query, exp.Subquery):
        query = query.this
    if not isinstance(query, exp.Select) or query.args.get("from_") is None:
        inner, pairs, default = _whole(ctx, query), [], None
    else:
        inner, pairs, default = _correlated(ctx, query, rows_of)
    number = sum(column.name == _VALUE for column in relation.columns)
    table = f"{_TABLE}{number}"
    columns = tuple(replace(column, table=table, hidden=True) for column in inner.columns)
    inner = replace(inner, columns=columns)

    def column(name: str) -> Any:
        made = exp.column(name, table=table, quoted=True)
        made.this.meta["start"] = ctx.place.statement.place(tree)
        return made

    equal = [
        exp.EQ(this=pair.outer if rewrite is None else rewrite(pair.outer), expression=column(f"{_KEY}{i}"))
        for i, pair in enumerate(pairs)
    ]
    relation = joined(ctx, relation, inner, "left", tree, equal, None)
    if default is None:
        return relation, column(_VALUE)
    found = exp.Is(this=column(_FOUND), expression=exp.null())
    return relation, exp.Paren(this=exp.Case(ifs=[exp.If(this=found, true=default)], default=column(_VALUE)))


def _whole(ctx: QueryContext, query: Any) -> Relation:
    """A query without a row outside: a set operation, VALUES, or one without FROM."""
    inner = in_windows(ctx, ctx.lower(replace(ctx, ranks={}), query), query)
    _check_columns(ctx, query, len(inner.columns))
    if not _gives_one(query) and inner.stream.node.kind.key != ():
        raise _several(ctx, query)
    return replace(inner, columns=(replace(inner.columns[0], name=_VALUE),))


def _gives_one(query: Any) -> bool:
    """Whether the text says that there is one row: SELECT without FROM, VALUES of one, LIMIT 1."""
    from sqlglot import exp

    if isinstance(query, exp.Values):
        return len(query.expressions) == 1
    limit = query.args.get("limit")
    if limit is not None:
        value = limit.expression if isinstance(limit, exp.Limit) else limit.args.get("count")
        return isinstance(value, exp.Literal) and str(value.this) == "1"
    return isinstance(query, exp.Select) and query.args.get("from_") is None


def _correlated(ctx: QueryContext, query: Any, rows_of: RowsOf) -> tuple[Relation, list[Correlation], Any]:
    """The rows of a query with what of them has to be equal outside, and the value where there is no row."""
    from sqlglot import exp

    _check_columns(ctx, query, len(query.expressions))
    value = query.expressions[0]
    value = value.this if isinstance(value, exp.Alias) else value
    own, pairs = _conditions(ctx, query, rows_of)
    aggregates = is_grouped(query) and query.args.get("group") is None
    if not pairs and not aggregates:
        return _whole(ctx, query), [], None
    for part in _REFUSED:
        if query.args.get(part) is not None:
            raise ctx.place.error(
                query.args[part], f"a query for one value takes no {part.strip('_').upper()}",
                expected="(SELECT MAX(x) FROM t WHERE t.k = outer.k)", next_move="name the query by WITH, and join it",
            )  # fmt: skip
    inner = query.copy()
    inner.set("where", exp.Where(this=exp.and_(*(each.copy() for each in own), copy=False)) if own else None)
    keys = [exp.alias_(pair.inner.copy(), f"{_KEY}{i}") for i, pair in enumerate(pairs)]
    default = None
    if aggregates:
        inner.set("limit", None)
        inner.set("order", None)
        default = _value_of_nothing(value)
        marks = [exp.alias_(exp.Boolean(this=True), _FOUND)] if default is not None else []
        inner.set("expressions", [exp.alias_(value.copy(), _VALUE), *marks, *keys])
        if pairs:
            inner.set("group", exp.Group(expressions=[pair.inner.copy() for pair in pairs]))
        return ctx.lower(replace(ctx, ranks={}), inner), pairs, default
    inner.set("expressions", [exp.alias_(value.copy(), _VALUE), *keys])
    if query.args.get("limit") is not None:
        _take_first(ctx, query, inner, pairs)
        return ctx.lower(replace(ctx, ranks={}), inner), pairs, None
    inner.set("order", None)
    rows = in_windows(ctx, ctx.lower(replace(ctx, ranks={}), inner), query)
    texts = {quote_name(name) for name in rows.stream.node.kind.key or ("\ue004nobody",)}
    if not texts <= {column.text for column in rows.columns if column.name.startswith(_KEY)}:
        raise _several(ctx, query)
    return rows, pairs, None


def _take_first(ctx: QueryContext, query: Any, inner: Any, pairs: list[Correlation]) -> None:
    """LIMIT 1 of the rows that a row outside sees: the first of each key."""
    from sqlglot import exp

    order = query.args.get("order")
    if order is None or not _gives_one(query):
        raise ctx.place.error(
            query.args["limit"], "a query for one value takes the first row of an order",
            expected="ORDER BY … LIMIT 1", next_move="or an aggregate: MAX(x), FIRST(x)",
        )  # fmt: skip
    number = exp.Window(
        this=_call("row_number"), partition_by=[pair.inner.copy() for pair in pairs], order=order.copy(), over="OVER"
    )
    inner.set("qualify", exp.Qualify(this=exp.EQ(this=number, expression=exp.Literal.number(1))))
    inner.set("order", None)
    inner.set("limit", None)


def _conditions(ctx: QueryContext, query: Any, rows_of: RowsOf) -> tuple[list[Any], list[Correlation]]:
    """The conditions of a query over its own rows, and its equalities with the row outside."""
    from sqlglot import exp

    where = query.args.get("where")
    conditions = conjuncts(where.this) if where is not None else []
    if not conditions:
        return [], []
    scope = rows_of(replace(ctx, ranks={}), query, [])
    own, pairs = [], []
    for condition in conditions:
        if not _reads_outer(scope, condition):
            own.append(condition)
            continue
        plain = condition
        while isinstance(plain, exp.Paren):
            plain = plain.this
        sides = (plain.this, plain.expression) if isinstance(plain, exp.EQ) else ()
        mine = [side for side in sides if not _reads_outer(scope, side) and side.find(exp.Column) is not None]
        others = [side for side in sides if _is_outer(scope, side)]
        if len(mine) != 1 or len(others) != 1:
            raise ctx.place.error(
                condition, "a query for one value meets the row outside by equalities alone",
                expected="WHERE inner.k = outer.k AND …",
                next_move="join the tables, and aggregate behind the join",
            )  # fmt: skip
        pairs.append(Correlation(mine[0], others[0]))
    return own, pairs


def _columns(tree: Any) -> Iterator[Any]:
    """The columns of an expression, those of queries inside it left out."""
    from sqlglot import exp

    if isinstance(tree, exp.Query):
        return
    if isinstance(tree, exp.Column):
        yield tree
        return
    for child in tree.iter_expressions():
        yield from _columns(child)


def _reads_outer(scope: Relation, tree: Any) -> bool:
    return any(isinstance(lookup(scope, column_path(each)), list) for each in _columns(tree))


def _is_outer(scope: Relation, tree: Any) -> bool:
    columns = list(_columns(tree))
    return bool(columns) and all(isinstance(lookup(scope, column_path(each)), list) for each in columns)


def _value_of_nothing(value: Any) -> Any:
    """What an expression over aggregates is where there are no rows; None where that is null all the same."""
    from sqlglot import exp

    if value_of_nothing(value) is not None:
        return value_of_nothing(value)
    calls = list(aggregates_in(value))
    if calls == [value]:
        return None
    made = exp.Paren(this=value.copy())
    for call in list(aggregates_in(made)):
        call.replace(value_of_nothing(call) or exp.null())
    return made


def _check_columns(ctx: QueryContext, query: Any, count: int) -> None:
    if count != 1 or any(each.is_star for each in getattr(query, "expressions", ()) if hasattr(each, "is_star")):
        raise ctx.place.error(query, "a query for one value gives one column", expected="(SELECT MAX(x) FROM t)")


def _several(ctx: QueryContext, query: Any) -> Any:
    return ctx.place.error(
        query, "nothing says that this query gives one row at most",
        expected="an aggregate, ORDER BY … LIMIT 1, or an equality with the unique key of its rows",
        next_move="(SELECT MAX(x) FROM …); or join the table, where several rows are meant",
    )  # fmt: skip
