"""A pattern over a keyed stream, as the graph holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.operators.order_spec import TimeOrder
from headrace.operators.spec import StepInfo, StepSpec, StoredType
from headrace.patterns.partial import DEADLINE, PARTIAL, PartialMatches
from headrace.patterns.picture import automaton_lines, pattern_text
from headrace.state.handles import StateDecl

if TYPE_CHECKING:
    from headrace.operators.contract import Operator
    from headrace.patterns.plan import PatternPlan


@dataclass(frozen=True)
class PatternSpec(StepSpec):
    """``keyed.match(pattern)``."""

    outlets: ClassVar[tuple[str, ...]] = ("timed_out",)
    plan: PatternPlan
    order: TimeOrder | None
    """None: by the wall clock."""

    @property
    def uses_watermark(self) -> bool:
        return self.order is not None

    @property
    def uses_wall_clock(self) -> bool:
        return self.order is None

    @property
    def in_time_order(self) -> bool:
        return self.order is not None

    def build(self, info: StepInfo) -> Operator:
        from headrace.patterns.operator import PatternOperator, WallPatternOperator

        if self.order is None:
            return WallPatternOperator(self.plan, info.step, info.decls, info.codec, key_type=info.key_type)
        return PatternOperator(
            self.plan, info.step, info.decls, info.taken, info.codec, self.order, key_type=info.key_type
        )

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return {} if self.order is None else self.order.stored(info.taken)

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        order = {} if self.order is None else self.order.rules()
        return {**order, "pattern": pattern_text(self.plan.pattern)}

    def tell(self) -> tuple[str, ...]:
        order = ("rows as they come, by the wall clock",) if self.order is None else self.order.tell()
        return (f"pattern: {pattern_text(self.plan.pattern)}", *automaton_lines(self.plan.automaton), *order)


def declared_states(row: Any, *, by_wall: bool) -> tuple[StateDecl, ...]:
    """What a pattern over rows of this type keeps by key."""
    return (
        StateDecl(PARTIAL, "value", (PartialMatches[row],)),
        StateDecl(DEADLINE, "wall_timer" if by_wall else "timer"),
    )
