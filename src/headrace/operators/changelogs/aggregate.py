"""``aggregate`` over a changelog: rows are added to what is kept of their group, and taken out of it again.

What is kept of a group, in the table ``value``: the results, under their names, as whoever reads the state wants them;
and under marked names what they are made of (`headrace.aggregates.retract`), the number of rows, and the time of the
newest row that came.

An epoch's rows are a signed multiset: those that come and those that go are put together apart from each other, and one
is taken out of the other when all are in. So the order in which they came does not matter. Lists are kept in an order
of their values for the same reason. A group without rows is gone; less than none is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import structs

from headrace.aggregates.accumulate import TIME_NOTE
from headrace.aggregates.declare import Agg
from headrace.aggregates.list_rules import plain_values, values_of
from headrace.aggregates.retract import Retractable, retractable
from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s, Rows
from headrace.model.job import VALUE_TABLE
from headrace.model.row_kind import DELETE, INSERT, takes_back
from headrace.model.shapes import annotation_of
from headrace.model.values import ValueCodec, value_codec
from headrace.operators.changelogs.errors import below_zero
from headrace.operators.contract import TaskInfo
from headrace.operators.keyed import KeyedBatch, KeyedOperator, stamps_of, starts_of
from headrace.operators.result_keys import ResultKeys

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.overlay import ValueColumn
    from headrace.state.shard import ShardState

_EMIT_ROWS: Final = 65_536
_NOTES: Final = ("!rows", "!-rows", TIME_NOTE)
"""Names of what is kept beside the aggregates: how many rows came, and go with this epoch, and the newest time."""
Cells = tuple[Any, ...]
"""What one aggregate keeps of one group, a cell per column; cells of lists are lists of values, or of tuples."""


class _Fold:
    """One aggregate of one step."""

    def __init__(self, name: str, agg: Agg[Any], taken: RowCodec, where: str) -> None:
        self.name = name
        self.agg: Retractable = retractable(name, agg, taken, where)
        self.type: Any = tuple[tuple(_cell_type(field.type) for field in self.agg.fields)]  # type: ignore[misc]
        self.nothing: Cells = tuple([] if pa.types.is_list(field.type) else 0 for field in self.agg.fields)

    def partials(self, rows: Rows, starts: Int64s) -> list[Cells]:
        """What each stretch of rows comes to by itself."""
        merged = self.agg.merge(self.agg.lift(rows), starts)
        return list(zip(*map(_cells_of, merged)))

    def plus(self, older: Cells | None, newer: Cells) -> Cells:
        return newer if older is None else tuple(self.agg.plus(older, newer))

    def settle(self, came: Cells | None, gone: Cells | None) -> Cells:
        """What is left; lists in the order of their values."""
        kept: Sequence[Any] = self.nothing if came is None else came
        if gone is not None:
            kept = self.agg.retract_cells(kept, gone)
        return tuple(sorted(cell, key=_rank) if isinstance(cell, list) else cell for cell in kept)


class RetractingOperator(KeyedOperator):
    """One result per epoch for each group that changed; of a group that is gone the key, in a row that goes."""

    column: ValueColumn

    def __init__(
        self, step: str, aggs: Mapping[str, Agg[Any]], taken: RowCodec, codec: RowCodec, *, key_fields: Sequence[str],
        key_type: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(step, key_type)
        self.codec = codec
        self._keys = ResultKeys(codec, key_fields, key_type)
        self._folds = [_Fold(name, agg, taken, f"step {step}") for name, agg in aggs.items()]
        self._stored = _stored_codec(self._folds)
        # Places in what is kept of a group: results, what came, what goes with this epoch; then three numbers.
        count = len(self._folds)
        self._came, self._gone = count, 2 * count
        self._rows, self._less, self._time = 3 * count, 3 * count + 1, 3 * count + 2

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.column = self.state.values(VALUE_TABLE, self._stored, track=True)

    def handle(self, port: int, batch: KeyedBatch) -> None:
        # Where no row says otherwise, all come in: a step may be given its rows from outside.
        kinds = batch.rows.kinds
        back = np.zeros(len(batch.rows), np.bool_) if kinds is None else takes_back(kinds)
        for mask, place, counted in ((~back, self._came, self._rows), (back, self._gone, self._less)):
            mine = np.flatnonzero(mask)
            if len(mine):
                self._put_together(batch.rows.take(mine), batch.slots[mine], place, counted)

    def _put_together(self, rows: Rows, slots: Int64s, place: int, counted: int) -> None:
        starts = starts_of(slots)
        groups = slots[starts].tolist()
        held = [self._take(slot) for slot in groups]
        for i, fold in enumerate(self._folds, place):
            try:
                for kept, part in zip(held, fold.partials(rows, starts)):
                    kept[i] = fold.plus(kept[i], part)
            except FunctionFailed as error:
                raise self.place(error, None if error.stretch is None else groups[error.stretch]) from None
        for kept, count in zip(held, np.diff(np.append(starts, len(slots))).tolist()):
            kept[counted] = (kept[counted] or 0) + count
        if rows.times is not None and place == self._came:
            for kept, time in zip(held, np.maximum.reduceat(rows.times, starts).tolist()):
                kept[self._time] = time if kept[self._time] is None else max(time, kept[self._time])

    def _take(self, slot: int) -> list[Any]:
        """What is kept of a group, to be changed in place."""
        kept: list[Any] | None = self.column.get(slot)
        if kept is None:
            kept = [None] * (self._time + 1)
        self.column.put(slot, kept)
        return kept

    def finish(self) -> Iterator[None]:
        for slots in self.state.changed(self.column):
            for start in range(0, len(slots), _EMIT_ROWS):
                self._give(slots[start : start + _EMIT_ROWS].tolist())
                yield

    def results(self, slots: list[int]) -> Rows:
        """The rows that hold for these groups, each of which has one."""
        held = [self.column.get(slot) for slot in slots]
        times = stamps_of([None if kept is None else kept[self._time] for kept in held])
        return Rows.of_columns(self.codec, self._columns(slots, held), times)

    def _give(self, slots: list[int]) -> None:
        held = [self._settle(slot) for slot in slots]
        kinds = np.array([DELETE if kept is None else INSERT for kept in held], np.int8)
        times = stamps_of([None if kept is None else kept[self._time] for kept in held])
        self.emit(Rows.of_columns(self.codec, self._columns(slots, held), times, kinds))

    def _settle(self, slot: int) -> list[Any] | None:
        """Takes out what goes, and makes the results; None: nothing is left."""
        kept: list[Any] | None = self.column.get(slot)
        if kept is None:
            return None
        rows = (kept[self._rows] or 0) - (kept[self._less] or 0)
        if rows < 0:
            raise below_zero(self.step, -rows, self.key_of(slot))
        try:
            for i, fold in enumerate(self._folds):
                cells = fold.settle(kept[self._came + i], kept[self._gone + i])
                kept[self._came + i], kept[self._gone + i] = cells, None
                kept[i] = fold.agg.read_cells(cells)
        except FunctionFailed as error:
            raise self.place(error, slot) from None
        if not rows:
            self.column.put(slot, None)
            return None
        kept[self._rows], kept[self._less] = rows, None
        self.column.put(slot, kept)
        return kept

    def _columns(self, slots: list[int], held: list[list[Any] | None]) -> list[pa.Array]:
        keys = self._keys.of(pa.array(map(self.state.name, slots), pa.binary()))
        places = {fold.name: i for i, fold in enumerate(self._folds)}
        columns = []
        for name, column in self.codec.columns.items():
            if name in places:
                results = [None if kept is None else kept[places[name]] for kept in held]
                columns.append(pa.array(results, column.arrow))
            elif name in keys:
                columns.append(keys[name])
            else:
                columns.append(column.encode([self.codec.defaults.get(name)] * len(slots)))
        return columns


def _cells_of(column: pa.Array) -> list[Any]:
    """A column, one cell for each group, as Python values."""
    if not pa.types.is_list(column.type):
        return plain_values(column)
    flat, counts = values_of(column)
    if pa.types.is_struct(flat.type):
        values: list[Any] = list(zip(*(plain_values(flat.field(i)) for i in range(flat.type.num_fields))))
    else:
        values = plain_values(flat)
    ends = np.cumsum(counts).tolist()
    return [values[end - count : end] for end, count in zip(ends, counts.tolist())]


def _cell_type(kind: pa.DataType) -> Any:
    if not pa.types.is_list(kind):
        return _value_type(kind)
    element = kind.value_type
    if pa.types.is_struct(element):
        return list[tuple[tuple(_value_type(each.type) for each in element)]]  # type: ignore[misc]
    return list[_value_type(element)]  # type: ignore[misc]


def _value_type(kind: pa.DataType) -> Any:
    """The Python type of a plain value; times are numbers."""
    if pa.types.is_timestamp(kind):
        return int | None
    # What has parts of its own comes back as it went.
    return Any if pa.types.is_nested(kind) else annotation_of(kind)


def _rank(value: Any) -> Any:
    """An order of all values of one column; not-a-number stands behind all numbers, None before them."""
    if isinstance(value, tuple):
        return tuple(map(_rank, value))
    if isinstance(value, list | dict):
        return repr(value)
    return (0,) if value is None else (2,) if value != value else (1, value)


def _marked(mark: str, name: str) -> str:
    """The name of what an aggregate is made of; of one that is called ``rows`` or ``time`` not that of a note."""
    return f"{mark}{name}!" if f"{mark}{name}" in _NOTES else f"{mark}{name}"


def _stored_codec(folds: Sequence[_Fold]) -> ValueCodec:
    """What is kept of a group: in memory a list, stored under names, so that aggregates may come and go."""
    named: list[tuple[str, Any]] = [(fold.name, Any) for fold in folds]
    named += [(_marked(mark, fold.name), fold.type | None) for mark in ("!", "!-") for fold in folds]
    named += [(name, int | None) for name in _NOTES]
    fields: Any = [(f"field{i}", kind, msgspec.field(default=None, name=name)) for i, (name, kind) in enumerate(named)]
    stored = msgspec.defstruct("RetractableGroup", fields, gc=False, omit_defaults=True)
    inner = value_codec(stored)
    return ValueCodec(lambda kept: inner.encode(stored(*kept)), lambda raw: list(structs.astuple(inner.decode(raw))))
