"""A function's declarations made real for one task: columns in the shard's state, and the handles the function sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import ProgramError
from headrace.model.batch import Rows
from headrace.model.rows import RowCodec, codec_of
from headrace.model.values import ValueCodec
from headrace.operators.contract import SIDE, Outlet
from headrace.state.cells import EntriesColumn
from headrace.state.entry_handles import ListState, MapState
from headrace.state.fitting import declared_codec
from headrace.state.handles import (
    AggregatingState,
    Context,
    Counter,
    ReducingState,
    Side,
    StateDecl,
    Timer,
    Timers,
    WallTimer,
)
from headrace.state.overlay import ValueColumn
from headrace.state.shard import EVENT_DUE, WALL_DUE
from headrace.state.subs import LIST_SUB, TIME_SUB, SubCodec, map_sub
from headrace.state.ttl import Expiry, RowExpiry
from headrace.state.value_handles import ValueState, value_handle

if TYPE_CHECKING:
    from headrace.operators.contract import TaskInfo
    from headrace.state.shard import ShardState

_STORED = ("value", "list", "map", "reducing", "aggregating", "timer", "wall_timer", "timers")

Saved = tuple[list[tuple[Any, int, int | None]], list[int]]


@dataclass
class BoundState:
    """The handles of one function in one task."""

    by_name: dict[str, Any] = field(default_factory=dict)
    """What the function's instance gets under each declared name."""
    handles: list[Any] = field(default_factory=list)
    """Everything with a ``_slot`` to be moved from key to key."""
    timers: list[tuple[Timer | Timers, str]] = field(default_factory=list)
    """Timers with the due table they are indexed in, as declared."""
    sides: list[Side[Any]] = field(default_factory=list)
    side_codecs: dict[str, RowCodec] = field(default_factory=dict)
    counters: list[Counter] = field(default_factory=list)
    values: list[ValueColumn] = field(default_factory=list)
    entries: list[EntriesColumn] = field(default_factory=list)

    def open_sides(self, outlets: Mapping[str, Outlet]) -> None:
        """Side outputs that nobody reads keep nothing."""
        for side in self.sides:
            if SIDE + side.name in outlets:
                side._rows = []

    def give_sides(self, outlets: Mapping[str, Outlet], *, timed: bool) -> None:
        """Sends on what the function emitted to its side outputs."""
        for side in self.sides:
            if side._rows:
                rows, times = side._rows, side._times
                side._rows, side._times = [], []
                codec = self.side_codecs[side.name]
                outlets[SIDE + side.name](Rows.of_objects(codec, rows, times if timed else None))

    def counts(self) -> dict[str, int]:
        """What the function's counters counted in this task."""
        return {counter.name: counter.count for counter in self.counters if counter.count}

    def save(self, slot: int) -> Saved:
        """Remembers a key before a call that may have to be undone."""
        for column in self.entries:
            column.journal = []
        return [column.save(slot) for column in self.values], [len(side._rows or ()) for side in self.sides]

    def restore(self, slot: int, saved: Saved) -> None:
        """Undoes what happened to the key, and to side outputs, since it was saved."""
        for value_column, value in zip(self.values, saved[0]):
            value_column.restore(slot, value)
        for column in self.entries:
            column.undo()
        for side, count in zip(self.sides, saved[1]):
            if side._rows is not None:
                del side._rows[count:]
                del side._times[count:]


def value_codecs(decls: Sequence[StateDecl], step: str) -> dict[str, ValueCodec]:
    """How the values of each declared state are stored; refuses types that cannot be."""
    codecs: dict[str, ValueCodec] = {}
    for decl in decls:
        if decl.kind in _STORED:
            codecs[decl.name] = declared_codec(decl.value_type, what=f"the state {decl.name!r}", where=f"step {step}")
    return codecs


def bind_declarations(
    decls: Sequence[StateDecl],
    codecs: Mapping[str, ValueCodec],
    state: ShardState,
    task: TaskInfo,
    step: str,
    context: Context[Any],
    *,
    in_order: bool = False,
) -> BoundState:
    """Columns and handles for a task, and the clocks of the function's context.

    ``in_order``: the function sees rows in the order of their time, so that event time goes on from row to row.
    """
    context.now = task.clock_us  # type: ignore[assignment]
    context.epoch = task.epoch
    context.watermark = task.starts_at(step)  # type: ignore[assignment]
    context.timestamp = task.clock_us  # type: ignore[assignment]
    bound = BoundState()
    for decl in decls:
        if decl.kind == "side":
            bound.by_name[decl.name] = side = Side[Any](decl.name, context)
            bound.sides.append(side)
            bound.side_codecs[decl.name] = codec_of(decl.args[0])
        elif decl.kind == "counter":
            bound.by_name[decl.name] = counter = Counter(decl.name)
            bound.counters.append(counter)
        else:
            expiry = _expiry(decl, task, step, context, in_order=in_order)
            if decl.kind in ("list", "map", "timers"):
                _bind_entries(bound, decl, codecs[decl.name], state, task, expiry)
            else:
                _bind_value(bound, decl, codecs[decl.name], state, expiry)
    return bound


def _expiry(decl: StateDecl, task: TaskInfo, step: str, context: Context[Any], *, in_order: bool) -> Expiry | None:
    if decl.ttl is None:
        ended_us = task.ended_ttl.get(step, {}).get(decl.name)
        return None if ended_us is None else Expiry.ended(ended_us)
    kind = RowExpiry if in_order and decl.ttl.clock == "event" else Expiry
    watermark_us = task.starts_at(step)
    return kind(decl.ttl, clock_us=task.clock_us, watermark_us=watermark_us, row=context)  # type: ignore[arg-type]


def _bind_value(
    bound: BoundState, decl: StateDecl, codec: ValueCodec, state: ShardState, expiry: Expiry | None
) -> None:
    column = state.values(decl.name, codec, expiry)
    bound.values.append(column)
    if decl.kind in ("timer", "wall_timer"):
        on_wall = decl.kind == "wall_timer"
        timer = WallTimer(decl.name, column) if on_wall else Timer(decl.name, column)
        due_table = WALL_DUE if on_wall else EVENT_DUE
        state.indexes.add_timer(due_table, column)
        bound.timers.append((timer, due_table))
        bound.handles.append(timer)
        bound.by_name[decl.name] = timer
        return
    held: ValueState[Any] = value_handle(column)
    bound.handles.append(held)
    bound.by_name[decl.name] = make_value_handle(decl, held)


def make_value_handle(decl: StateDecl, held: Any) -> Any:
    """The handle of a state that keeps one value; ``held``: a ValueState, or what looks like one."""
    if decl.kind == "value":
        return held
    if decl.kind == "reducing" and decl.reduce is not None:
        return ReducingState(held, decl.reduce)
    if decl.kind == "aggregating" and decl.aggregator is not None:
        return AggregatingState[Any, Any](held, decl.aggregator)
    raise ProgramError(f"the state {decl.name!r} is not fully declared", where=decl.name, found=f"kind {decl.kind!r}")


def _bind_entries(
    bound: BoundState, decl: StateDecl, codec: ValueCodec, state: ShardState, task: TaskInfo, expiry: Expiry | None
) -> None:
    if decl.kind == "timers":
        column = state.entries(decl.name, codec, TIME_SUB)
        handle: Any = Timers(decl.name, column)
        state.indexes.add_timer(EVENT_DUE, column)
        bound.timers.append((handle, EVENT_DUE))
    else:
        column = state.entries(decl.name, codec, entry_names(decl), expiry, appends=decl.kind == "list")
        handle = make_entries_handle(decl, column, task.epoch)
    bound.entries.append(column)
    bound.handles.append(handle)
    bound.by_name[decl.name] = handle


def entry_names(decl: StateDecl) -> SubCodec:
    """How entries of a list or map are named; only keys that the annotation of a map allows are stored."""
    if decl.kind == "list":
        return LIST_SUB
    return map_sub(decl.args[0])._replace(fits=declared_codec(decl.args[0]))


def make_entries_handle(decl: StateDecl, column: Any, epoch: int) -> Any:
    """The handle of a list or map; ``column``: its entries, or what looks like them."""
    return ListState[Any](column, decl.max_len, epoch) if decl.kind == "list" else MapState[Any, Any](column)
