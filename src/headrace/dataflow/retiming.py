"""``timed_by=``: another event time for rows, where it can be proved that none becomes earlier by it.

The watermark of a step says that no row before it is expected. That stays true for rows whose time only moves forward,
so no watermark has to be made anew. What can be proved follows from the steps alone: a column is *not before* the time
of its row where it is that time (``time=`` of the source, handed on as it is) or the end of the row's window, and so is
what expressions make of such a column: with a span added, the greatest of several, the first that is not null.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.dataflow.clocks import has_event_time
from headrace.dataflow.graph import (
    CallNode,
    ChangesNode,
    ExprNode,
    KeyedNode,
    KindNode,
    Node,
    ReadNode,
    RetimeNode,
    UnionNode,
)
from headrace.dataflow.projection import bare_column, columns_sql
from headrace.dataflow.site import Site
from headrace.errors import ExpressionError, ProgramError
from headrace.sql.evaluate.expressions import bound_expression
from headrace.sql.expr import check as check_expression
from headrace.sql.expr import infer
from headrace.sql.nodes import ExprTree
from headrace.windows.settings import WINDOW_END
from headrace.windows.spec import WindowSpec

_HANDING_ON = ("latest", "top", "normalise")
"""Keyed steps that give rows out as they came, with their time."""


def retime_node_fields(node: Node, timed_by: Any, at: Site) -> dict[str, Any]:
    """The fields of the node that gives rows of ``node`` another time. Raises ProgramError where it may be earlier."""
    text = columns_sql({"timed_by": timed_by}, str(at))["timed_by"]
    check_expression(text, node.codec.schema, str(at))
    name = bare_column(text, node.codec.names)
    kind = node.codec.schema.field(name).type if name is not None else infer(text, node.codec.schema)
    if kind is None or not pa.types.is_timestamp(kind):
        raise ProgramError(
            "timed_by= takes a time",
            where=str(at),
            expected='a column of type hr.Timestamp, or an expression that gives one: timed_by="at + interval 1 hour"',
            found=f"{text!r}, which is {kind or 'of no known type'}",
        )
    if not has_event_time(node):
        raise ProgramError(
            "timed_by= gives rows another event time, and these have none",
            where=str(at),
            expected=f"a source of {node.label} with time=",
            found="none of its sources has one",
            next_move="say it where the source is read: app.read(…, time=Tx.at)",
        )
    times = columns_not_before(node)
    if not _is_not_before(text, node, times):
        known = ", ".join(sorted(times)) or "none of its columns is"
        forward = f'move no row back: timed_by="greatest({min(times)}, …)"; or ' if times else ""
        raise ProgramError(
            "rows may become earlier by timed_by=, and behind the watermark they would be late",
            where=str(at),
            expected="a time of which the program shows that it is not before that of the row: the column that holds "
            f"it, with a span added, or greatest(…) of it and others. Columns that are not before it: {known}",
            found=repr(text),
            next_move=f"{forward}write the rows to a topic, and read it with time= and out_of_order=",
        )
    return {"codec": node.codec, "inputs": (node,), "text": text, "placed_by": node.placed_by}


def columns_not_before(node: Node) -> frozenset[str]:
    """The columns of which it is known that they are never before the event time of their row."""
    match node:
        case ReadNode():
            name = None if node.time is None else bare_column(node.time, node.codec.names)
            return frozenset(() if name is None else (name,))
        case RetimeNode():
            name = bare_column(node.text, node.codec.names)
            return frozenset(() if name is None else (name,))
        case ExprNode(op="where") | CallNode(op="filter" | "only") | ChangesNode() | KindNode():
            return columns_not_before(node.inputs[0]) & set(node.codec.names)
        case ExprNode():
            before = node.inputs[0]
            times = columns_not_before(before)
            return frozenset(name for name, text in node.exprs if _is_not_before(text, before, times))
        case UnionNode():
            return frozenset.intersection(*map(columns_not_before, node.inputs))
        case KeyedNode(spec=WindowSpec() as spec) if spec.aggs and spec.assigner.timed and spec.function is None:
            # A result has the last instant of its window.
            mine = spec.assigner.clock == "event" and WINDOW_END in node.codec.names and WINDOW_END not in spec.aggs
            return frozenset((WINDOW_END,) if mine else ())
        case KeyedNode(op=op) if op in _HANDING_ON:
            return columns_not_before(node.input) & set(node.codec.names)
    return frozenset()


def _is_not_before(text: str, node: Node, times: frozenset[str]) -> bool:
    if not times:
        return False
    try:
        return _holds(bound_expression(text, node.codec.schema), times)
    except ExpressionError:
        # What the worker cannot evaluate tells nothing of itself.
        return False


def _holds(tree: ExprTree, times: frozenset[str]) -> bool:
    match tree.op:
        case "column":
            return tree.value in times
        case "time_add" | "add_months":
            span = tree.args[1].args[0] if tree.args[1].op == "cast" else tree.args[1]
            forward = span.op == "literal" and isinstance(span.value, int) and span.value >= 0
            return forward and _holds(tree.args[0], times)
        case "greatest":
            return any(_holds(each, times) for each in tree.args)
        case "coalesce":
            return all(_holds(each, times) for each in tree.args)
    return False
