"""What the driver tells the ticker, and how Spark's offsets entries tell an epoch's clock and end."""

from __future__ import annotations

import json
from typing import Final

import msgspec

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
