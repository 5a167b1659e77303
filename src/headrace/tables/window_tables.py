"""Windows in SQL: the table functions TUMBLE, HOP, CUMULATE and SESSION, and the older functions in GROUP BY.

A table function says into which windows its rows are to be put; they are not put there until somebody groups, joins or
ranks by window, or asks for the bounds (`headrace.tables.window_rows`). Windows go by the event time of the rows, so
the column in DESCRIPTOR has to be the one that holds it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from headrace.dataflow.windows import cumulating, session, sliding, tumbling
from headrace.model.time import Duration
from headrace.model.window import WINDOW_END, WINDOW_START
from headrace.sql.bind import interval
from headrace.sql.nodes import Unsupported
from headrace.sql.parse import column_path
from headrace.tables.context import QueryContext
from headrace.tables.dialect import PARTITIONS, is_call, render
from headrace.tables.scope import (
    WINDOW_TIME,
    AtTree,
    QueryPlace,
    Relation,
    ScopeColumn,
    bare_field,
    find_column,
    lookup,
)
from headrace.tables.wall_clock import is_clock
from headrace.windows.kinds import Assigner, Clock

FUNCTIONS: Final = ("tumble", "hop", "cumulate", "session")
_PARAMETERS: Final = {
    "tumble": ("data", "timecol", "size", "offset"),
    "hop": ("data", "timecol", "slide", "size", "offset"),
    "cumulate": ("data", "timecol", "step", "size", "offset"),
    "session": ("data", "timecol", "gap"),
}
_FORM: Final = {
    "tumble": "TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '10' MINUTES)",
    "hop": "HOP(TABLE t, DESCRIPTOR(at), INTERVAL '5' MINUTES, INTERVAL '10' MINUTES)",
    "cumulate": "CUMULATE(TABLE t, DESCRIPTOR(at), INTERVAL '1' HOUR, INTERVAL '1' DAY)",
    "session": "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(at), INTERVAL '30' MINUTES)",
}
ROLES: Final = (WINDOW_START, WINDOW_END, WINDOW_TIME)
_OLD_BOUNDS: Final = {"start": WINDOW_START, "end": WINDOW_END, "rowtime": WINDOW_TIME}


def window_call(tree: Any) -> Any:
    """The call of a window function that stands in FROM, alone or as TABLE(…); None where there is none."""
    from sqlglot import exp

    call = tree.this if isinstance(tree, exp.Table) else tree
    if is_call(call, "table") and len(call.expressions) == 1:
        call = call.expressions[0]
    return call if is_call(call, *FUNCTIONS) else None


def windowed(ctx: QueryContext, call: Any) -> Relation:
    """The rows of a table, with the windows that they are to be put in."""
    name = str(call.this).lower()
    given = _arguments(call, name, ctx.place)
    relation = _data(ctx, given["data"])
    if relation.assigner is not None:
        raise ctx.place.error(
            call, "these rows are to be put in windows already", expected="one window function for a table",
            next_move="group by the first windows, and put their results in others by window_time",
        )  # fmt: skip
    clock = time_clock(relation, _descriptor(given["timecol"], name, ctx.place), ctx.place)
    spans: dict[str, Any] = {key: given[key] for key in ("size", "slide", "step", "gap", "offset") if key in given}
    assigner = make_assigner(name, spans, call, ctx.place, clock)
    keys = tuple(_partition(relation, each, ctx.place) for each in given.get("partitions", ()))
    columns = tuple(column for column in relation.columns if column.name not in ROLES)
    bounds = tuple(ScopeColumn(columns[0].table if columns else "", role, "", role) for role in ROLES)
    return replace(
        relation, columns=columns + bounds, assigner=assigner, session_keys=keys if name == "session" else ()
    )


def make_assigner(name: str, spans: dict[str, Any], call: Any, place: QueryPlace, clock: Clock = "event") -> Assigner:
    """The windows of a function; ``spans``: the trees of its intervals, by their names."""
    us = {key: Duration(interval_us(tree, place)) for key, tree in spans.items()}
    missing = [key for key in _PARAMETERS[name][2:] if key != "offset" and key not in us]
    if missing:
        raise place.error(call, f"{name.upper()} needs its {missing[0]}", expected=_FORM[name])
    offset = us.get("offset", Duration(0))
    with AtTree(place, call):
        if name == "tumble":
            return tumbling(us["size"], offset=offset, clock=clock)
        if name == "hop":
            return sliding(us["size"], every=us["slide"], offset=offset, clock=clock)
        if name == "cumulate":
            return cumulating(us["size"], every=us["step"], offset=offset, clock=clock)
        return session(us["gap"], clock=clock)


def interval_us(tree: Any, place: QueryPlace) -> int:
    """The microseconds of an INTERVAL literal."""
    from sqlglot import exp

    sign = 1
    while isinstance(tree, exp.Paren | exp.Neg):
        sign, tree = (-sign if isinstance(tree, exp.Neg) else sign), tree.this
    if isinstance(tree, exp.Interval):
        try:
            node = interval(tree, render(tree))
        except Unsupported as reason:
            raise place.error(tree, str(reason), expected="INTERVAL '10' MINUTES") from None
        if not str(node.type).endswith("MONTH"):
            return sign * int(node.value)
    raise place.error(
        tree, "a span of time has to be an interval of days or less", expected="INTERVAL '10' MINUTES",
        next_move="months and years differ in length; take days",
    )  # fmt: skip


def time_clock(relation: Relation, column: Any, place: QueryPlace) -> Clock:
    """By which clock windows over a column go; refuses one that is neither the event time nor the wall clock."""
    if is_clock(relation, column):
        return "wall"
    check_time(relation, column, place)
    return "event"


def check_time(relation: Relation, column: Any, place: QueryPlace) -> None:
    """Refuses a column that is not the event time of the rows."""
    found = lookup(relation, column_path(column))
    if not isinstance(found, list) and not found[1] and found[0].text and found[0].text == relation.time:
        return
    find_column(relation, column, place)
    has = next((c.name for c in relation.columns if c.text and c.text == relation.time), None)
    raise place.error(
        column,
        f"{'.'.join(column_path(column))} is not the event time of these rows",
        expected=f"{has}, which is" if has else "a column that holds the event time: app.read(…, time=…)",
        next_move=f"write DESCRIPTOR({has})" if has else "windows of results are put in others by window_time",
    )


def old_window(tree: Any, relation: Relation, place: QueryPlace) -> Assigner | None:
    """The windows of TUMBLE(at, size), HOP(at, slide, size) or SESSION(at, gap) as they stand in GROUP BY."""
    if not is_call(tree, *FUNCTIONS):
        return None
    name = str(tree.this).lower()
    parameters = _PARAMETERS[name][2:]
    if not 2 <= len(tree.expressions) <= len(parameters) + 1:
        raise place.error(tree, f"{name.upper()} in GROUP BY takes the time and its spans", expected=_FORM[name])
    clock = time_clock(relation, tree.expressions[0], place)
    return make_assigner(name, dict(zip(parameters, tree.expressions[1:], strict=False)), tree, place, clock)


def old_bound(tree: Any, place: QueryPlace) -> str:
    """Which bound TUMBLE_START(…), HOP_END(…), SESSION_ROWTIME(…) and their like ask for; empty for anything else."""
    name = str(tree.this).lower() if is_call(tree, str(getattr(tree, "this", "")).lower()) else ""
    function, _, bound = name.partition("_")
    if function not in FUNCTIONS or not bound:
        return ""
    if bound == "proctime":
        raise place.error(tree, "windows go by event time here", next_move=f"write {function.upper()}_ROWTIME(…)")
    return _OLD_BOUNDS.get(bound, "")


def _arguments(call: Any, name: str, place: QueryPlace) -> dict[str, Any]:
    """The arguments by name, however they were given."""
    from sqlglot import exp

    given: dict[str, Any] = {}
    positions = iter(_PARAMETERS[name])
    for each in call.expressions:
        if is_call(each, PARTITIONS):
            given["partitions"] = [part for p in each.expressions for part in (p.expressions or [p])]
            continue
        key = each.this.name.lower() if isinstance(each, exp.Kwarg) else next(positions, "")
        if key not in _PARAMETERS[name] or key in given:
            raise place.error(
                each, f"{name.upper()} has no such argument", expected=_FORM[name],
                next_move=f"its arguments are {', '.join(part.upper() for part in _PARAMETERS[name])}",
            )  # fmt: skip
        given[key] = each.expression if isinstance(each, exp.Kwarg) else each
    for key in ("data", "timecol"):
        if key not in given:
            raise place.error(call, f"{name.upper()} needs a table and its time", expected=_FORM[name])
    return given


def _data(ctx: QueryContext, tree: Any) -> Relation:
    from sqlglot import exp

    if isinstance(tree, exp.Column) and not tree.table:
        table = exp.Table(this=tree.this.copy())
        return ctx.lower(ctx, table)
    if isinstance(tree, exp.Query):
        return ctx.lower(ctx, tree)
    raise ctx.place.error(tree, "this is no table", expected="TABLE t, or a query in brackets")


def _descriptor(tree: Any, name: str, place: QueryPlace) -> Any:
    from sqlglot import exp

    if is_call(tree, "descriptor") and len(tree.expressions) == 1 and isinstance(tree.expressions[0], exp.Column):
        return tree.expressions[0]
    raise place.error(tree, "the time of the rows is said by DESCRIPTOR", expected=_FORM[name])


def _partition(relation: Relation, tree: Any, place: QueryPlace) -> str:
    found = bare_field(relation, tree, place)
    if found is None:
        raise place.error(tree, "sessions are kept apart by columns", expected="PARTITION BY card")
    return found
