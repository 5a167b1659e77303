"""A step with a broadcast input, as the graph holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.model.type_shape import describe_type
from headrace.operators.order_spec import WAITING_RULES, TimeOrder
from headrace.operators.spec import StepInfo, StepSpec, StoredType

if TYPE_CHECKING:
    from headrace.operators.contract import Operator


@dataclass(frozen=True)
class BroadcastSpec(StepSpec):
    """A step with a broadcast input."""

    function: Any
    keyed: bool = True
    """Whether the other rows have keys; those that have none are spread over the shards."""
    order: TimeOrder | None = None
    """The order of rows and rules; None: rules first, rows as they come."""

    @property
    def uses_watermark(self) -> bool:
        return self.order is not None

    @property
    def in_time_order(self) -> bool:
        return self.order is not None

    def build(self, info: StepInfo) -> Operator:
        if self.order is not None:
            from headrace.operators.ordered_broadcast import OrderedBroadcastOperator

            return OrderedBroadcastOperator(
                info.step, self.function, info.decls, info.taken, info.codec, self.order, key_type=info.key_type
            )
        from headrace.operators.broadcast import BroadcastOperator

        return BroadcastOperator(
            info.step, self.function, info.decls, info.codec, key_type=info.key_type, keyed=self.keyed
        )

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        if self.order is None:
            return {}
        rows, rules = info.taken
        waiting_rules = StoredType("broadcast", describe_type(rules.type), rules.type)
        return {**self.order.stored([rows]), WAITING_RULES: waiting_rules}

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        return {} if self.order is None else self.order.rules()

    def tell(self) -> tuple[str, ...]:
        if self.order is not None:
            return (*self.order.tell(), "each broadcast row takes effect at its time")
        return () if self.keyed else ("no key: rows are spread over the shards",)
