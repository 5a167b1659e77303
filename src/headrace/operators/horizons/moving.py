"""Aggregates over stretches of a line of rows, many stretches at once, whether they overlap or not.

A line holds rows in the order of (key, time, arrival), and a horizon is a stretch of it. What is asked for are the
accumulators of stretches, of the same kinds that rolling aggregates have (`headrace.aggregates.accumulate`), so that
whoever finishes or stores those can do it with these.

Sums and counts of whole numbers *go on*: what a key came to earlier, and the rows that came and went since, give what
it comes to now, exactly. So the line need not hold the whole horizon: what is missing in the middle is missing from
the earlier stretch too, and their difference does not know of it (`Past`). All other kinds, sums of floats among them,
are made anew from the rows of each stretch; otherwise rounding errors would stay for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.aggregates.accumulate import KeyFold, make_fold
from headrace.aggregates.declare import Declared
from headrace.aggregates.lifting import Values
from headrace.aggregates.rules import LATEST, MAX, MIN, SUM, extreme_ufunc, rule_of
from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s
from headrace.model.time import Duration, Timestamp
from headrace.operators.matching import Mask, PartnerRanges

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.operators.horizons.horizon_rows import KeptColumns

Numbers = npt.NDArray[Any]
"""64-bit numbers, or Python's where those do not do."""

_WHOLE: Final = (int, Duration)
_ORDERED: Final = (int, float, Duration, Timestamp)
"""Types whose values are numbers to numpy and to Python alike."""
_EXACT: Final = 1 << 61
"""Three sums below this fit into 64 bits together."""
_DIGITS: Final = 100
"""Of a sum of decimals; more than any column can make necessary."""


class LineRows(NamedTuple):
    """The rows of a line, place by place."""

    columns: Mapping[str, pa.Array]
    at: Int64s
    old: Mask
    """Which rows had come before; `Past` tells what they came to."""


class Past(NamedTuple):
    """What keys came to earlier, for kinds that go on from there."""

    known: Mask
    """Keys that something is known of. The others have their whole horizon on the line."""
    stretches: PartnerRanges
    """For each key the horizon as it was then, where its rows stand on the line, new rows that lie in between too."""
    accs: list[Any]
    codes: Int64s
    """For each stretch that is asked for, its key."""

    def since(self, before: Numbers, accs: Numbers, taken: TakenRows) -> Numbers:
        """What each stretch asked for lacks on the line.

        ``before``: what the old rows before each place add up to; ``accs``: what each key came to.
        """
        found = taken.within(self.stretches)
        lacking: Numbers = np.where(self.known, accs - (before[found.ends] - before[found.starts]), 0)
        return lacking[self.codes]


class TakenRows(NamedTuple):
    """The rows of a line that an aggregate takes."""

    places: Int64s | None
    """None: all of them."""
    before: Int64s | None
    """How many of them stand before each place, and before the end."""

    def within(self, stretches: PartnerRanges) -> PartnerRanges:
        """The same stretches, counted in rows taken."""
        if self.before is None:
            return stretches
        return PartnerRanges(self.before[stretches.starts], self.before[stretches.ends])

    def of(self, values: Any) -> Any:
        """What an array of the line says of the rows taken."""
        if self.places is None:
            return values
        return values[self.places] if isinstance(values, np.ndarray) else values.take(pa.array(self.places))


class Moving:
    """One aggregate over a horizon: its fold, over stretches that may overlap."""

    goes_on = False
    """Whether an earlier accumulator, and the rows that came and went since, are enough."""

    def __init__(self, agg: Declared[Any], fold: KeyFold, columns: KeptColumns) -> None:
        self.over_us = agg.over_us or 0
        self.fold = fold
        self._value = columns.value(agg.column)
        self._by = columns.value(agg.by)
        self._where = columns.condition(agg.where)

    @property
    def values(self) -> Values:
        return self.fold.aggregate.values

    def accs(self, rows: LineRows, asked: PartnerRanges, past: Past | None) -> list[Any]:
        """The accumulator of each stretch; None where it takes no row. ``past``: only for kinds that go on."""
        taken = self._take(rows)
        return self.reduce(rows, taken, taken.within(asked), past)

    def reduce(self, rows: LineRows, taken: TakenRows, found: PartnerRanges, past: Past | None) -> list[Any]:
        raise NotImplementedError

    def _take(self, rows: LineRows) -> TakenRows:
        mask: Mask | None = None
        if self._where is not None:
            mask = rows.columns[self._where].fill_null(False).to_numpy(zero_copy_only=False)
        for name in (self._value, self._by):
            if name is not None and rows.columns[name].null_count:
                there = rows.columns[name].is_valid().to_numpy(zero_copy_only=False)
                mask = there if mask is None else mask & there
        if mask is None or bool(mask.all()):
            return TakenRows(None, None)
        return TakenRows(np.flatnonzero(mask), _before(mask.astype(np.int64)))

    def _array(self, rows: LineRows, taken: TakenRows) -> pa.Array:
        assert self._value is not None
        return taken.of(rows.columns[self._value])


class _MovingCount(Moving):
    goes_on = True

    def reduce(self, rows: LineRows, taken: TakenRows, found: PartnerRanges, past: Past | None) -> list[Any]:
        return _counts(rows, taken, found, past, None if past is None else past.accs)


class _WholeSum(Moving):
    """Sums that lose nothing when rows are taken out again: of ints, spans and decimals."""

    goes_on = True

    def reduce(self, rows: LineRows, taken: TakenRows, found: PartnerRanges, past: Past | None) -> list[Any]:
        return self._sums(rows, taken, found, past, None if past is None else past.accs)

    def _sums(
        self, rows: LineRows, taken: TakenRows, found: PartnerRanges, past: Past | None, accs: Sequence[Any] | None
    ) -> list[Any]:
        array, is_whole = self._array(rows, taken), self.values.type in _WHOLE
        numbers = _whole(self.values.numbers(array)) if is_whole else _objects(self.values.objects(array))
        zero: Any = 0 if is_whole else Decimal(0)
        with localcontext() as context:
            context.prec = _DIGITS
            before = _before(numbers, zero)
            sums = before[found.ends] - before[found.starts]
            if past is not None and accs is not None:
                old = _before(np.where(taken.of(rows.old), numbers, zero), zero)
                sums = sums + past.since(old, _whole_of([acc or 0 for acc in accs]), taken)
        return self._fitting(sums)

    def _fitting(self, sums: Numbers) -> list[Any]:
        """Sums that can be stored. Numbers of 64 bits are; Python's are looked at."""
        listed: list[Any] = sums.tolist()
        for stretch, total in enumerate(listed if sums.dtype == object else ()):
            try:
                self.fold.gather((total,))
            except FunctionFailed as error:
                error.stretch = stretch
                raise
        return listed


class _WholeMean(_WholeSum):
    """Means of whole numbers and decimals, from their sum and count."""

    def __init__(self, agg: Declared[Any], fold: KeyFold, columns: KeptColumns) -> None:
        super().__init__(agg, fold, columns)
        # The sum of a mean over all rows is a float; it may stand where the declaration has changed.
        fold.acc_type = tuple[int | float, int] if self.values.type in _WHOLE else tuple[Decimal, int]

    def reduce(self, rows: LineRows, taken: TakenRows, found: PartnerRanges, past: Past | None) -> list[Any]:
        held = None if past is None else [acc or (0, 0) for acc in past.accs]
        counts = _counts(rows, taken, found, past, None if held is None else [count for _, count in held])
        sums = self._sums(rows, taken, found, past, None if held is None else [total for total, _ in held])
        return [(total, count) if count else None for total, count in zip(sums, counts)]

    def _fitting(self, sums: Numbers) -> list[Any]:
        if self.values.type not in _WHOLE:
            return super()._fitting(sums)
        # Of whole numbers a mean adds floats elsewhere, which are never too large.
        listed: list[Any] = sums.tolist()
        return [float(each) if type(each) is int and abs(each) >= 1 << 63 else each for each in listed]


class _FloatSum(Moving):
    def reduce(self, rows: LineRows, taken: TakenRows, found: PartnerRanges, past: Past | None) -> list[Any]:
        numbers = self.values.numbers(self._array(rows, taken)).astype(np.float64)
        return _filled(found, _add_each(numbers, found))


class _FloatMean(_FloatSum):
    def reduce(self, rows: LineRows, taken: TakenRows, found: PartnerRanges, past: Past | None) -> list[Any]:
        sums = super().reduce(rows, taken, found, past)
        return [None if total is None else (total, count) for total, count in zip(sums, found.counts.tolist())]


class _MovingExtreme(Moving):
    """``min`` and ``max`` of numbers."""

    def __init__(self, agg: Declared[Any], fold: KeyFold, columns: KeptColumns) -> None:
        super().__init__(agg, fold, columns)
        self._better = extreme_ufunc(least=rule_of(fold.aggregate.fields[0]) == MIN)

    def reduce(self, rows: LineRows, taken: TakenRows, found: PartnerRanges, past: Past | None) -> list[Any]:
        return _filled(found, _best_of_each(self._better, self.values.numbers(self._array(rows, taken)), found))


class _End(Moving):
    """``first`` and ``last``: the rows of a stretch stand in the order of time."""

    def __init__(self, agg: Declared[Any], fold: KeyFold, columns: KeptColumns) -> None:
        super().__init__(agg, fold, columns)
        self._last = rule_of(fold.aggregate.fields[0]) == LATEST

    def reduce(self, rows: LineRows, taken: TakenRows, found: PartnerRanges, past: Past | None) -> list[Any]:
        some = np.flatnonzero(found.counts)
        chosen = found.ends[some] - 1 if self._last else found.starts[some]
        values = self.values.objects(self._array(rows, taken).take(pa.array(chosen)))
        accs: list[Any] = [None] * len(found.starts)
        for place, time, value in zip(some.tolist(), taken.of(rows.at)[chosen].tolist(), values):
            accs[place] = (time, value)
        return accs


class _EveryValue(Moving):
    """Kinds that look at every value of a stretch: sets, lists, sketches, and what only Python can compare."""

    def __init__(self, agg: Declared[Any], fold: KeyFold, columns: KeptColumns) -> None:
        super().__init__(agg, fold, columns)
        # What rows are compared by is the value itself where nothing else was said.
        self._by = self._by or (self._value if fold.aggregate.by is not None else None)

    def reduce(self, rows: LineRows, taken: TakenRows, found: PartnerRanges, past: Past | None) -> list[Any]:
        by = [] if self._by is None else [taken.of(rows.columns[self._by])]
        values, gather = self.fold.elements(*by, self._array(rows, taken)), self.fold.gather
        stretches = zip(found.starts.tolist(), found.ends.tolist())
        return [gather(values[start:end]) if start < end else None for start, end in stretches]


def make_moving(agg: Declared[Any], name: str, taken: RowCodec, columns: KeptColumns, where: str) -> Moving:
    """How an aggregate over a horizon is computed. ``columns``: what is kept of rows of type ``taken``."""
    fold = make_fold(agg, taken, where, name)
    assert fold is not None
    aggregate = fold.aggregate
    rules = [rule_of(field) for field in aggregate.fields]
    kind = None if aggregate.column is None else aggregate.values.type
    made: type[Moving] = _EveryValue
    if kind is None:
        made = _MovingCount
    elif rules == [SUM]:
        made = _FloatSum if kind is float else _WholeSum
    elif rules == [SUM, SUM]:
        made = _FloatMean if kind is float else _WholeMean
    elif rules in ([MIN], [MAX]) and kind in _ORDERED:
        made = _MovingExtreme
    elif aggregate.timed:
        made = _End
    return made(agg, fold, columns)


# --- arrays


def _before(numbers: Numbers, zero: Any = 0) -> Numbers:
    """What the numbers before each place add up to, and all of them."""
    none: Numbers = _objects([zero]) if numbers.dtype == object else np.zeros(1, np.int64)
    return np.concatenate([none, np.add.accumulate(numbers)]) if len(numbers) else none


def _counts(
    rows: LineRows, taken: TakenRows, found: PartnerRanges, past: Past | None, accs: Sequence[Any] | None
) -> list[int]:
    counts: Numbers = found.counts
    if past is not None and accs is not None:
        old = _before(taken.of(rows.old).astype(np.int64))
        counts = counts + past.since(old, np.array([acc or 0 for acc in accs], dtype=np.int64), taken)
    listed: list[int] = counts.tolist()
    return listed


def _whole(numbers: Numbers) -> Numbers:
    """Whole numbers whose sums stay exact: as Python's where 64 bits might not do."""
    if not len(numbers) or max(abs(int(numbers.max())), abs(int(numbers.min()))) * len(numbers) < _EXACT:
        return numbers.astype(np.int64)
    return numbers.astype(object)


def _whole_of(values: Sequence[Any]) -> Numbers:
    if all(type(value) is int and -_EXACT < value < _EXACT for value in values):
        return np.array(values, dtype=np.int64)
    return _objects(values)


def _objects(values: Sequence[Any]) -> Numbers:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def _filled(found: PartnerRanges, numbers: Numbers) -> list[Any]:
    """Numbers of the stretches that hold any, None for the others."""
    if len(numbers) == len(found.starts):
        listed: list[Any] = numbers.tolist()
        return listed
    made = _objects([None] * len(found.starts))
    made[found.counts > 0] = numbers.tolist()
    filled: list[Any] = made.tolist()
    return filled


def _add_each(numbers: Numbers, found: PartnerRanges) -> Numbers:
    """The sum of each stretch that holds anything, added up anew: it depends on the numbers of the stretch alone."""
    some = found.counts > 0
    bounds = np.empty(2 * int(np.count_nonzero(some)), np.int64)
    bounds[0::2], bounds[1::2] = found.starts[some], found.ends[some]
    # A stretch may end where the numbers do, and there has to be a number at its bound.
    if not len(bounds):
        return np.empty(0)
    with np.errstate(invalid="ignore"):  # the sum of both infinities is not-a-number, and no news
        sums: Numbers = np.add.reduceat(np.append(numbers, 0.0), bounds)[::2]
    return sums


def _best_of_each(better: np.ufunc, numbers: Numbers, found: PartnerRanges) -> Numbers:
    """The best number of each stretch that holds any, which two others cover whose length is a power of two."""
    some = found.counts > 0
    starts, ends, counts = found.starts[some], found.ends[some], found.counts[some]
    best = np.empty(len(starts), numbers.dtype)
    levels = np.frexp(counts)[1] - 1
    table, length = numbers, 1
    for level in range(int(levels.max(initial=-1)) + 1):
        mine = levels == level
        best[mine] = better(table[starts[mine]], table[ends[mine] - length])
        if len(table) > length:
            table, length = better(table[:-length], table[length:]), 2 * length
    return best
