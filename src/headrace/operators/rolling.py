"""Rolling steps: one thing per key that every row changes. `reduce`, `latest` and `aggregate`.

What is kept is the table ``value`` of the step: the reduced row, the newest row, or the accumulators by name. Results
are given out once per epoch for each key that changed, with the time of the newest row they hold; or with ``per_row``
for every row, with its time. Once per epoch also holds where changes were spilled in between: keys are remembered, and
their final values read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.aggregates.accumulate import TIME_NOTE, KeyFold, accumulators_codec, make_fold
from headrace.aggregates.declare import Agg, Aggregator
from headrace.aggregates.own import AddFailed, add_guarded, add_row, encode_columns
from headrace.errors import FunctionFailed, StoreError
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.job import VALUE_TABLE
from headrace.model.values import ValueCodec, value_codec
from headrace.operators.contract import TaskInfo
from headrace.operators.key_partials import ArrivedPartials, count_arrived, keep_newest, merge_in
from headrace.operators.keyed import KeyedBatch, KeyedOperator, check_same_key, stamps_of, starts_of
from headrace.operators.peers import end_of_peers, followed_by_peers
from headrace.operators.result_keys import ResultKeys
from headrace.operators.spec import COMBINED_PORT
from headrace.state.fitting import declared_codec
from headrace.state.overlay import UNLOADED, ValueColumn

if TYPE_CHECKING:
    from headrace.model.batch import Keys
    from headrace.model.rows import RowCodec
    from headrace.state.shard import ShardState

TIME_TABLE: Final = TIME_NOTE
"""Time of the newest row, beside rows that do not tell it themselves."""
_EMIT_ROWS: Final = 65_536


class RollingOperator(KeyedOperator):
    """Base: a value per key, given out at the end of the epoch where it changed."""

    column: ValueColumn

    def __init__(self, step: str, stored: ValueCodec, key_type: Any, *, per_row: bool) -> None:
        super().__init__(step, key_type)
        self._stored = stored
        self.per_row = per_row

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.column = self.state.values(VALUE_TABLE, self._stored, track=not self.per_row)

    def finish(self) -> Iterator[None]:
        if self.per_row:
            return
        for slots in self.state.changed(self.column):
            for start in range(0, len(slots), _EMIT_ROWS):
                self.emit(self.results(slots[start : start + _EMIT_ROWS].tolist()))
                yield

    def results(self, slots: list[int]) -> Rows:
        """The rows to give out for these keys."""
        raise NotImplementedError


class _RowRolling(RollingOperator):
    """Base of the steps that keep a whole row, and beside it its time where the stream has one."""

    times: ValueColumn

    def __init__(self, step: str, codec: RowCodec, stored: ValueCodec, key_type: Any, *, per_row: bool) -> None:
        super().__init__(step, stored, key_type, per_row=per_row)
        self.codec = codec

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.times = self.state.values(TIME_TABLE, value_codec(int))

    def results(self, slots: list[int]) -> Rows:
        rows = [self.column.get(slot) for slot in slots]
        return Rows.of_objects(self.codec, rows, stamps_of([self.times.get(slot) for slot in slots]))


class ReduceOperator(_RowRolling):
    """``reduce``: each row is combined with what the rows before it came to."""

    def __init__(
        self, step: str, function: Callable[[Any, Any], Any], codec: RowCodec, *, key_type: Any = None,
        per_row: bool = True, key_columns: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """``key_columns``: where rows hold the key, which the function must leave as it is; None: not checked."""
        # As of a state: the function may change in place what it is given, and make rows that do not fit their type.
        super().__init__(step, codec, declared_codec(codec.type), key_type, per_row=per_row)
        self.function = function
        self._key_columns = key_columns or ()
        self._key_in = attrgetter(*key_columns) if key_columns else None

    def handle(self, port: int, batch: KeyedBatch) -> None:
        made, survived = self._reduce(batch.rows.objects, batch.slots.tolist(), batch.rows.times)
        times, slots = batch.rows.times, batch.slots
        if times is not None and len(survived) < len(times):
            kept = np.array(survived, dtype=np.int64)
            times, slots = times[kept], slots[kept]
        if self.per_row:
            self.emit(Rows.of_objects(self.codec, made, times))
        elif times is not None and len(times):
            self._keep_times(slots, times)

    def _reduce(self, events: list[Any], slots: list[int], times: Int64s | None) -> tuple[list[Any], list[int]]:
        """The reduced row after each row, and the positions of the rows that did not fail."""
        function, column, key_in = self.function, self.column, self._key_in
        made: list[Any] = []
        survived: list[int] = []
        for position, (event, slot) in enumerate(zip(events, slots)):
            try:
                held = column.get(slot)
                if held is None:
                    value = event
                else:
                    value = function(held, event)
                    if key_in is not None and key_in(value) != key_in(event):
                        check_same_key(self._key_columns, value, event)
                column.put(slot, value)
                made.append(value)
                survived.append(position)
            except Exception as error:
                if not self.keeps_errors or isinstance(error, StoreError):
                    raise self.failure(error, function, event, slot) from error
                at = None if times is None else int(times[position])
                self.keep_failed(error, function, event, at, key=self.key_of(slot))
        return made, survived

    def _keep_times(self, slots: Int64s, times: Int64s) -> None:
        starts = starts_of(slots)
        newest = np.maximum.reduceat(times, starts).tolist()
        for slot, time in zip(slots[starts].tolist(), newest):
            held = self.times.get(slot)
            if held is None or time > held:
                self.times.put(slot, time)


class LatestOperator(_RowRolling):
    """``latest``: the newest row of each key, by event time where there is one, among equals the last to come."""

    def __init__(self, step: str, codec: RowCodec, *, key_type: Any = None) -> None:
        super().__init__(step, codec, value_codec(codec.type), key_type, per_row=False)

    def handle(self, port: int, batch: KeyedBatch) -> None:
        chosen = batch.newest()
        slots = batch.slots[chosen].tolist()
        if batch.rows.times is None:
            for slot, row in zip(slots, batch.rows.take(chosen).objects):
                self.column.put(slot, row)
            return
        times = batch.rows.times[chosen].tolist()
        held = [self.times.get(slot) for slot in slots]
        newer = [i for i, (old, new) in enumerate(zip(held, times)) if old is None or new >= old]
        rows = batch.rows.take(chosen[np.array(newer, dtype=np.int64)]).objects
        for i, row in zip(newer, rows):
            self.column.put(slots[i], row)
            self.times.put(slots[i], times[i])


class AggregateOperator(RollingOperator):
    """``aggregate``: declared aggregates in bulk, own ones row by row, all accumulators of a key in one value."""

    def __init__(
        self, step: str, aggs: Mapping[str, Agg[Any]], taken: RowCodec, codec: RowCodec, *, key_fields: Sequence[str],
        key_type: Any = None, per_row: bool = False, carried: Sequence[str] = (), peers: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """With ``per_row``: ``carried`` are columns of each row that its result has; rows of one time that are equal in
        ``peers`` have the result of the last of them."""
        self.aggs = dict(aggs)
        self._carried = {name: taken.index(name) for name in carried}
        self._peers = None if peers is None else [taken.index(name) for name in peers]
        self.folds: list[KeyFold | None] = [make_fold(agg, taken, f"step {step}", name) for name, agg in aggs.items()]
        self.finishing = list(self.folds)
        """How accumulators become results; None for own aggregators."""
        self.codec = codec
        self._keys = ResultKeys(codec, key_fields, key_type)
        self._own: list[tuple[int, Aggregator[Any, Any, Any]]] = [
            (i, agg) for i, agg in enumerate(aggs.values()) if isinstance(agg, Aggregator)
        ]
        super().__init__(step, accumulators_codec(self.aggs, self.folds), key_type, per_row=per_row)

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        if port != COMBINED_PORT:
            super().process(port, rows, keys)
        elif len(rows):
            assert keys is not None, f"step {self.step} is keyed and was given rows without keys"
            count, late = count_arrived(rows)
            self.report.rows_in += count
            self.report.late += late
            self.take(port, rows, keys)

    def handle(self, port: int, batch: KeyedBatch) -> None:
        if port == COMBINED_PORT:
            self._roll_partials(batch)
        elif self.per_row:
            counted, snapshots = self.roll_rows(batch)
            for row in () if self._peers is None else followed_by_peers(counted, self._peers).tolist():
                snapshots[row] = snapshots[row + 1]
            self.give_rows(counted, snapshots)
        else:
            self.roll(batch)

    def _roll_partials(self, batch: KeyedBatch) -> None:
        """Adds rows that were combined before the exchange."""
        starts = batch.starts()
        slots = batch.slots[starts].tolist()
        folds = [fold for fold in self.folds if fold is not None]
        try:
            arrived = ArrivedPartials(folds, batch.rows.columns[1:], starts)
            held = self._take(slots)
            for i, (fold, partials) in enumerate(zip(folds, arrived.of_each(), strict=True)):
                merge_in(held, i, fold, partials)
        except FunctionFailed as error:
            raise self.place(error, None if error.stretch is None else slots[error.stretch]) from None
        keep_newest(held, arrived.times)

    def roll(self, batch: KeyedBatch) -> KeyedBatch:
        """Adds rows to the accumulators of their keys; returns those that count."""
        added: dict[int, list[Any]] = {}
        if self._own and self.keeps_errors:
            batch = self._add_guarded(batch, added)
            if not len(batch.rows):
                return batch
        starts = batch.starts()
        slots = batch.slots[starts].tolist()
        held = self._take(slots)
        for i, fold in enumerate(self.folds):
            if fold is not None:
                try:
                    merge_in(held, i, fold, fold.partials(batch.rows, starts))
                except FunctionFailed as error:
                    raise self.place(error, None if error.stretch is None else slots[error.stretch]) from None
        if added:
            for accs, slot in zip(held, slots):
                for i, _ in self._own:
                    accs[i] = added[slot][i]
        elif self._own:
            self._add_own(held, batch, starts)
        if batch.rows.times is not None:
            keep_newest(held, np.maximum.reduceat(batch.rows.times, starts).tolist())
        return batch

    def _take(self, slots: list[int]) -> list[list[Any]]:
        """The accumulators of each key and the time of its newest row, as lists that may be changed in place."""
        column, size = self.column, len(self.folds) + 1
        values, dirty = column.values, column.dirty
        held: list[list[Any]] = []
        for slot in slots:
            accs = values[slot]
            if accs is UNLOADED:
                accs = column.load(slot)
            if accs is None:
                accs = values[slot] = [None] * size
            dirty[slot] = 1
            held.append(accs)
        return held

    def _add_own(self, held: list[list[Any]], batch: KeyedBatch, starts: Int64s) -> None:
        events = batch.rows.objects
        ends = np.append(starts[1:], len(events)).tolist()
        for accs, start, end in zip(held, starts.tolist(), ends):
            for position in range(start, end):
                try:
                    add_row(self._own, accs, events[position])
                except AddFailed as failed:
                    raise self._stop(failed, batch, position) from failed.error

    def _add_guarded(self, batch: KeyedBatch, added: dict[int, list[Any]]) -> KeyedBatch:
        """Adds rows to own aggregators by key, into ``added``; returns the batch without the rows they refused."""
        events, starts = batch.rows.objects, batch.starts()
        ends = np.append(starts[1:], len(events)).tolist()
        refused: list[int] = []
        for slot, start, end in zip(batch.slots[starts].tolist(), starts.tolist(), ends):
            try:
                added[slot], failures = add_guarded(self._own, self._accumulators(slot), events[start:end])
            except AddFailed as error:
                # A row that was taken a moment ago is refused now: there is no telling what such an aggregator counts.
                raise self._stop(error, batch, start) from error.error
            for place, failed in failures:
                refused.append(start + place)
                self._keep_refused(failed, batch, start + place)
        if not refused:
            return batch
        kept = np.delete(np.arange(len(events)), refused)
        return KeyedBatch(batch.rows.take(kept), batch.slots[kept])

    def _accumulators(self, slot: int) -> list[Any]:
        """The accumulators of a key and the time of its newest row, to look at."""
        stored: list[Any] = self.column.get(slot) or [None] * (len(self.folds) + 1)
        return stored

    def _stop(self, failed: AddFailed, batch: KeyedBatch, position: int) -> Exception:
        row, slot = batch.rows.objects[position], int(batch.slots[position])
        return self.failure(failed.error, failed.aggregator.add, row, slot)

    def _keep_refused(self, failed: AddFailed, batch: KeyedBatch, position: int) -> None:
        row, times, key = batch.rows.objects[position], batch.rows.times, self.key_of(int(batch.slots[position]))
        at = None if times is None else int(times[position])
        self.keep_failed(failed.error, failed.aggregator.add, row, at, key=key)

    def roll_rows(self, batch: KeyedBatch) -> tuple[KeyedBatch, list[list[Any]]]:
        """The rows that count, and the accumulators after each; each row is a stretch of its own, merged one by one."""
        count = len(batch.rows)
        every = np.arange(count)
        partials = [None if fold is None else self._each(fold, batch, every) for fold in self.folds]
        times = None if batch.rows.times is None else batch.rows.times.tolist()
        snapshots: list[list[Any]] = []
        counted: list[int] = []
        for row, slot in enumerate(batch.slots.tolist()):
            accs = self._with_own(batch, row, slot) if self._own else list(self._accumulators(slot))
            if accs is None:
                continue
            for i, fold in enumerate(self.folds):
                parts = partials[i]
                if fold is not None and parts is not None and parts[row] is not None:
                    try:
                        accs[i] = parts[row] if accs[i] is None else fold.merge(accs[i], parts[row])
                    except FunctionFailed as error:
                        raise self.place(error, slot) from None
            if times is not None:
                accs[-1] = times[row] if accs[-1] is None or times[row] > accs[-1] else accs[-1]
            self.column.put(slot, accs)
            snapshots.append(self._frozen(accs, slot) if self._own else accs)
            counted.append(row)
        if len(counted) < count:
            kept = np.array(counted, dtype=np.int64)
            batch = KeyedBatch(batch.rows.take(kept), batch.slots[kept])
        return batch, snapshots

    def piece_end(self, rows: Rows, keys: Keys, end: int) -> int:
        return end if self._peers is None else end_of_peers(rows, keys, end)

    def _each(self, fold: KeyFold, batch: KeyedBatch, every: Int64s) -> list[Any]:
        """What each row amounts to by itself; None where an aggregate does not take it."""
        try:
            partials = fold.partials(batch.rows, every)
        except FunctionFailed as error:
            raise self.place(error, None if error.stretch is None else int(batch.slots[error.stretch])) from None
        spread: list[Any] = [None] * len(every)
        for group, acc in zip(partials.groups, partials.accs):
            spread[group] = acc
        return spread

    def give_rows(self, batch: KeyedBatch, snapshots: list[list[Any]]) -> None:
        """Gives out a result for every row."""
        carried = {name: batch.rows.columns[place] for name, place in self._carried.items()}
        columns = self._columns(batch.slots.tolist(), snapshots, own_done=True, carried=carried)
        self.emit(Rows.of_columns(self.codec, columns, batch.rows.times))

    def _with_own(self, batch: KeyedBatch, row: int, slot: int) -> list[Any] | None:
        """The accumulators of a row's key as a list of their own, the row added to own ones; None: it was refused."""
        accs = list(self._accumulators(slot))
        if not self.keeps_errors:
            try:
                add_row(self._own, accs, batch.rows.objects[row])
            except AddFailed as failed:
                raise self._stop(failed, batch, row) from failed.error
            return accs
        accs, failures = add_guarded(self._own, accs, [batch.rows.objects[row]])
        for refusal in failures:
            self._keep_refused(refusal.failed, batch, row)
        return None if failures else accs

    def _frozen(self, accs: list[Any], slot: int) -> list[Any]:
        """The accumulators as they are now: own ones may change in place with the next row, so their results.

        A result may be the accumulator itself, or hold parts of it, so it is made of a copy.
        """
        frozen = list(accs)
        for i, agg in self._own:
            frozen[i] = self._own_result(agg, deepcopy(accs[i]), slot)
        return frozen

    # --- what comes out

    def results(self, slots: list[int]) -> Rows:
        held = [self.column.get(slot) for slot in slots]
        return Rows.of_columns(self.codec, self._columns(slots, held), stamps_of([accs[-1] for accs in held]))

    def _columns(
        self, slots: list[int], held: list[list[Any]], *, own_done: bool = False,
        carried: Mapping[str, pa.Array] | None = None,
    ) -> list[pa.Array]:  # fmt: skip
        """The columns of the result. ``own_done``: in the place of own accumulators stand their results."""
        made: dict[str, list[Any]] = {}
        for i, (name, agg) in enumerate(self.aggs.items()):
            fold = self.finishing[i]
            if fold is not None:
                made[name] = fold.results([accs[i] for accs in held])
            elif isinstance(agg, Aggregator):
                results = [accs[i] for accs in held]
                made[name] = results if own_done else [self._own_result(agg, *each) for each in zip(results, slots)]
        keys = self._keys.of(pa.array(map(self.state.name, slots), pa.binary()))
        own = {name for name, agg in self.aggs.items() if isinstance(agg, Aggregator)}
        try:
            return encode_columns(self.codec, made, own, len(slots), {**keys, **(carried or {})})
        except FunctionFailed as error:
            raise self.place(error, None if error.stretch is None else slots[error.stretch]) from error

    def _own_result(self, agg: Aggregator[Any, Any, Any], acc: Any, slot: int) -> Any:
        try:
            return agg.result(agg.zero() if acc is None else acc)
        except Exception as error:
            raise self.failure(error, agg.result, None, slot, way_out="") from error
