"""Sessions of declared aggregates, columnar: rows become fragments of sessions, sessions are put together as they fire.

Nothing happens per row or per key in Python, and no run is read on the way in. Rows of a key that lie close together
become one fragment (`WaitingRows`) and are added to the state; which fragments are one session is
found out when the clock has passed the end of one (`headrace.windows.sessions.firing`), or when somebody asks.

When sessions fire: at their end; again in an epoch whose rows came late but were allowed; early at times that are
multiples of a span, or at the end of every epoch, for keys that changed since. A row is late when its session alone
would be gone, lateness included, by the watermark as the epoch began, and no open session reaches it.

Sessions that this operator does not do (own triggers, functions over rows, results that are given once) are done by
`headrace.windows.by_row.operator`, with the same results.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
from headrace.state.panes.column import PaneColumn
from headrace.state.panes.fragments import START, compact_fragments, ending_at, find_hashes
from headrace.state.panes.lookup import PaneRange
from headrace.state.panes.table import concat_rows, first_live_pane
from headrace.windows.columnar import EMIT_ROWS, LATE_PANE, ON_TIME, ColumnarWindows, Mask
from headrace.windows.kinds import Session, has_window
from headrace.windows.sessions.firing import ClosedSessions, Closing, SessionCloser, is_waiting
from headrace.windows.sessions.gaps import Gaps
from headrace.windows.sessions.plan import SessionPlan
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
            late = ends - 1 <= self._closed_upto(self.before_us)
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
            gone_upto=MAX_TIME if reached == MAX_TIME else self._closed_upto(reached) + 1,
            at_end=not isinstance(self.spec.fire, PerEpoch),
            early=self._fires_early(),
            mark=self.mark,
            finals=FINALS in self.outlets,
        )

    def _give(self, closed: ClosedSessions) -> None:
        rows = self.plan.rows(closed.rows, closed.labels)
        fires = closed.fires
        self.report.fired += int(np.count_nonzero(fires))
        self.emit(rows if fires.all() else rows.take(np.flatnonzero(fires)))
        if FINALS in self.outlets and closed.goes.any():
            final = self.plan.rows(closed.rows, self._final_labels(closed))
            self._give_final(final if closed.goes.all() else final.take(np.flatnonzero(closed.goes)))

    def _final_labels(self, closed: ClosedSessions) -> pa.Array:
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


def _cut(closed: ClosedSessions, start: int) -> ClosedSessions:
    part = slice(start, start + EMIT_ROWS)
    rows, labels = closed.rows.slice(start, EMIT_ROWS), closed.labels.slice(start, EMIT_ROWS)
    return ClosedSessions(rows, closed.fires[part], labels, closed.goes[part])


# --- rows on their way into sessions: put together among themselves before they are added to the state
# Rows wait here until there are many, or the epoch ends; then those of a key that lie close together become one
# fragment. Nothing of what is stored is read for that, with one exception: a row that is late by itself counts only
# if a session that is open when it comes reaches it. For keys that have such a row all that is known of them is
# looked up, once for many rows, and their rows are taken in the order in which they came.


_FIRST_LIMIT: Final = 1 << 17
"""Rows that are put together when so many wait …"""
_LAST_LIMIT: Final = 1 << 20
"""… and more, up to so many, where most of them are left then."""
_LIMIT_BYTES: Final = 1 << 26
"""Rows that are this large together do not wait any longer, however few they are."""

GiveLate = Callable[[Rows], None]


class _LateRows(NamedTuple):
    """Rows that are late by themselves."""

    places: Int64s
    """Where they stand among all that wait."""
    rows: Rows


class WaitingRows:
    """The rows of one task that are in no state yet."""

    def __init__(self, column: PaneColumn, live: PaneRange, give_late: GiveLate) -> None:
        """``live``: fragments that were not over when the epoch began. ``give_late``: where rows go that count for
        nothing."""
        self._column = column
        self._live = live
        self._give_late = give_late
        self._parts: list[pa.RecordBatch] = []
        self._count = self._bytes = 0
        self._limit = _FIRST_LIMIT
        self._undecided: list[_LateRows] = []

    def add(self, fragments: pa.RecordBatch, rows: Rows, late: Mask) -> None:
        """Rows as fragments of their own, in the order in which they came, and which of them are late by themselves."""
        if late.any():
            places = np.flatnonzero(late)
            self._undecided.append(_LateRows(places + self._count, rows.take(places)))
        self._parts.append(fragments)
        self._count += fragments.num_rows
        self._bytes += fragments.nbytes
        if self._count >= self._limit or self._bytes >= _LIMIT_BYTES:
            self._relieve()

    def _relieve(self) -> None:
        """Puts together what waits; where that leaves much, more at once may leave less, up to a limit."""
        joined = self._join()
        if 2 * joined.num_rows > self._limit:
            self._limit *= 2
        if self._limit > _LAST_LIMIT or 2 * joined.nbytes > _LIMIT_BYTES:
            self._limit = min(self._limit, _LAST_LIMIT)
            self._column.add(joined)
        else:
            self._parts, self._count, self._bytes = [joined], joined.num_rows, joined.nbytes

    def flush(self) -> None:
        """Adds everything to the state."""
        if self._parts:
            self._column.add(self._join())

    def _join(self) -> pa.RecordBatch:
        rows = concat_rows(self._parts, self._column.schema)
        self._parts, self._count, self._bytes = [], 0, 0
        if self._undecided:
            rows = self._rows_of_sessions(rows)
        return compact_fragments(rows)

    # --- rows that are late by themselves

    def _rows_of_sessions(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Without those that no session took; the others end with the session that took them."""
        undecided, self._undecided = self._undecided, []
        late = np.zeros(rows.num_rows, bool)
        for each in undecided:
            late[each.places] = True
        ends = rows.column(0).to_numpy().copy()
        refused = self._find_refused(rows, late, ends)
        for each in undecided:
            lost = np.flatnonzero(refused[each.places])
            if len(lost):
                self._give_late(each.rows.take(lost))
        return ending_at(rows, ends).filter(pa.array(~refused))

    def _find_refused(self, rows: pa.RecordBatch, late: Mask, ends: Int64s) -> Mask:
        """Which late rows no session takes; moves the ends of the others."""
        hashes = rows.column(1).to_numpy()
        wanted = np.unique(hashes[late])
        stored = [piece.only(wanted) for piece in self._column.all(self._live)]
        known = _OpenSessions(_stretches(stored))
        places, _ = find_hashes(hashes, wanted)
        keys = rows.column(2).take(pa.array(places)).to_pylist()
        starts = rows.column(START).to_numpy()[places].tolist()
        own_ends, is_late = ends[places].tolist(), late[places].tolist()
        refused = np.zeros(rows.num_rows, bool)
        for place, key, start, end, behind in zip(places.tolist(), keys, starts, own_ends, is_late):
            taken = known.take(key, start, end, only_if_reached=behind)
            if taken is None:
                refused[place] = True
            elif behind:
                ends[place] = taken
        return refused


def _stretches(stored: Sequence[pa.RecordBatch]) -> Iterable[tuple[bytes, int, int]]:
    for rows in stored:
        yield from zip(rows.column(2).to_pylist(), rows.column(START).to_pylist(), rows.column(0).to_pylist())


class _OpenSessions:
    """The open sessions of some keys, as they become one row after the other."""

    def __init__(self, stretches: Iterable[tuple[bytes, int, int]]) -> None:
        self._of_key: dict[bytes, list[tuple[int, int]]] = {}
        for key, start, end in stretches:
            self.take(key, start, end, only_if_reached=False)

    def take(self, key: bytes, start: int, end: int, *, only_if_reached: bool) -> int | None:
        """The end of the session that a stretch is in then; None: it would have to be one of its own, and may not."""
        mine = self._of_key.setdefault(key, [])
        # They neither overlap nor touch, so they are in the order of their ends too.
        first = bisect_left(mine, start, key=_end)
        last = first
        while last < len(mine) and mine[last][0] <= end:
            last += 1
        if first == last and only_if_reached:
            return None
        met: list[Any] = [(start, end), *mine[first:last]]
        start, end = min(each[0] for each in met), max(each[1] for each in met)
        mine[first:last] = [(start, end)]
        return end


def _end(stretch: tuple[int, int]) -> int:
    return stretch[1]
