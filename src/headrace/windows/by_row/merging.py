"""Sessions at work: rows find their session, and sessions that meet become one, with all that is kept for them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.aggregates.declare import Aggregator
from headrace.errors import StoreError
from headrace.model.batch import Int64s, Rows
from headrace.operators.keyed import KeyedBatch
from headrace.state.cells import WINDOW_KEYS
from headrace.windows.by_row.contents import Accumulated, Pairs, Reduced
from headrace.windows.by_row.window_state import OpenWindow, WindowName
from headrace.windows.kinds import Session
from headrace.windows.sessions.gaps import Gaps, Union, find_clusters, find_unions, hard_rows

if TYPE_CHECKING:
    from headrace.operators.spec import StepInfo
    from headrace.windows.by_row.operator import WindowOperator


class Part(NamedTuple):
    """Rows that can be put into their sessions together."""

    rows: Rows
    slots: Int64s
    starts: Int64s
    """Bounds of the session that each row is in."""
    ends: Int64s


class Merging:
    """What a windowed step does about sessions."""

    def __init__(self, operator: WindowOperator, assigner: Session, info: StepInfo) -> None:
        self._operator = operator
        self._gap_sql = assigner.gap_sql
        self._gaps = Gaps(assigner, info.taken[0], info.step)

    def parts(self, batch: KeyedBatch) -> Iterator[Part]:
        """The rows of a batch with their sessions, which are open and merged when a part is given."""
        operator = self._operator
        batch, gaps = self._with_gaps(batch)
        rows, slots = batch
        if not len(rows):
            return
        assert rows.times is not None, f"step {operator.step} has sessions, and rows without time"
        ends = rows.times + gaps
        late = ends - 1 <= operator.gone_upto
        if operator.decider is not None or (operator.contents.may_refuse and operator.keeps_errors):
            hard = np.ones(len(rows), np.bool_)
        else:
            in_order = not operator.contents.commutes
            hard = hard_rows(slots, rows.times, late, in_order, operator.windows.of_key)
        easy = np.flatnonzero(~hard)
        if len(easy) == len(rows):
            yield self._together(rows, slots, rows.times, ends)
            return
        if len(easy):
            yield self._together(rows.take(easy), slots[easy], rows.times[easy], ends[easy])
        for position in np.flatnonzero(hard).tolist():
            part = self._one(rows.take(np.array([position])), int(slots[position]), int(ends[position]), late[position])
            if part is not None:
                yield part

    def _with_gaps(self, batch: KeyedBatch) -> tuple[KeyedBatch, Int64s]:
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
                raise operator.stopped(error, self._gap_sql, row, slot)
            at = None if times is None else int(times[position])
            operator.keep_failed(error, self._gap_sql, row, at, key=operator.key_of(slot))
        kept = np.flatnonzero(gaps > 0)
        return KeyedBatch(batch.rows.take(kept), batch.slots[kept]), gaps[kept]

    def _together(self, rows: Rows, slots: Int64s, starts: Int64s, ends: Int64s) -> Part:
        clusters = find_clusters(slots, starts, ends)
        unions, joined_starts, joined_ends = find_unions(clusters, self._operator.windows.of_key)
        for union in unions:
            self._unite(union)
        return Part(rows, slots, joined_starts[clusters.of_row], joined_ends[clusters.of_row])

    def _one(self, row: Rows, slot: int, end: int, late: bool) -> Part | None:
        """One row, which may be late by itself and still be taken by a session that is open."""
        assert row.times is not None
        at = np.array([slot])
        clusters = find_clusters(at, row.times, np.array([end]))
        unions, starts, ends = find_unions(clusters, self._operator.windows.of_key)
        if late and not unions[0].olds:
            self._operator.give_late(row, np.zeros(1, np.int64))
            return None
        if self._refuses(row, unions[0]):
            return None
        self._unite(unions[0])
        return Part(row, at, starts, ends)

    def _refuses(self, row: Rows, union: Union) -> bool:
        """Whether a function of the user's refuses the row, which then must not keep its session open."""
        operator, contents = self._operator, self._operator.contents
        if not (contents.may_refuse and operator.keeps_errors):
            return False
        trial = operator.windows.fresh()
        for _, held in union.olds:
            copied = operator.windows.fresh()
            copied.accs = deepcopy(held.accs)
            self._merge_contents(union.slot, trial, copied)
        pairs = Pairs(row, np.zeros(1, np.int64), np.zeros(1, np.int64), [union.slot], [union.name])
        return not len(operator.without_refused(pairs, [trial])[0].positions)

    # --- sessions that become one

    def _unite(self, union: Union) -> None:
        operator, slot = self._operator, union.slot
        if not union.olds or (len(union.olds) == 1 and union.olds[0][0] == union.name):
            return
        first, target = union.olds[0]
        home = target.home or first
        for name, held in union.olds:
            operator.schedule.gone(slot, name, held)
            operator.windows.remove(slot, name)
        for name, held in union.olds[1:]:
            self._merge_contents(slot, target, held)
            _merge_triggers(target, held)
            self._merge_states(slot, home, held.home or name)
        target.home = home
        target.event_timers, target.wall_timers = [], []
        operator.windows.put(slot, union.name, target)
        operator.schedule.renamed(slot, union.name, target)
        if operator.own_trigger is not None:
            operator.own_trigger.on_merge(slot, union.name, target)

    def _merge_contents(self, slot: int, older: OpenWindow, newer: OpenWindow) -> None:
        contents = self._operator.contents
        try:
            contents.merge(older, newer)
        except StoreError:
            raise
        except Exception as error:
            raise self._operator.stopped(error, _merger(contents), None, slot) from error

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
                raise operator.stopped(error, operator.function.function, None, slot) from error


def _merge_triggers(older: OpenWindow, newer: OpenWindow) -> None:
    """What built-in triggers remember of two sessions."""
    older.count += newer.count
    older.changed = older.changed or newer.changed
    older.late = older.late or newer.late
    older.early = min((at for at in (older.early, newer.early) if at is not None), default=None)
    older.timeout = min((at for at in (older.timeout, newer.timeout) if at is not None), default=None)


def _merger(contents: Any) -> Any:
    """The user's function that puts two windows together, for a message."""
    if isinstance(contents, Reduced):
        return contents.function
    if isinstance(contents, Accumulated):
        return next((agg.merge for agg in contents.aggs.values() if isinstance(agg, Aggregator)), "merge")
    return "merge"


def by_keys(batch: KeyedBatch) -> Iterator[KeyedBatch]:
    """A batch in pieces of no more keys than are read ahead together, so that what was read is still there."""
    starts = batch.starts()
    if len(starts) <= WINDOW_KEYS:
        yield batch
        return
    bounds = [*starts[::WINDOW_KEYS].tolist(), len(batch.rows)]
    for start, end in pairwise(bounds):
        piece = np.arange(start, end)
        yield KeyedBatch(batch.rows.take(piece), batch.slots[piece])
