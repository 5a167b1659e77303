"""What the driver sends to others about an epoch: to its tasks, to the ticker, and to the readers of loops.

An order travels as a local property of the Spark job, so it stays small. Driver and tasks derive from it which rows of
a loop an epoch reads, and must come to the same answer: rows that one task fed stay together and in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from headrace.model.report import StagedPart

PROPERTY: Final = "headrace.order"


class Dropped(msgspec.Struct, frozen=True, omit_defaults=True):
    """State that a person gave up when a changed program was started, by the names under which it lies in the store."""

    steps: tuple[str, ...] = ()
    """All that these steps keep."""
    tables: dict[str, tuple[str, ...]] = {}
    """Step → single tables of it."""
    loops: tuple[str, ...] = ()
    """The rows that wait in these."""


class EpochOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """One epoch, as the driver ordered it. Everything else a task needs it reads from the parent's manifest."""

    epoch: int
    timeline: int
    fence: int
    clock_us: int
    """Wall clock of the epoch: Spark's stored batch timestamp, the same in every replay."""
    parent_epoch: int = -1
    """The published epoch this one continues; −1: none."""
    parent_timeline: int | None = None
    """The timeline of that epoch, in the first one behind a rewind; None: the same."""
    parent: str = ""
    """Nonce of that manifest."""
    final: bool = False
    """Drained input: the watermark goes to the end of time."""
    hints: dict[str, dict[str, int]] = {}
    """Source → split → event times that a filter in the JVM hid from the tasks of the epoch before."""
    dropped: Dropped | None = None
    """State that the parent's manifest still lists, and that is given up with this epoch."""
    reached_us: int | None = None
    """The watermark, set by hand: only the test kit does."""
    began_us: int | None = None
    """Wall clock before the first epoch, so that time can pass in it: only the test kit says."""


class EpochLimits(msgspec.Struct, frozen=True):
    """Bounds of a task; constant for a run of the job."""

    inline_run_bytes: int = 16 * 1024
    inline_output_bytes: int = 32 * 1024
    inline_task_bytes: int = 64 * 1024
    """What all small runs and outputs of one task may have together, so that manifests stay small."""
    overlay_bytes: int = 256 * 1024 * 1024
    """Estimated size at which a step's changes are written as a further run of the same epoch."""


BY_NAME: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""Spark's setting by which its log knows sources by their names. A query goes by what the log's last entry says of it,
and without a word there by Spark's own default."""

SOURCE: Final = "headrace_ticker"
"""Name of the ticker among the sources of Spark's log."""


class Tick(msgspec.Struct, frozen=True):
    """When the job needs an epoch, data or not."""

    seq: int
    """One more than the newest published epoch."""
    due_us: int | None = None
    final: bool = False
    """All input is read: run the last epoch."""
    loops: int = 0
    """How many tasks have to read what waits in loops; then the epoch is due at once, also where input is bounded."""
    hidden: dict[str, dict[str, int]] = {}
    """Source → split → event times that a filter hid from the last epoch: the first one of the next run learns them."""


def read_final(offsets: str) -> bool:
    """Whether Spark's offsets entry says that this is the last epoch of drained input."""
    for line in offsets.splitlines():
        name, _, value = line.partition(":")
        if name == SOURCE:
            return bool(json.loads(value).get("final"))
    return False


def read_clock_us(offsets: str) -> int:
    """The wall clock of an epoch: Spark's stored batch timestamp, the same in every replay."""
    return int(json.loads(offsets.splitlines()[1])["batchTimestampMs"]) * 1000


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
