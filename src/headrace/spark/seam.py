"""History, then live: the two programs a backfill is run as, and when to go over from one to the other.

A program that reads a backfill is run twice over the same store: first with the history of each backfill in its place,
until all of them are read to their end, then with the live source. Both runs have the same steps, names and states, so
to the store it is one job that stops reading one source and begins to read another; what the first one read last is
kept among the *retired* sources of every later manifest, and says that the seam is behind us.

Nothing of the live source is looked at before the seam. Other sources of the program are read up to what was there when
the history began, and go on behind the seam.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from headrace.checkpoint.sparklog import source_offsets
from headrace.errors import Refused
from headrace.plan.physical import Seam
from headrace.sources.backfill import BackfillSource

if TYPE_CHECKING:
    from headrace.plan.physical import Program, SourcePlan
    from headrace.state.manifest import Manifest

Side = Literal["history", "live"]

NEVER_READ: Final = "{}"
"""Stands for the last offset of a history in which nothing was found."""


def has_seam(program: Program) -> bool:
    return any(isinstance(source.source, BackfillSource) for source in program.sources)


def one_side(program: Program, side: Side) -> Program:
    """The program with one side of each backfill in its place."""
    return replace(program, sources=tuple(_sided(source, side) for source in program.sources))


def _sided(plan: SourcePlan, side: Side) -> SourcePlan:
    source = plan.source
    if not isinstance(source, BackfillSource):
        return plan
    chosen = source.history if side == "history" else source.live
    return replace(plan, source=chosen, seam=Seam(side == "history", source.until_us))


def histories(program: Program) -> dict[str, str]:
    """The name that the history of each backfill has in Spark's log, by the name of the source."""
    sided = one_side(program, "history").sources
    return {plan.name: plan.log_name for plan in sided if plan.seam is not None}


def decide_side(program: Program, manifest: Manifest | None) -> Side:
    """Where a start goes on. Raises Refused where the live source was read before there was a history."""
    if manifest is None:
        return "history"
    known = {*manifest.retired, *source_offsets(manifest.offsets)}
    passed = {name: history in manifest.retired for name, history in histories(program).items()}
    for name, is_passed in passed.items():
        if name in known and not is_passed:
            raise Refused(
                f"the source {name!r} was read live before, so its history would come behind what is newer",
                where=f"source {name}",
                expected="a backfill that was one from the first start on",
                found=f"a store that goes on at epoch {manifest.epoch + 1} of the live source",
                next_move="start over with --fresh, or read the live source as before",
            )
    return "live" if all(passed.values()) else "history"
