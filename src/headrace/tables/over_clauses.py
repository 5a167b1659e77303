"""The parts of ``OVER (PARTITION BY … ORDER BY … ROWS …)``, each as the steps behind it take it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from headrace.dataflow.keyed import KeyedStream
from headrace.model.keyspec import WHOLE_STREAM
from headrace.sql.parse import column_path
from headrace.tables.context import QueryContext, free_name
from headrace.tables.dialect import is_call
from headrace.tables.scope import AtTree, Relation, bare_field, expression_sql, lookup
from headrace.tables.window_tables import interval_us

ROWS_AT_MOST: Final = 10_000


class OverFrame(NamedTuple):
    """The rows of a frame: from so far before the current one to so far behind it; either may be negative."""

    before: int | None = None
    """None: all rows before."""
    behind: int = 0
    by_time: bool = True
    """Whether microseconds are meant, and rows of one time are peers; otherwise rows are counted."""

    @property
    def ends_here(self) -> bool:
        """Whether the current row is the last one, or of the last ones where rows of one time are peers."""
        return self.behind == 0 and (self.before is None or self.before >= 0)


def by_time(relation: Relation, window: Any) -> bool:
    """Whether a window goes by event time, ascending."""
    from sqlglot import exp

    order = window.args.get("order")
    if order is None or not order.expressions:
        return False
    first = order.expressions[0]
    if first.args.get("desc") or not isinstance(first.this, exp.Column):
        return False
    found = lookup(relation, column_path(first.this))
    return not isinstance(found, list) and relation.time is not None and found[0].text == relation.time


def check_over(ctx: QueryContext, relation: Relation, window: Any) -> None:
    """What every window function needs that has no bound on its number."""
    if not by_time(relation, window):
        raise ctx.place.error(
            window, "OVER goes by event time, ascending",
            expected="OVER (PARTITION BY … ORDER BY the event time)",
            next_move="the first rows by another order: ROW_NUMBER() with a bound, rn <= 10",
        )  # fmt: skip
    if relation.stream.node.kind.corrects:
        raise ctx.place.error(
            window, "OVER cannot take rows that are taken back", expected="rows that each stand alone"
        )


def partition_fields(ctx: QueryContext, relation: Relation, window: Any) -> tuple[Relation, list[str]]:
    """The fields of PARTITION BY, made where they are computed."""
    fields: list[str] = []
    for tree in window.args.get("partition_by") or ():
        relation, name = field_of(ctx, relation, tree, "part", fields)
        if name not in fields:
            fields.append(name)
    return relation, fields


def field_of(ctx: QueryContext, relation: Relation, tree: Any, stem: str, taken: Any = ()) -> tuple[Relation, str]:
    """The field that an expression is, made where it is computed."""
    name = bare_field(relation, tree, ctx.place)
    if name is None:
        name = free_name(stem, [*relation.fields, *taken])
        with AtTree(ctx.place, tree):
            made = {name: expression_sql(relation, tree, ctx.place)}
            relation = relation.over(relation.stream.with_columns(**made))
    return relation, name


def tie_fields(ctx: QueryContext, relation: Relation, window: Any) -> list[str]:
    """What decides between rows of one time: further columns of ORDER BY."""
    names = []
    for each in window.args["order"].expressions[1:]:
        name = bare_field(relation, each.this, ctx.place)
        if name is None or each.args.get("desc"):
            raise ctx.place.error(each, "rows of one time go by columns, ascending", expected="ORDER BY ts, id")
        names.append(name)
    return names


def keyed_by(stream: Any, fields: list[str]) -> Any:
    return stream.key_by(*fields) if fields else KeyedStream(stream, WHOLE_STREAM)


def shift_call(window: Any) -> str:
    """``lag`` or ``lead``, where a window is one."""
    return next((name for name in ("lag", "lead") if is_call(window.this, name)), "")


def looks_around(ctx: QueryContext, window: Any) -> bool:
    """Whether rows other than those up to the current one have a part in a window."""
    return shift_call(window) == "lead" or not frame_of(ctx, window).ends_here


def frame_of(ctx: QueryContext, window: Any) -> OverFrame:
    """The frame of a window; without one it is all rows up to the current one and its peers."""
    spec = window.args.get("spec")
    if spec is None:
        return OverFrame()
    rows = str(spec.args.get("kind")).upper() == "ROWS"
    start, end = spec.args.get("start"), spec.args.get("end")
    if end == "UNBOUNDED" or (start == "UNBOUNDED" and spec.args.get("start_side") == "FOLLOWING"):
        raise ctx.place.error(
            window, "a frame has an end: a stream goes on", expected="… FOLLOWING by a number or an interval",
            next_move="aggregates of windows come when the window is over: TUMBLE, SESSION",
        )  # fmt: skip
    behind = 0 if end is None else _bound(ctx, end, spec.args.get("end_side"), rows=rows)
    before = None if start == "UNBOUNDED" else -_bound(ctx, start, spec.args.get("start_side"), rows=rows)
    if before is None and behind != 0:
        raise ctx.place.error(
            window, "a frame of all rows before ends at the current row",
            expected="UNBOUNDED PRECEDING AND CURRENT ROW, or bounds on both sides",
            next_move="add what a second frame gives: 1 FOLLOWING AND 3 FOLLOWING",
        )  # fmt: skip
    if before is not None and -before > behind:
        raise ctx.place.error(window, "this frame ends before it begins", expected="BETWEEN the earlier AND the later")
    return OverFrame(before, behind, not rows)


def _bound(ctx: QueryContext, tree: Any, side: Any, *, rows: bool) -> int:
    """How far behind the current row a bound lies; before it, it is negative."""
    from sqlglot import exp

    if tree == "CURRENT ROW":
        return 0
    if not rows:
        far = interval_us(tree, ctx.place)
    elif isinstance(tree, exp.Literal) and str(tree.this).isdigit() and int(tree.this) < ROWS_AT_MOST:
        far = int(tree.this)
    else:
        raise ctx.place.error(tree, "a frame has a number of rows", expected=f"a number below {ROWS_AT_MOST}")
    return far if side == "FOLLOWING" else -far
