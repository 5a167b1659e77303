"""How declared aggregates are computed: partial accumulators per key of a batch, in bulk, then one merge per key.

A batch comes in key order, so the rows of a key are a stretch and numpy reduces all stretches at once; only kinds that
keep values themselves go through Python lists. An accumulator is a small value that can be stored; None means that
nothing was added yet. ``merge(older, newer)`` is only called with two that hold something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from heapq import merge as merge_sorted
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.batch import Int64s, Rows
from headrace.model.columns import Column, TimeColumn, as_int64
from headrace.model.shapes import column_of
from headrace.operators.aggregates import Agg, Declared, column_annotation
from headrace.operators.expressions import compile_exprs, compile_predicate
from headrace.operators.sketch import merge_sketches, quantile_of, sketch_stretches

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_EXACT: Final = 1 << 62
"""Sums that cannot leave this range cannot leave 64 bits on the way."""


class Stretches(NamedTuple):
    """Rows of a batch that an aggregate takes, as stretches of equal keys."""

    rows: Int64s | None
    """Positions in the batch; None: all."""
    groups: Int64s
    """For each stretch, which of the batch's keys it belongs to."""
    starts: Int64s
    """Where each stretch begins among the rows taken."""

    def cut(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """The values of each stretch."""
        bounds = [*self.starts.tolist(), len(values)]
        return [values[start:end] for start, end in pairwise(bounds)]


class Partials(NamedTuple):
    """One accumulator for each of some of a batch's keys."""

    groups: list[int]
    accs: list[Any]


class Fold:
    """One aggregate, ready to be computed over rows of one type."""

    acc_type: Any
    """Type of the stored accumulator."""
    merge: Callable[[Any, Any], Any]
    adds = False
    """Whether ``merge`` is plain addition, which is done in place then."""

    def partials(self, rows: Rows, starts: Int64s) -> Partials:
        """What each stretch of rows amounts to by itself."""
        raise NotImplementedError

    def result(self, acc: Any) -> Any:
        """The result of an accumulator, or of None."""
        return acc

    def results(self, accs: list[Any]) -> list[Any]:
        return list(map(self.result, accs))


class Values:
    """A column or expression of a batch, as an array and as the values of its type."""

    def __init__(self, codec: RowCodec, text: str, where: str) -> None:
        self.type, self.optional = column_annotation(codec, text)
        self._column = column_of(self.type)
        name = text.removeprefix("`").removesuffix("`")
        self._index = codec.index(name) if name in codec.names else None
        if self._index is None:
            wanted = pa.schema([("x", self._column.arrow)])
            self._compute = compile_exprs({"x": text}, codec.schema, wanted, where)

    @property
    def is_number(self) -> bool:
        """Whether numpy can hold the values, times as whole numbers."""
        kinds, arrow = pa.types, self._column.arrow
        return bool(kinds.is_integer(arrow) or kinds.is_floating(arrow) or kinds.is_timestamp(arrow))

    def array(self, rows: Rows) -> pa.Array:
        if self._index is not None:
            return rows.columns[self._index]
        return self._compute(rows.record_batch).column(0)

    def numbers(self, array: pa.Array) -> npt.NDArray[Any]:
        if pa.types.is_timestamp(array.type):
            array = as_int64(array)
        return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def objects(self, array: pa.Array) -> list[Any]:
        return self._column.decode(array)

    def of_numbers(self, numbers: npt.NDArray[Any]) -> list[Any]:
        """The values that `numbers` stand for: a datetime is another than its microseconds."""
        if type(self._column) in (Column, TimeColumn):
            return numbers.tolist()  # type: ignore[no-any-return]
        return self._column.decode(pa.array(numbers).cast(self._column.arrow))


class _Taking:
    """Which rows an aggregate takes: where its condition holds and its values are there."""

    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        self._holds = None if agg.where is None else compile_predicate(agg.where, codec.schema, where)

    def take(self, rows: Rows, starts: Int64s, arrays: Sequence[pa.Array]) -> Stretches:
        taken = None if self._holds is None else self._holds(rows.record_batch)
        for array in arrays:
            if array.null_count:
                there = array.is_valid().to_numpy(zero_copy_only=False)
                taken = there if taken is None else taken & there
        if taken is None or bool(taken.all()):
            return Stretches(None, np.arange(len(starts)), starts)
        positions = np.flatnonzero(taken)
        # Rows of a key stay together, so a stretch begins wherever the key changes among the rows that are left.
        groups = np.searchsorted(starts, positions, "right") - 1
        begins = np.flatnonzero(np.diff(groups, prepend=-1))
        return Stretches(positions, groups[begins], begins)


class CountFold(Fold):
    acc_type = int
    adds = True

    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        self._taking = _Taking(agg, codec, where)
        self.merge = lambda older, newer: older + newer

    def partials(self, rows: Rows, starts: Int64s) -> Partials:
        found = self._taking.take(rows, starts, ())
        total = len(rows) if found.rows is None else len(found.rows)
        counts = np.diff(np.append(found.starts, total))
        return Partials(found.groups.tolist(), counts.tolist())

    def result(self, acc: Any) -> Any:
        return acc or 0


class ValueFold(Fold):
    """Base of the aggregates of a column."""

    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        self.values = Values(codec, agg.column or "", where)
        self._taking = _Taking(agg, codec, where)

    def partials(self, rows: Rows, starts: Int64s) -> Partials:
        array = self.values.array(rows)
        found = self._taking.take(rows, starts, (array,))
        if not len(found.groups):
            return Partials([], [])
        if found.rows is not None:
            array = array.take(pa.array(found.rows))
        return Partials(found.groups.tolist(), self.reduce(array, found, rows))

    def reduce(self, array: pa.Array, found: Stretches, rows: Rows) -> list[Any]:
        """One accumulator for each stretch of the array."""
        raise NotImplementedError


class SumFold(ValueFold):
    adds = True

    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(agg, codec, where)
        self.acc_type = self.values.type
        self.zero = Decimal(0) if self.values.type is Decimal else 0.0 if self.values.type is float else 0
        self.merge = lambda older, newer: older + newer

    def reduce(self, array: pa.Array, found: Stretches, rows: Rows) -> list[Any]:
        if self.values.is_number:
            numbers = self.values.numbers(array)
            if numbers.dtype.kind == "f" or _fits(numbers):
                return np.add.reduceat(numbers, found.starts).tolist()  # type: ignore[no-any-return]
        return [sum(part, self.zero) for part in found.cut(self.values.objects(array))]

    def result(self, acc: Any) -> Any:
        return self.zero if acc is None else acc


class AvgFold(ValueFold):
    acc_type = tuple[float, int]

    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(agg, codec, where)
        self.merge = lambda older, newer: (older[0] + newer[0], older[1] + newer[1])

    def reduce(self, array: pa.Array, found: Stretches, rows: Rows) -> list[Any]:
        numbers = self.values.numbers(array).astype(np.float64)
        counts = np.diff(np.append(found.starts, len(numbers)))
        return list(zip(np.add.reduceat(numbers, found.starts).tolist(), counts.tolist()))

    def result(self, acc: Any) -> Any:
        return None if acc is None else acc[0] / acc[1]


class ExtremeFold(ValueFold):
    """``min`` and ``max``. Not-a-number is greater than every number, as in Spark."""

    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(agg, codec, where)
        self.acc_type = self.values.type
        least = agg.kind == "min"
        self._reduce = np.fmin if least else np.maximum
        self.merge = _lesser if least else _greater

    def results(self, accs: list[Any]) -> list[Any]:
        return accs

    def reduce(self, array: pa.Array, found: Stretches, rows: Rows) -> list[Any]:
        if self.values.is_number:
            return self.values.of_numbers(self._reduce.reduceat(self.values.numbers(array), found.starts))
        return [reduce(self.merge, part) for part in found.cut(self.values.objects(array))]


class ByFold(ValueFold):
    """``min`` and ``max`` of one column by another: the value in the row where that is least or greatest."""

    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(agg, codec, where)
        self.by = Values(codec, agg.by or "", where)
        self.acc_type = tuple[self.by.type, self.values.type]  # type: ignore[name-defined]
        self.merge = _lesser_by if agg.kind == "min" else _greater_by

    def partials(self, rows: Rows, starts: Int64s) -> Partials:
        pairs, found = self.pairs(rows, starts)
        return Partials(found.groups.tolist(), [reduce(self.merge, part) for part in found.cut(pairs)])

    def pairs(self, rows: Rows, starts: Int64s) -> tuple[list[tuple[Any, Any]], Stretches]:
        arrays = [self.by.array(rows), self.values.array(rows)]
        found = self._taking.take(rows, starts, arrays)
        if found.rows is not None:
            arrays = [array.take(pa.array(found.rows)) for array in arrays]
        return list(zip(self.by.objects(arrays[0]), self.values.objects(arrays[1]))), found

    def result(self, acc: Any) -> Any:
        return None if acc is None else acc[1]


class EndFold(ValueFold):
    """``first`` and ``last``: by event time where there is one, among equals as rows came."""

    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(agg, codec, where)
        self.acc_type = tuple[int | None, self.values.type]  # type: ignore[name-defined]
        self._last = agg.kind == "last"
        self.merge = _later if self._last else _earlier

    def reduce(self, array: pa.Array, found: Stretches, rows: Rows) -> list[Any]:
        ends = np.append(found.starts[1:], len(array)) - 1
        if rows.times is None:
            chosen = ends if self._last else found.starts
            return [(None, value) for value in self.values.objects(array.take(pa.array(chosen)))]
        times = rows.times if found.rows is None else rows.times[found.rows]
        stretch = np.repeat(np.arange(len(found.starts)), np.diff(np.append(found.starts, len(array))))
        # Sorted by time within each stretch, stable: the ends of a stretch are its first and last row.
        order = np.lexsort((times, stretch))
        chosen = order[ends if self._last else found.starts]
        return list(zip(times[chosen].tolist(), self.values.objects(array.take(pa.array(chosen)))))

    def result(self, acc: Any) -> Any:
        return None if acc is None else acc[1]


class DistinctFold(ValueFold):
    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(agg, codec, where)
        self.acc_type = set[self.values.type]  # type: ignore[name-defined]
        self.merge = lambda older, newer: older | newer

    def reduce(self, array: pa.Array, found: Stretches, rows: Rows) -> list[Any]:
        return [set(part) for part in found.cut(self.values.objects(array))]

    def result(self, acc: Any) -> Any:
        return len(acc or ())


class CollectFold(ValueFold):
    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(agg, codec, where)
        self.acc_type = list[self.values.type]  # type: ignore[name-defined]
        self.merge = lambda older, newer: older + newer

    def reduce(self, array: pa.Array, found: Stretches, rows: Rows) -> list[Any]:
        return [list(part) for part in found.cut(self.values.objects(array))]

    def result(self, acc: Any) -> Any:
        return acc or []


class TopFold(ByFold):
    """``top``: pairs of what rows are compared by and the value, the greatest first, older ones before equal newer."""

    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(agg, codec, where)
        self.acc_type = list[tuple[self.by.type, self.values.type]]  # type: ignore[name-defined]
        count = agg.n
        self._count = count
        self.merge = lambda older, newer: list(islice(merge_sorted(older, newer, key=_by, reverse=True), count))

    def partials(self, rows: Rows, starts: Int64s) -> Partials:
        pairs, found = self.pairs(rows, starts)
        best = [sorted(part, key=_by, reverse=True)[: self._count] for part in found.cut(pairs)]
        return Partials(found.groups.tolist(), best)

    def result(self, acc: Any) -> Any:
        return [value for _, value in acc or ()]


class QuantileFold(ValueFold):
    acc_type = dict[int, int]

    def __init__(self, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        super().__init__(agg, codec, where)
        self._q = agg.q
        self.merge = merge_sketches

    def reduce(self, array: pa.Array, found: Stretches, rows: Rows) -> list[Any]:
        return sketch_stretches(self.values.numbers(array).astype(np.float64), found.starts)

    def result(self, acc: Any) -> Any:
        return None if acc is None else quantile_of(acc, self._q)


def make_fold(agg: Agg[Any], codec: RowCodec, where: str) -> Fold | None:
    """How an aggregate is computed over rows of this type; None for an own Aggregator, which takes row by row."""
    if not isinstance(agg, Declared):
        return None
    if agg.kind in ("min", "max"):
        return ByFold(agg, codec, where) if agg.by is not None else ExtremeFold(agg, codec, where)
    if agg.kind == "top" and agg.by is None:
        agg = Declared("top", agg.column, agg.where, agg.column, agg.n)
    kinds: dict[str, type[Any]] = {
        "count": CountFold,
        "sum": SumFold,
        "avg": AvgFold,
        "first": EndFold,
        "last": EndFold,
        "count_distinct": DistinctFold,
        "collect": CollectFold,
        "top": TopFold,
        "quantile": QuantileFold,
    }
    made: Fold = kinds[agg.kind](agg, codec, where)
    return made


def _fits(numbers: npt.NDArray[Any]) -> bool:
    """Whether no sum of these whole numbers can leave 64 bits."""
    largest = max(abs(int(numbers.max())), abs(int(numbers.min())))
    return largest * len(numbers) < _EXACT


def _by(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _lesser(older: Any, newer: Any) -> Any:
    # What is not equal to itself is not-a-number.
    return newer if newer < older or older != older else older


def _greater(older: Any, newer: Any) -> Any:
    return newer if newer > older or newer != newer else older


def _lesser_by(older: tuple[Any, Any], newer: tuple[Any, Any]) -> tuple[Any, Any]:
    return newer if newer[0] < older[0] or older[0] != older[0] else older


def _greater_by(older: tuple[Any, Any], newer: tuple[Any, Any]) -> tuple[Any, Any]:
    return newer if newer[0] > older[0] or (newer[0] != newer[0] and older[0] == older[0]) else older


def _later(older: tuple[int | None, Any], newer: tuple[int | None, Any]) -> tuple[int | None, Any]:
    return older if older[0] is not None and newer[0] is not None and newer[0] < older[0] else newer


def _earlier(older: tuple[int | None, Any], newer: tuple[int | None, Any]) -> tuple[int | None, Any]:
    return newer if older[0] is not None and newer[0] is not None and newer[0] < older[0] else older
