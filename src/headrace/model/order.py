"""What the driver tells the tasks of an epoch. It travels as a local property of the Spark job, so it stays small."""

from __future__ import annotations

from typing import Final

import msgspec

PROPERTY: Final = "headrace.order"


class EpochOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """One epoch, as the driver ordered it. Everything else a task needs it reads from the parent's manifest."""

    epoch: int
    timeline: int
    fence: int
    clock_us: int
    """Wall clock of the epoch: Spark's stored batch timestamp, the same in every replay."""
    parent_epoch: int = -1
    """The published epoch this one continues; −1: none."""
    parent: str = ""
    """Nonce of that manifest."""
    final: bool = False
    """Drained input: the watermark goes to the end of time."""
    hints: dict[str, dict[str, int]] = {}
    """Source → split → event times that a filter in the JVM hid from the tasks of the epoch before."""
    reached_us: int | None = None
    """The watermark, set by hand: only the test kit does."""


class Limits(msgspec.Struct, frozen=True):
    """Bounds of a task; constant for a run of the job."""

    inline_run_bytes: int = 16 * 1024
    inline_output_bytes: int = 32 * 1024
    inline_task_bytes: int = 64 * 1024
    """What all small runs and outputs of one task may have together, so that manifests stay small."""
    overlay_bytes: int = 256 * 1024 * 1024
    """Estimated size at which a step's changes are written as a further run of the same epoch."""
