"""Triggers that are asked after each row: the built-in ones, and those of the user's own.

What a built-in trigger remembers of a window is stored with the window. A trigger of the user's has states bound to one
key and one window, and its timers are stored with the window.

What this module deliberately does not do: carry out what a trigger says (`headrace.windows.by_row.firing`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from headrace.aggregates.lifting import Values
from headrace.errors import StoreError
from headrace.operators.binding import value_codecs
from headrace.operators.failures import function_failed
from headrace.operators.keyed import key_decoder
from headrace.state.timer_handles import timer_time
from headrace.windows.by_row.functions import ScopedStates
from headrace.windows.by_row.window_state import OpenWindow, WindowName
from headrace.windows.kinds import Window
from headrace.windows.triggers import EveryRows, OnDelta, PerRow, Trigger, TriggerContext, TriggerResult

if TYPE_CHECKING:
    from headrace.model.batch import Rows
    from headrace.model.rows import RowCodec
    from headrace.model.time import Timestamp
    from headrace.operators.contract import TaskInfo
    from headrace.operators.spec import StepInfo
    from headrace.state.handles import StateDecl
    from headrace.state.shard import ShardState

CONTINUE: Final = 0
FIRE: Final = 1
PURGE: Final = 2
"""What a trigger says, as the bits of a TriggerResult's value."""

TRIGGER_PREFIX: Final = "!trigger."
"""Of the names of the tables that states of an own trigger lie in."""


class RowTrigger(ABC):
    """A trigger at work."""

    mark: Any = int
    """Type of what it remembers of a window to compare with."""

    def begin_batch(self, rows: Rows) -> None:  # noqa: B027
        """Rows come that it will be asked about."""

    @abstractmethod
    def ask(self, slot: int, name: WindowName, window: OpenWindow, row: int) -> int:
        """What is to happen after a row of the batch that was put into a window."""


class CountRows(RowTrigger):
    """Fires after every so many rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def ask(self, slot: int, name: WindowName, window: OpenWindow, row: int) -> int:
        # Sessions that became one may have counted more already.
        window.count += 1
        if window.count < self._rows:
            return CONTINUE
        window.count = 0
        return FIRE


class CompareRows(RowTrigger):
    """Compares each row with the one at the last result, by a column or by a function of the user's."""

    def __init__(self, trigger: OnDelta, taken: RowCodec, step: str) -> None:
        self._step = step
        self._threshold = trigger.threshold
        self._function = trigger.fn
        self._column = None if trigger.column is None else Values(taken, trigger.column, f"step {step}")
        self._values: list[Any] = []
        self.mark = taken.type if trigger.column is None else float

    def begin_batch(self, rows: Rows) -> None:
        if self._column is None:
            self._values = rows.objects
        else:
            values = self._column.array(rows).to_pylist()
            self._values = [None if value is None else float(value) for value in values]

    def ask(self, slot: int, name: WindowName, window: OpenWindow, row: int) -> int:
        value = self._values[row]
        if value is None:
            return CONTINUE
        if window.mark is not None and not self._differ(window.mark, value):
            return CONTINUE
        is_first = window.mark is None
        window.mark = value
        return CONTINUE if is_first else FIRE

    def _differ(self, older: Any, newer: Any) -> bool:
        if self._function is None:
            return abs(newer - older) > self._threshold  # type: ignore[no-any-return]
        try:
            return self._function(older, newer) > self._threshold
        except StoreError:
            raise
        except Exception as error:
            raise function_failed(error, step=self._step, function=self._function) from error


def make_row_trigger(
    trigger: Trigger | None, decls: Sequence[StateDecl], info: StepInfo
) -> RowTrigger | None:  # fmt: skip
    """How a trigger that is asked after each row is carried out. ``decls``: what the class of an own one declares."""
    match trigger:
        case None:
            return None
        case PerRow():
            return CountRows(1)
        case EveryRows():
            return CountRows(trigger.rows)
        case OnDelta():
            return CompareRows(trigger, info.taken[0], info.step)
    return OwnTrigger(trigger, decls, info)


class _Context(TriggerContext):
    """The context of the one window at hand."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self._encoded = b""
        self._name: WindowName = (0, 0)
        self._window = OpenWindow(0)

    @property
    def key(self) -> Any:
        return self._decode(self._encoded)

    @property
    def window(self) -> Window:  # type: ignore[override]
        return Window(*self._name)  # type: ignore[arg-type]

    def _move(self, encoded: bytes, name: WindowName, window: OpenWindow) -> None:
        self._encoded, self._name, self._window = encoded, name, window

    def set_timer(self, at: Timestamp) -> None:
        self._window.event_timers = _with(self._window.event_timers, timer_time(at))

    def clear_timer(self, at: Timestamp) -> None:
        self._window.event_timers = _without(self._window.event_timers, int(at))

    def set_wall_timer(self, at: Timestamp) -> None:
        self._window.wall_timers = _with(self._window.wall_timers, timer_time(at))

    def clear_wall_timer(self, at: Timestamp) -> None:
        self._window.wall_timers = _without(self._window.wall_timers, int(at))


def _with(timers: list[int], time_us: int) -> list[int]:
    return timers if time_us in timers else [*timers, time_us]


def _without(timers: list[int], time_us: int) -> list[int]:
    return [each for each in timers if each != time_us]


class OwnTrigger(RowTrigger):
    """Calls the methods of a user's trigger, with everything bound."""

    states: ScopedStates
    state: ShardState

    def __init__(self, trigger: Trigger, decls: Sequence[StateDecl], info: StepInfo) -> None:
        # A copy: handles are put into it, and the object in the user's program must stay as it is, to be shipped again.
        self.trigger = copy(trigger)
        self._step = info.step
        self._decls = tuple(decls)
        self._codecs = value_codecs(self._decls, info.step)
        self._context = _Context(key_decoder(info.key_type))
        self._rows: list[Any] = []
        self._times: list[int] | None = None

    def begin(self, task: TaskInfo, state: ShardState, watermark: int) -> None:
        self.state = state
        self.states = ScopedStates(self._decls, self._codecs, state, task.epoch, TRIGGER_PREFIX)
        vars(self.trigger).update(self.states.by_name)
        self._context.now = task.clock_us  # type: ignore[assignment]
        self._context.watermark = watermark  # type: ignore[assignment]

    def reach(self, watermark: int) -> None:
        """The watermark of the epoch's end is known."""
        self._context.watermark = watermark  # type: ignore[assignment]

    def begin_batch(self, rows: Rows) -> None:
        self._rows, self._times = rows.objects, None if rows.times is None else rows.times.tolist()

    def ask(self, slot: int, name: WindowName, window: OpenWindow, row: int) -> int:
        self._bind(slot, name, window)
        at = self._context.now if self._times is None else self._times[row]
        return self._call(self.trigger.on_row, self._rows[row], at)

    def on_time(self, slot: int, name: WindowName, window: OpenWindow, at_us: int, *, is_event: bool) -> int:
        """What is to happen at a time that the trigger set, if it did."""
        if at_us not in (window.event_timers if is_event else window.wall_timers):
            return CONTINUE
        self._bind(slot, name, window)
        if is_event:
            self._context.clear_timer(at_us)  # type: ignore[arg-type]
            return self._call(self.trigger.on_event_time, at_us, at_us)
        self._context.clear_wall_timer(at_us)  # type: ignore[arg-type]
        return self._call(self.trigger.on_wall_time, at_us, at_us)

    def merge(self, slot: int, into: WindowName, scope: WindowName) -> None:
        """States of one window go into another one."""
        self._guard(self.trigger.on_merge, lambda: self.states.merge(slot, into, scope))

    def on_merge(self, slot: int, name: WindowName, window: OpenWindow) -> None:
        """A window has other bounds: it sets its timers anew."""
        window.event_timers, window.wall_timers = [], []
        self._bind(slot, name, window)
        self._guard(self.trigger.on_merge, lambda: self.trigger.on_merge(self._context))

    def clear(self, slot: int, name: WindowName, window: OpenWindow) -> None:
        """The window goes."""
        self._bind(slot, name, window)
        self._guard(self.trigger.clear, lambda: self.trigger.clear(self._context))
        self.states.clear(slot, window.home or name)

    def _bind(self, slot: int, name: WindowName, window: OpenWindow) -> None:
        self.states.bind(slot, window.home or name)
        self._context._move(self.state.names[slot], name, window)

    def _call(self, method: Callable[..., Any], what: Any, at: Any) -> int:
        self._context.timestamp = at
        verdict = self._guard(method, lambda: method(what, self._context))
        if not isinstance(verdict, TriggerResult):
            error = TypeError(f"it returned {verdict!r:.100}, which is no hr.TriggerResult")
            raise function_failed(error, step=self._step, function=method, key=self._context.key)
        return int(verdict.value)

    def _guard(self, method: Callable[..., Any], call: Callable[[], Any]) -> Any:
        try:
            return call()
        except StoreError:
            raise
        except Exception as error:
            raise function_failed(error, step=self._step, function=method, key=self._context.key) from error
