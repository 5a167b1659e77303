"""Makes the rows of a generator: one by one from ``fn(i, rng)``, or by the column from ``fn(start, stop)``.

Seeding Python's generator costs several microseconds, far more than a row. So it is seeded once per block of rows, and
a range that begins inside a block is made from the block's start: row *i* still depends on the seed and on *i* alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from headrace.errors import BadRow, FunctionFailed
from headrace.sources.ranges import BATCH_ROWS

BLOCK_ROWS: Final = 256
"""Rows per seeding. Part of the meaning of a seed: changing it changes every generated stream."""

RowFunction = Callable[[int, random.Random], Any]


def name_of(fn: Any) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__)


def place_of(fn: Any) -> str:
    """``file.py:12 (name)`` of a function, as far as Python knows it."""
    code = getattr(fn, "__code__", None)
    return name_of(fn) if code is None else f"{code.co_filename}:{code.co_firstlineno} ({name_of(fn)})"


class RowMaker:
    """Rows from ``fn(i, rng)``. Travels to tasks, so it holds the row type and not its codec."""

    def __init__(self, fn: RowFunction, row_type: Any, seed: int) -> None:
        self.fn = fn
        self.row_type = row_type
        self.seed = seed

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        from headrace.model.rows import codec_of

        codec = codec_of(self.row_type)
        for at in range(start, stop, BATCH_ROWS):
            rows = self.rows(at, min(at + BATCH_ROWS, stop))
            try:
                arrays = codec.to_arrays(rows)
            except BadRow as error:
                raise self._misfit(error) from error
            yield pa.RecordBatch.from_arrays(arrays, schema=codec.schema)

    def rows(self, start: int, stop: int) -> list[Any]:
        rng = random.Random()
        made: list[Any] = []
        i = first = start - start % BLOCK_ROWS
        try:
            for block in range(first, stop, BLOCK_ROWS):
                # Text is hashed whole into the generator's state, so neighbouring blocks share nothing.
                rng.seed(f"{self.seed}:{block}")
                for i in range(block, min(block + BLOCK_ROWS, stop)):
                    made.append(self.fn(i, rng))
        except Exception as error:
            raise FunctionFailed(
                f"the generator's function raised {type(error).__name__}: {error}",
                where=place_of(self.fn),
                found=f"row number {i}",
                next_move="fix the function; the job resumes where it was",
            ) from error
        return made[start - first :]

    def _misfit(self, error: BadRow) -> FunctionFailed:
        return FunctionFailed(
            "the generator's function made rows that do not fit the stream",
            where=place_of(self.fn),
            expected=f"{getattr(self.row_type, '__name__', self.row_type)} with {error.expected or 'its fields'}",
            found=error.found,
            next_move="return a row of the type given to app.read",
        )


class ColumnMaker:
    """Rows from ``fn(start, stop)``, which returns a RecordBatch or a mapping of numpy or Arrow arrays."""

    def __init__(self, fn: Callable[[int, int], Any], schema: pa.Schema) -> None:
        self.fn = fn
        self.schema = schema

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        for at in range(start, stop, BATCH_ROWS):
            upto = min(at + BATCH_ROWS, stop)
            try:
                made = self.fn(at, upto)
                batch = as_batch(made, self.schema)
            except Exception as error:
                raise self._misfit(f"{type(error).__name__}: {error}", at, upto) from error
            if batch.num_rows != upto - at:
                raise self._misfit(f"{batch.num_rows} rows", at, upto)
            yield batch

    def _misfit(self, found: str, start: int, stop: int) -> FunctionFailed:
        return FunctionFailed(
            "the generator's function made columns that do not fit the stream",
            where=place_of(self.fn),
            expected=f"{stop - start} rows of {', '.join(f'{f.name}: {f.type}' for f in self.schema)}",
            found=f"{found} (for rows {start} to {stop})",
            next_move="return a dict of numpy or Arrow arrays, one per field, each of length stop - start",
        )


def as_batch(made: pa.RecordBatch | Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Columns by name, each of exactly the schema's type."""
    names = made.schema.names if isinstance(made, pa.RecordBatch) else made.keys()
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise KeyError(f"no column {', '.join(missing)}")
    return pa.RecordBatch.from_arrays([as_array(made[field.name], field.type) for field in schema], schema=schema)


def as_array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        values = pa.array(values, type=kind)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.type == kind:
        return values
    if pa.types.is_timestamp(values.type) and pa.types.is_timestamp(kind) and values.type.tz is None:
        # numpy's datetimes have no zone and mean UTC; Arrow would call that a local time.
        return values.cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
    return values.cast(kind)
