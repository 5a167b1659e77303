"""What a declared trigger asks of a step, taken apart: results after rows, at times, at the end, after waiting."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.operators.windows.assigners import Assigner, RowCount, Unbounded
from headrace.operators.windows.evictors import KeepRows
from headrace.operators.windows.spec import WindowSpec
from headrace.operators.windows.triggers import EveryRows, PerEpoch, Periodic, Timeout, Trigger


@dataclass(frozen=True)
class FiringPlan:
    """When windows give results."""

    at_end: bool = False
    """When the end of the window has come, and in each later epoch in which it changed."""
    periodic: Periodic | None = None
    per_epoch: bool = False
    on_rows: Trigger | None = None
    """A trigger that is asked after each row."""
    timeout: Timeout | None = None


def derive_plan(fire: Trigger | None, assigner: Assigner) -> FiringPlan:
    """The parts of a trigger. One that is given takes the place of the end, except that `Periodic` includes it."""
    match fire:
        case None:
            return FiringPlan(at_end=assigner.timed)
        case Periodic():
            return FiringPlan(at_end=assigner.timed, periodic=fire)
        case PerEpoch():
            return FiringPlan(per_epoch=True)
        case Timeout():
            return replace(derive_plan(fire.of, assigner), timeout=fire)
        case _:
            return FiringPlan(on_rows=fire)


def plain_spec(spec: WindowSpec) -> WindowSpec:
    """Windows of rows as what they are made of: an unbounded window, a trigger that counts, purging or an evictor."""
    assigner = spec.assigner
    if not isinstance(assigner, RowCount):
        return spec
    fire = EveryRows(assigner.every)
    if assigner.slides:
        return replace(spec, assigner=Unbounded(), fire=fire, evict=KeepRows(assigner.n))
    return replace(spec, assigner=Unbounded(), fire=fire, discard=True)
