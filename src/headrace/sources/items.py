"""`items`: rows given in the program itself.

Bounded; the offset is the position in the list, so any range can be read again. The rows travel with every task that
reads them: this is for tests, notebooks and small reference data, not for volume (`generator` makes volume in place).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.errors import ProgramError
from headrace.sources.contract import Offset, Source, Split, SplitReader
from headrace.sources.ranges import BATCH_ROWS, check_positive, position, slice_range

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

    def describe(self) -> str:
        return f"items ({len(self.rows)} rows)"


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
