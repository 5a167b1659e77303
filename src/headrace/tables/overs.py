"""Window functions: OVER (PARTITION BY … ORDER BY time …), of the rows up to each row.

Rows are first put in the order of their time, by an ordered step that also does LAG, ROW_NUMBER and frames of rows.
Aggregates over a stretch of time, or over all rows so far, are rolling aggregates that give a result for each row,
behind it. ROW_NUMBER with a bound is `headrace.tables.ranks`, by any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from headrace.aggregates.declare import Agg, Declared
from headrace.dataflow.keyed import KeyedStream
from headrace.dataflow.windows import per_row
from headrace.model.keyspec import WHOLE_STREAM
from headrace.sql.expr import quote_name
from headrace.sql.parse import column_path
from headrace.tables.aggregate_calls import declare_call, is_aggregate, read_call
from headrace.tables.context import QueryContext, free_name
from headrace.tables.dialect import is_call, render
from headrace.tables.over_rows import RowsBefore, over_rows
from headrace.tables.ranks import is_row_number, qualify_bound, ranked
from headrace.tables.scope import AtTree, Relation, ScopeColumn, bare_field, expression_sql, lookup
from headrace.tables.window_tables import interval_us

_ROWS_AT_MOST: Final = 10_000
_EMPTY: Final = RowsBefore({}, (), {})


class OverFrame(NamedTuple):
    """Which rows up to the current one: so many, or of a stretch of time; all, where neither is said."""

    rows: int | None = None
    span_us: int | None = None


@dataclass
class OverParts:
    """The window functions of one SELECT that go by one key and by time, while they are lowered."""

    lags: dict[str, tuple[str, int, Any]] = field(default_factory=dict)
    numbers: list[str] = field(default_factory=list)
    frames: dict[str, tuple[Agg[Any], int]] = field(default_factory=dict)
    rolling: dict[str, Agg[Any]] = field(default_factory=dict)
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
    # Numbers with a bound leave rows out, which the other functions have to see: they come last.
    for number, (text, asked) in enumerate([*others.items(), *bound.items()]):
        same = render(asked.window)
        if same not in known:
            column = known[same] = f"\ue003over{number + 1}"
            if text in bound:
                relation, value = ranked(ctx, relation, asked.window, asked.most, asked.name)
            else:
                relation, value = _over(ctx, relation, asked.window)
            relation = replace(relation, columns=(*relation.columns, ScopeColumn("", column, value)))
        results[text] = known[same]
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
            if is_row_number(whole) and most is None and not _by_time(relation, whole):
                raise _unbounded_number(ctx, whole)
            most = most if most is not None and is_row_number(whole) else 0
            text = render(window)
            if text not in asked or (most and not asked[text].most):
                asked[text] = AskedWindow(whole, most, name if name.isidentifier() else "row_number")
    bound = {text: each for text, each in asked.items() if each.most}
    if len({render(each.window) for each in bound.values()}) > 1:
        # All rows can be numbered by time; of numbers by another order one leaves out rows that the next has to count.
        bound = {text: each for text, each in bound.items() if not _by_time(relation, each.window)}
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


def _by_time(relation: Relation, window: Any) -> bool:
    from sqlglot import exp

    order = window.args.get("order")
    if order is None or not order.expressions:
        return False
    first = order.expressions[0]
    if first.args.get("desc") or not isinstance(first.this, exp.Column):
        return False
    found = lookup(relation, column_path(first.this))
    return not isinstance(found, list) and relation.time is not None and found[0].text == relation.time


def _over(ctx: QueryContext, relation: Relation, window: Any) -> tuple[Relation, str]:
    place = ctx.place
    if not _by_time(relation, window):
        raise place.error(
            window, "OVER goes by event time, ascending",
            expected="OVER (PARTITION BY … ORDER BY the event time)",
            next_move="the first rows by another order: ROW_NUMBER() with a bound, rn <= 10",
        )  # fmt: skip
    if relation.stream.node.kind.corrects:
        raise place.error(window, "OVER cannot take rows that are taken back", expected="rows that each stand alone")
    parts, text = OverParts(), ""
    relation, fields = _partition(ctx, relation, window)
    ties = _ties(ctx, relation, window)
    frame = _frame(ctx, window)

    def free(stem: str) -> str:
        return free_name(stem, [*relation.fields, *parts.added, *parts.rolling])

    call = window.this
    if is_row_number(window):
        _check_no_arguments(ctx, window)
        name = free("row_number")
        parts.numbers.append(name)
        parts.added[name] = int
        text = quote_name(name)
    elif is_call(call, "lag") or type(call).__name__ == "Lag":
        relation, text = _lag(ctx, relation, window, parts, free)
    elif is_aggregate(call):
        text = _aggregate(ctx, relation, window, parts, frame, free)
    else:
        raise place.error(
            window, f"{render(call)} OVER cannot be had over streams",
            expected="aggregates, LAG, and ROW_NUMBER",
            next_move="LAG looks back; a row that comes later can be joined by an interval"
            if is_call(call, "lead")
            else "",
        )  # fmt: skip
    return _stepped(ctx, relation, window, parts, fields, ties), text


def _partition(ctx: QueryContext, relation: Relation, window: Any) -> tuple[Relation, list[str]]:
    fields: list[str] = []
    for tree in window.args.get("partition_by") or ():
        name = bare_field(relation, tree, ctx.place)
        if name is None:
            name = free_name("part", [*relation.fields, *fields])
            with AtTree(ctx.place, tree):
                made = {name: expression_sql(relation, tree, ctx.place)}
                relation = relation.over(relation.stream.with_columns(**made))
        if name not in fields:
            fields.append(name)
    return relation, fields


def _ties(ctx: QueryContext, relation: Relation, window: Any) -> list[str]:
    """What decides between rows of one time: further columns of ORDER BY."""
    names = []
    for each in window.args["order"].expressions[1:]:
        name = bare_field(relation, each.this, ctx.place)
        if name is None or each.args.get("desc"):
            raise ctx.place.error(each, "rows of one time go by columns, ascending", expected="ORDER BY ts, id")
        names.append(name)
    return names


def _frame(ctx: QueryContext, window: Any) -> OverFrame:
    from sqlglot import exp

    spec = window.args.get("spec")
    if spec is None:
        return OverFrame()
    start, end = spec.args.get("start"), spec.args.get("end")
    ends_here = end is None or end == "CURRENT ROW"
    if not ends_here or spec.args.get("start_side") == "FOLLOWING":
        raise ctx.place.error(
            window, "a frame ends at the current row", expected="… PRECEDING AND CURRENT ROW",
            next_move="what comes later can be joined by an interval",
        )  # fmt: skip
    if start == "UNBOUNDED":
        return OverFrame()
    if start == "CURRENT ROW":
        return OverFrame(rows=1) if str(spec.args.get("kind")).upper() == "ROWS" else OverFrame(span_us=1)
    if str(spec.args.get("kind")).upper() == "ROWS":
        if isinstance(start, exp.Literal) and str(start.this).isdigit() and int(start.this) < _ROWS_AT_MOST:
            return OverFrame(rows=int(start.this) + 1)
        raise ctx.place.error(start, "a frame has a number of rows", expected=f"a number below {_ROWS_AT_MOST}")
    return OverFrame(span_us=interval_us(start, ctx.place) + 1)


def _check_no_arguments(ctx: QueryContext, window: Any) -> None:
    if list(window.this.expressions):
        raise ctx.place.error(window, "ROW_NUMBER takes no arguments", expected="ROW_NUMBER() OVER (…)")


def _lag(ctx: QueryContext, relation: Relation, window: Any, parts: OverParts, free: Any) -> tuple[Relation, str]:
    from sqlglot import exp

    call, place = window.this, ctx.place
    arguments = list(call.expressions) if isinstance(call, exp.Anonymous) else list(call.iter_expressions())
    if not 1 <= len(arguments) <= 3:
        raise place.error(window, "LAG takes one to three arguments", expected="LAG(x, 1, 0)")
    back = arguments[1] if len(arguments) > 1 else None
    if back is not None and not (isinstance(back, exp.Literal) and str(back.this).isdigit()):
        raise place.error(back, "LAG looks back a number of rows", expected="LAG(x, 1)")
    column = bare_field(relation, arguments[0], place)
    if column is None:
        column = free("lagged")
        with AtTree(place, arguments[0]):
            made = {column: expression_sql(relation, arguments[0], place)}
            relation = relation.over(relation.stream.with_columns(**made))
    name = free(f"lag_{column}")
    count = 1 if back is None else int(back.this)
    if not 0 <= count < _ROWS_AT_MOST:
        raise place.error(back, "LAG looks back a number of rows", expected=f"a number below {_ROWS_AT_MOST}")
    parts.lags[name] = (column, count, None)
    parts.added[name] = relation.stream.node.codec.annotations[column] | None
    if len(arguments) < 3:
        return relation, quote_name(name)
    # What stands before the first row is a value of SQL: it takes the place where there is no row so far back.
    number = free("row_number")
    parts.numbers.append(number)
    parts.added[number] = int
    default = expression_sql(relation, arguments[2], place)
    return relation, f"(CASE WHEN {number} > {count} THEN {quote_name(name)} ELSE {default} END)"


def _aggregate(
    ctx: QueryContext, relation: Relation, window: Any, parts: OverParts, frame: OverFrame, free: Any
) -> str:
    call = read_call(window.this, ctx.place)
    with AtTree(ctx.place, window):
        result = declare_call(call, relation, ctx.place, free(call.function), free)
        codec = relation.stream.node.codec
        for name, agg in result.aggs.items():
            assert isinstance(agg, Declared)
            agg.check(codec, str(ctx.place.site))
            if frame.rows is not None:
                parts.frames[name] = (agg, frame.rows)
                parts.added[name] = agg.result_type(codec) | None
            else:
                parts.rolling[name] = agg if frame.span_us is None else replace(agg, over_us=frame.span_us)
    return result.text


def _stepped(
    ctx: QueryContext, relation: Relation, window: Any, parts: OverParts, fields: list[str], ties: list[str]
) -> Relation:
    """The step that puts rows in order, and the rolling aggregate behind it."""
    key = ", ".join(fields)
    with AtTree(ctx.place, window):
        keyed = _keyed(relation.stream, fields)
        asked = RowsBefore(parts.lags, tuple(parts.numbers), parts.frames)
        function = over_rows(asked, relation.stream.node.codec, keyed.key.type, parts.added)
        stream: Any = keyed.process(function, order=("time", *ties) if ties else "time")
        ctx.steps.add(stream, "in_order", window, key)
        if parts.rolling:
            others = [name for name in stream.node.codec.names if name not in fields]
            aggs: Any = parts.rolling
            made: Any = _keyed(stream, fields).aggregate(fire=per_row(*others), **aggs)
            ctx.steps.add(made, "over", window, key)
            stream = made.changes()
    return relation.over(stream)


def _keyed(stream: Any, fields: list[str]) -> Any:
    return stream.key_by(*fields) if fields else KeyedStream(stream, WHOLE_STREAM)
