"""What needs event time and has none: found while a program is built, at the verb that asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from headrace.dataflow.graph import LoopNode, Node, Order, ReadNode, upstream
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.operators.horizons.spec import horizon_us
from headrace.state.handles import StateDecl


def has_event_time(node: Node) -> bool:
    """Whether some source of these rows tells their time; what a loop gives may be timed by what is fed later."""
    return any(
        each.time is not None if isinstance(each, ReadNode) else isinstance(each, LoopNode) for each in upstream([node])
    )


def check_order(order: Any, node: Node, at: Site) -> None:
    """``process(fn, order=…)`` over the rows of a node."""
    if order not in get_args(Order):
        raise ProgramError(
            "order= must be time or arrival",
            where=str(at),
            expected='order="time", or "arrival", which is the default',
            found=f"order={order!r}",
        )
    if order == "time" and not has_event_time(node):
        raise ProgramError(
            "order by time needs event time",
            where=str(at),
            expected=f"a source of {node.label} with time=",
            found="none of its sources has one",
            next_move="say it where the source is read: app.read(…, time=Tx.at); or leave order= out",
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
