"""What ``on_broadcast`` gives: rows that all shards give alike, of which one is sent on, and rows that belong to keys.

Rows, side outputs and counters are each kept apart: what a call itself says, and what is said while it goes over keys.
A digest of the former is what shards are compared by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from headrace.state.broadcast import canonical

if TYPE_CHECKING:
    from headrace.state.handles import Counter, Side


class CallMark(NamedTuple):
    """How much there was when a call began."""

    side_rows: list[int]
    counts: list[int]


class BroadcastOutput:
    """What the calls of one task gave."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.times: list[int] = []
        self.own_rows: list[Any] = []
        """Of keys …"""
        self.own_times: list[int] = []
        self.timed = False
        """Whether broadcast rows have event times."""
        self.visited = False
        """Whether the call at hand has gone over keys."""
        self.digest: Any = None
        self._own_counts: list[int] = []

    def begin(self, sides: Sequence[Side[Any]], counters: Sequence[Counter]) -> CallMark:
        """A call begins."""
        self.visited = False
        self._own_counts = [0] * len(counters)
        return CallMark([len(side._rows or ()) for side in sides], [counter.count for counter in counters])

    def undo(self, mark: CallMark, sides: Sequence[Side[Any]]) -> None:
        """The call failed: what it emitted to side outputs is taken back."""
        for side, count in zip(sides, mark.side_rows):
            if side._rows is not None:
                del side._rows[count:]
                del side._times[count:]

    def forget_counts(self, mark: CallMark, counters: Sequence[Counter]) -> None:
        """One shard counts what every shard counts; what belongs to keys is counted by each."""
        for counter, count, own in zip(counters, mark.counts, self._own_counts):
            counter.count = count + own

    def add_to_digest(self, sides: Sequence[Side[Any]]) -> None:
        """Takes into account what waits to be sent on."""
        said = [*(("", row) for row in self.rows), *((side.name, row) for side in sides for row in side._rows or ())]
        if said and self.digest is None:
            self.digest = xxhash.xxh3_128()
        for tag, row in said:
            content = canonical(row)
            self.digest.update(tag.encode() + len(content).to_bytes(8, "big") + content)


class Aside:
    """While keys are gone over, side outputs and counters are theirs: what was there before waits here."""

    def __init__(self, said: BroadcastOutput, sides: Sequence[Side[Any]], counters: Sequence[Counter]) -> None:
        self._said = said
        self._sides = sides
        self._counters = counters
        self._held = [(side._rows, side._times) for side in sides]
        self._counts = [counter.count for counter in counters]
        for side in sides:
            if side._rows is not None:
                side._rows, side._times = [], []

    def put_back(self) -> None:
        for side, (rows, times) in zip(self._sides, self._held):
            side._rows, side._times = rows, times
        for i, (counter, count) in enumerate(zip(self._counters, self._counts)):
            self._said._own_counts[i] += counter.count - count
