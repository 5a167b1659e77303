"""Positions in Redis streams, and what follows from them: pure, without a connection.

A position is the id of the last entry that was read *and* how many entries the stream had got up to it (its ordinal).
Redis counts the entries a stream ever got, so the ordinal tells how many must still lie behind a position; if fewer do,
entries were trimmed or deleted before anybody read them. That is what makes a loss visible.

The position before the first epoch names no entry: it says where to start ("earliest", "latest", an id), and so it is a
constant. The first planned epoch settles what that means, and every later position remembers it (`Position.origin`),
so a range that begins at the constant is as definite as any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.connectors.source_contract import Offset

EntryId = tuple[int, int]
"""Milliseconds and a number among the entries of that millisecond."""

ZERO: Final[EntryId] = (0, 0)
_LAST_OF_A_MILLISECOND: Final = 2**64 - 1
EARLIEST: Final = "earliest"
LATEST: Final = "latest"


def read_id(text: str | bytes) -> EntryId:
    """
    >>> read_id("1700000000000-3")
    (1700000000000, 3)
    """
    ms, _, seq = (text.decode() if isinstance(text, bytes) else text).partition("-")
    return int(ms), int(seq or 0)


def id_text(entry: EntryId) -> str:
    return f"{entry[0]}-{entry[1]}"


def before(entry: EntryId) -> EntryId:
    """The largest id that is smaller.

    >>> before((5, 0))
    (4, 18446744073709551615)
    """
    ms, seq = entry
    if seq:
        return ms, seq - 1
    return (ms - 1, _LAST_OF_A_MILLISECOND) if ms else ZERO


@dataclass(frozen=True)
class Position:
    """Everything up to and including `entry` has been read."""

    entry: EntryId
    ordinal: int
    """How many entries the stream had got up to this one."""
    origin: tuple[EntryId, int]
    """Where the source began to read this stream."""
    deleted: EntryId = ZERO
    """The largest id that had been deleted by hand when the source began: no loss of ours."""

    def to_json(self) -> Offset:
        entry, ordinal = self.origin
        stored = {"id": id_text(self.entry), "n": self.ordinal, "from": [id_text(entry), ordinal]}
        return stored if self.deleted == ZERO else {**stored, "deleted": id_text(self.deleted)}

    def moved(self, entry: EntryId, ordinal: int) -> Position:
        return replace(self, entry=entry, ordinal=ordinal)


def read_position(stored: Any) -> Position | str:
    """A position, or, before the first epoch, where to start."""
    if "start" in stored:
        return str(stored["start"])
    entry, ordinal = stored["from"]
    return Position(
        read_id(stored["id"]), stored["n"], (read_id(entry), ordinal), read_id(stored.get("deleted", id_text(ZERO)))
    )


@dataclass(frozen=True)
class Look:
    """What a stream says of itself at one moment."""

    exists: bool = False
    length: int = 0
    added: int = 0
    """How many entries it ever got."""
    last: EntryId = ZERO
    """The newest id it ever gave."""
    deleted: EntryId = ZERO
    """The largest id that was deleted by hand."""
    first: EntryId | None = None
    """The oldest entry that is there."""

    def behind(self, entry: EntryId) -> int | None:
        """How many entries lie behind an id; None where only counting them tells."""
        if self.first is None or self.last <= entry:
            return 0
        return self.length if self.first > entry else None


def has_begun(start: str, look: Look) -> bool:
    """Whether what is to be read first can be told: "latest" at once, all else when there is something to read."""
    if start == LATEST:
        return True
    return look.exists if start == EARLIEST else look.exists and look.last >= read_id(start)


def begin(start: str, look: Look, counted: int | None = None) -> Position:
    """Where to start, as a position. `counted`: entries behind the id, where `Look.behind` could not tell."""
    if start == LATEST:
        entry, ordinal = look.last, look.added
    elif start == EARLIEST:
        entry = before(look.first) if look.first is not None else look.last
        ordinal = look.added - look.length
    else:
        entry = before(read_id(start))
        behind = look.behind(entry) if counted is None else counted
        assert behind is not None, "entries behind an id have to be counted first"
        ordinal = look.added - behind
    return Position(entry, ordinal, (entry, ordinal), look.deleted)


def find_loss(position: Position, look: Look) -> str:
    """Why not everything behind a position can be read any more; empty where it can."""
    if not look.exists:
        return "" if position.entry == ZERO else "the stream is gone"
    if look.last < position.entry:
        return f"the stream ends at {id_text(look.last)}: it was made anew, or the server lost its end"
    if look.deleted > max(position.entry, position.deleted):
        return f"entries up to {id_text(look.deleted)} were deleted with XDEL before they were read"
    if look.first is None or look.first > position.entry:
        unread = look.added - position.ordinal
        if unread > look.length:
            there = "none is left" if look.first is None else f"the oldest one left is {id_text(look.first)}"
            return f"{unread - look.length} of {unread} unread entries were trimmed; {there}"
        if unread < look.length:
            return f"there are {look.length} entries where {max(0, unread)} should be: the stream was made anew"
    return ""


def without_loss(position: Position, look: Look) -> Position:
    """The position to go on from where what is lost shall be skipped: its ordinal fits what is left."""
    behind = look.behind(position.entry)
    return position if behind is None else replace(position, ordinal=look.added - behind, deleted=look.deleted)


def share_limit(limit: int | None, unread: dict[str, int]) -> dict[str, int]:
    """How many entries of each stream the next epoch reads: all, or a fair part of what an epoch may have.

    >>> share_limit(10, {"a": 100, "b": 2, "c": 0})
    {'c': 0, 'b': 2, 'a': 8}
    """
    if limit is None:
        return unread
    shares: dict[str, int] = {}
    for left, (stream, count) in zip(range(len(unread), 0, -1), sorted(unread.items(), key=lambda each: each[1])):
        shares[stream] = min(count, (limit - sum(shares.values())) // left)
    return shares
