"""What ``match`` is given, checked: the pattern against the rows, the clock, and how much a key may keep."""

from __future__ import annotations

from typing import Any

from headrace.dataflow.clocks import time_order
from headrace.dataflow.graph import Node
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.model.values import type_name
from headrace.patterns.declare import EventPattern
from headrace.patterns.plan import plan_pattern
from headrace.patterns.spec import PatternSpec


def pattern_spec(
    node: Node, pattern: Any, clock: Any, order: Any, max_partial: Any, on_overflow: Any, at: Site
) -> PatternSpec:
    """The step that follows a pattern through the rows of a node."""
    if not isinstance(pattern, EventPattern):
        raise ProgramError(
            "match takes a pattern",
            where=str(at),
            expected='hr.pattern("small", "cents < 100").then("large", "cents > 50000")',
            found=type_name(pattern) if isinstance(pattern, type) else repr(pattern),
        )
    if clock not in ("event", "wall"):
        raise ProgramError(
            "clock= must be event or wall", where=str(at), expected='"event" or "wall"', found=repr(clock)
        )
    if on_overflow not in ("error", "drop_oldest"):
        expected = '"error" or "drop_oldest"'
        raise ProgramError(
            "on_overflow= says what too many do", where=str(at), expected=expected, found=repr(on_overflow)
        )
    if not isinstance(max_partial, int) or isinstance(max_partial, bool) or max_partial < 1:
        expected = "a number of partial matches, 1 or more"
        raise ProgramError("max_partial= is a number", where=str(at), expected=expected, found=repr(max_partial))
    plan = plan_pattern(pattern, node.codec, max_partial=max_partial, drops_oldest=on_overflow == "drop_oldest")
    if clock == "wall":
        return PatternSpec(plan, None)
    by = time_order(order, [node], at)
    if by is None:
        raise ProgramError(
            "a pattern is about the order of rows",
            where=str(at),
            expected='order="time", or clock="wall" for rows as they come',
            found=f"order={order!r}",
        )
    return PatternSpec(plan, by)
