"""What the driver tells aligned sources after each epoch: which of them, or of their splits, wait in the next one.

The offsets that come of it are written down by Spark before anybody reads a row, so nothing here has to be the same in
a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from headrace.model.watermarks import Holds, SourceTime, TimedSource, TimeState, derive_holds

WAITED: Final = "headrace:waited"
"""Stands in the position of a source that waits while input is read to its end: Spark takes a position that does not
move for that end."""


class SourceHold(msgspec.Struct, frozen=True, omit_defaults=True):
    splits: tuple[str, ...] = ()
    """Those that wait."""
    whole: bool = False
    """All of its splits do."""


class WaitingOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Source → what waits. Two answers, because only its reader knows which run it is in."""

    paced: dict[str, SourceHold] = {}
    """In a run without end: a silent source may speak again, so the others wait for it until it is idle."""
    hurried: dict[str, SourceHold] = {}
    """In a run that ends with its input: a source that is silent has reached its end."""


def derive_waiting(time: TimeState, sources: Sequence[TimedSource], clock_us: int) -> WaitingOrder:
    """What waits after an epoch with this wall clock."""
    return WaitingOrder(
        paced=_told(time, derive_holds(time, sources)),
        hurried=_told(time, derive_holds(time, sources, spoke_at_us=clock_us)),
    )


def _told(time: TimeState, holds: Holds) -> dict[str, SourceHold]:
    return {
        source: SourceHold(tuple(sorted(splits)), splits >= time.sources.get(source, SourceTime()).splits.keys())
        for source, splits in holds.items()
    }
