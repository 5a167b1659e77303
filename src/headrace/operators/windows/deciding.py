"""Triggers that are asked after each row: what they say of all pairs of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.operators.accumulate import Values
from headrace.operators.windows.contents import FIRE, Pairs, Verdicts
from headrace.operators.windows.held import Held
from headrace.operators.windows.triggers import EveryRows, OnDelta, PerRow, Trigger

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


class Decider(ABC):
    """A trigger at work. What it remembers of a window it keeps in the window."""

    mark: Any = int
    """Type of what it remembers to compare with."""

    @abstractmethod
    def decide(self, pairs: Pairs, helds: Sequence[Held]) -> Verdicts:
        """What is to happen after each pair; ``helds`` stand for the stretches."""


class EachRow(Decider):
    def decide(self, pairs: Pairs, helds: Sequence[Held]) -> Verdicts:
        return np.full(len(pairs.positions), FIRE, np.uint8)


class CountedRows(Decider):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def decide(self, pairs: Pairs, helds: Sequence[Held]) -> Verdicts:
        verdicts = np.zeros(len(pairs.positions), np.uint8)
        bounds = [*pairs.starts.tolist(), len(verdicts)]
        rows = self._rows
        for held, start, end in zip(helds, bounds, bounds[1:]):
            # A merged session may have counted too many already; then its next row fires.
            first = start + max(rows - held.count, 1) - 1
            if first >= end:
                held.count += end - start
                continue
            verdicts[first:end:rows] = FIRE
            held.count = (end - 1 - first) % rows
        return verdicts


class Differences(Decider):
    """Compares each row with the one at the last result, by a column or by a function of the user's."""

    def __init__(self, trigger: OnDelta, taken: RowCodec, where: str) -> None:
        self._threshold = trigger.threshold
        self._function = trigger.fn
        self._values = None if trigger.column is None else Values(taken, trigger.column, where)
        self.mark = taken.type if trigger.column is None else float

    def decide(self, pairs: Pairs, helds: Sequence[Held]) -> Verdicts:
        verdicts = np.zeros(len(pairs.positions), np.uint8)
        seen = self._seen(pairs)
        differ: Callable[[Any, Any], float] = self._function or _distance
        bounds = [*pairs.starts.tolist(), len(verdicts)]
        for held, start, end in zip(helds, bounds, bounds[1:]):
            mark = held.mark
            for pair in range(start, end):
                value = seen[pair]
                if value is None:
                    continue
                if mark is None:
                    mark = value
                elif differ(mark, value) > self._threshold:
                    mark = value
                    verdicts[pair] = FIRE
            held.mark = mark
        return verdicts

    def _seen(self, pairs: Pairs) -> list[Any]:
        if self._values is None:
            return pairs.rows.objects
        return [None if value is None else float(value) for value in self._values.array(pairs.rows).to_pylist()]


def _distance(older: float, newer: float) -> float:
    return abs(newer - older)


def built_in_decider(trigger: Trigger, taken: RowCodec, where: str) -> Decider | None:
    """How a trigger is carried out that comes with Headrace; None: it is one of the user's own."""
    match trigger:
        case PerRow():
            return EachRow()
        case EveryRows():
            return CountedRows(trigger.rows)
        case OnDelta():
            return Differences(trigger, taken, where)
    return None
