"""Which side of its backfills a start reads: history, or the live sources behind it.

A history that was read to its end is among the *retired* sources of every later manifest. Nothing of the live source is
looked at before that. Other sources of the program are read up to what was there when the history began, and go on
with the live side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import Refused
from headrace.plan.sides import Side, histories
from headrace.state.spark_offsets import source_offsets

if TYPE_CHECKING:
    from headrace.plan.physical import Program
    from headrace.state.manifest import Manifest

NEVER_READ: Final = "{}"
"""Stands for the last offset of a history in which nothing was found."""


def decide_side(program: Program, manifest: Manifest | None) -> Side:
    """Where a start goes on. Raises Refused where the live source was read before there was a history."""
    if manifest is None:
        return "history"
    known = {*manifest.retired, *source_offsets(manifest.offsets)}
    passed = {name: history in manifest.retired for name, history in histories(program).items()}
    for name, is_passed in passed.items():
        if name in known and not is_passed:
            raise Refused(
                f"the source {name!r} was read live before, so its history would come after newer rows",
                where=f"source {name}",
                expected="a backfill that was one from the first start on",
                found=f"a store that goes on at epoch {manifest.epoch + 1} of the live source",
                next_move="start over with --fresh, or read the live source as before",
            )
    return "live" if all(passed.values()) else "history"
