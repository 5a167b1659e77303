"""Triggers that are asked after each row: the built-in ones for all pairs of a batch, a user's own one row by row.

What a built-in trigger remembers of a window is stored with the window. A trigger of the user's has states bound to one
key and one window, and its timers are stored with the window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.aggregates.lifting import Values
from headrace.errors import StoreError
from headrace.operators.binding import value_codecs
from headrace.operators.failures import function_failed
from headrace.operators.keyed import key_decoder
from headrace.state.timer_handles import timer_time
from headrace.windows.by_row.contents import FIRE, Pairs, Verdicts
from headrace.windows.by_row.functions import ScopedStates
from headrace.windows.by_row.schedule import Schedule, Timetable
from headrace.windows.by_row.window_state import OpenWindow, WindowName
from headrace.windows.kinds import Window
from headrace.windows.triggers import EveryRows, OnDelta, PerRow, Trigger, TriggerContext, TriggerResult

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.model.time import Timestamp
    from headrace.operators.contract import TaskInfo
    from headrace.operators.spec import StepInfo
    from headrace.state.handles import StateDecl
    from headrace.state.shard import ShardState


class Decider(ABC):
    """A trigger at work. What it remembers of a window it keeps in the window."""

    mark: Any = int
    """Type of what it remembers to compare with."""

    @abstractmethod
    def decide(self, pairs: Pairs, helds: Sequence[OpenWindow]) -> Verdicts:
        """What is to happen after each pair; ``helds`` stand for the stretches."""


class EachRow(Decider):
    def decide(self, pairs: Pairs, helds: Sequence[OpenWindow]) -> Verdicts:
        return np.full(len(pairs.positions), FIRE, np.uint8)


class CountedRows(Decider):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def decide(self, pairs: Pairs, helds: Sequence[OpenWindow]) -> Verdicts:
        verdicts = np.zeros(len(pairs.positions), np.uint8)
        bounds = [*pairs.starts.tolist(), len(verdicts)]
        rows = self._rows
        for held, start, end in zip(helds, bounds, bounds[1:]):
            # A merged session may have counted too many already; then its next row fires.
            first = start + max(rows - held.count, 1) - 1
            if first >= end:
                held.count += end - start
                continue
            verdicts[first:end:rows] = FIRE
            held.count = (end - 1 - first) % rows
        return verdicts


class Differences(Decider):
    """Compares each row with the one at the last result, by a column or by a function of the user's."""

    def __init__(self, trigger: OnDelta, taken: RowCodec, where: str) -> None:
        self._threshold = trigger.threshold
        self._function = trigger.fn
        self._values = None if trigger.column is None else Values(taken, trigger.column, where)
        self.mark = taken.type if trigger.column is None else float

    def decide(self, pairs: Pairs, helds: Sequence[OpenWindow]) -> Verdicts:
        verdicts = np.zeros(len(pairs.positions), np.uint8)
        values = self._compared(pairs)
        differ: Callable[[Any, Any], float] = self._function or _distance
        bounds = [*pairs.starts.tolist(), len(verdicts)]
        for held, start, end in zip(helds, bounds, bounds[1:]):
            mark = held.mark
            for pair in range(start, end):
                value = values[pair]
                if value is None:
                    continue
                if mark is None:
                    mark = value
                elif differ(mark, value) > self._threshold:
                    mark = value
                    verdicts[pair] = FIRE
            held.mark = mark
        return verdicts

    def _compared(self, pairs: Pairs) -> list[Any]:
        if self._values is None:
            return pairs.rows.objects
        return [None if value is None else float(value) for value in self._values.array(pairs.rows).to_pylist()]


def _distance(older: float, newer: float) -> float:
    return abs(newer - older)


def built_in_decider(trigger: Trigger, taken: RowCodec, where: str) -> Decider | None:
    """How a trigger is carried out that comes with Headrace; None: it is one of the user's own."""
    match trigger:
        case PerRow():
            return EachRow()
        case EveryRows():
            return CountedRows(trigger.rows)
        case OnDelta():
            return Differences(trigger, taken, where)
    return None


PREFIX: Final = "!trigger."


class _Context(TriggerContext):
    """The context of the one window at hand."""

    def __init__(self, schedule: Schedule, decode: Callable[[bytes], Any]) -> None:
        self._schedule = schedule
        self._decode = decode
        self._slot = -1
        self._encoded = b""
        self._name: WindowName = (0, 0)
        self._held: OpenWindow | None = None

    @property
    def key(self) -> Any:
        return self._decode(self._encoded)

    @property
    def window(self) -> Window:  # type: ignore[override]
        return Window(*self._name)  # type: ignore[arg-type]

    def _move(self, slot: int, encoded: bytes, name: WindowName, held: OpenWindow) -> None:
        self._slot, self._encoded, self._name, self._held = slot, encoded, name, held

    def set_timer(self, at: Timestamp) -> None:
        assert self._held is not None
        self._held.event_timers = self._set(self._held.event_timers, self._schedule.event, at)

    def clear_timer(self, at: Timestamp) -> None:
        assert self._held is not None
        self._held.event_timers = self._clear(self._held.event_timers, self._schedule.event, at)

    def set_wall_timer(self, at: Timestamp) -> None:
        assert self._held is not None
        self._held.wall_timers = self._set(self._held.wall_timers, self._schedule.wall, at)

    def clear_wall_timer(self, at: Timestamp) -> None:
        assert self._held is not None
        self._held.wall_timers = self._clear(self._held.wall_timers, self._schedule.wall, at)

    def _set(self, timers: list[int], table: Timetable, at: Timestamp) -> list[int]:
        time_us = timer_time(at)
        table.add(self._slot, time_us, self._name)
        return timers if time_us in timers else [*timers, time_us]

    def _clear(self, timers: list[int], table: Timetable, at: Timestamp) -> list[int]:
        table.remove(self._slot, int(at), self._name)
        return [each for each in timers if each != int(at)]


class OwnTrigger(Decider):
    """Calls the methods of a user's trigger, with everything bound."""

    states: ScopedStates
    state: ShardState

    def __init__(self, trigger: Trigger, decls: Sequence[StateDecl], info: StepInfo, schedule: Schedule) -> None:
        # A copy: handles are put into it, and the object in the user's program must stay as it is, to be shipped again.
        self.trigger = copy(trigger)
        self._step = info.step
        self._decls = tuple(decls)
        self._codecs = value_codecs(self._decls, info.step)
        self._context = _Context(schedule, key_decoder(info.key_type))

    def begin(self, task: TaskInfo, state: ShardState, watermark: int) -> None:
        self.state = state
        self.states = ScopedStates(self._decls, self._codecs, state, task.epoch, PREFIX)
        vars(self.trigger).update(self.states.by_name)
        self._context.now = task.clock_us  # type: ignore[assignment]
        self._context.watermark = watermark  # type: ignore[assignment]

    def reach(self, watermark: int) -> None:
        """The watermark of the epoch's end is known."""
        self._context.watermark = watermark  # type: ignore[assignment]

    def decide(self, pairs: Pairs, helds: Sequence[OpenWindow]) -> Verdicts:
        verdicts = np.zeros(len(pairs.positions), np.uint8)
        stretches, rows, times = pairs.stretch_of(), pairs.rows.objects, pairs.rows.times
        for pair in np.lexsort((stretches, pairs.positions)).tolist():
            stretch = int(stretches[pair])
            self._bind(pairs.slots[stretch], pairs.names[stretch], helds[stretch])
            at = self._context.now if times is None else int(times[pair])
            verdicts[pair] = self._ask(self.trigger.on_row, rows[pair], at)
        return verdicts

    def on_event_time(self, slot: int, name: WindowName, held: OpenWindow, at_us: int) -> int:
        held.event_timers = [each for each in held.event_timers if each != at_us]
        self._bind(slot, name, held)
        return self._ask(self.trigger.on_event_time, at_us, at_us)

    def on_wall_time(self, slot: int, name: WindowName, held: OpenWindow, at_us: int) -> int:
        held.wall_timers = [each for each in held.wall_timers if each != at_us]
        self._bind(slot, name, held)
        return self._ask(self.trigger.on_wall_time, at_us, at_us)

    def merge(self, slot: int, into: WindowName, scope: WindowName) -> None:
        """States of one window go into another one."""
        self._guard(self.trigger.on_merge, lambda: self.states.merge(slot, into, scope))

    def on_merge(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        self._bind(slot, name, held)
        self._guard(self.trigger.on_merge, lambda: self.trigger.on_merge(self._context))

    def clear(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        self._bind(slot, name, held)
        self._guard(self.trigger.clear, lambda: self.trigger.clear(self._context))
        self.states.clear(slot, held.home or name)

    def _bind(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        self.states.bind(slot, held.home or name)
        self._context._move(slot, self.state.names[slot], name, held)

    def _ask(self, method: Callable[..., Any], what: Any, at: Any) -> int:
        self._context.timestamp = at
        found = self._guard(method, lambda: method(what, self._context))
        if not isinstance(found, TriggerResult):
            error = TypeError(f"it returned {found!r:.100}, which is no hr.TriggerResult")
            raise function_failed(error, step=self._step, function=method, key=self._context.key)
        return int(found.value)

    def _guard(self, method: Callable[..., Any], call: Callable[[], Any]) -> Any:
        try:
            return call()
        except StoreError:
            raise
        except Exception as error:
            raise function_failed(error, step=self._step, function=method, key=self._context.key) from error
