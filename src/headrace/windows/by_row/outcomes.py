"""What becomes of windows that fire: rows for the main outlet and for ``finals``.

Windows are taken in the order in which they fire and given out together. The time of a result is the last instant of
its window; windows without an end have the time of their newest row, or none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.aggregates.declare import Aggregator
from headrace.model.batch import Rows
from headrace.operators.failures import function_failed
from headrace.operators.keyed import decode_keys, stamps_of
from headrace.windows.by_row.contents import Accumulated
from headrace.windows.by_row.functions import KeepFailed, WindowFunction
from headrace.windows.by_row.window_state import WindowName
from headrace.windows.context import Pane
from headrace.windows.settings import FINALS, PANE, WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import Operator
    from headrace.operators.keyed import KeyedOperator
    from headrace.operators.spec import StepInfo
    from headrace.state.shard import ShardState
    from headrace.windows.by_row.contents import Reduced
    from headrace.windows.settings import WindowSettings


EMIT_ROWS: Final = 65_536


class Result(NamedTuple):
    """A window that fires."""

    slot: int
    name: WindowName
    home: WindowName
    pane: Pane
    at_us: int | None
    content: Any
    main: bool
    finals: bool


class Outcome(ABC):
    """Makes rows of what fires."""

    state: ShardState

    def __init__(self, operator: Operator, codec: RowCodec) -> None:
        self._operator = operator
        self.codec = codec
        self._objects: list[Any] = []
        """What was made: rows, or what rows are made of together."""
        self._main: list[bool] = []
        self._finals: list[bool] = []
        self._times: list[int | None] = []

    def begin(self, state: ShardState) -> None:
        self.state = state
        self._clear()

    def take(self, result: Result) -> None:
        """A window fires."""
        if self._make(result) and len(self._main) >= EMIT_ROWS:
            self.flush()

    @abstractmethod
    def _make(self, result: Result) -> bool:
        """Makes the result's rows, or remembers to; False: there are none."""

    @abstractmethod
    def _rows(self, times: Any) -> Rows:
        """What was made since the last time."""

    def flush(self) -> None:
        """Gives out what has been made. Slots must still mean the same keys."""
        if not self._main:
            return
        rows = self._rows(stamps_of(self._times))
        main, finals = np.array(self._main), np.array(self._finals)
        self._clear()
        self._operator.emit(rows if main.all() else rows.take(np.flatnonzero(main)))
        outlet = self._operator.outlets.get(FINALS)
        if outlet is not None and finals.any():
            outlet(rows if finals.all() else rows.take(np.flatnonzero(finals)))

    def _clear(self) -> None:
        self._objects, self._main, self._finals, self._times = [], [], [], []

    def _note(self, result: Result, rows: int = 1) -> None:
        self._main += [result.main] * rows
        self._finals += [result.finals] * rows
        self._times += [result.at_us] * rows


class AggregateOutcome(Outcome):
    """A row for each window: the key's columns, the window's, and the aggregates."""

    def __init__(self, operator: Operator, info: StepInfo, accumulated: Accumulated) -> None:
        super().__init__(operator, info.codec)
        self._columns = ResultColumns(info, accumulated, info.codec)

    def _make(self, result: Result) -> bool:
        self._objects.append(result)
        self._note(result)
        return True

    def _rows(self, times: Any) -> Rows:
        return Rows.of_columns(self.codec, self._columns.arrays(self.state, self._objects), times)


class ReduceOutcome(Outcome):
    """The reduced row of each window, as the function made it."""

    def _make(self, result: Result) -> bool:
        self._objects.append(result.content[0])
        self._note(result)
        return True

    def _rows(self, times: Any) -> Rows:
        return Rows.of_objects(self.codec, self._objects, times)


class FunctionOutcome(ReduceOutcome):
    """What a WindowProcess gives for each window; it is called at once, so that it sees its states in order."""

    def __init__(
        self, operator: Operator, codec: RowCodec, function: WindowFunction, rows_of: Callable[[Result], list[Any]]
    ) -> None:
        """``rows_of``: from what a window comes to, the rows that the function is given."""
        super().__init__(operator, codec)
        self._function = function
        self._rows_of = rows_of
        self.keep_failed: KeepFailed | None = None

    def _make(self, result: Result) -> bool:
        rows = self._rows_of(result)
        at_us = self._function.context.now if result.at_us is None else result.at_us
        made = self._function.call(
            result.slot, result.name, result.home, result.pane, int(at_us), rows, self.keep_failed
        )
        self._objects += made
        self._note(result, len(made))
        return bool(made)


class ResultColumns:
    """From windows and their accumulators to the columns of a row type, each filled by its name."""

    def __init__(self, info: StepInfo, accumulated: Accumulated, codec: RowCodec) -> None:
        self._step = info.step
        self._key_type = info.key_type
        self._key_fields = info.key_fields
        self._accumulated = accumulated
        self._codec = codec

    def arrays(self, state: ShardState, results: list[Result]) -> list[pa.Array]:
        made = self._values(state, results)
        defaults = self._codec.defaults
        return [
            column.encode(made[name] if name in made else [defaults.get(name)] * len(results))
            for name, column in self._codec.columns.items()
        ]

    def row(self, state: ShardState, result: Result) -> Any:
        """One row as an object."""
        made = self._values(state, [result])
        return self._codec.type(**{name: column[0] for name, column in made.items() if name in self._codec.columns})

    def _values(self, state: ShardState, results: list[Result]) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {
            WINDOW_START: [result.name[0] for result in results],
            WINDOW_END: [result.name[1] for result in results],
            PANE: [result.pane for result in results],
        }
        if self._key_fields:
            keys = decode_keys([state.name(result.slot) for result in results], self._key_type)
            parts = [keys] if len(self._key_fields) == 1 else [list(part) for part in zip(*keys)]
            made.update(zip(self._key_fields, parts))
        for i, (name, agg) in enumerate(self._accumulated.aggs.items()):
            fold = self._accumulated.folds[i]
            accs = [result.content[i] for result in results]
            if fold is not None:
                made[name] = fold.results(accs)
            elif isinstance(agg, Aggregator):
                made[name] = [self._own_result(agg, acc) for acc in accs]
        return made

    def _own_result(self, agg: Aggregator[Any, Any, Any], acc: Any) -> Any:
        try:
            return agg.result(agg.zero() if acc is None else acc)
        except Exception as error:
            raise function_failed(error, step=self._step, function=agg.result) from error


def make_outcome(
    operator: KeyedOperator,
    spec: WindowSettings,
    info: StepInfo,
    inner: Accumulated | Reduced | None,
    function: WindowFunction | None,
) -> Outcome:
    if function is None:
        if isinstance(inner, Accumulated):
            return AggregateOutcome(operator, info, inner)
        return ReduceOutcome(operator, info.codec)
    if isinstance(inner, Accumulated):
        assert spec.of is not None
        columns = ResultColumns(info, inner, spec.of)

        def one_row(result: Result) -> list[Any]:
            return [columns.row(operator.state, result)]

        return FunctionOutcome(operator, info.codec, function, one_row)
    return FunctionOutcome(operator, info.codec, function, lambda result: result.content)
