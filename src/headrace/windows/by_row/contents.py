"""What windows hold where rows are not kept themselves: accumulators of aggregates, or one reduced row.

Rows are put in one by one. Own aggregators and ``reduce`` take a row at once, because they may refuse it. For declared
aggregates it is enough to note the row: the scalar rules of `headrace.aggregates` add up what was noted before anybody
looks, at the latest when the key's rows of the batch are over.

Invariants
- A row that a function refuses leaves the window as it was, where somebody reads the errors of the step.
- What `read` gives does not change when the window does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.aggregates.accumulate import KeyFold, RowValues, accumulator_type, make_fold
from headrace.aggregates.declare import Agg, Aggregator
from headrace.aggregates.own import AddFailed, GuardedAccumulators, RepeatFailed, add_row, find_misfit
from headrace.model.values import MisfitPart, value_codec
from headrace.operators.failures import function_name
from headrace.state.fitting import NOT_ENCODABLE
from headrace.windows.by_row.window_state import OpenWindow, WindowName

if TYPE_CHECKING:
    from headrace.model.batch import Rows
    from headrace.model.rows import RowCodec

REDUCED: Final = "!row"


class RowRefused(Exception):
    """A function of the user's raised for a row."""

    def __init__(self, error: Exception, function: Any, row: Any, *, stops: bool = False) -> None:
        """``stops``: whether what the function did cannot be undone."""
        super().__init__(str(error))
        self.error = error
        self.function = function
        self.row = row
        self.stops = stops


class Contents(ABC):
    """How windows hold what they are given. All methods are about the key at hand; windows are changed in place."""

    kinds: Mapping[str, Any]
    """Types of a window's accumulators, by the names they are stored under."""
    may_refuse = False
    """Whether functions of the user's see each row."""
    merger: Any = "merge"
    """The user's function that puts two windows together, for a message."""

    def find_misfit(self, window: OpenWindow) -> MisfitPart | None:
        """What of a window that cannot be stored is to blame, where functions of the user's made it."""
        return None

    @abstractmethod
    def begin_batch(self, rows: Rows, *, guarded: bool) -> None:
        """Rows come, in key order. ``guarded``: a row that is refused must leave no trace."""

    @abstractmethod
    def add(self, slot: int, window: OpenWindow, row: int) -> None:
        """Puts a row of the batch in. Raises RowRefused."""

    def forget(self) -> None:  # noqa: B027
        """Slots are about to mean other keys."""

    def settle(self, window: OpenWindow) -> None:  # noqa: B027
        """Brings the accumulators up to date; called before a window is read, merged or written."""

    @abstractmethod
    def merge(self, older: OpenWindow, newer: OpenWindow) -> None:
        """Puts what one window holds into another one, whose rows came before."""

    @abstractmethod
    def read(self, slot: int, name: WindowName, window: OpenWindow) -> Any:
        """What a window that fires comes to; None: nothing."""

    def purge(self, slot: int, name: WindowName, window: OpenWindow) -> None:
        """Throws away what a window holds."""
        window.empty()

    def drop(self, slot: int, name: WindowName, window: OpenWindow) -> None:  # noqa: B027
        """The window goes: throws away what lies elsewhere."""

    @abstractmethod
    def come_to(self, rows: Rows) -> Any:
        """What rows alone come to, as `read` gives it; there is one at least. Raises RowRefused."""


class AggregatedContents(Contents):
    """Accumulators: of declared aggregates, and of own ones."""

    def __init__(self, aggs: Mapping[str, Agg[Any]], taken: RowCodec, step: str) -> None:
        self.aggs = dict(aggs)
        self.folds: list[KeyFold | None] = [make_fold(agg, taken, f"step {step}", name) for name, agg in aggs.items()]
        self.own: list[tuple[int, Aggregator[Any, Any, Any]]] = [
            (i, agg) for i, agg in enumerate(aggs.values()) if isinstance(agg, Aggregator)
        ]
        self.kinds = {name: accumulator_type(agg, fold) for (name, agg), fold in zip(aggs.items(), self.folds)}
        self.may_refuse = bool(self.own)
        if self.own:
            self.merger = self.own[0][1].merge
        self._events: list[Any] = []
        self._values: list[tuple[int, KeyFold, RowValues]] = []
        self._guarded = False

    def find_misfit(self, window: OpenWindow) -> MisfitPart | None:
        return find_misfit(self.aggs, window.accs)

    def begin_batch(self, rows: Rows, *, guarded: bool) -> None:
        self._guarded = guarded
        self._events = rows.objects if self.own else []
        self._values = [(i, fold, fold.row_values(rows)) for i, fold in enumerate(self.folds) if fold is not None]

    def add(self, slot: int, window: OpenWindow, row: int) -> None:
        if self.own:
            self._add_own(window, self._events[row])
        window.rows.append(row)

    def _add_own(self, window: OpenWindow, event: Any) -> None:
        try:
            if not self._guarded:
                add_row(self.own, window.accs, event)
                return
            if window.guarded is None:
                window.guarded = GuardedAccumulators(self.own, window.accs)
                window.accs = window.guarded.accs
            window.guarded.add(event)
        except AddFailed as failed:
            stops = isinstance(failed, RepeatFailed)
            raise RowRefused(failed.error, failed.aggregator.add, event, stops=stops) from failed.error

    def settle(self, window: OpenWindow) -> None:
        if window.rows:
            accs = window.accs
            for i, fold, values in self._values:
                some = values.at(window.rows)
                if some:
                    more, before = fold.gather(some), accs[i]
                    accs[i] = more if before is None else fold.merge(before, more)
            window.rows.clear()

    def merge(self, older: OpenWindow, newer: OpenWindow) -> None:
        for i, (fold, agg) in enumerate(zip(self.folds, self.aggs.values())):
            before, more = older.accs[i], newer.accs[i]
            if before is None or more is None:
                older.accs[i] = more if before is None else before
            elif fold is not None:
                older.accs[i] = fold.merge(before, more)
            elif isinstance(agg, Aggregator):
                older.accs[i] = agg.merge(before, more)

    def read(self, slot: int, name: WindowName, window: OpenWindow) -> list[Any]:
        accs = list(window.accs)
        for i, _ in self.own:
            # Own ones may change in place later.
            accs[i] = deepcopy(accs[i])
        return accs

    def come_to(self, rows: Rows) -> list[Any]:
        accs: list[Any] = [None] * len(self.folds)
        for i, fold in enumerate(self.folds):
            if fold is not None:
                accs[i] = next(iter(fold.partials(rows, np.zeros(1, np.int64)).accs), None)
        for event in rows.objects if self.own else ():
            try:
                add_row(self.own, accs, event)
            except AddFailed as failed:
                raise RowRefused(failed.error, failed.aggregator.add, event) from failed.error
        return accs


class ReducedContents(Contents):
    """One row per window, made of all its rows by a function of the user's."""

    may_refuse = True

    def __init__(self, function: Callable[[Any, Any], Any], codec: RowCodec) -> None:
        self.function = self.merger = function
        self.kinds = {REDUCED: codec.type}
        self._events: list[Any] = []

    def find_misfit(self, window: OpenWindow) -> MisfitPart | None:
        [row] = window.accs
        codec = value_codec(self.kinds[REDUCED] | None)
        try:
            codec.decode(codec.encode(row))
        except NOT_ENCODABLE as error:
            lead = f"the row that {function_name(self.function)} returned is"
            return MisfitPart(lead, row, error, "return rows of the type that it is given")
        return None

    def begin_batch(self, rows: Rows, *, guarded: bool) -> None:
        self._events = rows.objects

    def add(self, slot: int, window: OpenWindow, row: int) -> None:
        window.accs[0] = self._reduce(window.accs[0], self._events[row])

    def _reduce(self, reduced: Any, event: Any) -> Any:
        if reduced is None:
            return event
        try:
            return self.function(reduced, event)
        except Exception as error:
            raise RowRefused(error, self.function, event) from error

    def merge(self, older: OpenWindow, newer: OpenWindow) -> None:
        before, more = older.accs[0], newer.accs[0]
        if before is not None and more is not None:
            older.accs[0] = self.function(before, more)
        else:
            older.accs[0] = more if before is None else before

    def read(self, slot: int, name: WindowName, window: OpenWindow) -> list[Any]:
        return list(window.accs)

    def come_to(self, rows: Rows) -> list[Any]:
        reduced = None
        for event in rows.objects:
            reduced = self._reduce(reduced, event)
        return [reduced]
