"""A user's own trigger at work: its states bound to one key and one window, its timers kept with the window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import StoreError
from headrace.operators.binding import value_codecs
from headrace.operators.failures import function_failed
from headrace.operators.keyed import key_decoder
from headrace.operators.windows.assigners import Window
from headrace.operators.windows.contents import Pairs, Verdicts
from headrace.operators.windows.deciding import Decider
from headrace.operators.windows.held import Held, WindowName
from headrace.operators.windows.schedule import Schedule
from headrace.operators.windows.scoped import ScopedStates
from headrace.operators.windows.triggers import Trigger, TriggerContext, TriggerResult
from headrace.state.timer_handles import timer_time

if TYPE_CHECKING:
    from headrace.model.time import Timestamp
    from headrace.operators.contract import TaskInfo
    from headrace.operators.spec import StepInfo
    from headrace.state.handles import StateDecl
    from headrace.state.shard import ShardState

PREFIX: Final = "!trigger."


class _Context(TriggerContext):
    """The context of the one window at hand."""

    def __init__(self, schedule: Schedule, decode: Callable[[bytes], Any]) -> None:
        self._schedule = schedule
        self._decode = decode
        self._slot = -1
        self._encoded = b""
        self._name: WindowName = (0, 0)
        self._held: Held | None = None

    @property
    def key(self) -> Any:
        return self._decode(self._encoded)

    @property
    def window(self) -> Window:  # type: ignore[override]
        return Window(*self._name)  # type: ignore[arg-type]

    def _move(self, slot: int, encoded: bytes, name: WindowName, held: Held) -> None:
        self._slot, self._encoded, self._name, self._held = slot, encoded, name, held

    def set_timer(self, at: Timestamp) -> None:
        assert self._held is not None
        time_us = timer_time(at)
        if time_us not in self._held.event_timers:
            self._held.event_timers = [*self._held.event_timers, time_us]
        self._schedule.event.add(self._slot, time_us, self._name)

    def clear_timer(self, at: Timestamp) -> None:
        assert self._held is not None
        self._held.event_timers = [each for each in self._held.event_timers if each != int(at)]
        self._schedule.event.remove(self._slot, int(at), self._name)

    def set_wall_timer(self, at: Timestamp) -> None:
        assert self._held is not None
        time_us = timer_time(at)
        if time_us not in self._held.wall_timers:
            self._held.wall_timers = [*self._held.wall_timers, time_us]
        self._schedule.wall.add(self._slot, time_us, self._name)

    def clear_wall_timer(self, at: Timestamp) -> None:
        assert self._held is not None
        self._held.wall_timers = [each for each in self._held.wall_timers if each != int(at)]
        self._schedule.wall.remove(self._slot, int(at), self._name)


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

    def decide(self, pairs: Pairs, helds: Sequence[Held]) -> Verdicts:
        verdicts = np.zeros(len(pairs.positions), np.uint8)
        stretches, rows, times = pairs.stretch_of(), pairs.rows.objects, pairs.rows.times
        for pair in np.lexsort((stretches, pairs.positions)).tolist():
            stretch = int(stretches[pair])
            self._bind(pairs.slots[stretch], pairs.names[stretch], helds[stretch])
            at = self._context.now if times is None else int(times[pair])
            verdicts[pair] = self._ask(self.trigger.on_row, rows[pair], at)
        return verdicts

    def on_event_time(self, slot: int, name: WindowName, held: Held, at_us: int) -> int:
        held.event_timers = [each for each in held.event_timers if each != at_us]
        self._bind(slot, name, held)
        return self._ask(self.trigger.on_event_time, at_us, at_us)

    def on_wall_time(self, slot: int, name: WindowName, held: Held, at_us: int) -> int:
        held.wall_timers = [each for each in held.wall_timers if each != at_us]
        self._bind(slot, name, held)
        return self._ask(self.trigger.on_wall_time, at_us, at_us)

    def merge(self, slot: int, into: WindowName, scope: WindowName) -> None:
        """States of one window go into another one."""
        self._guard(self.trigger.on_merge, lambda: self.states.merge(slot, into, scope))

    def on_merge(self, slot: int, name: WindowName, held: Held) -> None:
        self._bind(slot, name, held)
        self._guard(self.trigger.on_merge, lambda: self.trigger.on_merge(self._context))

    def clear(self, slot: int, name: WindowName, held: Held) -> None:
        self._bind(slot, name, held)
        self._guard(self.trigger.clear, lambda: self.trigger.clear(self._context))
        self.states.clear(slot, held.home or name)

    def _bind(self, slot: int, name: WindowName, held: Held) -> None:
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
