"""What ``match`` is given, checked: the pattern against the rows, the clock, and how much a key may keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from headrace.dataflow.clocks import has_event_time, time_order
from headrace.dataflow.graph import Node
from headrace.dataflow.site import Site
from headrace.dataflow.update_kinds import refuse_updates
from headrace.errors import ProgramError
from headrace.model.values import type_name
from headrace.operators.order_spec import TimeOrder
from headrace.patterns.declare import EventPattern
from headrace.patterns.plan import plan_pattern
from headrace.patterns.rules.rule import PatternRule
from headrace.patterns.rules.spec import RuleLimits, RulesSpec
from headrace.patterns.spec import PatternSpec

Clock = Literal["event", "wall"]
Overflow = Literal["error", "drop_oldest"]
Options = tuple[Clock, str | tuple[str, ...], int, Overflow]
"""What ``match`` is given beside the pattern: the clock, the order, and how much a key may keep."""


def pattern_spec(
    node: Node, pattern: Any, clock: Any, order: Any, max_partial: Any, on_overflow: Any, at: Site
) -> PatternSpec:
    """The step that follows a pattern through the rows of a node."""
    if not isinstance(pattern, EventPattern):
        raise ProgramError(
            "match takes a pattern",
            where=str(at),
            expected='hr.pattern("small", "cents < 100").then("large", "cents > 50000"); or rules.broadcast()',
            found=type_name(pattern) if isinstance(pattern, type) else repr(pattern),
            next_move="a pattern as text is read by hr.EventPattern.parse" if isinstance(pattern, str) else "",
        )
    _check_options(clock, max_partial, on_overflow, at)
    plan = plan_pattern(pattern, node.codec, max_partial=max_partial, drops_oldest=on_overflow == "drop_oldest")
    return PatternSpec(plan, _order(clock, order, [node], at))


def rules_spec(
    node: Node, rules: Node, clock: Any, order: Any, max_partial: Any, on_overflow: Any, at: Site
) -> RulesSpec:
    """The step that follows the patterns of a stream of rules through the rows of a node."""
    kind = rules.codec.type
    if not (isinstance(kind, type) and issubclass(kind, PatternRule)):
        raise ProgramError(
            "these rows are no rules",
            where=str(at),
            expected="rows of the type hr.PatternRule: id, pattern, version, at, active",
            found=f"{type_name(kind)} from {rules.label}",
            next_move='read them as such, or make them: rules.select(hr.PatternRule, id="…", pattern="…").broadcast()',
        )
    refuse_updates(rules, "match", at)
    _check_options(clock, max_partial, on_overflow, at)
    limits = RuleLimits(max_partial, on_overflow == "drop_oldest")
    by = _order(clock, order, [node], at, beside=[rules])
    return RulesSpec(limits, by, by is not None and has_event_time(rules))


def _check_options(clock: Any, max_partial: Any, on_overflow: Any, at: Site) -> None:
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


def _order(clock: Any, order: Any, nodes: list[Node], at: Site, *, beside: Sequence[Node] = ()) -> TimeOrder | None:
    """The order of rows; None: by the wall clock, as they come."""
    if clock == "wall":
        return None
    by = time_order(order, nodes, at, beside=beside)
    if by is None:
        raise ProgramError(
            "a pattern is about the order of rows",
            where=str(at),
            expected='order="time", or clock="wall" for rows as they come',
            found=f"order={order!r}",
        )
    return by
