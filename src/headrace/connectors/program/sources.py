"""Sources inside the program: `items` are rows given in a list, `generator` computes rows from their number.

Rows of `items` travel with every task that reads them: for tests, notebooks and small reference data. Row *i* of a
generator depends on the seed and on *i* alone, so any range can be made again in any process. Its pace is measured from
the start of the reader: a job that was down for an hour is not met by the rows of an hour.

Seeding the random numbers of Python costs several microseconds, more than a row. So they are seeded once per block of
rows, and a range that begins inside a block is made from the start of the block.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from headrace.connectors.reading import BATCH_ROWS, check_positive, position, slice_range
from headrace.connectors.source_contract import (
    EPOCH_ROWS_AT_MOST,
    SURE,
    Offset,
    Passage,
    Replay,
    Source,
    Split,
    SplitReader,
)
from headrace.errors import BadRow, FunctionFailed, ProgramError
from headrace.model.amounts import count_of

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


class ItemsSource(Source):
    kind: ClassVar[str] = "items"
    python: ClassVar[bool] = True

    def __init__(self, rows: Iterable[Any], per_epoch: int | None, partitions: int) -> None:
        self.rows = list(rows)
        self.per_epoch = check_positive("per_epoch", per_epoch, "source.items")
        self.partitions = check_positive("partitions", partitions, "source.items") or 1

    @property
    def bounded(self) -> bool:
        return True

    @property
    def has_splits(self) -> bool:
        return False

    def bind(self, codec: RowCodec) -> ItemsSource:
        wanted = codec.type
        for number, row in enumerate(self.rows):
            if not isinstance(row, wanted):
                raise ProgramError(
                    f"row {number} of source.items has another type than the stream",
                    where="source.items",
                    expected=f"{getattr(wanted, '__name__', wanted)}",
                    found=f"{type(row).__name__}: {row!r}"[:200],
                    next_move="give app.read the type of the rows, or make them of that type",
                )
        return self

    def reader(self, codec: RowCodec) -> ItemsReader:
        batch = pa.RecordBatch.from_arrays(codec.to_arrays(self.rows), schema=codec.schema)
        return ItemsReader(batch, self.per_epoch, self.partitions)

    def check_replay(self, passage: Passage) -> Replay:
        return SURE

    def describe(self) -> str:
        return f"items ({count_of(len(self.rows), 'row')})"


class WrittenRows(ItemsSource):
    """Rows that the program itself has written down, as by VALUES in a query: tests need not push them."""

    def __init__(self, rows: Iterable[Any]) -> None:
        super().__init__(rows, None, 1)

    def describe(self) -> str:
        return f"written down ({count_of(len(self.rows), 'row')})"


class ItemsReader(SplitReader):
    never_bad: ClassVar[bool] = True

    def __init__(self, rows: pa.RecordBatch, per_epoch: int | None, partitions: int) -> None:
        self.rows = rows
        self.per_epoch = per_epoch
        self.partitions = partitions

    def initial(self) -> Offset:
        return {"i": 0}

    def latest(self, start: Offset, limit: int | None) -> Offset:
        at = position(start)
        steps = [step for step in (self.per_epoch, limit) if step is not None]
        # A list that was made shorter between two starts is simply at its end; positions never go back.
        return {"i": max(at, min([self.rows.num_rows, *(at + step for step in steps)]))}

    def remaining(self, start: Offset) -> int:
        return max(0, int(self.rows.num_rows) - position(start))

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        return slice_range(position(start), position(end), self.partitions)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        stop = position(split.end)
        for at in range(position(split.start), stop, BATCH_ROWS):
            yield self.rows.slice(at, min(BATCH_ROWS, stop - at))


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
                raise self._misfit(count_of(batch.num_rows, "row"), at, upto)
            yield batch

    def _misfit(self, found: str, start: int, stop: int) -> FunctionFailed:
        return FunctionFailed(
            "the generator's function made columns that do not fit the stream",
            where=place_of(self.fn),
            expected=f"{count_of(stop - start, 'row')} of {', '.join(f'{f.name}: {f.type}' for f in self.schema)}",
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


EPOCH_ROWS: Final = 200_000
"""Rows of an epoch of a generator that has neither a rate nor a bound of its own."""

ColumnFunction = Callable[[int, int], "pa.RecordBatch | Mapping[str, Any]"]
Maker = RowMaker | ColumnMaker


class GeneratorSource(Source):
    kind: ClassVar[str] = "generator"
    python: ClassVar[bool] = True

    def __init__(
        self,
        fn: RowFunction | None,
        columns: ColumnFunction | None,
        *,
        rate: float | None,
        total: int | None,
        seed: int,
        partitions: int,
        per_epoch: int | None,
    ) -> None:
        if (fn is None) == (columns is None):
            raise ProgramError(
                "source.generator needs one function",
                where="source.generator",
                expected="fn(i, rng) that returns one row, or columns=fn(start, stop) that returns columns",
                found="both" if fn is not None else "neither",
                next_move="keep the one you mean",
            )
        if rate is not None and not rate > 0:
            raise ProgramError(
                f"rate cannot be {rate!r}",
                where="source.generator",
                expected="rows per second, more than 0",
                found=repr(rate),
                next_move="give rate=None for as fast as possible",
            )
        self.fn = fn
        self.columns = columns
        self.rate = rate
        self.total = check_positive("total", total, "source.generator")
        self.seed = seed
        self.partitions = check_positive("partitions", partitions, "source.generator") or 1
        self.per_epoch = check_positive("per_epoch", per_epoch, "source.generator")

    @property
    def bounded(self) -> bool:
        return self.total is not None

    @property
    def has_splits(self) -> bool:
        return False

    def reader(self, codec: RowCodec) -> GeneratorReader:
        maker: Maker
        if self.fn is not None:
            maker = RowMaker(self.fn, codec.type, self.seed)
        else:
            assert self.columns is not None
            maker = ColumnMaker(self.columns, codec.schema)
        return GeneratorReader(
            maker, rate=self.rate, total=self.total, per_epoch=self.per_epoch, partitions=self.partitions
        )

    def check_replay(self, passage: Passage) -> Replay:
        return SURE

    def describe(self) -> str:
        pace = "as fast as possible" if self.rate is None else f"{self.rate:g} rows/s"
        end = "" if self.total is None else f", {count_of(self.total, 'row')}"
        return f"generator {name_of(self.fn or self.columns)} ({pace}{end})"


class GeneratorReader(SplitReader):
    """`clock` is monotonic seconds; it comes in through the constructor so that tests need not wait."""

    never_bad: ClassVar[bool] = True

    def __init__(
        self,
        maker: Maker,
        *,
        rate: float | None,
        total: int | None,
        per_epoch: int | None,
        partitions: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.maker = maker
        self.rate = rate
        self.total = total
        self.per_epoch = per_epoch
        self.partitions = partitions
        self.clock = clock
        #: Clock and position when the pace began: at the first question, in whatever process asks it.
        self._began: tuple[float, int] | None = None
        self._hurry = False
        self._last: int | None = None

    def initial(self) -> Offset:
        return {"i": 0}

    def latest(self, start: Offset, limit: int | None) -> Offset:
        at = position(start)
        stops = [self._due(at)]
        if self.total is not None:
            stops.append(self.total)
        stops += [at + step for step in (self.per_epoch or EPOCH_ROWS_AT_MOST, limit) if step is not None]
        return {"i": max(at, min(stops))}

    def _due(self, at: int) -> int:
        if self._hurry:
            return self._end_of_now(at)
        if self.rate is None:
            return at + (self.per_epoch or EPOCH_ROWS)
        if self._began is None:
            self._began = (self.clock(), at)
        began, base = self._began
        return base + int((self.clock() - began) * self.rate)

    def _end_of_now(self, at: int) -> int:
        """What "there now" means for rows that do not exist yet: all of a bounded sequence, else a second's worth."""
        if self.total is not None:
            return self.total
        if self._last is None:
            self._last = at + (self.per_epoch or (EPOCH_ROWS if self.rate is None else max(1, int(self.rate))))
        return self._last

    def available_now(self) -> None:
        self._hurry = True

    def remaining(self, start: Offset) -> int | None:
        return None if self.total is None else max(0, self.total - position(start))

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        return slice_range(position(start), position(end), self.partitions)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self.maker.batches(position(split.start), position(split.end))
