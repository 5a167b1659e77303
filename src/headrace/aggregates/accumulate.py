"""Accumulators of keys: partial aggregates of a batch's keys in Python, merged key by key, stored and described.

Rolling aggregates and windows row by row keep one small value per key and aggregate, the accumulator; None means that
nothing was added yet. A batch comes in key order, so the rows of a key are a stretch. Many rows are lifted into columns
and merged by the bulk rules (`headrace.aggregates.columns`, `headrace.aggregates.rules`); few rows, and values that
have no columns, are merged by the scalar forms of the same rules. An accumulator is the cell of the aggregate's column
in Python, or of several columns the tuple of their cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import structs

from headrace.aggregates.columns import class_of, key_aggregate
from headrace.aggregates.declare import Agg, Aggregator, Declared, column_annotation
from headrace.aggregates.lifting import Mask, PaneAggregate
from headrace.aggregates.own import find_misfit
from headrace.aggregates.results import EXACT, as_it_is, finish_of
from headrace.aggregates.rules import merge_columns
from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s, Rows
from headrace.model.fields import former_names
from headrace.model.job import RESULT
from headrace.model.type_shape import TypeShape, accumulators_shape
from headrace.model.values import ValueCodec, value_codec

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

TIME_NOTE: Final = "!time"
"""Time of the newest row of a key; always the last note."""
NOT_COUNTED: Final[Any] = object()
"""Stands where an aggregate does not take a row."""
_FEW_ROWS: Final = 48
"""Up to so many rows the scalar rules are done before Arrow has begun."""


class TakenStretches(NamedTuple):
    """Rows of a batch that an aggregate takes, as stretches of equal keys."""

    rows: Int64s | None
    """Positions in the batch; None: all."""
    groups: Int64s
    """For each stretch, which of the batch's keys it belongs to."""
    starts: Int64s
    """Where each stretch begins among the rows taken."""

    def cut(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """The values of each stretch."""
        bounds = [*self.starts.tolist(), len(values)]
        return [values[start:end] for start, end in pairwise(bounds)]


class RowValues(NamedTuple):
    """What `KeyFold.gather` takes of each row of a batch."""

    values: Sequence[Any]
    whole: bool
    """Whether the aggregate takes every row; where it does not, the value is `NOT_COUNTED`."""

    def at(self, rows: list[int]) -> Sequence[Any]:
        """The values of some rows, as far as they count."""
        values = self.values
        if self.whole:
            return [values[row] for row in rows]
        return [value for row in rows if (value := values[row]) is not NOT_COUNTED]


class Partials(NamedTuple):
    """One accumulator for each of some of a batch's keys."""

    groups: list[int]
    accs: list[Any]


class KeyFold:
    """One aggregate over rows of one type, as accumulators."""

    def __init__(self, aggregate: PaneAggregate, finish: Callable[[Any], Any] | None) -> None:
        self.aggregate = aggregate
        self.acc_type = aggregate.acc_type
        self.merge, self.gather, self.elements = aggregate.merge, aggregate.gather, aggregate.elements
        self.absorb = aggregate.absorb or aggregate.merge
        self._finish = finish
        """None: an accumulator is its result."""

    def partials(self, rows: Rows, starts: Int64s) -> Partials:
        """What each stretch of rows amounts to by itself."""
        aggregate = self.aggregate
        if not aggregate.in_columns or len(rows) <= _FEW_ROWS or aggregate.column is None:
            return self._partials_of_few(rows, starts)
        merged = merge_columns(aggregate.fields, aggregate.lift(rows), starts)
        present, accs = aggregate.accumulators(merged)
        if aggregate.timed and rows.times is None:
            accs = [(None, value) for _, value in accs]
        return Partials(present.tolist(), accs)

    def row_values(self, rows: Rows) -> RowValues:
        """What `gather` takes of each row, for whoever puts rows together one by one."""
        taken, values = self._taken_values(rows, np.arange(len(rows)))
        if taken.rows is None:
            return RowValues(values, whole=True)
        spread = [NOT_COUNTED] * len(rows)
        for row, value in zip(taken.rows.tolist(), values):
            spread[row] = value
        return RowValues(spread, whole=False)

    def _partials_of_few(self, rows: Rows, starts: Int64s) -> Partials:
        taken, values = self._taken_values(rows, starts)
        groups = taken.groups.tolist()
        if self.aggregate.column is None:
            return Partials(groups, np.diff(np.append(taken.starts, len(values))).tolist())
        accs: list[Any] = []
        try:
            for part in taken.cut(values) if groups else ():
                accs.append(self.gather(part))
        except FunctionFailed as error:
            error.stretch = groups[len(accs)]
            raise
        return Partials(groups, accs)

    def _taken_values(self, rows: Rows, starts: Int64s) -> tuple[TakenStretches, Sequence[Any]]:
        """The stretches of rows that count, and what `gather` takes of each row."""
        aggregate = self.aggregate
        arrays = [values.array(rows) for values in (aggregate.by, aggregate.column) if values is not None]
        taken = _stretches(aggregate.taken_rows(rows, *arrays), starts)
        total = len(rows) if taken.rows is None else len(taken.rows)
        if aggregate.column is None or not total:
            return taken, range(total)
        if taken.rows is not None:
            arrays = [array.take(pa.array(taken.rows)) for array in arrays]
        values: Any = self.elements(*arrays)
        if aggregate.timed:
            times = rows.times if rows.times is None or taken.rows is None else rows.times[taken.rows]
            values = list(zip([None] * total if times is None else times.tolist(), values))
        return taken, values

    def results(self, accs: list[Any]) -> list[Any]:
        """The results of accumulators, of None, too."""
        return accs if self._finish is None else list(map(self._finish, accs))


def _stretches(mask: Mask | None, starts: Int64s) -> TakenStretches:
    if mask is None or bool(mask.all()):
        return TakenStretches(None, np.arange(len(starts)), starts)
    positions = np.flatnonzero(mask)
    # Rows of a key stay together, so a stretch begins wherever the key changes among the rows that are left.
    groups = np.searchsorted(starts, positions, "right") - 1
    begins = np.flatnonzero(np.diff(groups, prepend=-1))
    return TakenStretches(positions, groups[begins], begins)


def make_fold(agg: Agg[Any], codec: RowCodec, where: str, name: str = "") -> KeyFold | None:
    """How an aggregate is computed over rows of this type; None for an own Aggregator, which takes row by row."""
    if not isinstance(agg, Declared):
        return None
    aggregate = key_aggregate(name or agg.kind, agg, codec, where)
    finish = finish_of(*aggregate.words_of_result(agg, None if agg.column is None else aggregate.values.type))
    return KeyFold(aggregate, None if finish is as_it_is else finish)


# --- as they are stored


def accumulator_type(agg: Agg[Any], fold: KeyFold | None) -> Any:
    """The type of what an aggregate keeps of some rows."""
    if isinstance(agg, Aggregator):
        return agg.accumulator_type()
    return Any if fold is None else fold.acc_type


def describe_accumulators(
    aggs: Mapping[str, Agg[Any]], taken: RowCodec, where: str, given: RowCodec | None = None
) -> TypeShape:
    """The type of the accumulators of a key, as they are stored. ``given``: the type of results, if it is theirs."""
    kinds = {name: accumulator_type(agg, make_fold(agg, taken, where, name)) for name, agg in aggs.items()}
    return accumulators_shape(kinds, None if given is None else former_names(given.type))


def accumulators_codec(aggs: Mapping[str, Agg[Any]], folds: Sequence[KeyFold | None], *notes: str) -> ValueCodec:
    """Accumulators as a map by the name of their aggregate, so that aggregates may come and go; in memory a list.

    ``notes``: names of further numbers, which stand behind the accumulators.
    """
    fields: list[Any] = []
    for i, ((name, agg), fold) in enumerate(zip(aggs.items(), folds)):
        kind = accumulator_type(agg, fold)
        fields.append((f"acc{i}", kind | None, msgspec.field(default=None, name=name)))
    for i, name in enumerate((*notes, TIME_NOTE)):
        fields.append((f"note{i}", int | None, msgspec.field(default=None, name=name)))
    stored = msgspec.defstruct("Accumulators", fields, gc=False, omit_defaults=True)
    inner = value_codec(stored)
    return ValueCodec(
        lambda accs: inner.encode(stored(*accs)),
        lambda raw: list(structs.astuple(inner.decode(raw))),
        # What an aggregator of the user's own makes need not fit the type it says.
        each=any(isinstance(agg, Aggregator) for agg in aggs.values()),
        find_misfit=partial(find_misfit, aggs),
    )


def describe_results(aggs: Mapping[str, Agg[Any]], taken: RowCodec) -> dict[str, list[Any]]:
    """Result → its kind, and behind it what else `finish_of` needs, for readers without the program; it is stored."""
    return {name: _describe(agg, taken) for name, agg in aggs.items()}


def describe_kept_results(aggs: Mapping[str, Agg[Any]], taken: RowCodec) -> dict[str, list[Any]]:
    """The same where results are stored as they are, beside what they are made of."""
    return {name: [RESULT, *([EXACT] if _is_exact(agg, taken) else [])] for name, agg in aggs.items()}


def _is_exact(agg: Agg[Any], taken: RowCodec) -> bool:
    """Whether the result of an aggregate is a decimal, or several."""
    if not isinstance(agg, Declared) or agg.column is None or agg.kind == "count_distinct":
        return False
    return column_annotation(taken, agg.column)[0] is Decimal


def _describe(agg: Agg[Any], taken: RowCodec) -> list[Any]:
    if not isinstance(agg, Declared):
        return [agg.kind]
    made, value = class_of(agg), column_annotation(taken, agg.column)[0] if agg.column is not None else None
    # Decimals are stored as text.
    words = [str(word) if isinstance(word, Decimal) else word for word in made.words_of_result(agg, value)]
    return [*words, EXACT] if made.holds_values and value is Decimal else words
