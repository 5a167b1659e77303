"""Rows of two streams side by side: what a join gives before anybody selects from it.

A pair has two columns, ``left`` and ``right``, each a struct of the columns of its side, null where a side has no row.
`PairRows` keeps the rows of both sides apart and says by position which of them belong together, so that a row with a
hundred partners is neither copied nor made an object a hundred times, and a column that nobody asks for is never made.

What this module deliberately does not do: find out what belongs together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.batch import Int64s, Rows
from headrace.model.columns import Column
from headrace.model.record import Row, row_type
from headrace.model.row_kind import Kinds
from headrace.model.rows import RowCodec

LEFT: Final = "left"
RIGHT: Final = "right"
NONE: Final = -1
"""Position of a side that has no row."""


def side_path(side: str, name: str) -> str:
    """How a column of a side is written: ``left.card``."""
    return f"{side}.{name}"


def pair_type(left: Any, right: Any) -> type[Row]:
    """The type of pairs of two row types: a row of each side, None where there is none."""
    return row_type("Pair", {LEFT: left | None, RIGHT: right | None})


class SideColumn(Column):
    """Whole rows of one stream as a column."""

    def __init__(self, codec: RowCodec) -> None:
        super().__init__(pa.struct(list(codec.schema)))
        self.codec = codec

    def decode(self, array: pa.Array) -> list[Any]:
        if not array.null_count:
            return self.codec.to_objects(array.flatten()) if len(array) else []
        present = array.is_valid()
        made = iter(self.codec.to_objects(array.filter(present).flatten()))
        return [next(made) if here else None for here in present.to_pylist()]

    def encode(self, values: Sequence[Any]) -> pa.Array:
        rows = [value for value in values if value is not None]
        columns = self.codec.to_arrays(rows) if rows else [pa.array([], field.type) for field in self.arrow]
        whole = pa.StructArray.from_arrays(columns, fields=list(self.arrow))
        if len(rows) == len(values):
            return whole
        present = np.array([value is not None for value in values], dtype=np.bool_)
        return whole.take(_indices(np.where(present, np.cumsum(present) - 1, NONE)))


class PairCodec(RowCodec):
    """Codec of pairs; it follows from those of the sides."""

    def __init__(self, left: RowCodec, right: RowCodec) -> None:
        super().__init__(pair_type(left.type, right.type), {LEFT: SideColumn(left), RIGHT: SideColumn(right)})
        self.left, self.right = left, right
        self.required = ()
        self.defaults = {LEFT: None, RIGHT: None}
        self.encoded_names = {LEFT: LEFT, RIGHT: RIGHT}
        self.annotations = {LEFT: left.type, RIGHT: right.type}

    def to_objects(self, columns: Sequence[pa.Array]) -> list[Any]:
        sides = [column.decode(array) for column, array in zip(self.columns.values(), columns, strict=True)]
        return list(map(self.type, *sides))

    def to_arrays(self, objects: Sequence[Any]) -> list[pa.Array]:
        sides = ([pair.left for pair in objects], [pair.right for pair in objects])
        return [column.encode(values) for column, values in zip(self.columns.values(), sides, strict=True)]

    def bad_rows(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
        return None

    def __reduce__(self) -> Any:
        return PairCodec, (self.left, self.right)


class SideRows:
    """Rows of one side, of which pairs tell the positions. Columns are made when first asked for."""

    def __init__(self, codec: RowCodec, length: int, column: Callable[[int], pa.Array]) -> None:
        """``column`` gives the column at a position of the codec's schema."""
        self.codec = codec
        self.length = length
        self._make = column
        self._made: dict[int, pa.Array] = {}

    def column(self, index: int) -> pa.Array:
        found = self._made.get(index)
        if found is None:
            found = self._made[index] = self._make(index)
        return found

    @cached_property
    def objects(self) -> list[Any]:
        """Each row once, however many partners it has."""
        return self.codec.to_objects([self.column(i) for i in range(len(self.codec.schema))]) if self.length else []

    def take(self, positions: Int64s, times: Int64s | None) -> Rows:
        """Rows of this side alone."""
        indices = _indices(positions)
        columns = [self.column(i).take(indices) for i in range(len(self.codec.schema))]
        return Rows.of_columns(self.codec, columns, times)


class PairRows(Rows):
    """Pairs as positions among the rows of both sides."""

    __slots__ = ("_batch", "left", "left_at", "right", "right_at")

    def __init__(
        self, codec: PairCodec, left: SideRows, left_at: Int64s, right: SideRows, right_at: Int64s,
        times: Int64s | None, kinds: Kinds | None = None,
    ) -> None:  # fmt: skip
        """``left_at`` and ``right_at``: positions, `NONE` where a pair lacks a side."""
        super().__init__(codec, None, None, times, kinds)
        self.left, self.left_at = left, left_at
        self.right, self.right_at = right, right_at
        self.length = len(left_at)
        self._batch: PairBatch | None = None

    @property
    def batch(self) -> PairBatch:
        if self._batch is None:
            self._batch = PairBatch(self)
        return self._batch

    @property
    def columns(self) -> Sequence[pa.Array]:
        return [self.batch.column(LEFT), self.batch.column(RIGHT)]

    @property
    def objects(self) -> list[Any]:
        if self._objects is None:
            lefts = [*self.left.objects, None]
            rights = [*self.right.objects, None]
            # The position of no row is −1, and there stands None.
            pairs = zip(self.left_at.tolist(), self.right_at.tolist(), strict=True)
            make = self.codec.type
            self._objects = [make(lefts[i], rights[j]) for i, j in pairs]
        return self._objects

    def take(self, indices: Int64s) -> PairRows:
        times = None if self.times is None else self.times[indices]
        kinds = None if self.kinds is None else self.kinds[indices]
        return self._of(self.left_at[indices], self.right_at[indices], times, kinds)

    def with_times(self, times: Int64s | None) -> PairRows:
        return self._of(self.left_at, self.right_at, times, self.kinds)

    def with_kinds(self, kinds: Kinds | None) -> PairRows:
        return self._of(self.left_at, self.right_at, self.times, kinds)

    def _of(self, left_at: Int64s, right_at: Int64s, times: Int64s | None, kinds: Kinds | None) -> PairRows:
        codec = self.codec
        assert isinstance(codec, PairCodec)
        return PairRows(codec, self.left, left_at, self.right, right_at, times, kinds)


class PairBatch:
    """Pairs as expressions read them: like a record batch, but a field of a side is made without its neighbours."""

    def __init__(self, rows: PairRows) -> None:
        self.schema = rows.codec.schema
        self.num_rows = len(rows)
        self._sides = {LEFT: (rows.left, rows.left_at), RIGHT: (rows.right, rows.right_at)}
        self._indices = {name: _indices(at) for name, (_, at) in self._sides.items()}
        self._made: dict[tuple[str, int], pa.Array] = {}
        self._whole: dict[str, pa.Array] = {}

    def column(self, name: str) -> pa.Array:
        """All columns of a side as one struct."""
        if name not in self._whole:
            fields = list(self.schema.field(name).type)
            columns = [self.side_field(name, i) for i in range(len(fields))]
            missing = self._indices[name].is_null()
            mask = missing if missing.true_count else None
            self._whole[name] = pa.StructArray.from_arrays(columns, fields=fields, mask=mask)
        return self._whole[name]

    def side_field(self, name: str, index: int) -> pa.Array:
        """One column of a side, null where the side has no row."""
        found = self._made.get((name, index))
        if found is None:
            side, _ = self._sides[name]
            found = self._made[name, index] = side.column(index).take(self._indices[name])
        return found


def _indices(positions: Int64s) -> pa.Array:
    """Positions for Arrow; null where there is no row, so that the columns taken are null there."""
    none = positions < 0
    return pa.array(positions, mask=none) if none.any() else pa.array(positions)
