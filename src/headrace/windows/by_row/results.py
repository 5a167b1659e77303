"""What becomes of windows that fire: rows for the main outlet and for ``finals``.

Windows are taken in the order in which they fire and given out together. The time of a result is the last instant of
its window; windows without an end have the time of their newest row, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.aggregates.declare import Aggregator
from headrace.aggregates.own import encode_columns
from headrace.errors import FunctionFailed
from headrace.model.batch import Rows
from headrace.operators.keyed import KeyedOperator, decode_keys, key_parts, stamps_of
from headrace.windows.by_row.contents import AggregatedContents, Contents
from headrace.windows.by_row.functions import WindowFunction
from headrace.windows.by_row.window_state import WindowName
from headrace.windows.context import Pane
from headrace.windows.settings import FINALS, PANE, WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.operators.spec import StepInfo
    from headrace.windows.settings import WindowSettings


EMIT_ROWS: Final = 65_536


class WindowResult(NamedTuple):
    """A window that fires."""

    slot: int
    name: WindowName
    home: WindowName
    """The name under which its states lie."""
    pane: Pane
    at_us: int | None
    content: Any
    main: bool
    """Whether it goes to the main outlet …"""
    finals: bool
    """… and to ``finals``."""


class ResultRows:
    """Makes rows of what fires, and gives them out."""

    def __init__(
        self, operator: KeyedOperator, codec: RowCodec, rows_of: Callable[[WindowResult], list[Any]],
        columns: ResultColumns | None = None,
    ) -> None:  # fmt: skip
        """``rows_of``: the rows of a result, asked when it fires; with ``columns``, what these are made of."""
        self._operator = operator
        self._codec = codec
        self._rows_of = rows_of
        self._columns = columns
        self.begin()

    def begin(self) -> None:
        self._objects: list[Any] = []
        self._main: list[bool] = []
        self._finals: list[bool] = []
        self._times: list[int | None] = []

    def take(self, result: WindowResult) -> None:
        """A window fires."""
        objects = self._rows_of(result)
        self._objects += objects
        self._main += [result.main] * len(objects)
        self._finals += [result.finals] * len(objects)
        self._times += [result.at_us] * len(objects)
        if len(self._main) >= EMIT_ROWS:
            self.flush()

    def flush(self) -> None:
        """Gives out what has been made. Slots must still mean the same keys."""
        if not self._main:
            return
        objects, times, codec = self._objects, stamps_of(self._times), self._codec
        if self._columns is None:
            rows = Rows.of_objects(codec, objects, times)
        else:
            rows = Rows.of_columns(codec, self._columns.arrays(objects), times)
        main, finals = np.array(self._main), np.array(self._finals)
        self.begin()
        self._operator.emit(rows if main.all() else rows.take(np.flatnonzero(main)))
        outlet = self._operator.outlets.get(FINALS)
        if outlet is not None and finals.any():
            outlet(rows if finals.all() else rows.take(np.flatnonzero(finals)))


class ResultColumns:
    """From windows and their accumulators to the columns of a row type, each filled by its name."""

    def __init__(
        self, operator: KeyedOperator, info: StepInfo, contents: AggregatedContents, codec: RowCodec
    ) -> None:  # fmt: skip
        self._operator = operator
        self._info = info
        self._contents = contents
        self._codec = codec

    def arrays(self, results: list[WindowResult]) -> list[pa.Array]:
        own = {name for name, agg in self._contents.aggs.items() if isinstance(agg, Aggregator)}
        try:
            return encode_columns(self._codec, self._values(results), own, len(results), {})
        except FunctionFailed as error:
            slot = None if error.stretch is None else results[error.stretch].slot
            raise self._operator.place(error, slot) from error

    def row(self, result: WindowResult) -> Any:
        """One row as an object."""
        values = self._values([result])
        return self._codec.type(**{name: column[0] for name, column in values.items() if name in self._codec.columns})

    def _values(self, results: list[WindowResult]) -> dict[str, list[Any]]:
        values: dict[str, list[Any]] = {
            WINDOW_START: [result.name[0] for result in results],
            WINDOW_END: [result.name[1] for result in results],
            PANE: [result.pane for result in results],
        }
        key_fields, state = self._info.key_fields, self._operator.state
        if key_fields:
            keys = decode_keys([state.name(result.slot) for result in results], self._info.key_type)
            parts = key_parts(keys, len(key_fields))
            values.update(zip(key_fields, parts))
        for i, (name, agg) in enumerate(self._contents.aggs.items()):
            fold = self._contents.folds[i]
            accs = [result.content[i] for result in results]
            if fold is not None:
                values[name] = fold.results(accs)
            elif isinstance(agg, Aggregator):
                values[name] = [self._own_result(agg, acc, result.slot) for acc, result in zip(accs, results)]
        return values

    def _own_result(self, agg: Aggregator[Any, Any, Any], acc: Any, slot: int) -> Any:
        try:
            return agg.result(agg.zero() if acc is None else acc)
        except Exception as error:
            raise self._operator.failure(error, agg.result, None, slot, way_out="") from error


def make_result_rows(
    operator: KeyedOperator, spec: WindowSettings, info: StepInfo, contents: Contents | None,
    function: WindowFunction | None,
) -> ResultRows:  # fmt: skip
    """How the results of a step are made. ``contents``: what rows come to, where that is not the rows themselves."""
    if function is None:
        if isinstance(contents, AggregatedContents):
            columns = ResultColumns(operator, info, contents, info.codec)
            return ResultRows(operator, info.codec, lambda result: [result], columns)
        return ResultRows(operator, info.codec, lambda result: result.content)
    of_aggregates = None
    if isinstance(contents, AggregatedContents):
        assert spec.of is not None
        of_aggregates = ResultColumns(operator, info, contents, spec.of)

    def call(result: WindowResult) -> list[Any]:
        rows = result.content if of_aggregates is None else [of_aggregates.row(result)]
        keep_failed = operator.keep_failed if operator.keeps_errors else None
        return function.call(result, rows, keep_failed)

    return ResultRows(operator, info.codec, call)
