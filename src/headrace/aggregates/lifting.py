"""What every aggregate shares: the values it looks at, which rows it takes, and the number of each row that comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.declare import Declared, column_annotation
from headrace.model.batch import Int64s, Rows
from headrace.model.columns import Column, IntColumn, PackedColumn, TimeColumn, as_int64
from headrace.model.shapes import column_of
from headrace.model.time import Duration, Timestamp
from headrace.sql.evaluate.expressions import compile_exprs, compile_predicate

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

Mask = npt.NDArray[np.bool_]

NUMBERS: Final = (int, float, Duration)
_TIMES: Final = (Timestamp, datetime, timedelta)
ORDERED: Final = (*NUMBERS, *_TIMES, bool, str, bytes, date, Decimal, UUID)
"""Types whose columns are in the order of their values, and equal where these are (`comparable` sees to UUIDs)."""

_UUID: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


class Values:
    """A column or expression of a batch, as an array and as the values of its type."""

    def __init__(self, codec: RowCodec, text: str, where: str) -> None:
        self.type, self.optional = column_annotation(codec, text)
        self._column = column_of(self.type)
        name = text.removeprefix("`").removesuffix("`")
        self._index = codec.index(name) if name in codec.names else None
        if self._index is None:
            schema = pa.schema([("x", self._column.arrow)])
            self._compute = compile_exprs({"x": text}, codec.schema, schema, where)

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

    def floats(self, array: pa.Array) -> npt.NDArray[np.float64]:
        return floats(array)

    def python(self, array: pa.Array) -> list[Any]:
        """The values of an array without nulls, as Python's."""
        return self.of_numbers(self.numbers(array)) if self.is_number else self.objects(array)


class PaneAggregate:
    """One aggregate: its columns, how a row becomes a cell of each, and the same for one key in Python.

    In Python a key has an *accumulator*: the cell of the column, or of several columns the tuple of their cells. What
    ``gather`` makes of the elements of some rows is what their cells merge to (`tests/aggregates/test_folds.py`).
    """

    holds_values: ClassVar[bool] = False
    """Whether results are values of the column."""
    in_columns = True
    """Whether its columns tell equal values, and their order as far as it counts."""
    timed = False
    """Whether the time of a row chooses it."""
    acc_type: Any = int
    """Type of the stored accumulator."""

    def __init__(self, name: str, agg: Declared[Any], codec: RowCodec, where: str) -> None:
        self.name = name
        self.kind = agg.kind
        self.fields: list[pa.Field] = []
        self.column = None if agg.column is None else Values(codec, agg.column, where)
        self.by = None if agg.by is None else Values(codec, agg.by, where)
        self.merge: Callable[[Any, Any], Any] = add
        """The accumulator of two that hold something, the older one first."""
        self.absorb: Callable[[Any, Any], Any] | None = None
        """The same, where the older one may be changed in place; None: ``merge`` does it."""
        self.gather: Callable[[Any], Any] = len
        """The accumulator of the elements of some rows."""
        self._came: int | None = None
        self._holds: Callable[[pa.RecordBatch], Mask] | None = (
            None if agg.where is None else compile_predicate(agg.where, codec.schema, where)
        )

    @property
    def values(self) -> Values:
        assert self.column is not None, "only count has no values"
        return self.column

    @property
    def columns_of_result(self) -> list[str]:
        """What readers without the program are told (`headrace.state.panes.about.About.results`)."""
        return [self.kind, *(field.name for field in self.fields)]

    @classmethod
    def words_of_result(cls, agg: Declared[Any], value: Any) -> list[Any]:
        """What `headrace.aggregates.results.finish_of` is told. ``value``: the type of the column."""
        return [agg.kind]

    def begin(self, epoch: int) -> None:
        """A task begins: rows that are lifted from now on came after all of earlier epochs."""
        self._came = epoch << 32

    def lift(self, rows: Rows) -> list[pa.Array]:
        """One cell per row and column. Rows have to be lifted in the order in which they came."""
        raise NotImplementedError

    def elements(self, *arrays: pa.Array) -> Any:
        """What ``gather`` takes, of arrays without nulls: what rows are compared by, if that is something else; values.

        Those of ``first`` and ``last`` lack their times.
        """
        values = self.values.objects(arrays[-1])
        return values if self.by is None else list(zip(self.by.objects(arrays[0]), values))

    def accumulators(self, merged: Sequence[pa.Array]) -> tuple[Int64s, list[Any]]:
        """The stretches whose merged cells say something, and the accumulator of each."""
        raise NotImplementedError

    def taken_rows(self, rows: Rows, *arrays: pa.Array) -> Mask | None:
        """Rows that the condition holds for and whose values are there; None: all."""
        taken = None if self._holds is None else self._holds(rows.record_batch)
        for array in arrays:
            if array.null_count:
                there = array.is_valid().to_numpy(zero_copy_only=False)
                taken = there if taken is None else taken & there
        return taken

    def _arrivals(self, count: int) -> pa.Array:
        """When each of the next rows came: a number that is larger for a row that came later."""
        assert self._came is not None, "lifted before the task began"
        numbers = pa.array(np.arange(self._came, self._came + count))
        self._came += count
        return numbers


def travels(kind: Any) -> bool:
    """Whether a column of this type may be moved about as it is."""
    return not isinstance(column_of(kind), PackedColumn)


def is_comparable(kind: Any) -> bool:
    """Whether a column of this type tells which values are equal, and their order; plain ones do, as of a Literal."""
    return kind in ORDERED or type(column_of(kind)) in (Column, IntColumn)


def where_taken(array: pa.Array, taken: Mask | None) -> pa.Array:
    """Null where a row is not taken."""
    return array if taken is None else pc.if_else(pa.array(taken), array, pa.scalar(None, array.type))


def plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array of exactly this type, in one piece."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if array.type == kind else array.cast(kind)


def ones(count: int, taken: Mask | None) -> pa.Array:
    """What each row counts for: 0 where it is not taken."""
    return pa.array(np.ones(count, np.int64) if taken is None else taken.astype(np.int64))


def amounts(array: pa.Array, taken: Mask | None, kind: pa.DataType) -> pa.Array:
    """Numbers to add up: 0 where a row is not taken."""
    array = plain(array, kind)
    if taken is None:
        return array
    if pa.types.is_decimal(kind):
        return pc.if_else(pa.array(taken), array, pa.scalar(Decimal(0), kind))
    numbers = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    return pa.array(np.where(taken, numbers, numbers.dtype.type(0)))


def valid_rows(array: pa.Array) -> Int64s:
    """The positions of what is not null."""
    if not array.null_count:
        return np.arange(len(array))
    return np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))


def some_rows(columns: Sequence[pa.Array], rows: Int64s) -> list[pa.Array]:
    """These rows of columns, in their order."""
    if len(rows) == len(columns[0]):
        return list(columns)
    places = pa.array(rows)
    return [column.take(places) for column in columns]


def comparable(kind: Any, array: pa.Array) -> pa.Array:
    """Values as they can be compared in their column: a UUID can be written in several ways."""
    if kind is not UUID:
        return array
    usual = pc.match_substring_regex(array, _UUID)
    if usual.true_count + array.null_count == len(array):
        return array
    column = column_of(UUID)
    odd = pc.invert(usual.fill_null(True))
    return pc.replace_with_mask(array, odd, column.encode(column.decode(array.filter(odd))))


def floats(array: pa.Array) -> npt.NDArray[np.float64]:
    """Numbers without nulls as floats, each the nearest there is."""
    if pa.types.is_decimal(array.type):
        # Arrow's own cast computes in floats, and misses by a bit; text is read exactly.
        array = array.cast(pa.string()).cast(pa.float64())
    return array.to_numpy(zero_copy_only=False).astype(np.float64)  # type: ignore[no-any-return]
