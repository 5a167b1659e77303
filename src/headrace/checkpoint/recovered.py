"""The outcome of recovery: where a run begins."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.checkpoint.decide import Recovery
from headrace.model.report import RunRef
from headrace.state.manifest import JobState, Manifest
from headrace.upgrade.lines import Upgrade


@dataclass(frozen=True)
class Hold:
    """What the first epoch behind a rewind repeats without giving it out."""

    outputs: frozenset[str]
    offsets: str
    """Where the abandoned line had come to: the epoch reads up to there, and no further."""
    marks: dict[str, dict[str, int]]
    """How far event time had come there in each split. Rows that a filter hid have moved it, too."""


def marks_of(end: Manifest) -> dict[str, dict[str, int]]:
    """Source → split → how far event time had come in it."""
    return {
        source: {split: each.max_us for split, each in time.splits.items()} for source, time in end.time.sources.items()
    }


@dataclass(frozen=True)
class RecoveredJob:
    """Where a run begins."""

    decision: Recovery
    run: str
    """Spark's folder for this run."""
    state: JobState | None
    timeline: int = 0
    adopted: dict[str, tuple[RunRef, ...]] = field(default_factory=dict)
    retired: dict[str, str] = field(default_factory=dict)
    hold: Hold | None = None
    upgrade: Upgrade = field(default_factory=lambda: Upgrade(None, ()))
    """What the program does to what it found; ``state`` is without what was given up."""
