"""The process function of a user, run row by row: the hot path of Headrace.

Per row: one call, the time on the context, and the yielded rows appended to two lists. Everything that can be done per
key (moving handles, the key itself) or per batch (state, objects, columns) is.

An exception stops the task, or, where the `errors` of the step are read, becomes a row there. Then state, timers and
outputs of the failing call are undone, except that a timer which fired has fired. Counters go on.

Timers fire at the end of an epoch. The index by time (of the runs, and of this epoch) says where to look; the state of
the timer says whether it is set. Timers of one key fire by time, those of one time in the order of declaration; keys
are visited by their earliest time. A timer that is set while timers fire and is due already fires in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError, StoreError
from headrace.model.amounts import count_of
from headrace.model.batch import Int64s, Rows, UInt64s
from headrace.model.rows import RowCodec
from headrace.operators.binding import BoundState, bind_declarations, value_codecs
from headrace.operators.contract import TaskInfo
from headrace.operators.failures import NO_KEY, READ_ERRORS, function_failed
from headrace.operators.keyed import KeyedBatch, KeyedOperator, key_decoder
from headrace.state.handles import NO_KEY as UNDECODED
from headrace.state.handles import Context, Timer, Timers
from headrace.state.shard import CHUNK_KEYS, EVENT_DUE, WALL_DUE, distinct_keys

if TYPE_CHECKING:
    from headrace.model.report import StepReport
    from headrace.state.handles import StateDecl
    from headrace.state.shard import ShardState


MAX_REARMS: Final = 100_000
"""How often timers of one key may fire in one epoch beyond those that were set before: more is taken for endless."""


class DueRange(NamedTuple):
    """A stretch of one clock: timers with after < time ≤ upto are due."""

    due_table: str
    after_us: int
    upto_us: int


class Endless(RuntimeError):
    """A timer that is due is set again each time it fires."""


class DueTimes(NamedTuple):
    """Keys for which something may be due, by their earliest time."""

    hashes: UInt64s
    keys: pa.BinaryArray
    times: dict[str, list[list[int]]]
    """Due table → for each key the times that the index knows of."""


def fire_due(
    state: ShardState,
    timers: Sequence[tuple[Timer | Timers, str]],
    windows: Sequence[DueRange],
    *,
    bind: Callable[[int], None],
    call: Callable[[Timer | Timers, int], None],
) -> Iterator[int]:
    """Fires everything due; now and then, when no key is at hand, yields how much fired since.

    ``timers``: handles with the due table they are indexed in. ``bind`` moves all handles to a slot, ``call`` calls the
    user's function for a timer that was taken.
    """
    many = [timer for timer, _ in timers if isinstance(timer, Timers)]
    limits = {window.due_table: window.upto_us for window in windows}
    watched = [(timer, limits[due_table]) for timer, due_table in timers if due_table in limits]
    due = find_due(state, windows, (EVENT_DUE,) if many else ())
    event_times = due.times.get(EVENT_DUE)
    for start in range(0, len(due.keys), CHUNK_KEYS):
        slots = state.enter(due.hashes[start : start + CHUNK_KEYS], due.keys[start : start + CHUNK_KEYS])
        fired = 0
        for position, slot in enumerate(slots.tolist(), start):
            bind(slot)
            times = [] if event_times is None else event_times[position]
            for timer in many:
                timer._expect(list(times))
            fired += fire_key(watched, call, MAX_REARMS + len(times) * len(many))
            for timer in many:
                timer._expect(None)
        yield fired


def find_due(state: ShardState, ranges: Sequence[DueRange], tables: Collection[str]) -> DueTimes:
    """The keys with something due in these stretches of time; their times on the clocks of ``tables``."""
    due = [state.indexes.due(*each) for each in ranges]
    times = np.concatenate([each.times for each in due])
    order = np.argsort(times, kind="stable")
    hashes = np.concatenate([each.hashes for each in due])[order]
    keys = pa.concat_arrays([each.keys for each in due]).take(pa.array(order))
    distinct = distinct_keys(hashes, keys)
    clocks = np.repeat(np.arange(len(ranges)), [len(each.times) for each in due])[order]
    by_table = {
        each.due_table: _times_by_key(distinct.codes[clocks == i], times[order][clocks == i], len(distinct.keys))
        for i, each in enumerate(ranges)
        if each.due_table in tables
    }
    return DueTimes(distinct.hashes, distinct.keys, by_table)


def _times_by_key(codes: Int64s, times: Int64s, count: int) -> list[list[int]]:
    by_key: list[list[int]] = [[] for _ in range(count)]
    for code, time in zip(codes.tolist(), times.tolist()):
        by_key[code].append(time)
    return by_key


def fire_key(
    timers: Sequence[tuple[Timer | Timers, int]],
    call: Callable[[Timer | Timers, int], None],
    bound: int,
    *,
    stored: bool = True,
) -> int:
    """Fires what is due of the key at hand, and tells how much; ``stored``: whether the runs may have something."""
    fired = 0
    while True:
        earliest: int | None = None
        chosen: Timer | Timers | None = None
        for timer, upto_us in timers:
            time_us = timer._peek(upto_us, stored=stored)
            if time_us is not None and (earliest is None or time_us < earliest):
                earliest, chosen = time_us, timer
        if earliest is None or chosen is None:
            return fired
        if fired >= bound:
            raise Endless(
                f"the timer {chosen.name!r} was set again {count_of(fired, 'time')} in one epoch, each "
                "time for a time that has passed; at the end of drained input every time has passed, and ctx.watermark "
                "tells"
            )
        chosen._take(earliest)
        call(chosen, earliest)
        fired += 1


class ProcessOperator(KeyedOperator):
    """Runs ``on_event`` for every row and ``on_timer`` for every timer that is due."""

    bound: BoundState
    in_order = False
    """Whether rows come in the order of their time, so that time goes on from row to row."""

    def __init__(
        self, step: str, function: Any, decls: Sequence[StateDecl], codec: RowCodec, *, key_type: Any = None
    ) -> None:
        super().__init__(step, key_type)
        # A copy: handles are put into it, and the object in the user's program must stay as it is, to be shipped again.
        self.function = copy(function)
        self.codec = codec
        """Of the rows that come out."""
        self._decls = tuple(decls)
        self._value_codecs = value_codecs(self._decls, step)
        self.context: Context[Any] = Context(key_decoder(key_type))

    def open(self) -> None:
        call_plain(self.function, "open", self.step)

    def close(self) -> None:
        call_plain(self.function, "close", self.step)

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.bound = bind_declarations(
            self._decls, self._value_codecs, self.state, task, self.step, self.context, in_order=self.in_order
        )
        self.bound.open_sides(self.outlets)
        vars(self.function).update(self.bound.by_name)

    # --- events

    def handle(self, port: int, batch: KeyedBatch) -> None:
        times = batch.rows.times
        ats: Iterable[int] = repeat(self.task.clock_us) if times is None else times.tolist()
        run = self._run_guarded if self.keeps_errors else self._run
        rows, made_at = run(batch.rows.objects, ats, batch.slots.tolist())
        self._give(rows, None if times is None else made_at)

    @property
    def on_row(self) -> Any:
        """What is called for each row at hand."""
        return self.function.on_event

    def _run(self, events: list[Any], ats: Iterable[int], slots: list[int]) -> tuple[list[Any], list[int]]:
        context: Any = self.context
        on_event, names, handles = self.on_row, self.state.names, self.bound.handles
        call = self.never_text(on_event)
        rows: list[Any] = []
        times: list[int] = []
        add_row, add_time = rows.append, times.append
        current = -1
        event = result = None
        try:
            for event, at, slot in zip(events, ats, slots):
                if slot != current:
                    current = slot
                    for handle in handles:
                        handle._slot = slot
                    context._encoded = names[slot]
                    context._key = UNDECODED
                context.timestamp = at
                result = call(event, context)
                if result is not None:
                    for row in result:
                        add_row(row)
                        add_time(at)
        except Exception as error:
            raise self._failure(error, on_event, event, result) from error
        return rows, times

    def _run_guarded(self, events: list[Any], ats: Iterable[int], slots: list[int]) -> tuple[list[Any], list[int]]:
        """The same, but a failing call is undone and its row kept for ``errors``."""
        rows: list[Any] = []
        times: list[int] = []
        on_event, context = self.on_row, self.context
        current = -1
        for event, at, slot in zip(events, ats, slots):
            if slot != current:
                current = slot
                self._bind(slot)
            context.timestamp = at  # type: ignore[assignment]
            before, saved = len(rows), self.bound.save(slot)
            try:
                rows.extend(rows_of(on_event(event, context)))
            except StoreError:
                raise
            except Exception as error:
                self.bound.restore(slot, saved)
                del rows[before:]
                self.keep_failed(error, on_event, event, at, key=context.key)
            times.extend([at] * (len(rows) - before))
        return rows, times

    def _bind(self, slot: int) -> None:
        for handle in self.bound.handles:
            handle._slot = slot
        self.context._move(self.state.names[slot])

    # --- timers

    def finish(self) -> Iterator[None]:
        yield from self.fire(EVENT_DUE, WALL_DUE)

    def fire(self, *due_tables: str) -> Iterator[None]:
        """Fires the timers of these indexes that are due as the epoch ends."""
        if not any(due_table in due_tables for _, due_table in self.bound.timers):
            return
        task, reached = self.task, self.task.ends_at(self.step)
        self.context.watermark = reached  # type: ignore[assignment]
        used = {due_table for _, due_table in self.bound.timers if due_table in due_tables}
        windows = [
            DueRange(EVENT_DUE, self.watermark, reached),
            DueRange(WALL_DUE, task.last_clock_us, task.clock_us),
        ]
        rows: list[Any] = []
        times: list[int] = []

        def call(timer: Timer | Timers, at_us: int) -> None:
            self._call_timer(timer, at_us, rows, times)

        windows = [window for window in windows if window.due_table in used]
        try:
            for fired in fire_due(self.state, self.bound.timers, windows, bind=self._bind, call=call):
                self.report.fired += fired
                self._give(list(rows), list(times))
                rows.clear()
                times.clear()
                self.give_failed()
                self.state.relieve(fired)
                yield
        except HeadraceError:
            raise
        except Exception as error:
            # No single call failed: timers are set for ever, or for something that is no time.
            key = self.context.key if isinstance(error, Endless) else NO_KEY
            raise function_failed(error, step=self.step, function=self.function.on_timer, key=key) from error

    def _call_timer(self, timer: Timer | Timers, at_us: int, rows: list[Any], times: list[int]) -> None:
        on_timer = self.function.on_timer
        self.context.timestamp = at_us  # type: ignore[assignment]
        before = len(rows)
        result = None
        if not self.keeps_errors:
            try:
                result = on_timer(timer, self.context)
                if result is not None:
                    rows.extend(result)
            except Exception as error:
                raise self._failure(error, on_timer, None, result) from error
        else:
            saved = self.bound.save(timer._slot)
            try:
                rows.extend(rows_of(on_timer(timer, self.context)))
            except StoreError:
                raise
            except Exception as error:
                self.bound.restore(timer._slot, saved)
                del rows[before:]
                self.keep_failed(error, on_timer, None, at_us, key=self.context.key, timer=timer.name)
        times.extend([at_us] * (len(rows) - before))

    # --- what comes out

    def never_text(self, function: Any) -> Any:
        """The function; where its rows are texts, a text that it returns is not the list of its letters."""
        if self.codec.type not in (str, bytes):
            return function

        def call(event: Any, context: Any) -> Any:
            result = function(event, context)
            if isinstance(result, str | bytes):
                raise _not_rows(result)
            return result

        return call

    def _give(self, rows: list[Any], times: list[int] | None) -> None:
        if rows:
            self.emit(Rows.of_objects(self.codec, rows, times))
        self.bound.give_sides(self.outlets, timed=times is not None)

    def end(self) -> StepReport:
        self.report.counters = self.bound.counts()
        if any(due_table == WALL_DUE for _, due_table in self.bound.timers):
            self.report.next_due_us = self.state.indexes.next_due(WALL_DUE, self.task.clock_us)
        return self.report

    def _failure(self, error: Exception, function: Any, event: Any, result: Any) -> Exception:
        if isinstance(error, StoreError):
            return error
        if isinstance(error, TypeError) and result is not None and not isinstance(result, Iterable):
            error = _not_rows(result)
        key = self.context.key
        return function_failed(error, step=self.step, function=function, row=event, key=key, way_out=READ_ERRORS)


def call_plain(function: Any, name: str, step: str) -> None:
    """Calls ``open`` or ``close`` of a user's function, where it has that method."""
    method = getattr(function, name, None)
    if method is not None:
        try:
            method()
        except Exception as error:
            raise function_failed(error, step=step, function=method) from error


def rows_of(result: Any) -> Iterator[Any]:
    """What a function gave: nothing, or any iterable of rows."""
    if result is None:
        return iter(())
    if not isinstance(result, Iterable) or isinstance(result, str | bytes):
        raise _not_rows(result)
    return iter(result)


def _not_rows(result: Any) -> TypeError:
    return TypeError(
        f"it returned {type(result).__name__} {result!r:.100}, which is neither None nor an iterable of rows: "
        "yield the row, or return a list"
    )
