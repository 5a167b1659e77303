"""Rows of ``aggregate`` combined before the exchange: partial aggregates of a key, and how they come to accumulators.

Only where no aggregate asks in which order rows came, because partials of several tasks come in any order. How many of
the rows were late is counted where they are, by the watermark that the step has as the epoch begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.aggregates.accumulate import KeyFold, Partials, make_fold
from headrace.aggregates.declare import Agg
from headrace.aggregates.list_rules import SET, SKETCH
from headrace.aggregates.rules import GREATEST, LEAST, MAX, MIN, SUM, merge_columns, merge_field, rule_of
from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s, Rows
from headrace.model.ids import MIN_TIME
from headrace.operators.combine import Lifting, combine_lifted
from headrace.operators.contract import TaskInfo

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.operators.spec import CombinedRows

_LATE: Final = merge_field("!late", pa.int64(), SUM)
_TIME: Final = merge_field("!time", pa.int64(), MAX)
_NOTES: Final = (_LATE, _TIME)
"""Columns before those of aggregates: how many rows were late, and the time of the newest, if rows have times."""
_IN_ANY_ORDER: Final = frozenset({SUM, MIN, MAX, LEAST, GREATEST, SET, SKETCH})


def combine_by_key(step: str, aggs: Mapping[str, Agg[Any]], taken: RowCodec) -> CombinedRows | None:
    """How rows are combined; None where they have to travel as they are."""
    folds = foldable(aggs, taken, f"step {step}")
    if folds is None:
        return None
    return combine_lifted(partial(KeyLifting, step, dict(aggs), taken), step, partial_fields(folds))


def foldable(aggs: Mapping[str, Agg[Any]], taken: RowCodec, where: str) -> list[KeyFold] | None:
    """The aggregates, if columns of each can be merged in any order."""
    folds = [make_fold(agg, taken, where, name) for name, agg in aggs.items()]
    return [fold for fold in folds if fold is not None] if folds and all(map(_merges_in_any_order, folds)) else None


def _merges_in_any_order(fold: KeyFold | None) -> bool:
    if fold is None or not fold.aggregate.in_columns or fold.aggregate.timed:
        return False
    return {rule_of(field) for field in fold.aggregate.fields} <= _IN_ANY_ORDER


def partial_fields(folds: Sequence[KeyFold]) -> list[pa.Field]:
    return [*_NOTES, *(field for fold in folds for field in fold.aggregate.fields)]


class KeyLifting(Lifting):
    """There is one group of a key."""

    def __init__(self, step: str, aggs: Mapping[str, Agg[Any]], taken: RowCodec) -> None:
        self._step = step
        self._folds = foldable(aggs, taken, f"step {step}") or []
        self.fields = partial_fields(self._folds)
        self._watermark = MIN_TIME

    def begin(self, task: TaskInfo) -> None:
        self._watermark = task.starts_at(self._step)

    def groups(self, rows: Rows) -> Int64s:
        return np.zeros(len(rows), np.int64)

    def lift(self, rows: Rows) -> list[pa.Array]:
        late, times = np.zeros(len(rows), np.int64), pa.nulls(len(rows), pa.int64())
        if rows.times is not None:
            times = pa.array(rows.times)
            if self._watermark > MIN_TIME:
                late = (rows.times <= self._watermark).astype(np.int64)
        return [pa.array(late), times, *(cell for fold in self._folds for cell in fold.aggregate.lift(rows))]


class ArrivedPartials:
    """Partials behind the exchange, those of a key side by side."""

    def __init__(self, folds: Sequence[KeyFold], columns: Sequence[pa.Array], starts: Int64s) -> None:
        """``columns``: without the first, which says how many rows a partial stands for."""
        self._folds = folds
        self._merged = merge_columns(partial_fields(folds), list(columns), starts)

    @property
    def times(self) -> list[int | None]:
        """The time of the newest row of each key."""
        times: list[int | None] = self._merged[1].to_pylist()
        return times

    def of_each(self) -> Sequence[Partials]:
        """For each aggregate what the keys come to."""
        found, place = [], len(_NOTES)
        for fold in self._folds:
            cells = self._merged[place : place + len(fold.aggregate.fields)]
            place += len(cells)
            present, accs = fold.aggregate.accumulators(cells)
            found.append(Partials(present.tolist(), accs))
        return found


def count_arrived(rows: Rows) -> tuple[int, int]:
    """How many rows partials stand for, and how many of these were late."""
    counts, late = (rows.columns[i].to_numpy() for i in (0, 1))
    return int(counts.sum()), int(late.sum())


def keep_newest(held: list[list[Any]], times: Sequence[int | None]) -> None:
    """Notes beside the accumulators of each key the time of its newest row."""
    for accs, time in zip(held, times):
        if time is not None and (accs[-1] is None or time > accs[-1]):
            accs[-1] = time


def merge_in(held: list[list[Any]], i: int, fold: KeyFold, partials: Partials) -> None:
    """Adds partials of one aggregate to the accumulators of their keys, in place."""
    absorb = fold.absorb
    group = 0
    try:
        for group, part in zip(partials.groups, partials.accs):
            accs = held[group]
            before = accs[i]
            accs[i] = part if before is None else absorb(before, part)
    except FunctionFailed as error:
        error.stretch = group
        raise
