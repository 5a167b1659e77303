"""The function that hands a key's rows on in the order of their time, with what SQL's OVER says of the rows before.

It runs in the ordered step (`headrace.operators.ordered`): a row comes when the watermark has passed it, so the result
depends on the rows alone. For frames of rows it keeps as many rows as the longest of them needs, and computes their
aggregates by the one definition that there is (`headrace.aggregates.accumulate`), row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import new_class
from typing import Any, Generic, TypeVar

import numpy as np

from headrace.aggregates.accumulate import KeyFold, make_fold
from headrace.aggregates.declare import Agg
from headrace.dataflow.functions import Process
from headrace.model.batch import Rows
from headrace.model.record import row_type
from headrace.model.rows import RowCodec, codec_of
from headrace.state.handles import Context, ValueState

In = TypeVar("In")
Out = TypeVar("Out")
K = TypeVar("K")


@dataclass(frozen=True)
class RowsBefore:
    """What is asked of the rows before: a value so many rows back, or aggregates of the last rows."""

    lags: Mapping[str, tuple[str, int, Any]]
    """Name → column, how many rows back, and what stands there before the first row."""
    numbers: Sequence[str]
    """Names of the place of a row among all of its key."""
    frames: Mapping[str, tuple[Agg[Any], int]]
    """Name → aggregate, and of how many rows up to this one."""
    ranks: Mapping[str, bool] = field(default_factory=dict)
    """Names of the place by time, which rows of one time share → whether the places behind them go on without a gap."""
    ties: Sequence[str] = ()
    """The columns that tell rows of one time apart."""

    @property
    def depth(self) -> int:
        """How many rows before this one have to be known."""
        backs = [back for _, back, _ in self.lags.values()]
        return max([*backs, *(rows - 1 for _, rows in self.frames.values()), int(bool(self.ranks))], default=0)


class OverRows(Process[In, Out, K], Generic[In, Out, K]):
    """Hands rows on in the order of time; base of the classes that `over_rows` makes."""

    nameless = True
    """The query that it works for names the step, not its class."""
    kept: ValueState[list[Any]]
    """Rows before, oldest first."""
    times: ValueState[list[int]]
    number: ValueState[int]
    place: ValueState[int]
    """The place of the newest row, by the order …"""
    dense: ValueState[int]
    """… and without gaps."""

    def __init__(self, asked: RowsBefore, taken: Any, out: Any) -> None:
        self.asked, self.taken, self.out = asked, taken, out
        self._folds: dict[str, tuple[KeyFold, int]] | None = None

    def open(self) -> None:
        codec = codec_of(self.taken)
        folds = {name: (make_fold(agg, codec, "OVER", name), rows) for name, (agg, rows) in self.asked.frames.items()}
        self._folds = {name: (fold, rows) for name, (fold, rows) in folds.items() if fold is not None}

    def on_event(self, event: In, ctx: Context[K]) -> Iterator[Out]:
        asked, depth = self.asked, self.asked.depth
        values = {name: getattr(event, name) for name in self.taken.__struct_fields__}
        rows = [*self.kept.get([]), event] if depth else [event]
        times = [*self.times.get([]), int(ctx.timestamp or 0)] if depth else [int(ctx.timestamp or 0)]
        for name, (column, back, default) in asked.lags.items():
            values[name] = getattr(rows[-1 - back], column) if back < len(rows) else default
        if asked.numbers:
            self.number.set(self.number.get(0) + 1)
            values.update(dict.fromkeys(asked.numbers, self.number.get(0)))
        if asked.ranks:
            values.update(self._places(rows, times))
        for name, (fold, length) in (self._folds or {}).items():
            values[name] = aggregate_of(fold, codec_of(self.taken), rows[-length:], times[-length:])
        if depth:
            self.kept.set(rows[-depth:])
            self.times.set(times[-depth:])
        yield self.out(**values)

    def _places(self, rows: list[Any], times: list[int]) -> dict[str, int]:
        """The place of the newest row, with gaps behind rows that share one and without."""
        number = self.number.get(0) + 1
        peers = len(rows) > 1 and times[-1] == times[-2]
        if not peers or any(getattr(rows[-1], name) != getattr(rows[-2], name) for name in self.asked.ties):
            self.place.set(number)
            self.dense.set(self.dense.get(0) + 1)
        self.number.set(number)
        return {name: self.dense.get(0) if dense else self.place.get(0) for name, dense in self.asked.ranks.items()}


def aggregate_of(fold: KeyFold, codec: RowCodec, rows: list[Any], times: list[int]) -> Any:
    """An aggregate of some rows of one key."""
    if not rows:
        return fold.results([None])[0]
    partials = fold.partials(Rows.of_objects(codec, rows, np.array(times, np.int64)), np.zeros(1, np.int64))
    accs = list(partials.accs)
    return fold.results(accs or [None])[0]


def over_rows(asked: RowsBefore, codec: RowCodec, key_type: Any, added: Mapping[str, Any]) -> Any:
    """A function for rows of this type. ``added``: the types of what it adds to each row."""
    taken = codec.type
    out = row_type("Row", {**codec.annotations, **added})

    def declare(namespace: dict[str, Any]) -> None:
        namespace["__annotations__"] = {"kept": ValueState[list[taken]]}  # type: ignore[valid-type]
        namespace["__module__"] = __name__

    cls: Any = new_class("RowsInOrder", (OverRows[taken, out, key_type],), {}, declare)  # type: ignore[valid-type]
    return cls(asked, taken, out)
