"""What the rows of a window come to, kept as accumulators or as one reduced row: nothing else of the rows is kept.

Rows come as pairs of a row and a window, the pairs of one key and window in one stretch, in the order the rows came.
Where a trigger fires in the middle of a stretch, the stretch is cut there; partial results of all pieces are computed
at once (`headrace.aggregates.accumulate`) and merged into what is held, piece by piece.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.aggregates.accumulate import Fold, Partials, make_fold
from headrace.aggregates.declare import Agg, Aggregator, Declared
from headrace.aggregates.own import AddFailed, add_guarded, add_row
from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s, Rows
from headrace.windows.by_row.window_state import OpenWindow, WindowName

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


Verdicts = npt.NDArray[np.uint8]
"""What a trigger says after each pair: the value of a TriggerResult."""
FIRE: Final = 1
PURGE: Final = 2

_COMMUTING: Final = frozenset({"count", "sum", "avg", "min", "max", "count_distinct", "quantile"})
_REDUCED: Final = "!row"


class Pairs(NamedTuple):
    """Rows with the windows they belong to, stretch by stretch."""

    rows: Rows
    """A row for each pair."""
    positions: Int64s
    """Where each pair's row stands in the batch, which is in key order."""
    starts: Int64s
    """Where stretches begin."""
    slots: list[int]
    """Key of each stretch …"""
    names: list[WindowName]
    """… and window."""

    def lengths(self) -> Int64s:
        return np.diff(np.append(self.starts, len(self.positions)))

    def stretch_of(self) -> Int64s:
        """For each pair, which stretch it is in."""
        return np.repeat(np.arange(len(self.starts)), self.lengths())


class Fired(NamedTuple):
    """A window that fires, or is only emptied, in the middle of a batch."""

    position: int
    """Of the row that made it."""
    slot: int
    name: WindowName
    held: OpenWindow
    verdict: int
    newest: int | None
    """Time of the newest row it held then, where that is the time of its result."""
    content: Any


class Refusal(NamedTuple):
    """A pair whose row a function of the user's refused."""

    pair: int
    error: Exception
    function: Any


class StopAdding(Exception):
    """A function of the user's raised where that stops the task."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal.error))
        self.refusal = refusal


class Contents(ABC):
    """How windows hold what they are given."""

    kinds: Mapping[str, Any]
    """Types of a window's accumulators, by the names they are stored under."""
    commutes: bool
    """Whether it makes no difference in what order rows and windows are put together."""
    may_refuse = False
    """Whether functions of the user's see the rows."""
    stamps = False
    """Whether the time of the newest row is kept: results of windows without an end have that time."""

    def refused(self, pairs: Pairs, helds: Sequence[OpenWindow]) -> list[Refusal]:
        """Tries rows out on copies; only asked where `may_refuse` and somebody reads what is refused."""
        return []

    @abstractmethod
    def add(self, pairs: Pairs, helds: Sequence[OpenWindow], verdicts: Verdicts | None) -> list[Fired]:
        """Puts rows in, carries verdicts out, and returns what fired; ``helds`` stand for the stretches."""

    @abstractmethod
    def merge(self, older: OpenWindow, newer: OpenWindow) -> None:
        """Puts what one window holds into another one."""

    def resolve(self, fired: Fired) -> Any:
        """What fired, as it was then; asked in the order of rows."""
        return fired.content

    @abstractmethod
    def read(self, slot: int, name: WindowName, held: OpenWindow) -> Any:
        """What a window that fires now comes to."""

    def purge(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        """Throws away what a window holds."""
        held.empty()

    def drop(self, slot: int, name: WindowName, held: OpenWindow) -> None:  # noqa: B027
        """The window goes: throws away what lies elsewhere."""

    def forget(self) -> None:  # noqa: B027
        """Slots are about to mean other keys."""


class Accumulated(Contents):
    """Accumulators: of declared aggregates in bulk, of own ones row by row."""

    def __init__(self, aggs: Mapping[str, Agg[Any]], taken: RowCodec, step: str) -> None:
        self.aggs = dict(aggs)
        self.folds: list[Fold | None] = [make_fold(agg, taken, f"step {step}", name) for name, agg in aggs.items()]
        self.own: list[tuple[int, Aggregator[Any, Any, Any]]] = [
            (i, agg) for i, agg in enumerate(aggs.values()) if isinstance(agg, Aggregator)
        ]
        self.kinds = {name: _kind(agg, fold) for (name, agg), fold in zip(aggs.items(), self.folds)}
        self.commutes = all(isinstance(agg, Declared) and _commutes(agg) for agg in aggs.values())
        self.may_refuse = bool(self.own)

    def refused(self, pairs: Pairs, helds: Sequence[OpenWindow]) -> list[Refusal]:
        found: list[Refusal] = []
        events = pairs.rows.objects
        bounds = [*pairs.starts.tolist(), len(events)]
        for held, start, end in zip(helds, bounds, bounds[1:]):
            try:
                _, refused = add_guarded(self.own, held.accs, events[start:end])
            except AddFailed as failed:
                # A row that was taken a moment ago is refused now: there is no telling what such an aggregator counts.
                raise StopAdding(Refusal(start, failed.error, failed.aggregator.add)) from failed.error
            found += [Refusal(start + place, failed.error, failed.aggregator.add) for place, failed in refused]
        return found

    def add(self, pairs: Pairs, helds: Sequence[OpenWindow], verdicts: Verdicts | None) -> list[Fired]:
        pieces = Pieces.of(pairs, verdicts, self.stamps)
        targets = [helds[stretch] for stretch in pieces.stretches]
        partials = [None if fold is None else _partials(fold, pairs, pieces) for fold in self.folds]
        if verdicts is None:
            for i, (fold, found) in enumerate(zip(self.folds, partials)):
                if fold is not None and found is not None:
                    for piece, part in zip(found.groups, found.accs):
                        _merge_part(targets[piece].accs, i, fold, part, pieces.stretches[piece])
            for piece, held in enumerate(targets):
                self._count(pairs, pieces, piece, held)
            return []
        spread = [None if found is None else dict(zip(found.groups, found.accs)) for found in partials]
        fired: list[Fired] = []
        for piece, held in enumerate(targets):
            for i, (fold, parts) in enumerate(zip(self.folds, spread)):
                if fold is not None and parts is not None and piece in parts:
                    _merge_part(held.accs, i, fold, parts[piece], pieces.stretches[piece])
            self._count(pairs, pieces, piece, held)
            if pieces.verdicts[piece]:
                fired.append(pieces.fired(pairs, piece, held, self.read(0, (0, 0), held)))
                if pieces.verdicts[piece] & PURGE:
                    held.empty()
        return fired

    def _count(self, pairs: Pairs, pieces: Pieces, piece: int, held: OpenWindow) -> None:
        if self.own:
            events = pairs.rows.objects
            for pair in range(pieces.bounds[piece], pieces.bounds[piece + 1]):
                try:
                    add_row(self.own, held.accs, events[pair])
                except AddFailed as failed:
                    raise StopAdding(Refusal(pair, failed.error, failed.aggregator.add)) from failed.error
        pieces.take_in(piece, held)

    def merge(self, older: OpenWindow, newer: OpenWindow) -> None:
        for i, (fold, agg) in enumerate(zip(self.folds, self.aggs.values())):
            before, more = older.accs[i], newer.accs[i]
            if before is None or more is None:
                older.accs[i] = more if before is None else before
            elif fold is not None:
                older.accs[i] = fold.merge(before, more)
            elif isinstance(agg, Aggregator):
                older.accs[i] = agg.merge(before, more)
        join_counts(older, newer)

    def read(self, slot: int, name: WindowName, held: OpenWindow) -> list[Any]:
        """The accumulators as they are now: own ones may change in place later, so copies of them."""
        accs = list(held.accs)
        for i, _ in self.own:
            accs[i] = deepcopy(accs[i])
        return accs

    def of_rows(self, rows: Rows) -> list[Any]:
        """The accumulators of these rows alone; there is one at least."""
        held = OpenWindow(len(self.folds))
        whole = Pairs(rows, np.arange(len(rows)), np.zeros(1, np.int64), [0], [(0, 0)])
        self.add(whole, [held], None)
        return held.accs


class Reduced(Contents):
    """One row per window, made of all its rows by a function of the user's."""

    commutes = False
    may_refuse = True

    def __init__(self, function: Callable[[Any, Any], Any], codec: RowCodec) -> None:
        self.function = function
        self.kinds = {_REDUCED: codec.type}

    def refused(self, pairs: Pairs, helds: Sequence[OpenWindow]) -> list[Refusal]:
        found: list[Refusal] = []
        events = pairs.rows.objects
        bounds = [*pairs.starts.tolist(), len(events)]
        for held, start, end in zip(helds, bounds, bounds[1:]):
            row = held.accs[0]
            for pair in range(start, end):
                try:
                    row = events[pair] if row is None else self.function(row, events[pair])
                except Exception as error:
                    found.append(Refusal(pair, error, self.function))
        return found

    def add(self, pairs: Pairs, helds: Sequence[OpenWindow], verdicts: Verdicts | None) -> list[Fired]:
        pieces = Pieces.of(pairs, verdicts, self.stamps)
        events = pairs.rows.objects
        fired: list[Fired] = []
        for piece, stretch in enumerate(pieces.stretches):
            held = helds[stretch]
            for pair in range(pieces.bounds[piece], pieces.bounds[piece + 1]):
                row = held.accs[0]
                try:
                    held.accs[0] = events[pair] if row is None else self.function(row, events[pair])
                except Exception as error:
                    raise StopAdding(Refusal(pair, error, self.function)) from error
            pieces.take_in(piece, held)
            if pieces.verdicts[piece]:
                fired.append(pieces.fired(pairs, piece, held, list(held.accs)))
                if pieces.verdicts[piece] & PURGE:
                    held.empty()
        return fired

    def merge(self, older: OpenWindow, newer: OpenWindow) -> None:
        before, more = older.accs[0], newer.accs[0]
        if before is not None and more is not None:
            older.accs[0] = self.function(before, more)
        else:
            older.accs[0] = more if before is None else before
        join_counts(older, newer)

    def read(self, slot: int, name: WindowName, held: OpenWindow) -> list[Any]:
        return list(held.accs)

    def of_rows(self, rows: Rows) -> list[Any]:
        """The row that these come to; there is one at least."""
        held = OpenWindow(1)
        whole = Pairs(rows, np.arange(len(rows)), np.zeros(1, np.int64), [0], [(0, 0)])
        self.add(whole, [held], None)
        return held.accs


class Pieces(NamedTuple):
    """Stretches, cut behind each pair that fires or purges."""

    starts: Int64s
    bounds: list[int]
    """The starts, and the end of the last piece."""
    stretches: list[int]
    """Which stretch each piece is of."""
    verdicts: list[int]
    """What happens after each piece."""
    newest: list[int] | None
    """Time of the newest row of each piece, where that is wanted and rows have times."""

    @classmethod
    def of(cls, pairs: Pairs, verdicts: Verdicts | None, stamps: bool) -> Pieces:
        count, cuts = len(pairs.positions), pairs.starts
        ends = [0] * len(cuts)
        if verdicts is not None:
            behind = np.flatnonzero(verdicts) + 1
            cuts = np.union1d(cuts, behind[behind < count])
            ends = verdicts[np.append(cuts[1:], count) - 1].tolist()
        times = pairs.rows.times if stamps else None
        return cls(
            starts=cuts,
            bounds=[*cuts.tolist(), count],
            stretches=(np.searchsorted(pairs.starts, cuts, "right") - 1).tolist(),
            verdicts=ends,
            newest=None if times is None else np.maximum.reduceat(times, cuts).tolist(),
        )

    def take_in(self, piece: int, held: OpenWindow) -> None:
        """The rows of a piece have been put into its window."""
        held.size += self.bounds[piece + 1] - self.bounds[piece]
        if self.newest is not None and (held.newest is None or self.newest[piece] > held.newest):
            held.newest = self.newest[piece]

    def fired(self, pairs: Pairs, piece: int, held: OpenWindow, content: Any) -> Fired:
        """What fires after a piece."""
        stretch, last = self.stretches[piece], self.bounds[piece + 1] - 1
        position = int(pairs.positions[last])
        slot, name = pairs.slots[stretch], pairs.names[stretch]
        return Fired(position, slot, name, held, self.verdicts[piece], held.newest, content)


def join_counts(older: OpenWindow, newer: OpenWindow) -> None:
    """What two windows count together, whatever they hold."""
    older.size += newer.size
    if older.newest is None or (newer.newest is not None and newer.newest > older.newest):
        older.newest = newer.newest


def _partials(fold: Fold, pairs: Pairs, pieces: Pieces) -> Partials:
    """What each piece amounts to by itself; an error says which stretch it is about."""
    try:
        return fold.partials(pairs.rows, pieces.starts)
    except FunctionFailed as error:
        error.stretch = None if error.stretch is None else pieces.stretches[error.stretch]
        raise


def _merge_part(accs: list[Any], i: int, fold: Fold, part: Any, stretch: int) -> None:
    before = accs[i]
    try:
        accs[i] = part if before is None else fold.merge(before, part)
    except FunctionFailed as error:
        error.stretch = stretch
        raise


def _kind(agg: Agg[Any], fold: Fold | None) -> Any:
    if isinstance(agg, Aggregator):
        return agg.accumulator_type()
    return Any if fold is None else fold.acc_type


def _commutes(agg: Declared[Any]) -> bool:
    return agg.kind in _COMMUTING and agg.by is None
