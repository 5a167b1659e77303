"""Window functions: OVER (PARTITION BY … ORDER BY time …), of the rows up to each row.

Rows are first put in the order of their time, by an ordered step that also does LAG, numbers and frames of rows.
Aggregates over a stretch of time, or over all rows so far, are rolling aggregates that give a result for each row,
behind it. Numbers with a bound are `headrace.tables.ranks`, by any order; what looks ahead is in
`headrace.tables.over_ahead`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headrace.aggregates.declare import Agg, Declared
from headrace.dataflow.windows import per_row
from headrace.sql.expr import quote_name
from headrace.tables.aggregate_calls import declare_call, is_aggregate, read_call
from headrace.tables.context import QueryContext, free_name
from headrace.tables.dialect import render
from headrace.tables.over_ahead import over_ahead, shift_arguments
from headrace.tables.over_clauses import (
    by_time,
    check_over,
    frame_of,
    keyed_by,
    looks_around,
    partition_fields,
    shift_call,
    tie_fields,
)
from headrace.tables.over_rows import RowsBefore, over_rows
from headrace.tables.ranks import number_function, qualify_bound, ranked
from headrace.tables.scope import AtTree, Relation, ScopeColumn, expression_sql


@dataclass
class OverParts:
    """The window functions of one SELECT that go by one key and by time, while they are lowered."""

    lags: dict[str, tuple[str, int, Any]] = field(default_factory=dict)
    numbers: list[str] = field(default_factory=list)
    ranks: dict[str, bool] = field(default_factory=dict)
    frames: dict[str, tuple[Agg[Any], int]] = field(default_factory=dict)
    rolling: dict[str, Agg[Any]] = field(default_factory=dict)
    peers: tuple[str, ...] | None = None
    """The columns in which rows of one time have to be equal to share the results of ``rolling``."""
    added: dict[str, Any] = field(default_factory=dict)
    """Types of what the ordered step adds."""


def windows_in(tree: Any) -> Iterator[Any]:
    """The window functions of an expression, those of queries inside left out."""
    from sqlglot import exp

    if tree is None or isinstance(tree, exp.Query):
        return
    if isinstance(tree, exp.Window):
        yield tree
        return
    for child in tree.iter_expressions():
        yield from windows_in(child)


def with_windows(
    ctx: QueryContext, select: Any, relation: Relation, parts: list[tuple[str, Any]]
) -> tuple[Relation, dict[str, Any]]:
    """The relation with the results of all window functions, and what stands for each, by its text.

    ``parts``: the names and trees in which they stand.
    """
    results: dict[str, Any] = {}
    bound, others = _bounded(ctx, select, relation, parts)
    known: dict[str, str] = {}
    ahead = {text: asked for text, asked in others.items() if looks_around(ctx, asked.window)}
    plain = {text: asked for text, asked in others.items() if text not in ahead}

    def add(window: Any, value: str) -> None:
        nonlocal relation
        known[render(window)] = column = f"\ue003over{len(known) + 1}"
        relation = replace(relation, columns=(*relation.columns, ScopeColumn("", column, value)))

    for asked in plain.values():
        if render(asked.window) not in known:
            relation, value = _over(ctx, relation, asked.window)
            add(asked.window, value)
    if ahead:
        windows = list({render(asked.window): asked.window for asked in ahead.values()}.values())
        relation, values = over_ahead(ctx, relation, windows)
        for window, value in zip(windows, values, strict=True):
            add(window, value)
    # Numbers with a bound leave rows out, which the other functions have to see: they come last.
    for asked in bound.values():
        if render(asked.window) not in known:
            relation, value = ranked(ctx, relation, asked.window, asked.most, asked.name)
            add(asked.window, value)
    for text, asked in [*others.items(), *bound.items()]:
        results[text] = known[render(asked.window)]
    return relation, results


class AskedWindow(NamedTuple):
    """A window function of a SELECT, and up to which number its rows are wanted; 0: all of them."""

    window: Any
    most: int
    name: str


def _bounded(
    ctx: QueryContext, select: Any, relation: Relation, parts: list[tuple[str, Any]]
) -> tuple[dict[str, AskedWindow], dict[str, AskedWindow]]:
    """The window functions that number the first rows by a bound, at most one of them, and all others."""
    named = {each.this.name.lower(): each for each in select.args.get("windows") or ()}
    asked: dict[str, AskedWindow] = {}
    for name, tree in parts:
        for window in windows_in(tree):
            whole = _resolved(ctx, window, named)
            most = ctx.ranks.get(name.lower()) if name and window is tree else None
            for _, condition in [part for part in parts if not part[0]]:
                most = most or qualify_bound(condition, window)
            function = number_function(whole)
            if function and not most and not by_time(relation, whole):
                raise _unbounded_number(ctx, whole) if most is None else _no_number(ctx, whole)
            most = most if most is not None and function else 0
            text = render(window)
            if text not in asked or (most and not asked[text].most):
                asked[text] = AskedWindow(whole, most, name if name.isidentifier() else function)
    bound = {text: each for text, each in asked.items() if each.most}
    if len({render(each.window) for each in bound.values()}) > 1:
        # All rows can be numbered by time; of numbers by another order one leaves out rows that the next has to count.
        bound = {text: each for text, each in bound.items() if not by_time(relation, each.window)}
        if len({render(each.window) for each in bound.values()}) > 1:
            raise ctx.place.error(
                list(bound.values())[-1].window, "rows are numbered by one order at a time, where that is not time",
                expected="one ROW_NUMBER() with a bound",
                next_move="number the results of a query, in a query around it",
            )  # fmt: skip
    return bound, {text: each for text, each in asked.items() if text not in bound}


def rewritten(tree: Any, results: dict[str, Any]) -> Any:
    """An expression with columns in the place of its window functions."""
    from sqlglot import exp

    def column(node: Any) -> Any:
        if isinstance(node, exp.Window):
            made = exp.column(results[render(node)])
            starts = [each.meta["start"] for each in node.walk() if "start" in each.meta]
            made.this.meta["start"] = min(starts, default=0)
            return made
        return node

    return tree.copy().transform(column, copy=False)


def _resolved(ctx: QueryContext, window: Any, named: dict[str, Any]) -> Any:
    """The window with what WINDOW w AS (…) says of it."""
    alias = window.args.get("alias")
    if alias is None:
        return window
    found = named.get(alias.name.lower())
    if found is None:
        raise ctx.place.error(window, f"there is no window {alias.name!r}", expected="WINDOW w AS (PARTITION BY …)")
    others = {name: each for name, each in named.items() if each is not found}
    made = _resolved(ctx, found, others).copy()
    made.set("this", window.this.copy())
    for part in ("partition_by", "order", "spec"):
        own = window.args.get(part)
        if not own:
            continue
        if made.args.get(part) or part == "partition_by":
            raise ctx.place.error(
                window, f"{alias.name} says that already", expected=f"OVER {alias.name}, or a window without a name",
                next_move="a frame or an order may be added where the named window has none",
            )  # fmt: skip
        made.set(part, own.copy())
    return made


def _unbounded_number(ctx: QueryContext, window: Any) -> Any:
    return ctx.place.error(
        window, "numbers of all rows by an order other than time would change with every row",
        expected="a bound: WHERE rn <= 10 in the query around it, or QUALIFY; or ORDER BY the event time",
        next_move="SELECT … FROM (SELECT *, ROW_NUMBER() OVER (…) AS rn FROM t) WHERE rn <= 10",
    )  # fmt: skip


def _no_number(ctx: QueryContext, window: Any) -> Any:
    return ctx.place.error(
        window, "rows are numbered from 1, so this bound leaves none", expected="a bound of 1 or more: WHERE rn <= 1"
    )


def _over(ctx: QueryContext, relation: Relation, window: Any) -> tuple[Relation, str]:
    place = ctx.place
    check_over(ctx, relation, window)
    parts, text = OverParts(), ""
    relation, fields = partition_fields(ctx, relation, window)
    ties = tie_fields(ctx, relation, window)

    def free(stem: str) -> str:
        return free_name(stem, [*relation.fields, *parts.added, *parts.rolling])

    call = window.this
    if function := number_function(window):
        if list(call.expressions):
            raise place.error(
                window, f"{function.upper()} takes no arguments", expected=f"{function.upper()}() OVER (…)"
            )
        name = free(function)
        if function == "row_number":
            parts.numbers.append(name)
        else:
            parts.ranks[name] = function == "dense_rank"
        parts.added[name] = int
        text = quote_name(name)
    elif shift_call(window):
        relation, text = _lag(ctx, relation, window, parts, free)
    elif is_aggregate(call):
        text = _aggregate(ctx, relation, window, parts, ties, free)
    else:
        raise place.error(
            window, f"{render(call)} OVER cannot be had over streams",
            expected="aggregates, LAG, LEAD, ROW_NUMBER, RANK and DENSE_RANK",
        )  # fmt: skip
    return _stepped(ctx, relation, window, parts, fields, ties), text


def _lag(ctx: QueryContext, relation: Relation, window: Any, parts: OverParts, free: Any) -> tuple[Relation, str]:
    column, count, otherwise, relation = shift_arguments(ctx, relation, window)
    name = free(f"lag_{column}")
    parts.lags[name] = (column, count, None)
    parts.added[name] = relation.stream.node.codec.annotations[column] | None
    if otherwise is None:
        return relation, quote_name(name)
    # What stands before the first row is a value of SQL: it takes the place where there is no row so far back.
    number = free("row_number")
    parts.numbers.append(number)
    parts.added[number] = int
    default = expression_sql(relation, otherwise, ctx.place)
    return relation, f"(CASE WHEN {number} > {count} THEN {quote_name(name)} ELSE {default} END)"


def _aggregate(ctx: QueryContext, relation: Relation, window: Any, parts: OverParts, ties: list[str], free: Any) -> str:
    call, frame = read_call(window.this, ctx.place), frame_of(ctx, window)
    with AtTree(ctx.place, window):
        result = declare_call(call, relation, ctx.place, free(call.function), free)
        codec = relation.stream.node.codec
        for name, agg in result.aggs.items():
            assert isinstance(agg, Declared)
            agg.check(codec, str(ctx.place.site))
            if frame.before is None:
                parts.rolling[name] = agg
                parts.peers = tuple(ties) if frame.by_time else None
            elif frame.by_time:
                parts.rolling[name] = replace(agg, over_us=frame.before + 1)
            else:
                parts.frames[name] = (agg, frame.before + 1)
                parts.added[name] = agg.result_type(codec) | None
    return result.text


def _stepped(
    ctx: QueryContext, relation: Relation, window: Any, parts: OverParts, fields: list[str], ties: list[str]
) -> Relation:
    """The step that puts rows in order, and the rolling aggregate behind it."""
    key = ", ".join(fields)
    with AtTree(ctx.place, window):
        keyed = keyed_by(relation.stream, fields)
        asked = RowsBefore(parts.lags, tuple(parts.numbers), parts.frames, parts.ranks, tuple(ties))
        function = over_rows(asked, relation.stream.node.codec, keyed.key.type, parts.added)
        stream: Any = keyed.process(function, order=("time", *ties) if ties else "time")
        ctx.steps.add(stream, "in_order", window, key)
        if parts.rolling:
            others = [name for name in stream.node.codec.names if name not in fields]
            aggs: Any = parts.rolling
            fire: Any = per_row(*others)
            fire = replace(fire, peers=parts.peers)
            made: Any = keyed_by(stream, fields).aggregate(fire=fire, **aggs)
            ctx.steps.add(made, "over", window, key)
            stream = made.changes()
    return relation.over(stream)
