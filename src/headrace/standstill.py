"""What a person is told about event time while a job runs and when it ends: who holds it back, and since when.

The reasoning is `headrace.model.watermark_reasons`; here is only when to speak: in a display that is drawn anew as long
as time stands still, in lines of text once per standstill, and at the end whenever something was left waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.model.watermark_reasons import Reason, explain_watermark, next_move, stands_still, tell_reason

if TYPE_CHECKING:
    from headrace.state.manifest import Manifest

WallClock = Callable[[], int]
"""Microseconds since 1970."""


def wall_clock_us() -> int:
    return time.time_ns() // 1000


def reasons_of(manifest: Manifest) -> tuple[Reason, ...]:
    """Why the watermarks of an epoch stand where they stand."""
    return explain_watermark(
        manifest.time, manifest.timed, manifest.reads, manifest.clock_us, waits=manifest.waits_for
    )  # fmt: skip


def reason_text(reason: Reason, clock_us: int) -> str:
    """One line: what holds time back, and what can be done."""
    move = next_move(reason, clock_us)
    return tell_reason(reason, clock_us) + (f" ({move})" if move else "")


class Standstill:
    """Notices, epoch by epoch, that something waits for a watermark that does not move."""

    def __init__(self, wall: WallClock = wall_clock_us) -> None:
        self._wall = wall
        self._reasons: tuple[Reason, ...] = ()
        self._told: set[tuple[str, str, int | None]] = set()

    def __call__(self, manifest: Manifest) -> None:
        self._reasons = reasons_of(manifest)
        standing = {_spell(reason) for reason in self._reasons}
        # One that moved on and stands again later is a new one, and worth another word.
        self._told &= standing

    def now(self) -> list[str]:
        """A line for each input that holds something back at this moment."""
        clock_us = self._wall()
        return [reason_text(reason, clock_us) for reason in self._reasons if stands_still(reason, clock_us)]

    def news(self) -> list[str]:
        """The same, each standstill once."""
        clock_us = self._wall()
        fresh = [each for each in self._reasons if stands_still(each, clock_us) and _spell(each) not in self._told]
        self._told |= {_spell(reason) for reason in fresh}
        return [reason_text(reason, clock_us) for reason in fresh]

    def left(self) -> list[str]:
        """At the end: what has not come out, and why."""
        clock_us = self._wall()
        waiting = [each for each in self._reasons if each.waits_for_us is not None and each.kind != "ended"]
        return [f"not out yet: {reason_text(reason, clock_us)}" for reason in waiting]


def _spell(reason: Reason) -> tuple[str, str, int | None]:
    return reason.source, reason.split, reason.at_us
