"""What a key keeps of its partial matches: `PartialMatches`, as it is stored and as people see it.

Partial matches share their rows: each row is stored once per key, in a table of its own, and a match is the last of a
chain of links through those rows. Places of the automaton are stored by the names of stages, so that a pattern may
change around the stages that a match stands at.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.model.time import Timestamp

PARTIAL: Final = "partial"
"""The state with the partial matches of a key."""
ROWS: Final = "rows"
"""The state with the rows that they are made of, by number."""
DEADLINE: Final = "deadline"
"""The timer for when the first of them runs out of time."""


class RowLink(msgspec.Struct, frozen=True, gc=False):
    """One row of a partial match, and the link before it."""

    row: int
    stage: str
    at: Timestamp
    before: int | None = None


class PartialMatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """One match that is not complete, or that waits for an earlier one."""

    place: str
    last: int
    """Its last link."""
    started: Timestamp
    waiting_for: str = ""
    until: Timestamp | None = None
    complete: bool = False


class PartialMatches(msgspec.Struct, frozen=True):
    """All partial matches of a key."""

    matches: list[PartialMatch]
    links: list[RowLink]
    next_row: int
    """The number of the next row that is taken."""
