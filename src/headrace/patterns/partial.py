"""What a key keeps of its partial matches: `PartialMatches`, as it is stored and as people see it.

Partial matches share their rows: each row stands there once, and a match is the last of a chain of links through those
rows. Places of the automaton are stored by the names of stages, so that a pattern may change around the stages that a
match stands at. All of a key is one value, so that the keys of a batch are fetched, and written, at once.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec

from headrace.model.time import Timestamp

R = TypeVar("R")

PARTIAL: Final = "partial"
"""The state with the partial matches of a key."""
DEADLINE: Final = "deadline"
"""The timer for when the first of them runs out of time."""


class TakenRow(msgspec.Struct, Generic[R], frozen=True):
    """A row that some partial match took."""

    number: int
    """Its place among the rows that are kept of the key, in the order in which they came."""
    at: Timestamp
    row: R


class RowLink(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One row of a partial match, by its position, and the link before it."""

    row: int
    stage: str
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


class PartialMatches(msgspec.Struct, Generic[R], frozen=True):
    """All partial matches of a key."""

    matches: tuple[PartialMatch, ...]
    links: tuple[RowLink, ...]
    rows: tuple[TakenRow[R], ...]
    next_row: int
    """The least number that the next row can have."""
