"""A stream beside which every shard has the same rules: broadcast rows change them, the other rows meet them.

Broadcast rows of an epoch come first. Who is sent what in which order is the engine's business, so all rows wait until
the input has ended; then broadcast rows are handled in the order of the keys they came with, which is the same on all
shards, then the other rows as they came, then timers. So the result depends neither on timing nor on parallelism.

Every shard calls ``on_broadcast`` for every broadcast row. What is the same for all of them must be the same on all of
them: changes of broadcast state, and the rows that ``on_broadcast`` itself gives, which only the first shard sends on.
Digests of both are reported, and the driver compares. What ``for_each_key`` does belongs to keys, so each shard
goes over its own, and its rows are sent on by each.

An ``on_broadcast`` that raises stops the task, or, where the step's ``errors`` are read, becomes one row there and is
undone; but once it has gone over keys it cannot be, and stops the task whoever reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.errors import HeadraceError, StoreError
from headrace.model.batch import Keys, Rows
from headrace.operators.contract import TaskInfo
from headrace.operators.failures import READ_ERRORS, function_failed
from headrace.operators.holding import HELD_BYTES, QueuedRows
from headrace.operators.process import ProcessOperator, rows_of
from headrace.state.broadcast import StoredMapping, canonical
from headrace.state.cells import EntriesColumn
from headrace.state.fitting import declared_codec
from headrace.state.handles import BroadcastContext, BroadcastState
from headrace.state.overlay import ValueColumn
from headrace.state.ttl import RowExpiry

if TYPE_CHECKING:
    from headrace.model.report import StepReport
    from headrace.model.rows import RowCodec
    from headrace.state.handles import Counter, Side, StateDecl
    from headrace.state.shard import ShardState

ROWS: Final = "!rows"
"""Stands for the rows of ``on_broadcast`` among the digests of states."""
BROADCAST: Final = 1
"""The port of broadcast rows."""
_PIECE_ROWS: Final = 4096
"""Broadcast rows that are handled before what they gave is sent on."""


class _OutOfReach:
    """Stands for a state of a key while no key is at hand."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: Any) -> Any:
        raise RuntimeError(
            f"{self._name} belongs to a key, and on_broadcast has none: use ctx.for_each_key(self.{self._name}, fn), "
            "and in fn what it is given"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._refuse()

    __getitem__ = __setitem__ = __delitem__ = __contains__ = __iter__ = __len__ = _refuse


class BroadcastOperator(ProcessOperator):
    """Runs ``on_broadcast`` for every broadcast row, then ``on_event`` and ``on_timer`` as a process function does."""

    def __init__(
        self,
        step: str,
        function: Any,
        decls: Sequence[StateDecl],
        codec: RowCodec,
        *,
        key_type: Any = None,
        keyed: bool = True,
    ) -> None:
        super().__init__(step, function, [decl for decl in decls if decl.kind != "broadcast"], codec, key_type=key_type)
        self._keyed = keyed
        self._shared_decls = [decl for decl in decls if decl.kind == "broadcast"]
        self._shared_codecs = {
            decl.name: declared_codec(decl.value_type, what=f"the state {decl.name!r}", where=f"step {step}")
            for decl in self._shared_decls
        }
        self._kept: dict[str, StoredMapping] = {}
        """What was read of broadcast states, from task to task."""
        self.rules_context: BroadcastContext[Any] = BroadcastContext(self._visit)

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        shared = self.state.shared
        self._tables = [
            shared.table(decl.name, self._shared_codecs[decl.name], decl.args[0], self._kept)
            for decl in self._shared_decls
        ]
        vars(self.function).update({table.name: BroadcastState[Any, Any](table) for table in self._tables})
        context = self.rules_context
        context.now, context.epoch, context.watermark = self.context.now, task.epoch, self.context.watermark
        columns: list[ValueColumn | EntriesColumn] = [*self.bound.values, *self.bound.entries]
        self._columns = {column.table: column for column in columns}
        self._rules: list[tuple[Rows, pa.BinaryArray]] = []
        self._backlog = QueuedRows(min(HELD_BYTES, self.state.limit_bytes))
        self._said = BroadcastOutput()

    # --- rows wait for the end of the input

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        if port != BROADCAST:
            super().process(port, rows, keys)
        elif len(rows):
            assert keys is not None, f"step {self.step} was given broadcast rows without their order"
            self._rules.append((rows, keys.encoded))

    def take(self, port: int, rows: Rows, keys: Keys) -> None:
        self._backlog.add(rows, keys)

    def finish(self) -> Iterator[None]:
        yield from self._broadcast()
        for rows, keys in self._backlog.drain():
            if self._keyed:
                super().take(0, rows, keys)
            else:
                self._handle_unkeyed(rows)
            yield
        yield from super().finish()

    def _handle_unkeyed(self, rows: Rows) -> None:
        """Rows without keys have no state to make ready, and none to bind."""
        context, on_event = self.context, self.function.on_event
        context._key = None
        ats: Iterable[int] = repeat(self.task.clock_us) if rows.times is None else rows.times.tolist()
        made: list[Any] = []
        made_at: list[int] = []
        for event, at in zip(rows.objects, ats):
            context.timestamp = at  # type: ignore[assignment]
            before, saved = len(made), self.bound.save(0)
            try:
                made.extend(rows_of(on_event(event, context)))
            except Exception as error:
                if not self.keeps_errors or isinstance(error, StoreError):
                    raise self._failure(error, on_event, event, None) from error
                self.bound.restore(0, saved)
                del made[before:]
                self.keep_failed(error, on_event, event, at)
            made_at.extend([at] * (len(made) - before))
        self._give(made, None if rows.times is None else made_at)
        self.give_failed()

    # --- broadcast rows

    def _broadcast(self) -> Iterator[None]:
        for rows in self._rules_in_order():
            self._handle_broadcast(rows)
            yield

    @property
    def _is_first(self) -> bool:
        return self.task.shard == 0

    def _rules_in_order(self) -> Iterator[Rows]:
        """Broadcast rows of this epoch, some at a time, in an order that is the same on all shards."""
        rules, self._rules = self._rules, []
        if not rules:
            return
        if self._is_first:
            # Every shard gets all of them; the step as a whole got them once.
            self.report.rows_in += sum(len(rows) for rows, _ in rules)
        codec = rules[0][0].codec
        order = pa.concat_arrays([_whole(encoded) for _, encoded in rules])
        columns = [
            pa.concat_arrays([_whole(part) for part in parts]) for parts in zip(*(rows.columns for rows, _ in rules))
        ]
        times = None
        if rules[0][0].times is not None:
            times = np.concatenate([rows.times for rows, _ in rules])
        whole = Rows.of_columns(codec, columns, times)
        positions = pc.sort_indices(order).to_numpy()
        for start in range(0, len(positions), _PIECE_ROWS):
            yield whole.take(positions[start : start + _PIECE_ROWS].astype(np.int64))

    def _handle_broadcast(self, rows: Rows) -> None:
        ats: Iterable[int] = repeat(self.task.clock_us) if rows.times is None else rows.times.tolist()
        said = self._said
        said.timed = rows.times is not None
        real = {name: self.bound.by_name[name] for name in self._columns}
        function = vars(self.function)
        function.update({name: _OutOfReach(name) for name in real})
        try:
            for event, at in zip(rows.objects, ats):
                self.context.timestamp = self.rules_context.timestamp = at  # type: ignore[assignment]
                self._call_broadcast(event, at)
        finally:
            function.update(real)
        self._send_on()

    def _call_broadcast(self, event: Any, at: int) -> None:
        said, on_broadcast = self._said, self.function.on_broadcast
        before = said.begin(self.bound.sides, self.bound.counters)
        self._set_writable(True)
        for table in self._tables:
            table.begin()
        try:
            made = list(rows_of(on_broadcast(event, self.rules_context)))
        except HeadraceError:
            raise
        except Exception as error:
            if said.visited or not self.keeps_errors:
                way_out = "" if said.visited else READ_ERRORS
                raise function_failed(
                    error, step=self.step, function=on_broadcast, row=event, way_out=way_out
                ) from error
            for table in self._tables:
                table.undo()
            said.undo(before, self.bound.sides)
            if self._is_first:
                self.keep_failed(error, on_broadcast, event, at)
            return
        finally:
            self._set_writable(False)
            if not self._is_first:
                said.forget_counts(before, self.bound.counters)
        said.rows.extend(made)
        said.times.extend([at] * len(made))

    def _set_writable(self, writable: bool) -> None:
        for table in self._tables:
            table.writable = writable

    def _send_on(self) -> None:
        """Sends on what the shards said alike, from the first of them."""
        said = self._said
        said.add_to_digest(self.bound.sides)
        if not self._is_first:
            said.rows, said.times = [], []
            for side in self.bound.sides:
                if side._rows is not None:
                    side._rows, side._times = [], []
        self._give(said.rows, said.times if said.timed else None)
        said.rows, said.times = [], []
        self.give_failed()

    # --- going over keys

    def _visit(self, state: Any, fn: Callable[[Any, Any], object]) -> None:
        name = state._name if isinstance(state, _OutOfReach) else None
        if name is None:
            raise RuntimeError(
                "for_each_key goes over a state by key of this function: ctx.for_each_key(self.seen, fn); "
                f"it was given {state!r:.100}"
            )
        column, handle, said = self._columns[name], self.bound.by_name[name], self._said
        said.visited = True
        aside = Aside(said, self.bound.sides, self.bound.counters)
        self._set_writable(False)
        try:
            for hashes, keys in self.state.keys_with(column):
                slots = self.state.enter(hashes, keys)
                for slot in slots.tolist():
                    if _has_something(column, slot):
                        self._bind(slot)
                        self._call_visitor(fn, handle)
                self._give(said.own_rows, said.own_times if said.timed else None)
                said.own_rows, said.own_times = [], []
                self.state.relieve(len(slots))
        finally:
            self._set_writable(True)
            aside.put_back()

    def _call_visitor(self, fn: Callable[[Any, Any], object], handle: Any) -> None:
        said = self._said
        try:
            result = fn(self.context.key, handle)
            if isinstance(result, GeneratorType | list):
                made = list(result)
                said.own_rows.extend(made)
                said.own_times.extend([self.context.timestamp] * len(made))  # type: ignore[list-item]
        except HeadraceError:
            raise
        except Exception as error:
            raise function_failed(error, step=self.step, function=fn, key=self.context.key) from error

    def end(self) -> StepReport:
        report = super().end()
        if self._said.digest is not None:
            report.broadcast = {ROWS: self._said.digest.hexdigest()}
        return report


def _whole(array: Any) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _has_something(column: ValueColumn | EntriesColumn, slot: int) -> bool:
    if isinstance(column, ValueColumn):
        if column.get(slot) is None:
            return False
        expiry = column.expiry
        return not isinstance(expiry, RowExpiry) or not expiry.is_gone(column.expires[slot])
    return next(column.entries(slot), None) is not None


# --- what ``on_broadcast`` gives: rows that all shards give alike, of which one is sent on, and rows that belong to
# keys
# Rows, side outputs and counters are each kept apart: what a call itself says, and what is said while it goes over
# keys. A digest of the former is what shards are compared by.


class CallMark(NamedTuple):
    """How much there was when a call began."""

    side_rows: list[int]
    counts: list[int]


class BroadcastOutput:
    """What the calls of one task gave."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.times: list[int] = []
        self.own_rows: list[Any] = []
        """Of keys …"""
        self.own_times: list[int] = []
        self.timed = False
        """Whether broadcast rows have event times."""
        self.visited = False
        """Whether the call at hand has gone over keys."""
        self.digest: Any = None
        self._own_counts: list[int] = []

    def begin(self, sides: Sequence[Side[Any]], counters: Sequence[Counter]) -> CallMark:
        """A call begins."""
        self.visited = False
        self._own_counts = [0] * len(counters)
        return CallMark([len(side._rows or ()) for side in sides], [counter.count for counter in counters])

    def undo(self, mark: CallMark, sides: Sequence[Side[Any]]) -> None:
        """The call failed: what it emitted to side outputs is taken back."""
        for side, count in zip(sides, mark.side_rows):
            if side._rows is not None:
                del side._rows[count:]
                del side._times[count:]

    def forget_counts(self, mark: CallMark, counters: Sequence[Counter]) -> None:
        """One shard counts what every shard counts; what belongs to keys is counted by each."""
        for counter, count, own in zip(counters, mark.counts, self._own_counts):
            counter.count = count + own

    def add_to_digest(self, sides: Sequence[Side[Any]]) -> None:
        """Takes into account what waits to be sent on."""
        said = [*(("", row) for row in self.rows), *((side.name, row) for side in sides for row in side._rows or ())]
        if said and self.digest is None:
            self.digest = xxhash.xxh3_128()
        for tag, row in said:
            content = canonical(row)
            self.digest.update(tag.encode() + len(content).to_bytes(8, "big") + content)


class Aside:
    """While keys are gone over, side outputs and counters are theirs: what was there before waits here."""

    def __init__(self, said: BroadcastOutput, sides: Sequence[Side[Any]], counters: Sequence[Counter]) -> None:
        self._said = said
        self._sides = sides
        self._counters = counters
        self._held = [(side._rows, side._times) for side in sides]
        self._counts = [counter.count for counter in counters]
        for side in sides:
            if side._rows is not None:
                side._rows, side._times = [], []

    def put_back(self) -> None:
        for side, (rows, times) in zip(self._sides, self._held):
            side._rows, side._times = rows, times
        for i, (counter, count) in enumerate(zip(self._counters, self._counts)):
            self._said._own_counts[i] += counter.count - count
