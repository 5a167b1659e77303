"""When a window gives out results: what ``fire=`` takes.

A trigger is a declaration, frozen and shipped. How it is carried out is said by the operators: in columns where that
can be, otherwise row by row (`headrace.windows.by_row.row_triggers`). One of one's own is a class derived from
`Trigger`; it is asked after each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace.windows.kinds import Clock, Window

if TYPE_CHECKING:
    from headrace.model.time import Timestamp


class TriggerResult(Enum):
    """What a `Trigger` answers: give out a result or not, keep what the window holds or throw it away."""

    CONTINUE = 0
    """Nothing happens."""
    FIRE = 1
    """A result is given out; what the window holds is kept."""
    PURGE = 2
    """What the window holds is thrown away without a result."""
    FIRE_AND_PURGE = 3
    """A result is given out, then what the window holds is thrown away."""


class TriggerContext:
    """What a trigger may ask and do; speaks for one key and one window. Do not keep it."""

    key: Any
    window: Window
    """The window; unbounded ones reach from the beginning to the end of time."""
    timestamp: Timestamp
    """Time of the row, or the time that has come."""
    watermark: Timestamp
    """How far event time has come: as the epoch began, or in ``on_event_time`` and ``on_wall_time`` as it ends."""
    now: Timestamp
    """Wall clock of the epoch."""

    def set_timer(self, at: Timestamp) -> None:
        """Calls ``on_event_time`` when event time has come this far; the same time twice counts once."""
        raise NotImplementedError

    def clear_timer(self, at: Timestamp) -> None:
        """Takes `set_timer` back."""
        raise NotImplementedError

    def set_wall_timer(self, at: Timestamp) -> None:
        """Calls ``on_wall_time`` when the wall clock has come this far."""
        raise NotImplementedError

    def clear_wall_timer(self, at: Timestamp) -> None:
        """Takes `set_wall_timer` back."""
        raise NotImplementedError


class Trigger:
    """When a window gives out results; given as ``fire=``, and then nothing else makes it give out any.

    Made by `early`, `every`, `per_row`, `per_epoch`, `on_delta` and `timeout`, or a class of one's own: its states are
    declared by annotation, belong to one key and one window, and go with the window. Where sessions merge, their states
    are merged first (a ValueState cannot be), then `on_merge` sets the timers that the new window needs.

    >>> import headrace as hr
    >>> class Bursts(hr.Trigger):
    ...     rows: hr.ReducingState[int] = hr.state(reduce=lambda a, b: a + b)
    ...     def on_row(self, row, ctx):
    ...         self.rows.add(1)
    ...         return hr.TriggerResult.FIRE if self.rows.get() == 100 else hr.TriggerResult.CONTINUE
    """

    def on_row(self, row: Any, ctx: TriggerContext) -> TriggerResult:
        """After each row that was put into the window."""
        return TriggerResult.CONTINUE

    def on_event_time(self, at: Timestamp, ctx: TriggerContext) -> TriggerResult:
        """When event time has come to a time that was set with ``ctx.set_timer``."""
        return TriggerResult.CONTINUE

    def on_wall_time(self, at: Timestamp, ctx: TriggerContext) -> TriggerResult:
        """When the wall clock has come to a time that was set with ``ctx.set_wall_timer``."""
        return TriggerResult.CONTINUE

    def on_merge(self, ctx: TriggerContext) -> None:
        """Two or more windows became ``ctx.window``. Needed for sessions: sets the timers of the new window anew."""
        raise NotImplementedError

    def clear(self, ctx: TriggerContext) -> None:
        """The window goes; states and timers go by themselves."""


@dataclass(frozen=True)
class PerRow(Trigger):
    """A result after every row."""

    columns: tuple[Any, ...] = ()
    """Of a rolling aggregate: what the result has of the row itself, as the user named it."""
    peers: tuple[str, ...] | None = None
    """Where rows of one key and time that are equal in these columns have one result, that of the last of them."""


@dataclass(frozen=True)
class PerEpoch(Trigger):
    """A result at the end of each epoch in which the window changed."""


@dataclass(frozen=True)
class Periodic(Trigger):
    """A result at times that are multiples of a span, where the window changed since; at its end; and when rows come
    late: `early` and `every`."""

    every_us: int
    clock: Clock = "wall"


@dataclass(frozen=True)
class EveryRows(Trigger):
    """A result after every so many rows."""

    rows: int


@dataclass(frozen=True)
class OnDelta(Trigger):
    """A result when a row differs from the one at the last result by more than a threshold; the first gives none."""

    threshold: float
    column: str | None = None
    """SQL text of the number that is compared …"""
    fn: Callable[[Any, Any], float] | None = None
    """… or a function of the older and the newer row."""


@dataclass(frozen=True)
class Timeout(Trigger):
    """Another trigger, and a result when so much time has passed on the wall clock since the first row after the last
    result (or since the newest row) and the other has given none."""

    span_us: int
    of: Trigger | None = None
    """None: the end of the window."""
    since_newest: bool = False
