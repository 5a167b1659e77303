"""LEAD, and frames in which later rows have a part, or the current row has none: one step for all of a query.

Its rows come when they are complete, which is later than their own time. So the step stands behind all other window
functions, and what reads it has no event time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from headrace.aggregates.declare import Agg, Declared
from headrace.sql.expr import quote_name
from headrace.tables.aggregate_calls import declare_call, is_aggregate, read_call
from headrace.tables.context import QueryContext, free_name
from headrace.tables.dialect import render
from headrace.tables.over_clauses import (
    ROWS_AT_MOST,
    check_over,
    field_of,
    frame_of,
    keyed_by,
    partition_fields,
    shift_call,
    tie_fields,
)
from headrace.tables.rows_ahead import Reach, RowsAround, rows_ahead
from headrace.tables.scope import AtTree, Relation, expression_sql


@dataclass
class AheadParts:
    """What is asked of the rows around each row, while it is gathered."""

    leads: dict[str, tuple[str, int]] = field(default_factory=dict)
    there: dict[str, int] = field(default_factory=dict)
    frames: dict[str, tuple[Agg[Any], Reach]] = field(default_factory=dict)
    types: dict[str, Any] = field(default_factory=dict)


def over_ahead(ctx: QueryContext, relation: Relation, windows: list[Any]) -> tuple[Relation, list[str]]:
    """The relation behind the step, and the text of the result of each window."""
    parts, texts = AheadParts(), []
    first = windows[0]
    for window in windows:
        check_over(ctx, relation, window)
        if any(window.args.get(each) != first.args.get(each) for each in ("partition_by", "order")):
            raise ctx.place.error(
                window, "functions that look ahead have one PARTITION BY and ORDER BY",
                expected="the same as in the one before", next_move="ask for the other one in a query of its own",
            )  # fmt: skip
    relation, fields = partition_fields(ctx, relation, first)
    ties = tie_fields(ctx, relation, first)
    for window in windows:
        ask = _lead if shift_call(window) else _aggregate
        relation, text = ask(ctx, relation, window, parts)
        texts.append(text)
    with AtTree(ctx.place, first):
        keyed = keyed_by(relation.stream, fields)
        asked = RowsAround(parts.leads, parts.there, parts.frames)
        function = rows_ahead(asked, relation.stream.node.codec, keyed.key.type, parts.types)
        stream = keyed.process(function, order=("time", *ties) if ties else "time")
    ctx.steps.add(stream, "ahead", first, ", ".join(fields))
    return replace(relation.over(stream), time=None, closed=None), texts


def _free(relation: Relation, parts: AheadParts, stem: str) -> str:
    return free_name(stem, [*relation.fields, *parts.types])


def _lead(ctx: QueryContext, relation: Relation, window: Any, parts: AheadParts) -> tuple[Relation, str]:
    column, later, default, relation = shift_arguments(ctx, relation, window)
    name = _free(relation, parts, f"lead_{column}")
    parts.leads[name] = (column, later)
    parts.types[name] = relation.stream.node.codec.annotations[column] | None
    if default is None:
        return relation, quote_name(name)
    there = _free(relation, parts, f"{name}_there")
    parts.there[there] = later
    parts.types[there] = bool
    text = expression_sql(relation, default, ctx.place)
    return relation, f"(CASE WHEN {quote_name(there)} THEN {quote_name(name)} ELSE {text} END)"


def shift_arguments(ctx: QueryContext, relation: Relation, window: Any) -> tuple[str, int, Any, Relation]:
    """Of LAG and LEAD: the column, how many rows away, what stands where there is no such row, and the relation."""
    from sqlglot import exp

    name, place = shift_call(window).upper(), ctx.place
    arguments = list(window.this.expressions)
    if not 1 <= len(arguments) <= 3:
        raise place.error(window, f"{name} takes one to three arguments", expected=f"{name}(x, 1, 0)")
    away = arguments[1] if len(arguments) > 1 else None
    if away is not None and not (isinstance(away, exp.Literal) and str(away.this).isdigit()):
        raise place.error(away, f"{name} looks a number of rows away", expected=f"{name}(x, 1)")
    rows = 1 if away is None else int(away.this)
    if not 0 <= rows < ROWS_AT_MOST:
        raise place.error(away, f"{name} looks a number of rows away", expected=f"a number below {ROWS_AT_MOST}")
    relation, column = field_of(ctx, relation, arguments[0], "shifted")
    return column, rows, arguments[2] if len(arguments) > 2 else None, relation


def _aggregate(ctx: QueryContext, relation: Relation, window: Any, parts: AheadParts) -> tuple[Relation, str]:
    from sqlglot import exp

    if not is_aggregate(window.this):
        raise ctx.place.error(
            window, f"{render(window.this)} has no frame that looks around", expected="aggregates, and LEAD"
        )
    frame = frame_of(ctx, window)
    assert frame.before is not None, "frames of all rows before end at the current one"
    call = read_call(window.this, ctx.place)
    if call.condition is None and not (frame.before >= 0 and frame.behind >= 0):
        # Such a frame may have no rows: then SUM is null, as it is where a condition leaves none.
        call = call._replace(condition=exp.Boolean(this=True))
    with AtTree(ctx.place, window):
        result = declare_call(
            call, relation, ctx.place, _free(relation, parts, call.function), lambda stem: _free(relation, parts, stem)
        )
        codec = relation.stream.node.codec
        for name, agg in result.aggs.items():
            assert isinstance(agg, Declared)
            agg.check(codec, str(ctx.place.site))
            parts.frames[name] = (agg, Reach(frame.before, frame.behind, frame.by_time))
            parts.types[name] = agg.result_type(codec) | None
    return relation, result.text
