"""Rows in the order of their time: ``process(fn, order="time")``, as if every row had come at its moment.

Rows wait until the watermark has passed them (`headrace.operators.waiting`). Then those of each key are handled in the
order of their time (`headrace.operators.ordering`), rows of both inputs of a connect together, and the timers of the
key fire between them at their own time: a timer for T fires behind the rows of T and before all later ones. While a row
of time T is handled the watermark is T − 1 µs, and while a timer fires, its time; states that expire by event time are
judged at these times (`headrace.state.ttl.RowExpiry`). A timer that is set for a time that has passed fires before the
next later row, or where there is none at once.

So what a function gives and keeps depends on the rows alone: not on where epochs end, in which order rows come, from
which split or how many shards there are. That holds for rows that are late under no cut. A row is late when the
watermark had passed it as its epoch began, or when it has no time; then its moment is gone, and it is counted and goes
to ``late``, or nowhere. Outside of the promise are timers and states by the wall clock, which stay what they are
elsewhere (they fire behind everything else), and whatever else a function asks that knows of epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import StoreError
from headrace.model.ids import MIN_TIME
from headrace.operators.contract import LATE, LATES, TaskInfo
from headrace.operators.failures import function_failed
from headrace.operators.process import MAX_REARMS, Endless, ProcessOperator, fire_key, rows_of
from headrace.operators.waiting import DelayedRows, DueRows
from headrace.state.handles import NO_KEY as UNDECODED
from headrace.state.handles import Timer, Timers
from headrace.state.shard import EVENT_DUE, WALL_DUE

if TYPE_CHECKING:
    from headrace.model.batch import Keys, Rows
    from headrace.model.rows import RowCodec
    from headrace.operators.order_spec import TimeOrder
    from headrace.operators.ordering import OrderedRows
    from headrace.state.handles import StateDecl
    from headrace.state.shard import ShardState

METHODS: Final = {1: ("on_event",), 2: ("on_left", "on_right")}
"""Number of inputs → the method for rows of each."""


class OrderedProcessOperator(ProcessOperator):
    """Runs the methods of a function for the rows of one input, or of two, by key and time."""

    in_order = True
    waiting: DelayedRows

    def __init__(
        self, step: str, function: Any, decls: Sequence[StateDecl], taken: Sequence[RowCodec], codec: RowCodec,
        order: TimeOrder, *, key_type: Any = None,
    ) -> None:  # fmt: skip
        """``taken``: types of the rows of each input."""
        super().__init__(step, function, decls, codec, key_type=key_type)
        self.taken = taken
        self.order = order
        self._late_tags = (LATE,) if len(taken) == 1 else LATES

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.report.waiting = 0
        self.waiting = DelayedRows(self.state, self.taken, self.order, task.epoch)
        self._calls = [self._call_of(getattr(self.function, name)) for name in METHODS[len(self.taken)]]
        self._event_timers = [timer for timer, due_table in self.bound.timers if due_table == EVENT_DUE]
        self._rows: list[Any] = []
        self._times: list[int] = []
        self._slot = -1
        self._reached_us = MIN_TIME
        """The time of the last row of the key at hand."""
        self._stored = True
        """Whether the runs may hold timers of the key at hand that are due."""

    # --- rows come

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if not len(rows):
            return
        assert keys is not None, f"step {self.step} is keyed and was given rows without keys"
        if rows.times is None:
            rows = rows.with_times(np.full(len(rows), MIN_TIME))
        assert rows.times is not None
        late = rows.times <= self.watermark
        count = int(np.count_nonzero(late))
        if count:
            self.report.late += count
            outlet = self.outlets.get(self._late_tags[port])
            if outlet is not None:
                outlet(rows.take(np.flatnonzero(late)))
            in_time = np.flatnonzero(~late)
            rows, keys = rows.take(in_time), keys.take(in_time)
        if len(rows):
            self.hold(port, rows, keys)

    def hold(self, port: int, rows: Rows, keys: Keys) -> None:
        """Takes rows that are not late, to be handled when the watermark has passed them."""
        self.waiting.add(port, rows, keys)
        self._count_waiting(len(rows))
        self.state.relieve(len(rows))

    # --- rows come to their time

    def finish(self) -> Iterator[None]:
        reached = self.task.ends_at(self.step)
        self.waiting.end_input(reached)
        yield from self.advance(self.watermark, reached)
        yield from self.fire(WALL_DUE)

    def advance(self, after_us: int, upto_us: int) -> Iterator[None]:
        """Handles what lies in between: rows and timers by event time, key by key."""
        if upto_us <= after_us:
            return
        due = self.waiting.due(after_us, upto_us)
        for start, end in due.groups(self._piece_rows):
            yield from self.advance_group(due, start, end, upto_us)
            due.wait_on(start, end)
            self._give_all(end - start)
            yield

    def advance_group(self, due: DueRows, start: int, end: int, upto_us: int) -> Iterator[None]:
        """The same for neighbouring keys that are handled together, or for a key that is alone."""
        hashes, keys = due.hashes[start:end], due.keys[start:end]
        timers = due.timers.within(start, end) if self._event_timers else {}
        alone = end - start == 1
        if alone:
            self._begin_key(timers.get(start, ()), stored=True)
        for piece in due.pieces(start, end, self._piece_rows):
            slots = self.state.enter(hashes, keys).tolist()
            bounds = np.searchsorted(piece.codes, np.arange(start, end + 1)).tolist()
            for code in range(start, end):
                if not alone:
                    times = timers.get(code, ())
                    self._begin_key(times, stored=bool(times))
                self._bind(slots[code - start])
                self._handle(piece, bounds[code - start], bounds[code - start + 1])
                if not alone:
                    self._end_key(upto_us)
            self._count_waiting(-len(piece.codes))
            self._give_all(len(piece.codes))
            yield
        if alone:
            self._bind(int(self.state.enter(hashes, keys)[0]))
            self._end_key(upto_us)

    def _count_waiting(self, rows: int) -> None:
        self.report.waiting = (self.report.waiting or 0) + rows

    def _give_all(self, rows: int) -> None:
        """Sends on what there is, with no key at hand."""
        made, times = self._rows, self._times
        self._rows, self._times = [], []
        self._give(made, times)
        self.give_failed()
        self.state.relieve(rows)
        self._piece_rows = self.next_piece_rows()

    # --- one key

    def _begin_key(self, times: Sequence[int], *, stored: bool) -> None:
        """``times``: those at which the index knows of timers of the key."""
        self._reached_us, self._stored = MIN_TIME, stored
        for timer in self._event_timers:
            if isinstance(timer, Timers):
                timer._expect(list(times))

    def _end_key(self, upto_us: int) -> None:
        self._fire_upto(upto_us)
        for timer in self._event_timers:
            if isinstance(timer, Timers):
                timer._expect(None)

    def _bind(self, slot: int) -> None:
        self._slot = slot
        for handle in self.bound.handles:
            handle._slot = slot
        self.context._encoded = self.state.names[slot]
        self.context._key = UNDECODED

    def _handle(self, piece: OrderedRows, start: int, end: int) -> None:
        context: Any = self.context
        calls, add_row, add_time = self._calls, self._rows.append, self._times.append
        fires = bool(self._event_timers)
        for event, at, port in zip(piece.events[start:end], piece.at[start:end], piece.ports[start:end]):
            if at != self._reached_us:
                if fires:
                    self._fire_upto(at - 1)
                self._reached_us, context.watermark = at, at - 1
            context.timestamp = at
            result = None
            try:
                result = calls[port](event, context)
                if result is not None:
                    for row in result:
                        add_row(row)
                        add_time(at)
            except Exception as error:
                raise self._failure(error, self._method(port), event, result) from error

    def _fire_upto(self, upto_us: int) -> None:
        if not self._event_timers:
            return
        try:
            due = [(timer, upto_us) for timer in self._event_timers]
            self.report.fired += fire_key(due, self._fire_timer, MAX_REARMS, stored=self._stored)
        except Endless as error:
            function = self.function.on_timer
            raise function_failed(error, step=self.step, function=function, key=self.context.key) from error

    def _fire_timer(self, timer: Timer | Timers, at_us: int) -> None:
        self.context.watermark = max(at_us, self._reached_us)  # type: ignore[assignment]
        self._call_timer(timer, at_us, self._rows, self._times)

    # --- the user's methods

    def _method(self, port: int) -> Any:
        return getattr(self.function, METHODS[len(self.taken)][port])

    def _call_of(self, function: Any) -> Callable[[Any, Any], Any]:
        """What is called for a row; where ``errors`` are read, a failing call is undone and its row kept for them."""
        if not self.keeps_errors:
            made: Callable[[Any, Any], Any] = self.never_text(function)
            return made

        def call(event: Any, context: Any) -> Any:
            saved = self.bound.save(self._slot)
            try:
                return list(rows_of(function(event, context)))
            except StoreError:
                raise
            except Exception as error:
                self.bound.restore(self._slot, saved)
                self.keep_failed(error, function, event, context.timestamp, key=context.key)
                return None

        return call
