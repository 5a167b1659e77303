"""What needs event time and has none: found while a program is built, at the verb that asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.dataflow.graph import LoopNode, Node, ReadNode, upstream
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.operators.horizons.spec import horizon_us
from headrace.operators.order_spec import TimeOrder
from headrace.state.handles import StateDecl


def has_event_time(node: Node) -> bool:
    """Whether some source of these rows tells their time; what a loop gives may be timed by what is fed later."""
    return any(
        each.time is not None if isinstance(each, ReadNode) else isinstance(each, LoopNode) for each in upstream([node])
    )


def time_order(order: Any, nodes: Sequence[Node], at: Site, *, beside: Sequence[Node] = ()) -> TimeOrder | None:
    """What ``process(fn, order=…)`` over the rows of these nodes says; None: as they come.

    ``beside``: nodes whose rows are put in order as far as they have a time.
    """
    if order == "arrival":
        return None
    parts = (order,) if isinstance(order, str) else order
    if not isinstance(parts, tuple) or not all(isinstance(each, str) for each in parts) or parts[:1] != ("time",):
        raise ProgramError(
            "order= must be arrival, or time with the columns that decide between rows of one time",
            where=str(at),
            expected='order="time", order=("time", "id"), or "arrival", which is the default',
            found=f"order={order!r}",
        )
    for node in nodes:
        if not has_event_time(node):
            raise ProgramError(
                "order by time needs event time",
                where=str(at),
                expected=f"a source of {node.label} with time=",
                found="none of its sources has one",
                next_move="say it where the source is read: app.read(…, time=Tx.at); or leave order= out",
            )
    for name in parts[1:]:
        _check_order_column(name, [*nodes, *beside], at)
    return TimeOrder(parts[1:])


def _check_order_column(name: str, nodes: Sequence[Node], at: Site) -> None:
    fields = [node.codec.schema.field(name) for node in nodes if name in node.codec.names]
    if not fields:
        nodes[0].codec.index(name, where=str(at))
    nested = [field for field in fields if pa.types.is_nested(field.type)]
    if nested:
        raise ProgramError(
            f"rows cannot be ordered by the column {name!r}",
            where=str(at),
            expected="columns of single values: numbers, text, bytes, times",
            found=f"{name}: {nested[0].type}",
            next_move="leave it out: rows that are still alike are ordered by all that is in them",
        )


def check_horizons(aggs: Mapping[str, Any], node: Node, at: Site) -> bool:
    """Whether some of these aggregates of a node's rows are over a horizon."""
    over = [name for name, agg in aggs.items() if horizon_us(agg) is not None]
    if over and not has_event_time(node):
        raise ProgramError(
            f"{', '.join(over)} cannot have over=: there is no event time here",
            where=str(at),
            expected=f"a source of {node.label} with time=, for aggregates with over=",
            found="none of its sources has one",
            next_move="say it where the source is read: app.read(…, time=Tx.at); or leave over= out",
        )
    return bool(over)


def refuse_horizons(aggs: Mapping[str, Any], at: Site) -> None:
    """Aggregates of windows, which say themselves how far they reach."""
    over = [name for name, agg in aggs.items() if horizon_us(agg) is not None]
    if over:
        raise ProgramError(
            "over= is for rolling aggregates",
            where=str(at),
            expected="aggregates without over=: the window says which rows they are of",
            found=f"{', '.join(over)} with over=",
            next_move="leave over= out, or leave the window out: key_by(…).aggregate(…)",
        )


def check_expiry(decls: Sequence[StateDecl], node: Node, at: Site) -> None:
    """States that expire by event time, declared by a function over the rows of a node."""
    timed = [decl.name for decl in decls if decl.ttl is not None and decl.ttl.clock == "event"]
    if timed and not has_event_time(node):
        raise ProgramError(
            f"{', '.join(timed)} would never expire: there is no event time here",
            where=str(at),
            expected=f'a source of {node.label} with time=, for a time to live with clock="event"',
            found="none of its sources has one",
            next_move='say it where the source is read: app.read(…, time=Tx.at); or take the wall clock: clock="wall"',
        )
