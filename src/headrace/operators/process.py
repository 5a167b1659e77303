"""A user's process function at work: the hot path of Headrace.

Per row it does as little as it can: one call, the time on the context, and what the function yields appended to two
lists. Everything that can be done per key (moving handles, the key itself) or per batch (state, objects, columns) is.

What a function raises stops the task, or, where the step's ``errors`` are read, becomes a row there; then what the
failing call did to state, timers and outputs is undone, except that a timer which fired has fired. Counters go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import repeat
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, StoreError
from headrace.model.batch import Rows
from headrace.model.rows import RowCodec, codec_of
from headrace.operators.binding import BoundState, bind_declarations, value_codecs
from headrace.operators.contract import SIDE, TaskInfo
from headrace.operators.failures import NO_KEY, READ_ERRORS, function_failed
from headrace.operators.keyed import KeyedBatch, KeyedOperator, key_decoder
from headrace.operators.timers import Endless, Window, fire_due
from headrace.state.handles import NO_KEY as UNDECODED
from headrace.state.handles import Context, Timer, Timers
from headrace.state.shard import EVENT_DUE, WALL_DUE

if TYPE_CHECKING:
    from headrace.model.report import StepReport
    from headrace.state.handles import StateDecl
    from headrace.state.shard import ShardState


class ProcessOperator(KeyedOperator):
    """Runs ``on_event`` for every row and ``on_timer`` for every timer that is due."""

    bound: BoundState

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
        self._side_codecs = {decl.name: codec_of(decl.args[0]) for decl in self._decls if decl.kind == "side"}
        self.context: Context[Any] = Context(key_decoder(key_type))

    def open(self) -> None:
        self._call_plain("open")

    def close(self) -> None:
        self._call_plain("close")

    def _call_plain(self, name: str) -> None:
        method = getattr(self.function, name, None)
        if method is not None:
            try:
                method()
            except Exception as error:
                raise function_failed(error, step=self.step, function=method) from error

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        context = self.context
        context.now = task.clock_us  # type: ignore[assignment]
        context.epoch = task.epoch
        context.watermark = self.watermark  # type: ignore[assignment]
        context.timestamp = task.clock_us  # type: ignore[assignment]
        self.bound = bind_declarations(self._decls, self._value_codecs, self.state, task, self.watermark, context)
        for side in self.bound.sides:
            if SIDE + side.name in self.outlets:
                side._rows = []
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
        call = on_event if self.codec.type not in (str, bytes) else _never_text(on_event)
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
        if not self.bound.timers:
            return
        task, reached = self.task, self.task.ends_at(self.step)
        self.context.watermark = reached  # type: ignore[assignment]
        used = {due_table for _, due_table in self.bound.timers}
        windows = [
            Window(EVENT_DUE, self.watermark, reached),
            Window(WALL_DUE, task.last_clock_us, task.clock_us),
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

    def _give(self, rows: list[Any], times: list[int] | None) -> None:
        if rows:
            self.emit(Rows.of_objects(self.codec, rows, times))
        for side in self.bound.sides:
            if side._rows:
                made, made_at = side._rows, side._times
                side._rows, side._times = [], []
                side_times = None if times is None else made_at
                self.outlets[SIDE + side.name](Rows.of_objects(self._side_codecs[side.name], made, side_times))

    def end(self) -> StepReport:
        self.report.counters = {counter.name: counter.count for counter in self.bound.counters if counter.count}
        if any(due_table == WALL_DUE for _, due_table in self.bound.timers):
            self.report.next_due_us = self.state.next_due(WALL_DUE, self.task.clock_us)
        return self.report

    def _failure(self, error: Exception, function: Any, event: Any, result: Any) -> Exception:
        if isinstance(error, StoreError):
            return error
        if isinstance(error, TypeError) and result is not None and not isinstance(result, Iterable):
            error = _not_rows(result)
        key = self.context.key
        return function_failed(error, step=self.step, function=function, row=event, key=key, way_out=READ_ERRORS)


def rows_of(result: Any) -> Iterator[Any]:
    """What a function gave: nothing, or any iterable of rows."""
    if result is None:
        return iter(())
    if not isinstance(result, Iterable) or isinstance(result, str | bytes):
        raise _not_rows(result)
    return iter(result)


def _never_text(function: Any) -> Any:
    """The function, where its rows are texts: a text that it returns is not the list of its letters."""

    def call(event: Any, context: Any) -> Any:
        result = function(event, context)
        if isinstance(result, str | bytes):
            raise _not_rows(result)
        return result

    return call


def _not_rows(result: Any) -> TypeError:
    return TypeError(
        f"it returned {type(result).__name__} {result!r:.100}, which is neither None nor an iterable of rows: "
        "yield the row, or return a list"
    )
