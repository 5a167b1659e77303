"""Sessions of declared aggregates, columnar: rows become fragments of sessions, sessions are put together as they fire.

Nothing happens per row or per key in Python, and no run is read on the way in. Rows of a key that lie close together
become one fragment (`headrace.windows.sessions.rows`) and are added to the state; which fragments are one session is
found out when the clock has passed the end of one (`headrace.windows.sessions.firing`), or when somebody asks.

When sessions fire: at their end; again in an epoch whose rows came late but were allowed; early at times that are
multiples of a span, or at the end of every epoch, for keys that changed since. A row is late when its session alone
would be gone, lateness included, by the watermark as the epoch began, and no open session reaches it.

Sessions that this operator does not do (own triggers, functions over rows, results that are given once) are done by
`headrace.windows.by_row.operator`, with the same results.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.record import Failed
from headrace.model.rows import codec_of
from headrace.operators.contract import ERRORS, LATE, TaskInfo
from headrace.operators.failures import READ_ERRORS, failed_row, function_failed
from headrace.operators.keyed import decode_keys
from headrace.state.panes.lookup import PaneRange
from headrace.state.panes.table import first_live_pane
from headrace.windows.columnar import EMIT_ROWS, LATE_PANE, ON_TIME, ColumnarWindows
from headrace.windows.kinds import Session, has_window
from headrace.windows.sessions.firing import Closed, Closing, SessionCloser, is_waiting
from headrace.windows.sessions.gaps import Gaps
from headrace.windows.sessions.plan import SessionPlan
from headrace.windows.sessions.rows import WaitingRows
from headrace.windows.settings import FINALS
from headrace.windows.triggers import PerEpoch

if TYPE_CHECKING:
    from headrace.operators.spec import StepInfo
    from headrace.state.shard import ShardState
    from headrace.windows.settings import WindowSettings


class SessionPaneOperator(ColumnarWindows):
    """One step of sessions whose aggregates merge."""

    plan: SessionPlan
    waiting: WaitingRows

    def __init__(self, spec: WindowSettings, info: StepInfo) -> None:
        super().__init__(spec, info, SessionPlan(spec, info))
        assert isinstance(spec.assigner, Session)
        self._gap_sql = spec.assigner.gap_sql
        self._gaps = Gaps(spec.assigner, info.taken[0], info.step)
        self._key_type = info.key_type

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.waiting = WaitingRows(self.column, self._live(self.before_us), self._give_late)

    def _live(self, now_us: int) -> PaneRange:
        """Fragments that are not over then."""
        return PaneRange(first_live_pane(self.plan.schema, now_us), MAX_TIME)

    # --- rows

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if not len(rows):
            return
        assert keys is not None, f"step {self.step} is keyed and was given rows without keys"
        self.state.check_owned(keys.hashes)
        try:
            self._add_rows(*self._timely(rows, keys))
            self.state.relieve(len(rows))
        except FunctionFailed as error:
            raise self._placed(error) from error

    def _timely(self, rows: Rows, keys: Keys) -> tuple[Rows, Keys]:
        """The rows with the times that sessions go by; those that have none are late."""
        if self._by_wall:
            return rows.with_times(np.full(len(rows), self._now(), np.int64)), keys
        timely = np.zeros(len(rows), bool) if rows.times is None else has_window(rows.times)
        if timely.all():
            return rows, keys
        self._give_late(rows.take(np.flatnonzero(~timely)))
        kept = np.flatnonzero(timely)
        return rows.take(kept), keys.take(kept)

    def _add_rows(self, rows: Rows, keys: Keys) -> None:
        gaps = self._gaps.of(rows)
        bad = np.flatnonzero(gaps <= 0)
        if len(bad):
            self._refuse(rows.take(bad), keys.take(bad))
            kept = np.flatnonzero(gaps > 0)
            rows, keys, gaps = rows.take(kept), keys.take(kept), gaps[kept]
        if not len(rows):
            return
        assert rows.times is not None
        ends: Int64s = rows.times + gaps
        late = np.zeros(len(rows), bool)
        if not self._by_wall:
            late = ends - 1 <= max(self.before_us - self.late_us, MIN_TIME)
        self.waiting.add(self.plan.fragments(rows, keys, ends, self.mark), rows, late)

    def _refuse(self, rows: Rows, keys: Keys) -> None:
        """Rows whose gap is none: an error of the program's."""
        error = ValueError("the gap of a session has to be above 0")
        named = decode_keys(keys.encoded.to_pylist(), self._key_type)
        outlet = self.outlets.get(ERRORS)
        if outlet is None:
            raise function_failed(
                error, step=self.step, function=self._gap_sql, row=rows.objects[0], key=named[0], way_out=READ_ERRORS
            )
        failed = [
            failed_row(error, step=self.step, function=self._gap_sql, row=row, key=key)
            for row, key in zip(rows.objects, named)
        ]
        outlet(Rows.of_objects(codec_of(Failed), failed, rows.times))

    def _give_late(self, rows: Rows) -> None:
        self.report.late += len(rows)
        outlet = self.outlets.get(LATE)
        if outlet is not None:
            outlet(rows)

    # --- results

    def finish(self) -> Iterator[None]:
        reached = self._reached()
        try:
            self.waiting.flush()
            held = self.column.inherited(self._live(self.before_us))
            added = self.column.added(PaneRange(MIN_TIME, MAX_TIME))
            for closed in SessionCloser(self.plan, self.column, self._closing(reached)).close(held, added):
                for start in range(0, closed.rows.num_rows, EMIT_ROWS):
                    self._give(_cut(closed, start))
                    yield
            self.column.forget_before(self._live(reached).first)
        except FunctionFailed as error:
            raise self._placed(error) from error

    def _closing(self, reached: int) -> Closing:
        return Closing(
            # By the wall clock a session that has just ended is gone; one that ends at once was never over before.
            past_upto=MIN_TIME if self._by_wall else self.before_us + 1,
            over_upto=min(reached + 1, MAX_TIME),
            gone_upto=MAX_TIME if reached == MAX_TIME else reached - self.late_us + 1,
            at_end=not isinstance(self.spec.fire, PerEpoch),
            early=self._fires_early(),
            mark=self.mark,
            finals=FINALS in self.outlets,
        )

    def _give(self, closed: Closed) -> None:
        rows = self.plan.rows(closed.rows, closed.labels)
        fires = closed.fires
        self.report.fired += int(np.count_nonzero(fires))
        self.emit(rows if fires.all() else rows.take(np.flatnonzero(fires)))
        if FINALS in self.outlets and closed.goes.any():
            final = self.plan.rows(closed.rows, self._final_labels(closed))
            self._give_final(final if closed.goes.all() else final.take(np.flatnonzero(closed.goes)))

    def _final_labels(self, closed: Closed) -> pa.Array:
        """What is told of sessions as they go: whether they ever gave a result after their end."""
        told_late = pc.equal(closed.labels, LATE_PANE).to_numpy(zero_copy_only=False) & closed.fires
        late = pa.array(self.plan.was_late(closed.rows) | told_late)
        labels = pc.if_else(late, LATE_PANE, ON_TIME)
        if isinstance(self.spec.fire, PerEpoch):
            # The last result is final too, with what it says of itself.
            labels = pc.if_else(pa.array(closed.fires), closed.labels, labels)
        return labels

    # --- what is waited for

    def _next_window_us(self) -> int | None:
        """The end of the fragment that ends first: a session that goes on ends later, which is found out then."""
        reached = self._reached()
        if reached >= MAX_TIME - 1:
            return None
        end = self.column.first_pane(reached + 2)
        return None if end is None else end - 1

    def _waits_early(self) -> bool:
        live = self._live(self._reached())
        return any(bool(is_waiting(piece.rows, self.mark).any()) for piece in self.column.all(live))


def _cut(closed: Closed, start: int) -> Closed:
    part = slice(start, start + EMIT_ROWS)
    rows, labels = closed.rows.slice(start, EMIT_ROWS), closed.labels.slice(start, EMIT_ROWS)
    return Closed(rows, closed.fires[part], labels, closed.goes[part])
