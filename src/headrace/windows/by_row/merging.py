"""Sessions at work: a row finds the sessions that it touches, and these become one, with all that is kept for them.

A row that is late as a session of its own counts only if an open session takes it. A row that a function refuses joins
nothing: where that may be, sessions are put together in copies, and become one when the row has been taken.
"""

from __future__ import annotations

from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import StoreError
from headrace.model.batch import Int64s
from headrace.operators.keyed import KeyedBatch
from headrace.windows.by_row.key_windows import KeySessions
from headrace.windows.by_row.window_state import OpenWindow, WindowName
from headrace.windows.kinds import Session
from headrace.windows.sessions.gaps import Gaps

if TYPE_CHECKING:
    from headrace.operators.spec import StepInfo
    from headrace.windows.by_row.operator import WindowOperator


class SessionMerging:
    """What a windowed step does about sessions."""

    key: KeySessions

    def __init__(self, operator: WindowOperator, assigner: Session, info: StepInfo) -> None:
        self._operator = operator
        self._gap_sql = assigner.gap_sql
        self._gaps = Gaps(assigner, info.taken[0], info.step)
        self._has_states = operator.own_trigger is not None or operator.function is not None
        """Whether states may lie under the name of a session."""

    def with_gaps(self, batch: KeyedBatch) -> tuple[KeyedBatch, Int64s]:
        """The rows that say how long they keep their session open; any other is an error of the program's."""
        gaps = self._gaps.of(batch.rows)
        bad = np.flatnonzero(gaps <= 0)
        if not len(bad):
            return batch, gaps
        operator, times = self._operator, batch.rows.times
        for position in bad.tolist():
            row, slot = batch.rows.take(np.array([position])).objects[0], int(batch.slots[position])
            error = ValueError("the gap of a session has to be above 0")
            if not operator.keeps_errors:
                raise operator.failure(error, self._gap_sql, row, slot)
            at = None if times is None else int(times[position])
            operator.keep_failed(error, self._gap_sql, row, at, key=operator.key_of(slot))
        positive = np.flatnonzero(gaps > 0)
        return KeyedBatch(batch.rows.take(positive), batch.slots[positive]), gaps[positive]

    def take(self, batch: KeyedBatch, gaps: Int64s) -> Int64s:
        """Puts rows into their sessions; returns the positions of those that are late."""
        operator, key = self._operator, self.key
        assert batch.rows.times is not None, f"step {operator.step} has sessions, and rows without time"
        times, gone_upto = batch.rows.times.tolist(), operator.gone_upto
        add, find, asks = operator.add, key.find, operator.trigger is not None
        late: list[int] = []
        for row, (slot, start, gap) in enumerate(zip(batch.slots.tolist(), times, gaps.tolist())):
            if slot != key.slot:
                key.enter(slot)
            end = start + gap
            olds = key.touching(start, end)
            if not olds and end - 1 <= gone_upto:
                late.append(row)
                continue
            name = (start, end)
            if len(olds) == 1:
                [name] = olds
                window = find(name)
                if start < name[0] or end > name[1]:
                    name = (min(start, name[0]), max(end, name[1]))
            else:
                window = self._put_together(olds)
                if olds:
                    name = (min(start, olds[0][0]), max(end, olds[-1][1]))
            if not add(slot, window, row):
                continue
            if olds == [name]:
                key.changed[name] = window
            else:
                self._join(olds, name, window)
            if asks:
                operator.ask(slot, name, window, row)
        return np.array(late, np.int64)

    def _put_together(self, olds: list[WindowName]) -> OpenWindow:
        """A window with what several sessions hold; of none, a fresh one."""
        operator, key = self._operator, self.key
        if not olds:
            return operator.windows.fresh()
        contents = operator.contents
        first, *others = [key.find(name) for name in olds]
        for window in (first, *others):
            operator.settle(key.slot, window)
        if contents.may_refuse and operator.keeps_errors:
            first, *others = [_copied(window) for window in (first, *others)]
        for window in others:
            try:
                contents.merge(first, window)
            except StoreError:
                raise
            except Exception as error:
                raise operator.failure(error, contents.merger, None, key.slot) from error
            _merge_notes(first, window)
        return first

    def _join(self, olds: list[WindowName], name: WindowName, window: OpenWindow) -> None:
        """Sessions become one, or one gets other bounds."""
        operator, key = self._operator, self.key
        if self._has_states and olds:
            home, *scopes = [key.find(old).home or old for old in olds]
            for scope in scopes:
                self._merge_states(key.slot, home, scope)
            window.home = home
        key.join(olds, name, window)
        if operator.own_trigger is not None and olds:
            operator.own_trigger.on_merge(key.slot, name, window)

    def _merge_states(self, slot: int, into: WindowName, scope: WindowName) -> None:
        operator = self._operator
        if operator.own_trigger is not None:
            operator.own_trigger.merge(slot, into, scope)
        if operator.function is not None:
            try:
                operator.function.scoped.merge(slot, into, scope)
            except StoreError:
                raise
            except Exception as error:
                raise operator.failure(error, operator.function.function, None, slot) from error


def _copied(window: OpenWindow) -> OpenWindow:
    """A window whose contents may be changed without the other's."""
    copied: Any = copy(window)
    copied.accs, copied.rows, copied.guarded = deepcopy(window.accs), [], None
    return copied  # type: ignore[no-any-return]


def _merge_notes(older: OpenWindow, newer: OpenWindow) -> None:
    """What is counted in two sessions, and what built-in triggers remember of them."""
    older.size += newer.size
    older.count += newer.count
    older.changed = older.changed or newer.changed
    older.late = older.late or newer.late
    older.early = min((at for at in (older.early, newer.early) if at is not None), default=None)
    older.timeout = min((at for at in (older.timeout, newer.timeout) if at is not None), default=None)
