"""Patterns that come as rows, as the graph holds the step that follows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.model.type_shape import describe_type
from headrace.operators.order_spec import WAITING_RULES, TimeOrder
from headrace.operators.spec import StepInfo, StepSpec, StoredType
from headrace.patterns.partial import DEADLINE, PARTIAL, PartialMatches
from headrace.patterns.rules.rule import RULES, PatternRule
from headrace.state.handles import StateDecl

if TYPE_CHECKING:
    from headrace.operators.contract import Operator


@dataclass(frozen=True)
class RuleLimits:
    """How many partial matches of one rule a key may have, and what becomes of more."""

    max_partial: int = 10_000
    drops_oldest: bool = False


@dataclass(frozen=True)
class RulesSpec(StepSpec):
    """``keyed.match(rules.broadcast())``."""

    outlets: ClassVar[tuple[str, ...]] = ("timed_out",)
    limits: RuleLimits
    order: TimeOrder | None
    """None: by the wall clock."""
    timed: bool
    """Whether the stream of rules has times."""

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
        from headrace.patterns.rules.operator import RuleOperator, WallRuleOperator

        limits, step, decls, codec, key_type = self.limits, info.step, info.decls, info.codec, info.key_type
        if self.order is None:
            return WallRuleOperator(limits, step, decls, info.taken, codec, key_type=key_type)
        return RuleOperator(limits, step, decls, info.taken, codec, self.order, key_type=key_type, by_time=self.timed)

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        if self.order is None:
            return {}
        rows, rules = info.taken
        waiting = StoredType("broadcast", describe_type(rules.type), rules.type)
        return {**self.order.stored([rows]), WAITING_RULES: waiting}

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        order = {} if self.order is None else self.order.rules()
        return {**order, "pattern": "those of rules"}

    def tell(self) -> tuple[str, ...]:
        said = "patterns: rules that come as rows, followed all at once; a result says which rule it is of"
        if self.order is None:
            return (said, "rows as they come, by the wall clock, behind the rules of their epoch")
        effect = "each rule takes effect at its time, one without as its epoch begins"
        return (said, *self.order.tell(), effect if self.timed else "each rule takes effect as its epoch begins")


def declared_rule_states(row: Any, *, by_wall: bool) -> tuple[StateDecl, ...]:
    """What rules over rows of this type keep: themselves, and by key."""
    return (
        StateDecl(RULES, "broadcast", (str, PatternRule)),
        StateDecl(PARTIAL, "map", (str, PartialMatches[row])),
        StateDecl(DEADLINE, "wall_timer" if by_wall else "timer"),
    )
