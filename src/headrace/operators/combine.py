"""Combining before the exchange: rows of one group and key become one partial aggregate where that saves rows.

A group is what a step keeps apart of one key: a slice of time of a windowed step; other aggregates have one.

Whether it saves rows is told by the data. Each task combines its first rows and concludes from what is left of them
what would be left of many: few, and it goes on combining; nearly all, and rows pass as partials of their own, which
costs a few columns and no sorting, until it looks again. What reaches the step is the same either way.

The rows that come out are those of `PartialCodec`: how many rows a partial stands for, then columns that are merged by
their rules; the group is in the place of their time, and their encoded key comes last, beside the columns of the codec.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.rules import SUM, merge_columns, merge_field, split_sums
from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.columns import Column
from headrace.model.rows import RowCodec
from headrace.operators.contract import COMBINING, MAIN, Operator, TaskInfo
from headrace.operators.keyed import sort_slots
from headrace.operators.spec import CombinedRows

if TYPE_CHECKING:
    from headrace.state.shard import ShardState

SAMPLE_ROWS: Final = 16_384
"""Rows that a task looks at to find out whether combining is worth it …"""
LOOK_AGAIN_ROWS: Final = 1 << 20
"""… and after how many more it looks again."""
MERGE_ROWS: Final = 1 << 17
"""Rows that are combined at once."""
FEW_LEFT: Final = 16
"""Where of so many rows one is left, they are combined as they come: laying more together would only copy them."""
HELD_ROWS: Final = 1 << 17
"""Partials that a task holds back; more leave at once …"""
HELD_BYTES: Final = 1 << 20
"""… and so do lists of values that have become long, which would be merged again and again."""
_LONG_BYTES: Final = 1_024
"""What a partial with such lists has at least."""
WORTH: Final = 0.75
"""Combining is worth it while at most this share of rows is left."""

_COUNT: Final = merge_field("rows", pa.int64(), SUM)


class PartialCodec(RowCodec):
    """Columns of partial aggregates on their way to the step that merges them."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self.fields = [_COUNT, *fields]
        super().__init__(bytes, {field.name: Column(field.type) for field in self.fields})

    def __reduce__(self) -> Any:
        return PartialCodec, (self.fields[1:],)


class Lifting(ABC):
    """How the rows of one step become partials: made once per worker, by a function that travels."""

    fields: list[pa.Field]
    """The columns that are merged, each with its rule."""

    def begin(self, task: TaskInfo) -> None:  # noqa: B027 - not all ask for the task
        """A task begins."""

    @abstractmethod
    def groups(self, rows: Rows) -> Int64s:
        """The group of each row."""

    @abstractmethod
    def lift(self, rows: Rows) -> list[pa.Array]:
        """A cell for each row and column."""


def combine_lifted(make: Callable[[], Lifting], step: str, fields: Sequence[pa.Field]) -> CombinedRows:
    """What stands before the exchange of a step. ``make``: its lifting, whose fields these are."""
    return CombinedRows(PartialCodec(fields), partial(CombineOperator, step, make))


class CombineOperator(Operator):
    """Stands before the exchange of a step. Its keys have no hashes: whoever exchanges computes them."""

    def __init__(self, step: str, make: Callable[[], Lifting]) -> None:
        super().__init__(f"{COMBINING}{step}")
        self.lifting = make()
        self.codec = PartialCodec(self.lifting.fields)
        self._waiting: list[_Partials] = []
        self._waiting_rows = 0
        self._held: _Partials | None = None
        self._combines = True
        self._left = SAMPLE_ROWS
        """Rows until it is decided again; while combining it is decided whenever rows are combined."""

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.lifting.begin(task)
        self._waiting, self._waiting_rows, self._held = [], 0, None
        self._combines, self._left = True, SAMPLE_ROWS

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        start = 0
        while start < len(rows):
            assert keys is not None
            # The first rows of a batch decide about the rest of it.
            end = min(len(rows), start + self._left)
            partials = self._lift(_cut_rows(rows, start, end), keys.encoded.slice(start, end - start))
            self._left -= end - start
            start = end
            if self._combines:
                self._wait(partials)
            else:
                self._pass(partials)

    def _wait(self, partials: _Partials) -> None:
        self._waiting.append(partials)
        self._waiting_rows += partials.count
        if self._left <= 0:
            self._combine()

    def _pass(self, partials: _Partials) -> None:
        self._give(partials)
        if self._left <= 0:
            self._combines, self._left = True, SAMPLE_ROWS

    def _combine(self) -> None:
        """Merges what waits, and decides about the rows to come."""
        taken = self._waiting_rows
        before = 0 if self._held is None else self._held.count
        merged = self._merge()
        self._combines = derive_share(taken, merged.count - before, MERGE_ROWS) <= WORTH
        few = merged.count * FEW_LEFT <= taken
        self._left = LOOK_AGAIN_ROWS if not self._combines else SAMPLE_ROWS if few else MERGE_ROWS
        # Rows that pass would overtake what is held, and would then count as the older ones where times are equal.
        if not self._combines or merged.count >= HELD_ROWS or merged.is_large:
            self._give(merged)
            self._held = None

    def _merge(self) -> _Partials:
        parts = self._waiting if self._held is None else [self._held, *self._waiting]
        self._waiting, self._waiting_rows = [], 0
        self._held = _concatenate(parts).merged()
        return self._held

    def _lift(self, rows: Rows, encoded: pa.BinaryArray) -> _Partials:
        counts = pa.array(np.ones(len(rows), np.int64))
        return _Partials(self.codec, self.lifting.groups(rows), encoded, [counts, *self.lifting.lift(rows)])

    def finish(self) -> None:
        if self._held is not None or self._waiting:
            self._give(self._merge())
            self._held = None

    def _give(self, partials: _Partials) -> None:
        self.report.rows_out += partials.count
        self.outlets[MAIN](Rows.of_columns(self.codec, [*partials.accs, partials.keys], partials.groups))


def derive_share(rows: int, left: int, of_rows: int) -> float:
    """What share of ``of_rows`` rows combining would leave, where it left ``left`` of ``rows``: as if keys were drawn.

    >>> round(derive_share(10_000, 9_000, 10_000), 2), derive_share(10_000, 9_000, 1_000_000) < 0.1
    (0.9, True)
    """
    if left in (0, rows) or of_rows <= rows:
        return left / rows
    low, high = float(left), float(left) * rows
    for _ in range(60):
        keys = math.sqrt(low * high)
        low, high = (keys, high) if _expected_groups(keys, rows) < left else (low, keys)
    return _expected_groups(high, of_rows) / of_rows


def _expected_groups(keys: float, rows: int) -> float:
    """How many different ones there are among rows that are drawn from so many."""
    return -keys * math.expm1(-rows / keys)


class _Partials:
    """Partial aggregates: group, key, accumulators."""

    def __init__(self, codec: PartialCodec, groups: Int64s, keys: pa.BinaryArray, accs: list[pa.Array]) -> None:
        self.codec = codec
        self.groups = groups
        self.keys = keys
        self.accs = accs

    @property
    def count(self) -> int:
        return len(self.groups)

    @property
    def is_large(self) -> bool:
        """Whether there are long lists among them."""
        size_bytes: int = sum(column.nbytes for column in self.accs)
        return size_bytes >= max(HELD_BYTES, _LONG_BYTES * self.count)

    def merged(self) -> _Partials:
        """Each group and key once. Keys are told apart by a dictionary of their bytes, so no hash is needed."""
        if self.count < 2:
            return self
        codes = self.keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
        order = sort_slots(codes)
        if self.groups.min() != self.groups.max():
            distinct = np.unique(self.groups)
            order = order[sort_slots(np.searchsorted(distinct, self.groups[order]))]
        groups, codes = self.groups[order], codes[order]
        starts = np.append(0, np.flatnonzero((codes[1:] != codes[:-1]) | (groups[1:] != groups[:-1])) + 1)
        if len(starts) == self.count:
            return self
        accs = self.accs
        if bool((order[1:] < order[:-1]).any()):
            # Of a single key rows stand in order already.
            places = pa.array(order)
            accs = [pc.take(column, places, boundscheck=False) for column in accs]
        try:
            merged = merge_columns(self.codec.fields, accs, starts)
        except FunctionFailed:
            # Whether the sum of all fits is known where they are together.
            starts = split_sums(self.codec.fields, accs, starts)
            merged = merge_columns(self.codec.fields, accs, starts)
        firsts = pa.array(order[starts])
        return _Partials(self.codec, groups[starts], pc.take(self.keys, firsts, boundscheck=False), merged)


def _concatenate(parts: Sequence[_Partials]) -> _Partials:
    """Partials one after the other, older first."""
    if len(parts) == 1:
        return parts[0]
    accs = [pa.concat_arrays(columns) for columns in zip(*(part.accs for part in parts))]
    keys = pa.concat_arrays([part.keys for part in parts])
    return _Partials(parts[0].codec, np.concatenate([part.groups for part in parts]), keys, accs)


def _cut_rows(rows: Rows, start: int, end: int) -> Rows:
    if start == 0 and end == len(rows):
        return rows
    times = None if rows.times is None else rows.times[start:end]
    return Rows.of_columns(rows.codec, [column.slice(start, end - start) for column in rows.columns], times)
