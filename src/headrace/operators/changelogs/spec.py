"""The steps that rows which can be taken back need, as the graph holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from headrace.aggregates.accumulate import describe_kept_results
from headrace.aggregates.declare import Agg
from headrace.aggregates.meaning import describe_meanings
from headrace.aggregates.retract import retractable
from headrace.errors import ProgramError
from headrace.model.job import GIVEN, INNER, VALUE_TABLE, DeclaredState
from headrace.model.type_shape import accumulators_shape, describe_type
from headrace.operators.spec import StepInfo, StepSpec, StoredType

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import Operator

_RETRACTING: Final = "an aggregate whose rows can be taken back"
_ROUNDED: Final = ", with what rounding took off sums of floats"
"""Behind it, where there are such sums: they were kept without it once."""


@dataclass(frozen=True)
class NormaliseSpec(StepSpec):
    """The step that the planner puts behind one whose rows have to be taken back."""

    of: str
    """The step whose rows it keeps."""

    def build(self, info: StepInfo) -> Operator:
        from headrace.operators.changelogs.normalise import NormaliseOperator

        return NormaliseOperator(info.step, info.codec, info.key_type)

    def declared(self, info: StepInfo) -> Mapping[str, DeclaredState]:
        return {VALUE_TABLE: DeclaredState(GIVEN, key=info.key_fields)}

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        return {VALUE_TABLE: StoredType(GIVEN, describe_type(info.codec.type), info.codec.type)}

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        return {"rows": "what a step gave out last"}

    def tell(self) -> tuple[str, ...]:
        return (f"keeps what {self.of} gave out last, so that it can be taken back",)


@dataclass(frozen=True)
class UpsertSpec(NormaliseSpec):
    """Rows that replace the earlier one of their key, or say that it goes, made a changelog."""

    takes_back: ClassVar[bool] = True

    deleted: str | None = None
    """SQL that holds for a row whose key goes."""

    def build(self, info: StepInfo) -> Operator:
        from headrace.operators.changelogs.upserts import UpsertOperator

        return UpsertOperator(info.step, info.codec, self.deleted, info.key_type)

    def tell(self) -> tuple[str, ...]:
        return ("keeps the newest row of each key", *((f"which goes where {self.deleted}",) if self.deleted else ()))


@dataclass(frozen=True)
class RetractLatestSpec(StepSpec):
    """``latest`` over a changelog."""

    def build(self, info: StepInfo) -> Operator:
        from headrace.operators.changelogs.latest import RetractingLatestOperator

        return RetractingLatestOperator(info.step, info.codec, info.key_type)

    def declared(self, info: StepInfo) -> Mapping[str, DeclaredState]:
        return {VALUE_TABLE: DeclaredState(GIVEN, key=info.key_fields)}

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        from headrace.operators.changelogs.latest import ROWS_TABLE, kept_type

        row, kept = info.codec.type, kept_type(info.codec.type)
        return {
            VALUE_TABLE: StoredType(GIVEN, describe_type(row), row),
            ROWS_TABLE: StoredType(INNER, describe_type(kept), kept),
        }

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        return {"rows": "the newest of rows that can be taken back"}

    def tell(self) -> tuple[str, ...]:
        return ("keeps all rows of a key, because the newest may go",)


@dataclass(frozen=True)
class RetractReduceSpec(StepSpec):
    """``reduce`` over a changelog."""

    function: Callable[[Any, Any], Any]
    inverse: Callable[[Any, Any], Any]
    key_columns: tuple[str, ...] | None

    def build(self, info: StepInfo) -> Operator:
        from headrace.operators.changelogs.reduce import RetractingReduceOperator

        return RetractingReduceOperator(
            info.step, self.function, self.inverse, info.codec, key_type=info.key_type, key_columns=self.key_columns
        )

    def declared(self, info: StepInfo) -> Mapping[str, DeclaredState]:
        return {VALUE_TABLE: DeclaredState(GIVEN, key=info.key_fields)}

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        from headrace.operators.changelogs.reduce import ROWS_TABLE, kept_type

        row, kept = info.codec.type, kept_type(info.codec.type)
        return {
            VALUE_TABLE: StoredType(GIVEN, describe_type(row), row),
            ROWS_TABLE: StoredType(INNER, describe_type(kept), kept),
        }

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        return {"rows": "one row of rows that can be taken back"}

    def tell(self) -> tuple[str, ...]:
        return ("takes rows out again by its inverse; a key without rows goes",)


@dataclass(frozen=True)
class RetractSpec(StepSpec):
    """A rolling aggregate over a changelog."""

    aggs: Mapping[str, Agg[Any]]

    def check(self, codec: RowCodec, where: str, *, timed: bool) -> None:
        """Refuses aggregates that rows cannot be taken out of. ``timed``: whether rows have event time."""
        for name, agg in self.aggs.items():
            retractable(name, agg, codec, where)
            if agg.kind in ("first", "last") and not timed:
                raise ProgramError(
                    f"which row came {agg.kind} means nothing where rows are taken back",
                    where=where,
                    expected="event time, which says which row is the newest",
                    found=f"{name}=hr.{agg.kind}(…) over rows without it",
                    next_move="say it where the source is read: app.read(…, time=Tx.at); or use hr.min, hr.max, which "
                    "take by=",
                )

    def build(self, info: StepInfo) -> Operator:
        from headrace.operators.changelogs.aggregate import RetractingOperator

        return RetractingOperator(
            info.step, self.aggs, info.taken[0], info.codec, key_fields=info.key_fields, key_type=info.key_type
        )

    def declared(self, info: StepInfo) -> Mapping[str, DeclaredState]:
        results = describe_kept_results(self.aggs, info.taken[0])
        meanings = describe_meanings(self.aggs, info.taken[0])
        return {VALUE_TABLE: DeclaredState("aggregate", results=results, key=info.key_fields, meanings=meanings)}

    def stored(self, info: StepInfo) -> Mapping[str, StoredType]:
        results = {name: agg.result_type(info.taken[0]) for name, agg in self.aggs.items()}
        return {VALUE_TABLE: StoredType("aggregate", accumulators_shape(results))}

    def rules(self, info: StepInfo) -> Mapping[str, str]:
        floats = any(
            pa.types.is_floating(field.type)
            for name, agg in self.aggs.items()
            for field in retractable(name, agg, info.taken[0], f"step {info.step}").fields
        )
        return {"rows": f"{_RETRACTING}{_ROUNDED * floats}"}

    def tell(self) -> tuple[str, ...]:
        return ("takes rows out again; what has no rows left goes",)
