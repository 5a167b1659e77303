"""What an aggregate says of itself to later programs: what its stored partial results are of.

Two aggregates of one name go on from each other only where they mean the same: `headrace.upgrade` compares them.
"""

from __future__ import annotations

import msgspec


class AggregateMeaning(msgspec.Struct, frozen=True, omit_defaults=True):
    """One aggregate of a step, as the program declares it."""

    kind: str
    """``count``, ``sum``, …; ``own`` of an aggregator of the user's."""
    column: str | None = None
    """SQL text of the value."""
    where: str | None = None
    by: str | None = None
    n: int = 0
    q: float = 0.0
    over_us: int | None = None
    type: str = ""
    """The type of the value, in words."""
    name: str = ""
    """Of an own aggregator: its class."""
    required: bool = False
    """Whether its result must not be null, and is where nothing was counted."""

    @property
    def words(self) -> str:
        """As the user wrote it: ``sum('n', where='n > 0')``."""
        if self.kind == "own":
            return f"{self.name}()"
        given = [] if self.column is None else [repr(self.column)]
        given += [str(each) for each in (self.n, self.q) if each]
        given += [f"{word}={text!r}" for word, text in (("by", self.by), ("where", self.where)) if text is not None]
        return f"{self.kind}({', '.join(given)})"
