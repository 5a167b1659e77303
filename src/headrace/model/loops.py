"""Which rows of a loop the next epoch reads, and in which of its tasks: the same answer in driver and tasks.

Rows that one task fed stay together and in order, so that what comes back is as ordered as what went in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace.model.report import StagedPart

Loops = Mapping[str, Sequence[StagedPart]]
"""Loop → the parts that wait in it."""

TASK: Final = "task"
"""Names, among the extras of a part, the task that fed it."""

ENDLESS_EPOCHS: Final = 1_000
"""How many epochs without any input a run that is to end gives rows to leave their loops."""


def waiting(loops: Loops, names: Iterable[str]) -> dict[str, int]:
    """Loop of the program → rows that wait in it; loops without any are left out."""
    rows = {name: sum(part.rows for part in loops.get(name, ())) for name in names}
    return {name: count for name, count in rows.items() if count}


def count_tasks(loops: Loops, names: Iterable[str], parallelism: int) -> int:
    """How many tasks the next epoch needs to read what waits."""
    return min(parallelism, max((len(_by_task(loops.get(name, ()))) for name in names), default=0))


def share_parts(parts: Sequence[StagedPart], index: int, count: int) -> list[StagedPart]:
    """What the task ``index`` of ``count`` reads of a loop."""
    return [part for share in _by_task(parts)[index::count] for part in share]


def _by_task(parts: Sequence[StagedPart]) -> list[list[StagedPart]]:
    shares: dict[str, list[StagedPart]] = {}
    for part in parts:
        shares.setdefault(part.extra.get(TASK, ""), []).append(part)
    return list(shares.values())
