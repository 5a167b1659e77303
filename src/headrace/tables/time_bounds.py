"""How far apart in time a join's conditions let two rows be: what makes it an interval join.

Distances are right − left, in microseconds, both bounds included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.tables.catalog import window_span_us
from headrace.tables.scope import QueryPlace, Relation, ScopeColumn
from headrace.tables.window_tables import interval_us


class TimePoint(NamedTuple):
    """The event time of a side, moved by a constant."""

    right: bool
    offset_us: int


class TimeBounds(NamedTuple):
    """What is known of the distance so far; None: nothing."""

    low_us: int | None = None
    high_us: int | None = None

    def both(self, other: TimeBounds) -> TimeBounds:
        lows = [each for each in (self.low_us, other.low_us) if each is not None]
        highs = [each for each in (self.high_us, other.high_us) if each is not None]
        return TimeBounds(max(lows) if lows else None, min(highs) if highs else None)


def point_of(relation: Relation, column: ScopeColumn, *, right: bool) -> TimePoint | None:
    """The event time of a side that one of its columns is: of results of closed windows their bounds, too."""
    if column.text == relation.time:
        return TimePoint(right, 0)
    if relation.closed is None or column.text not in relation.closed:
        return None
    # Their time is the last instant of their window.
    if column.text == relation.closed[1]:
        return TimePoint(right, 1)
    span_us = window_span_us(relation.stream.node)
    return None if span_us is None else TimePoint(right, 1 - span_us)


def time_bounds(tree: Any, point_of_column: Callable[[Any], TimePoint | None], place: QueryPlace) -> TimeBounds | None:
    """The bounds that one condition says, if it compares the event times of both sides.

    ``point_of_column``: the event time that a column is, or None where it is none.
    """
    from sqlglot import exp

    while isinstance(tree, exp.Paren):
        tree = tree.this
    if isinstance(tree, exp.Between):
        low = exp.GTE(this=tree.this, expression=tree.args["low"])
        high = exp.LTE(this=tree.this, expression=tree.args["high"])
        one, two = time_bounds(low, point_of_column, place), time_bounds(high, point_of_column, place)
        return None if one is None or two is None else one.both(two)
    if not isinstance(tree, exp.LT | exp.LTE | exp.GT | exp.GTE | exp.EQ):
        return None
    points = [_point(part, point_of_column, place) for part in (tree.this, tree.expression)]
    if None in points or points[0].right == points[1].right:  # type: ignore[union-attr]
        return None
    here, there = points
    assert here is not None and there is not None
    sign: Any = type(tree)
    if here.right:
        here, there = there, here
        sign = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE}.get(sign, sign)
    # left + here  <sign>  right + there, so that right - left is on the other side of here - there.
    distance = here.offset_us - there.offset_us
    if sign is exp.EQ:
        return TimeBounds(distance, distance)
    if sign in (exp.LT, exp.LTE):
        return TimeBounds(low_us=distance + (sign is exp.LT))
    return TimeBounds(high_us=distance - (sign is exp.GT))


def _point(tree: Any, point_of_column: Callable[[Any], TimePoint | None], place: QueryPlace) -> TimePoint | None:
    from sqlglot import exp

    while isinstance(tree, exp.Paren):
        tree = tree.this
    if isinstance(tree, exp.Column):
        return point_of_column(tree)
    if isinstance(tree, exp.Add | exp.Sub):
        base, moved = tree.this, tree.expression
        if isinstance(base, exp.Interval) and isinstance(tree, exp.Add):
            base, moved = moved, base
        point = _point(base, point_of_column, place)
        if point is None or not isinstance(moved, exp.Interval):
            return None
        span = interval_us(moved, place)
        return TimePoint(point.right, point.offset_us + (span if isinstance(tree, exp.Add) else -span))
    return None
