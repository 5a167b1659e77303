"""Rows of a state, as exports write them and people have them, into tables of the step that keeps it.

What a state is says what the program declares of it (`DeclaredState`) and, where only the operator knows (slices of
windows, times to live, the index of timers), the operator itself, whose task has begun and is given no rows.

Partial aggregates are made of results where results say enough: counts, sums, extremes, collected values. Where they do
not (an average has forgotten of how many), columns hold the parts, by the names under which they are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ProgramError
from headrace.model.ids import MAX_TIME
from headrace.model.keys import hash_encoded
from headrace.model.time_shape import DATETIME, TIME, TimeShape, time_writer
from headrace.model.type_json import key_annotation
from headrace.model.type_shape import TypeShape
from headrace.read.columns import EXPIRES_AT, spread
from headrace.state.format import DUE, ENTRIES, VALUE, TableData
from headrace.state.subs import LIST_SUB
from headrace.transfer.keys_in import KeyColumns
from headrace.transfer.values_in import ValueColumns, read_times

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.state.shard import ShardState

ENTRY: Final = "entry"
INDEX: Final = "index"
AT: Final = "at"
_BIAS: Final = np.uint64(1 << 63)
_NOTHING: Final = msgspec.msgpack.encode(None)
SINGLE: Final = frozenset({"value", "reducing", "aggregating", "row", "broadcast"})
"""Kinds of states with one value for each key."""
_ITSELF: Final = frozenset({"count", "sum", "min", "max", "collect", "own"})
_DISTINCT: Final = frozenset({"count_distinct", "sum_distinct", "avg_distinct"})
"""Kinds of aggregates that keep what may stand in one column: their result, or the different values."""


class FirstTimes(NamedTuple):
    """The times with which a new store begins."""

    clock_us: int
    """Now, from which entries live."""
    watermark_us: int
    """How far event time has come: timers count as fired up to it."""


class StateTarget(NamedTuple):
    """A state of the program, to be filled."""

    address: str
    step: str
    table: str
    declared: DeclaredState
    state: ShardState
    """Of the operator that keeps it."""
    keys: KeyColumns
    times: FirstTimes


class StateImport:
    """Base: what all kinds of states have in common."""

    def __init__(self, target: StateTarget) -> None:
        self.target = target
        self.where = f"state {target.address}"
        self.rows = 0
        self.next_due_us: int | None = None
        """The earliest timer on the wall clock."""

    def tables(self, batch: pa.RecordBatch) -> list[TableData]:
        """The rows of a batch as rows of tables."""
        try:
            keys = self.target.keys.encode(batch, self.rows)
            made = self.make(batch, {"hash": pa.array(hash_encoded(keys)), "key": keys})
        except (pa.ArrowException, OverflowError) as error:
            raise ProgramError(
                "a column holds values that do not fit its type",
                where=f"{self.where}, rows from {self.rows:,}",
                expected="times within microseconds, whole numbers within 64 bits",
                found=str(error),
                next_move="cast the column",
            ) from error
        self.rows += batch.num_rows
        return made

    def make(self, batch: pa.RecordBatch, base: dict[str, pa.Array]) -> list[TableData]:
        raise NotImplementedError

    def beside(self, batch: pa.RecordBatch, *more: str) -> tuple[str, ...]:
        """Columns that are none of the value."""
        return (*self.target.keys.names_in(batch.schema), *more)

    def column(self, batch: pa.RecordBatch, name: str, what: str) -> pa.Array:
        if name not in batch.schema.names:
            raise ProgramError(
                f"no column holds {what}", where=self.where, expected=f"a column {name!r}",
                found=", ".join(batch.schema.names), next_move="rename the column",
            )  # fmt: skip
        return batch.column(name)

    def expiry(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """When rows expire: as they say, or where they say nothing counted from now on the wall clock."""
        if EXPIRES_AT in batch.schema.names:
            return {"expires": read_times(batch.column(EXPIRES_AT), self.where, EXPIRES_AT, self.rows)}
        expiry = self.target.state.expiry_of(self.target.table)
        deadline = None if expiry is None else expiry.deadline()
        return {} if deadline is None else {"expires": pa.array(np.full(batch.num_rows, deadline))}


class SingleRows(StateImport):
    """One value per key."""

    def __init__(self, target: StateTarget) -> None:
        super().__init__(target)
        declared = target.declared
        self.values = ValueColumns(self.where, declared.type, declared.times)

    def make(self, batch: pa.RecordBatch, base: dict[str, pa.Array]) -> list[TableData]:
        values = self.values.encode(batch, self.beside(batch), self.rows)
        return [TableData(self.target.table, VALUE, pa.table({**base, "value": values, **self.expiry(batch)}))]


class MapRows(StateImport):
    """Entries of maps."""

    def __init__(self, target: StateTarget) -> None:
        super().__init__(target)
        shape, times = target.declared.type, target.declared.times
        names = None if shape is None else shape.keys
        self.names = KeyColumns(self.where, key_annotation(names, None if times is None else times.names), (ENTRY,))
        items = None if shape is None else shape.items
        self.values = ValueColumns(self.where, items, None if times is None else times.items)

    def make(self, batch: pa.RecordBatch, base: dict[str, pa.Array]) -> list[TableData]:
        self.column(batch, ENTRY, "the names of entries")
        subs = self.names.encode(batch.select([ENTRY]), self.rows)
        values = self.values.encode(batch, self.beside(batch, ENTRY), self.rows)
        columns = {**base, "sub": subs, "value": values, **self.expiry(batch)}
        return [TableData(self.target.table, ENTRIES, pa.table(columns))]


class ListRows(StateImport):
    """Elements of lists, in the order of their index, or as they come."""

    def __init__(self, target: StateTarget) -> None:
        super().__init__(target)
        shape, times = target.declared.type, target.declared.times
        items = None if shape is None else shape.items
        self.values = ValueColumns(self.where, items, None if times is None else times.items)

    def make(self, batch: pa.RecordBatch, base: dict[str, pa.Array]) -> list[TableData]:
        if INDEX in batch.schema.names:
            places = batch.column(INDEX).cast(pa.int64()).to_pylist()
        else:
            places = range(self.rows, self.rows + batch.num_rows)
        subs = pa.array(list(map(LIST_SUB.encode, places)), pa.binary())
        values = self.values.encode(batch, self.beside(batch, INDEX), self.rows)
        columns = {**base, "sub": subs, "value": values, **self.expiry(batch)}
        return [TableData(self.target.table, ENTRIES, pa.table(columns))]


class TimerRows(StateImport):
    """Times of timers; those of a ``Timer`` stand in ``value`` or ``at``, those of ``Timers`` in ``at``."""

    def make(self, batch: pa.RecordBatch, base: dict[str, pa.Array]) -> list[TableData]:
        target = self.target
        name = AT if AT in batch.schema.names or target.declared.kind == "timers" else "value"
        times = read_times(self.column(batch, name, "the times"), self.where, name, self.rows)
        if times.null_count:
            row = self.rows + pc.index(times.is_null(), True).as_py()
            raise ProgramError(
                "a timer has no time", where=f"{self.where}, row {row:,}", expected=f"a time in the column {name}",
                found="null", next_move="leave such rows out",
            )  # fmt: skip
        if target.declared.kind != "wall_timer" and len(times) and pc.min(times).as_py() <= target.times.watermark_us:
            ahead = pc.greater(times, target.times.watermark_us)
            times, base = times.filter(ahead), {name: column.filter(ahead) for name, column in base.items()}
        indexed = target.state.indexes.index_of(target.table)
        assert indexed is not None, f"{target.address} holds timers, which have an index"
        due_table, number = indexed
        if target.declared.kind == "wall_timer":
            earliest = int(pc.min(times).as_py()) if len(times) else MAX_TIME
            self.next_due_us = min(earliest, MAX_TIME if self.next_due_us is None else self.next_due_us)
        index = {"time": times, **base, "timer": pa.array(np.full(len(times), number, np.uint8))}
        return [self._timers(times, base), TableData(due_table, DUE, pa.table(index))]

    def _timers(self, times: pa.Int64Array, base: dict[str, pa.Array]) -> TableData:
        if self.target.declared.kind != "timers":
            packed = pa.array(list(map(msgspec.msgpack.encode, times.to_pylist())), pa.binary())
            return TableData(self.target.table, VALUE, pa.table({**base, "value": packed}))
        nothing = pa.repeat(pa.scalar(_NOTHING, pa.binary()), len(times))
        return TableData(self.target.table, ENTRIES, pa.table({**base, "sub": _time_subs(times), "value": nothing}))


class AggregateRows(StateImport):
    """Accumulators of rolling aggregates, off results or off their parts."""

    def __init__(self, target: StateTarget) -> None:
        super().__init__(target)
        declared = target.declared
        self.values = ValueColumns(self.where, declared.type, None)
        shape = declared.type
        self._types = {} if shape is None else {field.name: field.type for field in shape.fields}

    def make(self, batch: pa.RecordBatch, base: dict[str, pa.Array]) -> list[TableData]:
        batch = spread(batch)
        columns = []
        for name, (kind, *more) in self.target.declared.results.items():
            columns.append((name, self._accumulators(batch, name, kind, "by" in more)))
        rows = [
            {name: acc for name, acc in zip([name for name, _ in columns], row) if acc is not None}
            for row in zip(*(accs for _, accs in columns))
        ]
        values = self.values.encode_all(rows, self.rows)
        return [TableData(self.target.table, VALUE, pa.table({**base, "value": values, **self.expiry(batch)}))]

    def _accumulators(self, batch: pa.RecordBatch, name: str, kind: str, by: bool) -> list[Any]:
        """The accumulator of an aggregate in each row; None where it saw nothing."""
        if kind in _ITSELF | _DISTINCT and not by:
            column = self.column(batch, name, f"the aggregate {name!r}")
            if kind in _DISTINCT and not pa.types.is_list(column.type):
                raise self._too_little(name, kind, f"a list of the values in {name!r}")
            return self._plain(column, name, batch.schema.field(name))
        parts = {"avg": ("total", "rows"), "first": ("time", ""), "last": ("time", "")}.get(kind, ("by", ""))
        names = [f"{name}.{part}" if part else name for part in parts]
        if kind in ("top", "quantile") or any(each not in batch.schema.names for each in names):
            raise self._too_little(name, kind, " and ".join(map(repr, names)))
        first, second = (self._plain(batch.column(each), name, batch.schema.field(each)) for each in names)
        if kind in ("first", "last") and pa.types.is_timestamp(batch.column(names[0]).type):
            first = read_times(batch.column(names[0]), self.where, names[0], self.rows).to_pylist()
        return [
            None if each is None or (kind == "avg" and not other) else (each, other)
            for each, other in zip(first, second)
        ]

    def _plain(self, column: pa.Array, name: str, field: pa.Field) -> list[Any]:
        shape = self._types.get(name)
        times = _times_among(column.type, shape)
        values = self.values.plain(column, field, shape, times)
        replace = time_writer(times, int)
        return values if replace is None else list(map(replace, values))

    def _too_little(self, name: str, kind: str, wanted: str) -> ProgramError:
        return too_little(self.where, name, kind, wanted if kind not in ("top", "quantile") else "")


def _times_among(kind: pa.DataType, shape: TypeShape | None) -> TimeShape | None:
    """Where a column has times, or ISO text, of what the program keeps as numbers."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        members = () if shape is None else (shape, *shape.members)
        inner = _times_among(kind.value_type, next((each.items for each in members if each.items is not None), None))
        return None if inner is None else TimeShape(items=inner)
    if not _is_number(shape):
        return None
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return TIME if pa.types.is_timestamp(kind) else TimeShape(time=DATETIME) if is_text else None


def _is_number(shape: TypeShape | None) -> bool:
    kinds = set() if shape is None else {shape.kind, *(member.kind for member in shape.members)}
    return "int" in kinds and "datetime" not in kinds


def too_little(where: str, name: str, kind: str, wanted: str) -> ProgramError:
    """The error for an aggregate that cannot be made of its result."""
    return ProgramError(
        f"the result of the aggregate {name!r} does not say what it was made of",
        where=where,
        expected=wanted or "the rows, or an exact export",
        found=f"an aggregate of kind {kind}",
        next_move=("give its parts in these columns, or " if wanted else "")
        + "give the step the rows themselves (--rows), or an exact export (--from)",
    )


def _time_subs(times: pa.Int64Array) -> pa.BinaryArray:
    """Names of timers: their bytes sort as times do."""
    values: Any = (times.to_numpy(zero_copy_only=False).view(np.uint64) + _BIAS).astype(">u8")
    return pa.array(values.view("S8").tolist(), pa.binary()) if not len(values) else _fixed_width(values)


def _fixed_width(values: Any) -> pa.BinaryArray:
    offsets = np.arange(len(values) + 1, dtype=np.int32) * 8
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values)])
