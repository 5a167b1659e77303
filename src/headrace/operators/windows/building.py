"""The parts of a windowed step, chosen by what the user said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.model.values import ValueCodec
from headrace.operators.windows.assigners import Assigner
from headrace.operators.windows.contents import Accumulated, Contents, Reduced
from headrace.operators.windows.deciding import Decider, built_in_decider
from headrace.operators.windows.function import WindowFunction
from headrace.operators.windows.held import held_codec
from headrace.operators.windows.kept import RowContents
from headrace.operators.windows.outcomes import (
    AggregateOutcome,
    FunctionOutcome,
    Outcome,
    ReduceOutcome,
    Result,
    ResultColumns,
)
from headrace.operators.windows.own_trigger import OwnTrigger
from headrace.operators.windows.plan import FiringPlan, derive_plan
from headrace.operators.windows.schedule import Schedule

if TYPE_CHECKING:
    from headrace.operators.spec import StepInfo
    from headrace.operators.windows.operator import WindowOperator
    from headrace.operators.windows.spec import WindowSpec


class Parts(NamedTuple):
    plan: FiringPlan
    schedule: Schedule
    contents: Contents
    decider: Decider | None
    """A trigger that is asked after each row."""
    function: WindowFunction | None
    outcome: Outcome
    stored: ValueCodec
    """Of what is kept for each window."""


def build_parts(operator: WindowOperator, spec: WindowSpec, info: StepInfo) -> Parts:
    """Everything that one operator is made of."""
    taken = info.taken[0]
    plan = derive_plan(spec.fire, spec.assigner)
    schedule = Schedule(spec.assigner, plan, spec.allow_late_us)
    decider = None
    if plan.on_rows is not None:
        decider = built_in_decider(plan.on_rows, taken, f"step {info.step}")
        decider = decider or OwnTrigger(plan.on_rows, spec.trigger_decls, info, schedule)
    inner: Accumulated | Reduced | None = None
    if spec.aggs:
        inner = Accumulated(spec.aggs, taken, info.step)
    elif spec.reduce is not None:
        inner = Reduced(spec.reduce, taken)
    contents: Contents = inner or RowContents(taken, spec.assigner, spec.evict, None)
    if spec.keeps_rows:
        contents = RowContents(taken, spec.assigner, spec.evict, inner)
    contents.stamps = not spec.assigner.timed
    function = None if spec.function is None else WindowFunction(spec.function, info)
    outcome = _outcome(operator, spec, info, inner, function)
    mark: Any = int if decider is None else decider.mark
    stored = held_codec(contents.kinds, mark, each=contents.may_refuse)
    return Parts(plan, schedule, contents, decider, function, outcome, stored)


def _outcome(
    operator: WindowOperator,
    spec: WindowSpec,
    info: StepInfo,
    inner: Accumulated | Reduced | None,
    function: WindowFunction | None,
) -> Outcome:
    if function is None:
        if isinstance(inner, Accumulated):
            return AggregateOutcome(operator, info, inner)
        return ReduceOutcome(operator, info.codec)
    if isinstance(inner, Accumulated):
        assert spec.of is not None
        columns = ResultColumns(info, inner, spec.of)

        def one_row(result: Result) -> list[Any]:
            return [columns.row(operator.state, result)]

        return FunctionOutcome(operator, info.codec, function, one_row)
    return FunctionOutcome(operator, info.codec, function, lambda result: result.content)


def uses_wall_clock(plan: FiringPlan, assigner: Assigner, own_trigger: bool) -> bool:
    """Whether something may be due without any input."""
    by_clock = assigner.timed and assigner.clock == "wall"
    periodic = plan.periodic is not None and plan.periodic.clock == "wall"
    return by_clock or periodic or plan.timeout is not None or own_trigger
