"""`generator`: rows made on the spot, for demos, tests and benchmarks.

Row *i* depends on the seed and on *i* alone, so any range can be made again, in any process, whatever was made before
it. The pace is measured from the moment the reader starts: a job that was down for an hour is not met by an hour's
rows. This module deliberately knows no wall clock beyond that pace: a row that wants a time computes it from *i*.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from headrace.errors import ProgramError
from headrace.sources.contract import EPOCH_ROWS_AT_MOST, Offset, Source, Split, SplitReader
from headrace.sources.making import ColumnMaker, RowFunction, RowMaker, name_of
from headrace.sources.ranges import check_positive, position, slice_range

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

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

    def describe(self) -> str:
        pace = "as fast as possible" if self.rate is None else f"{self.rate:g} rows/s"
        end = "" if self.total is None else f", {self.total} rows"
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
