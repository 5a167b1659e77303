"""A rolling aggregate with horizons, as the graph holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.aggregates.accumulate import describe_accumulators, describe_results
from headrace.aggregates.declare import Agg, Declared
from headrace.aggregates.meaning import describe_meanings
from headrace.model.job import COLUMNS, VALUE_TABLE, DeclaredState
from headrace.model.meaning import KEPT_TABLE
from headrace.model.time import format_span
from headrace.model.type_shape import describe_type
from headrace.operators.spec import StepInfo, StepSpec, StoredType

if TYPE_CHECKING:
    from headrace.operators.contract import Operator

_CLOCK = "event"


def horizon_us(agg: Any) -> int | None:
    """How far back an aggregate looks; None: at all rows."""
    return agg.over_us if isinstance(agg, Declared) else None


@dataclass(frozen=True)
class HorizonSpec(StepSpec):
    """Aggregates by name, of which at least one has a horizon."""

    aggs: Mapping[str, Agg[Any]]
    per_row: bool = False
    carried: tuple[str, ...] = ()
    """Columns of each row that its result has, too."""

    def build(self, info: StepInfo) -> Operator:
        from headrace.operators.horizons.operator import HorizonOperator

        return HorizonOperator(
            info.step, self.aggs, info.taken[0], info.codec, key_fields=info.key_fields, key_type=info.key_type,
            per_row=self.per_row, carried=self.carried,
        )  # fmt: skip

    def declared(self, info: StepInfo) -> Mapping[str, DeclaredState]:
        results = describe_results(self.aggs, info.taken[0])
        clock = self.expiring().get(VALUE_TABLE, "")
        meanings = describe_meanings(self.aggs, info.taken[0], info.codec)
        return {VALUE_TABLE: DeclaredState("aggregate", clock, results=results, key=info.key_fields, meanings=meanings)}

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        from headrace.operators.horizons.horizon_rows import KeptColumns

        where = f"step {info.step}"
        accumulators = describe_accumulators(self.aggs, info.taken[0], where, info.codec)
        stored = {VALUE_TABLE: StoredType("aggregate", accumulators)}
        over = [agg for agg in self.aggs.values() if isinstance(agg, Declared) and agg.over_us is not None]
        kept = KeptColumns(over, info.taken[0], where).codec
        if kept is not None:
            stored[KEPT_TABLE] = StoredType(COLUMNS, describe_type(kept.type), kept.type)
        return stored

    def expiring(self) -> Mapping[str, str]:
        """What is kept of a key goes with its rows, unless something is kept of all of them."""
        lasts = any(horizon_us(agg) is None for agg in self.aggs.values())
        return {} if lasts else {VALUE_TABLE: _CLOCK}

    def tell(self) -> tuple[str, ...]:
        longest = max(horizon_us(agg) or 0 for agg in self.aggs.values())
        return (f"keeps rows for {format_span(longest)} of event time, and an eighth of it more",)
