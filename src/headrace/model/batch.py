"""Rows of one stream on their way through one task.

Rows are columns where expressions and files want columns, and objects where a user's function wants objects. `Rows`
holds either and converts at most once, so that a chain of Python steps never meets Arrow in between, and a chain of
expressions never makes an object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from headrace.model.row_kind import Kinds
    from headrace.model.rows import RowCodec

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


class Keys(NamedTuple):
    """The key of each row: its encoded bytes and their hash, row by row."""

    hashes: UInt64s
    encoded: pa.BinaryArray

    def take(self, indices: Int64s) -> Keys:
        return Keys(self.hashes[indices], self.encoded.take(pa.array(indices)))


class Rows:
    """A batch of rows of one type, as columns, as objects, or both."""

    __slots__ = ("_columns", "_objects", "codec", "kinds", "length", "masks", "times")

    def __init__(
        self,
        codec: RowCodec,
        columns: Sequence[pa.Array] | None,
        objects: list[Any] | None,
        times: Int64s | None,
        kinds: Kinds | None = None,
    ) -> None:
        self.codec = codec
        self._columns = columns
        self._objects = objects
        #: Event time of each row in microseconds, or None for a stream without time.
        self.times = times
        #: What each row is (`headrace.model.row_kind`), or None for a stream that is no changelog.
        self.kinds = kinds
        #: Which rows fit a condition, for all who ask the same batch (`headrace.patterns.predicates`).
        self.masks: dict[str, npt.NDArray[np.bool_]] | None = None
        if objects is not None:
            self.length = len(objects)
        elif columns:
            self.length = len(columns[0])
        else:
            self.length = 0 if times is None else len(times)

    @classmethod
    def of_columns(
        cls, codec: RowCodec, columns: Sequence[pa.Array], times: Int64s | None = None, kinds: Kinds | None = None
    ) -> Rows:
        return cls(codec, columns, None, times, kinds)

    @classmethod
    def of_objects(
        cls,
        codec: RowCodec,
        objects: list[Any],
        times: Int64s | Sequence[int] | None = None,
        kinds: Kinds | None = None,
    ) -> Rows:
        as_array = None if times is None else np.asarray(times, dtype=np.int64)
        return cls(codec, None, objects, as_array, kinds)

    @property
    def columns(self) -> Sequence[pa.Array]:
        """One Arrow array per field of the codec's schema, in its order."""
        if self._columns is None:
            assert self._objects is not None
            self._columns = self.codec.to_arrays(self._objects)
        return self._columns

    @property
    def objects(self) -> list[Any]:
        """One object of the codec's type per row. Callers must not change the list."""
        if self._objects is None:
            assert self._columns is not None
            self._objects = self.codec.to_objects(self._columns)
        return self._objects

    @property
    def record_batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(self.columns), schema=self.codec.schema)

    @property
    def batch(self) -> Any:
        """The columns as expressions read them: a record batch, or what makes its columns when they are asked for."""
        return self.record_batch

    def take(self, indices: Int64s) -> Rows:
        """The rows at these positions, in this order; keeps whatever form is already there."""
        times = None if self.times is None else self.times[indices]
        kinds = None if self.kinds is None else self.kinds[indices]
        if self._columns is not None:
            positions = pa.array(indices)
            return Rows(self.codec, [column.take(positions) for column in self._columns], None, times, kinds)
        objects = self.objects
        return Rows(self.codec, None, [objects[i] for i in indices.tolist()], times, kinds)

    def with_times(self, times: Int64s | None) -> Rows:
        """The same rows with other times; whatever form is there is shared."""
        return Rows(self.codec, self._columns, self._objects, times, self.kinds)

    def with_kinds(self, kinds: Kinds | None) -> Rows:
        """The same rows with other kinds; whatever form is there is shared."""
        return Rows(self.codec, self._columns, self._objects, self.times, kinds)

    def __len__(self) -> int:
        return self.length
