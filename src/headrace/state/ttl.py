"""Time to live: how long an entry of state is kept after its last touch, and on which clock.

The expiry of an entry is stored beside it as an absolute time in microseconds, so every reader can judge it and no
reader needs the declaration. An entry without expiry (written before the state had a TTL) lives until its next touch
gives it one. A state whose TTL was taken away knows the time of that (`headrace.model.ended_ttl`): what had expired by
then stays hidden, and expiries that lie later are ignored.

The clock does not move within an epoch: it is the epoch's wall clock, or the watermark at the epoch's start. So whether
an entry has expired is decided once, when it is read from a run. What is written under the event clock counts from the
event's own time where that is ahead of the watermark; else a long epoch would let fresh entries die young. For a
function that sees rows in the order of their time, event time goes on from row to row (`RowExpiry`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from headrace.errors import ProgramError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.time import Span, span_us
from headrace.model.user_line import user_line

Clock = Literal["event", "wall"]
Refresh = Literal["create", "write", "read"]
Expired = Literal["hide", "show"]


@dataclass(frozen=True)
class TTL:
    """How long entries of a state live; made by `ttl`."""

    span_us: int
    clock: Clock = "wall"
    refresh: Refresh = "write"
    expired: Expired = "hide"


def ttl(
    span: Span,
    *,
    clock: Clock = "wall",
    refresh: Refresh = "write",
    expired: Expired = "hide",
) -> TTL:
    """A time to live for `state(ttl=…)`; lists and maps count it for each of their entries.

    ``clock``: the wall clock, or event time as the watermark tells it. ``refresh``: what begins the span anew: nothing
    after the first write (``create``), every write (``write``), or reading too (``read``). ``expired``: ``hide`` never
    gives an expired entry; ``show`` gives it as long as it has not been cleaned up.

    >>> ttl("7d", clock="event").span_us
    604800000000
    """
    for given, allowed, what in ((clock, Clock, "clock"), (refresh, Refresh, "refresh"), (expired, Expired, "expired")):
        if given not in get_args(allowed):
            choices = " or ".join(repr(choice) for choice in get_args(allowed))
            raise ProgramError(f"ttl has no {what} {given!r}", where=user_line(), expected=choices, found=repr(given))
    length_us = span_us(span, what="the TTL", where=user_line())
    if length_us <= 0:
        raise ProgramError(
            "the TTL must be greater than zero",
            where=user_line(),
            expected='a span above zero, such as "7d"',
            found=repr(span),
            next_move="leave the TTL out to keep the state for good",
        )
    return TTL(length_us, clock, refresh, expired)


def as_ttl(given: Span | TTL | None) -> TTL | None:
    """What a user gave as ``state(ttl=…)``: a span alone means the defaults of `ttl`."""
    return given if given is None or isinstance(given, TTL) else ttl(given)


class RowTime(Protocol):
    """Whatever knows the time of the row or timer at hand: the context of a function."""

    timestamp: int
    watermark: int


class Expiry:
    """The TTL of one state during one task."""

    __slots__ = ("_row", "now_us", "on_create", "on_read", "show", "span_us")
    span_us: int | None
    """None: entries last."""
    by_row = False
    """Whether time goes on from row to row; see `RowExpiry`."""

    @classmethod
    def ended(cls, at_us: int) -> Expiry:
        """Of a state whose TTL was taken away: what had expired by then is gone, and all else lasts."""
        expiry = cls(TTL(0), clock_us=at_us, watermark_us=at_us)
        expiry.span_us = None
        return expiry

    def __init__(self, ttl: TTL, *, clock_us: int, watermark_us: int, row: RowTime | None = None) -> None:
        event = ttl.clock == "event"
        self.now_us = watermark_us if event else clock_us
        self.span_us = ttl.span_us
        self.on_create = ttl.refresh == "create"
        self.on_read = ttl.refresh == "read"
        self.show = ttl.expired == "show"
        self._row = row if event else None

    def deadline(self) -> int | None:
        """When an entry touched now expires; None: never, or nothing has told the time yet."""
        if self.span_us is None:
            return None
        base = self.now_us
        if self._row is not None and self._row.timestamp > base:
            base = self._row.timestamp
        if base <= MIN_TIME:
            return None
        return min(base + self.span_us, MAX_TIME)

    def is_over(self, expires_us: int | None) -> bool:
        """Whether an entry with this expiry has expired."""
        return expires_us is not None and expires_us <= self.now_us

    def is_hidden(self, expires_us: int | None) -> bool:
        """Whether an entry with this expiry must not be given to anyone."""
        return not self.show and expires_us is not None and expires_us <= self.now_us


class RowExpiry(Expiry):
    """The TTL of a state on the event clock, in a function that sees rows in the order of their time.

    What a run holds is judged as ever, by the watermark at the epoch's start: no row to come lies behind it. What is
    in memory is judged when it is asked for, at the time of the row or timer at hand.
    """

    __slots__ = ("_at",)
    by_row = True

    def __init__(self, ttl: TTL, *, clock_us: int, watermark_us: int, row: RowTime) -> None:
        super().__init__(ttl, clock_us=clock_us, watermark_us=watermark_us)
        self._at = row

    def deadline(self) -> int | None:
        return None if self.span_us is None else min(self._time() + self.span_us, MAX_TIME)

    def is_over(self, expires_us: int | None) -> bool:
        return expires_us is not None and expires_us <= self._time()

    def is_gone(self, expires_us: int | None) -> bool:
        """Whether an entry in memory must not be given to anyone any more."""
        return not self.show and expires_us is not None and expires_us <= self._time()

    def _time(self) -> int:
        # A timer that was set for a time that had passed fires at the time of the row that set it.
        return max(self._at.timestamp, self._at.watermark)
