"""The two programs that a program with a backfill is run as: one reads its history, one its live source.

Both run over the same store, one after the other. They have the same steps, names and states, so to the store it is one
job that stops reading one source and begins to read another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from headrace.connectors.backfill import BackfillSource
from headrace.connectors.source_contract import Source
from headrace.plan.physical import Program, Seam, SourcePlan

Side = Literal["history", "live"]
SIDES: Final[tuple[Side, ...]] = ("history", "live")


def has_seam(program: Program) -> bool:
    return any(isinstance(source.source, BackfillSource) for source in program.sources)


def one_side(program: Program, side: Side) -> Program:
    """The program with one side of each backfill in its place."""
    return replace(program, sources=tuple(_side_of_source(source, side) for source in program.sources))


def _side_of_source(plan: SourcePlan, side: Side) -> SourcePlan:
    source = plan.source
    if not isinstance(source, BackfillSource):
        return plan
    chosen = source.history if side == "history" else source.live
    return replace(plan, source=chosen, seam=Seam(side == "history", source.until_us))


def all_sources(program: Program) -> dict[str, Source]:
    """Everything that the program may read, both sides of each backfill, by the names in Spark's log."""
    sided = [program] if not has_seam(program) else [one_side(program, side) for side in SIDES]
    return {source.log_name: source.source for each in sided for source in each.sources}


def histories(program: Program) -> dict[str, str]:
    """The name that the history of each backfill has in Spark's log, by the name of the source."""
    sided = one_side(program, "history").sources
    return {plan.name: plan.log_name for plan in sided if plan.seam is not None}
