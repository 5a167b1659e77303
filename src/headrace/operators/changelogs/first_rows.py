"""Which rows of some may be among the first of their key: the others need not move, be hashed or be kept.

Only where rows stay: then a row that has as many before it as are asked for will never be among the first. Rows of one
place are left together, because what decides between them is known where all rows of the key are.

Whether it saves anything is told by the data. Where nearly all rows of a batch are left, those that follow pass without
being looked at, for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.aggregates.numbers import order_by, ranks_of
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.columns import Column
from headrace.model.rows import RowCodec
from headrace.operators.contract import COMBINING, MAIN, Operator, TaskInfo
from headrace.operators.spec import CombinedRows

if TYPE_CHECKING:
    from headrace.operators.changelogs.top_spec import OrderColumn, TopSpec
    from headrace.operators.spec import StepInfo
    from headrace.state.shard import ShardState

WORTH: Final = 0.75
"""Looking for the first rows is worth it while at most this share of them is left."""
LOOK_AGAIN_ROWS: Final = 1 << 18
"""After how many rows that passed they are looked at again."""
_LEAST, _GREATEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


def asked_ranks(spec: TopSpec, names: Sequence[str], column: Callable[[int], pa.Array], times: Int64s) -> list[Int64s]:
    """Numbers in the order that a step asks for, the most important first. ``column``: of the rows, by its place."""
    asked = [_ranks(column(names.index(each.name)), each) for each in spec.order]
    return [-times, *asked] if spec.newest else asked


def _ranks(column: pa.Array, by: OrderColumn) -> Int64s:
    """Numbers in the order asked for."""
    ranks = ranks_of(column)
    missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    if by.descending:
        ranks = -ranks if missing is None else np.where(missing, 0, -np.where(missing, 0, ranks))
    if missing is not None:
        ranks = np.where(missing, _GREATEST if by.nulls_last else _LEAST, ranks)
    return ranks


class FirstRows:
    """Leaves the rows of a batch that may be among the first of their key."""

    def __init__(self, spec: TopSpec, taken: RowCodec) -> None:
        self._spec = spec
        self._names = taken.names
        self._pass = 0
        """So many rows pass without being looked at."""

    def begin(self) -> None:
        """A task begins: what it leaves depends on its own rows alone."""
        self._pass = 0

    def places(self, rows: Rows, encoded: pa.BinaryArray) -> Int64s | None:
        """The positions of the rows that are left, in their order; None: all."""
        if self._pass > 0:
            self._pass -= len(rows)
            return None
        codes = encoded.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        # Of untimed rows all times are equal.
        times = np.zeros(len(rows), np.int64) if rows.times is None else rows.times
        columns = rows.columns
        asked = asked_ranks(self._spec, self._names, columns.__getitem__, times)
        left = _may_be_first(codes, asked, self._spec.most, dense=self._spec.ties == "dense")
        if len(left) > WORTH * len(rows):
            self._pass = LOOK_AGAIN_ROWS
        return None if len(left) == len(rows) else left


def _may_be_first(codes: Int64s, asked: Sequence[Int64s], most: int, *, dense: bool) -> Int64s:
    """Positions of the rows of which fewer than so many of their key stand before them; ``dense``: so many places."""
    count = len(codes)
    order = order_by(codes.astype(np.int64), *asked)
    new_key = np.ones(count, np.bool_)
    new_key[1:] = codes[order[1:]] != codes[order[:-1]]
    new_place = new_key.copy()
    for ranks in asked:
        new_place[1:] |= ranks[order[1:]] != ranks[order[:-1]]
    every = np.cumsum(new_place) if dense else np.arange(count)
    # Rows of one place stand behind as many as the first of them.
    place = np.maximum.accumulate(np.where(new_place, every, 0)) - np.maximum.accumulate(np.where(new_key, every, 0))
    left = order[place < most]
    left.sort()
    return left


class FirstRowsCodec(RowCodec):
    """Rows that are left, and for how many that came each of them stands."""

    def __init__(self, taken: RowCodec) -> None:
        self.taken = taken
        rows = "rows"
        while rows in taken.columns:
            rows += "_"
        super().__init__(bytes, {rows: Column(pa.int64()), **taken.columns})

    def __reduce__(self) -> Any:
        return FirstRowsCodec, (self.taken,)


def leave_first_rows(spec: TopSpec, info: StepInfo) -> CombinedRows:
    """What stands before the exchange of a step that asks for first rows among rows that stay."""
    codec = FirstRowsCodec(info.taken[0])
    return CombinedRows(codec, partial(FirstRowsOperator, info.step, spec, codec))


class FirstRowsOperator(Operator):
    """Stands before the exchange. Its keys have no hashes: whoever exchanges computes them."""

    def __init__(self, step: str, spec: TopSpec, codec: FirstRowsCodec) -> None:
        super().__init__(f"{COMBINING}{step}")
        self.codec = codec
        self._first = FirstRows(spec, codec.taken)

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self._first.begin()

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        count = len(rows)
        self.report.rows_in += count
        if not count:
            return
        assert keys is not None, f"{self.step} was given rows without keys"
        encoded, left = keys.encoded, self._first.places(rows, keys.encoded)
        if left is not None:
            rows, encoded = rows.take(left), encoded.take(pa.array(left))
        stands_for = np.ones(len(rows), np.int64)
        stands_for[0] += count - len(rows)
        self.report.rows_out += len(rows)
        columns = [pa.array(stands_for), *rows.columns, encoded]
        self.outlets[MAIN](Rows.of_columns(self.codec, columns, rows.times))
