"""Tables with a row per key: values as they are stored, fields of Records as columns, and results of aggregates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from headrace.aggregates.results import EXACT, LISTED, finish_of
from headrace.model.columns import DECIMAL
from headrace.model.job import DeclaredState
from headrace.model.time_shape import TimeShape
from headrace.model.type_shape import TypeShape
from headrace.read.finishing import ROW
from headrace.read.forms import unpack, unpack_all
from headrace.read.values import AggregateReader, ValueReader
from headrace.snapshots.column_types import ColumnType, column_type, default_of
from headrace.snapshots.table import PIECE_ROWS, UNFIT, StateTable

VALUE: Final = "value"
Cell = Callable[[bytes, Any], Any]
"""Of a key and its unpacked value a cell."""
Take = Callable[[Sequence[Any]], Sequence[Any]]
"""Of unpacked values what one column is made of."""


class ValueTable(StateTable):
    """One value per key; a Record's fields are columns."""

    reader: ValueReader

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        reader = self.reader
        for batch in reader.layers.scan(reader.table, reader.now_us):
            for start in range(0, batch.num_rows, PIECE_ROWS):
                part = batch.slice(start, PIECE_ROWS)
                yield self._piece(part.column("key"), part.column("value"), names)

    def rows_of(self, keys: Sequence[bytes], names: Sequence[str]) -> pa.RecordBatch:
        rows = [(key, raw) for key, raw in zip(keys, self.reader.raws(keys)) if raw is not None]
        stored, raws = (pa.array([row[side] for row in rows], pa.binary()) for side in (0, 1))
        return self._piece(stored, raws, names)

    def _piece(self, keys: pa.BinaryArray, raws: pa.BinaryArray, names: Sequence[str]) -> pa.RecordBatch:
        wanted = self.value_names(names)
        try:
            values = unpack_all(raws.to_pylist()) if wanted else []
            more = {name: self.by_name[name].type.column(self.take[name](values)) for name in wanted}
            return self.batch(keys, names, more)
        except UNFIT as error:
            raise self.unfit(error) from error

    def plain_rows(self, key: bytes, names: Sequence[str]) -> list[tuple[Any, ...]]:
        raw = self.reader.raw(key)
        if raw is None:
            return []
        cells = self._cells.get(tuple(names))
        if cells is None:
            cells = self._cells[tuple(names)] = [self._cell(name) for name in names]
        try:
            value = unpack(raw)
            return [tuple([cell(key, value) for cell in cells])]
        except UNFIT as error:
            raise self.unfit(error) from error

    @cached_property
    def _cells(self) -> dict[tuple[str, ...], list[Cell]]:
        """Columns that were asked for → how each cell is made."""
        return {}

    def _cell(self, name: str) -> Cell:
        column = self.by_name[name]
        part = column.key_part
        if part is not None:
            if len(self.key_types) == 1:
                return lambda key, value: self.reader.decoded(key)
            return lambda key, value: self.reader.decoded(key)[part]
        take, convert, whole = self.take[name], column.type.convert, pa.types.is_floating(column.type.arrow)

        def cell(key: bytes, value: Any) -> Any:
            [found] = take((value,))
            if found is None:
                return None
            return float(found) if whole else found if convert is None else convert(found)

        return cell

    def more_columns(self) -> Iterator[tuple[str, ColumnType]]:
        for name, type, _ in self._fields:
            yield name, type

    @cached_property
    def take(self) -> dict[str, Take]:
        """Column → how it is taken out of values."""
        names = [column.name for column in self.columns if column.key_part is None]
        return dict(zip(names, (take for _, _, take in self._fields)))

    @cached_property
    def _fields(self) -> list[tuple[str, ColumnType, Take]]:
        return list(self.fields())

    def fields(self) -> Iterator[tuple[str, ColumnType, Take]]:
        """The columns of a value, and how they are taken out of it."""
        assert self.declared is not None and self.declared.type is not None
        shape, times = self.declared.type, self.declared.times
        if not is_flat(shape):
            yield VALUE, column_type(shape, times), lambda values: values
            return
        for field in shape.fields:
            inner = None if times is None else times.fields.get(field.stored_name)
            default = default_of(field.default) if shape.omits else None
            yield field.name, column_type(field.type, inner), _field_taker(field.stored_name, default)


def is_flat(shape: TypeShape) -> bool:
    """Whether the fields of such a value are columns."""
    return shape.kind == "record" and not shape.positional and shape.tag is None and bool(shape.fields)


def _field_taker(name: str, default: Any) -> Take:
    if default is None:
        return lambda values: [value.get(name) for value in values]
    return lambda values: [value.get(name, default) for value in values]


class AggregateTable(ValueTable):
    """The results of a step that aggregates, off the accumulators that are stored."""

    reader: AggregateReader

    def named_keys(self) -> tuple[str, ...]:
        assert self.declared is not None
        return self.declared.key

    @cached_property
    def key_types(self) -> list[ColumnType]:
        assert self.declared is not None
        # A step over the whole stream has one key, which is not shown.
        return super().key_types if self.declared.key else []

    def fields(self) -> Iterator[tuple[str, ColumnType, Take]]:
        assert self.declared is not None
        yield from result_fields(self.declared)


def result_fields(declared: DeclaredState) -> Iterator[tuple[str, ColumnType, Take]]:
    """Results of aggregates as columns, and how they are made of accumulators."""
    assert declared.type is not None
    accs = {field.name: field for field in declared.type.fields}
    times = {} if declared.times is None else declared.times.fields
    for name, told in declared.results.items():
        stored = accs[name].stored_name if name in accs else name
        shape = _settled(accs[name].type) if name in accs else None
        yield name, result_type(told, shape, times.get(name)), _finisher(stored, finish_of(*told))


def _finisher(name: str, finish: Callable[[Any], Any]) -> Take:
    return lambda values: [finish(value.get(name)) for value in values]


def tells_results(declared: DeclaredState) -> bool:
    """Whether the results of a step are columns of known types."""
    known = declared.type is not None and bool(declared.results)
    return known and all(kind != ROW for kind, *_ in declared.results.values())


def result_type(told: Sequence[Any], acc: TypeShape | None, times: TimeShape | None) -> ColumnType:
    """What a result is as a column. ``told``: what finishes it; ``acc``: the type of its accumulator."""
    kind, *more = told
    exact = more[-1:] == [EXACT] or (kind in ("sum", "sum_distinct") and isinstance(more[0] if more else 0, str))
    if kind in ("count", "count_distinct"):
        return ColumnType(pa.int64())
    if kind in ("avg", "quantile"):
        # The sum that a mean is made of is text where it is exact.
        total = acc.places[0].kind if kind == "avg" and acc is not None and acc.places else ""
        return ColumnType(DECIMAL if exact or total in ("decimal", "str") else pa.float64())
    if kind in ("sum_distinct", "avg_distinct"):
        whole = kind == "sum_distinct" and not isinstance(more[0] if more else 0, float)
        exact = exact or (acc is not None and acc.items is not None and acc.items.kind in ("decimal", "str"))
        return ColumnType(DECIMAL if exact else pa.int64() if whole else pa.float64())
    inner = _result_shape(kind, more, acc)
    if inner is not None and inner.kind == "str" and exact:
        inner = TypeShape("decimal")
    if kind in LISTED:
        item = column_type(inner, None if times is None else times.items)
        return item if item.json else column_type(TypeShape("list", items=inner), times)
    return column_type(inner, times)


def _result_shape(kind: str, more: Sequence[Any], acc: TypeShape | None) -> TypeShape | None:
    """The type of a result, or of the elements of one, in that of its accumulator."""
    if acc is None:
        return None
    if kind in ("first", "last") or more[:1] == ["by"]:
        return acc.places[-1] if acc.places else None
    if kind == "collect":
        return acc.items
    if kind == "top":
        return acc.items.places[-1] if acc.items is not None and acc.items.places else None
    return acc


def _settled(shape: TypeShape) -> TypeShape:
    """An accumulator that is there; of a union with None the other."""
    members = [member for member in shape.members if member.kind != "none"]
    return members[0] if shape.kind == "union" and len(members) == 1 else shape
