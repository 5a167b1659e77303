"""What a windowed step keeps as partial aggregates: the columns of its table, and both ways between them and rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.aggregates.columns import pane_aggregate
from headrace.aggregates.lifting import PaneAggregate
from headrace.aggregates.results import read_results
from headrace.aggregates.rules import MAX, SINCE, merge_field
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.operators.result_keys import ResultKeys
from headrace.state.panes.about import About
from headrace.state.panes.table import SEEN, pane_schema
from headrace.windows.kinds import Cumulating, Sliding, Tumbling
from headrace.windows.slices import Slices
from headrace.windows.triggers import Periodic

if TYPE_CHECKING:
    from headrace.operators.spec import StepInfo
    from headrace.windows.settings import WindowSettings

MARK: Final = "!mark.since"
"""Since which firing a row has waited; only where windows fire early at fixed times."""


class Stamp(NamedTuple):
    """What all rows of an epoch are marked with."""

    mark: int = 0
    seen: int = MIN_TIME


def columnar_aggregates(spec: WindowSettings, info: StepInfo) -> list[PaneAggregate]:
    """The aggregates of a step as columns; `choose_windows` has seen that each has some."""
    several = not isinstance(spec.assigner, Tumbling)
    columns = [
        pane_aggregate(name, agg, info.taken[0], f"step {info.step}", several=several)
        for name, agg in spec.aggs.items()
    ]
    return [agg for agg in columns if agg is not None]


class AggregatePlan(ABC):
    """What windows of every kind have in common: aggregates as columns, and results as rows."""

    about: About
    schema: pa.Schema

    def __init__(self, spec: WindowSettings, info: StepInfo) -> None:
        self.aggs = columnar_aggregates(spec, info)
        self.codec = info.codec
        self.spec = spec
        self._keys = ResultKeys(info.codec, info.key_fields, info.key_type)
        self.marked = isinstance(spec.fire, Periodic)

    def begin(self, epoch: int) -> None:
        """A task begins, and with it the counting of rows as they come."""
        for agg in self.aggs:
            agg.begin(epoch)

    def lift(self, rows: Rows) -> list[pa.Array]:
        """Each row as a partial aggregate of its own: the cells of its accumulators."""
        return [column for agg in self.aggs for column in agg.lift(rows)]

    @abstractmethod
    def starts_of(self, merged: pa.RecordBatch) -> Int64s:
        """Where the windows of merged rows begin, whose first column tells the end."""

    def rows(self, merged: pa.RecordBatch, label: pa.Array | str) -> Rows:
        """Results of such rows; ``label``: whether they come early, on time or late."""
        ends = merged.column(0).to_numpy()
        spec = self.spec
        made: dict[str, pa.Array] = {
            spec.start_column: pa.array(self.starts_of(merged)),
            spec.end_column: pa.array(ends),
            spec.pane_column: pa.repeat(label, merged.num_rows) if isinstance(label, str) else label,
        }
        made.update(self._keys.of(merged.column(2)))
        made.update(read_results(merged, self.about.results))
        columns = [
            _fit(made[name], column.arrow) if name in made else self._default(name, merged.num_rows)
            for name, column in self.codec.columns.items()
        ]
        return Rows.of_columns(self.codec, columns, ends - 1)

    def _default(self, name: str, count: int) -> pa.Array:
        return self.codec.columns[name].encode([self.codec.defaults.get(name)] * count)


class PanePlan(AggregatePlan):
    """The table of one step whose windows are cut into slices."""

    def __init__(self, spec: WindowSettings, info: StepInfo) -> None:
        super().__init__(spec, info)
        found = self.aggs
        assert isinstance(spec.assigner, Tumbling | Sliding | Cumulating)
        self.slices = Slices(spec.assigner)
        self.tells_late = spec.allow_late_us > 0
        # Marks say which rows are older, and no longer count. Everywhere else rows tell themselves when they came.
        self.merges_in_any_order = not (self.marked and spec.discard)
        mark = [merge_field(MARK, pa.int64(), SINCE if spec.discard else MAX)] if self.marked else []
        seen = [merge_field(SEEN, pa.int64(), MAX)] if self.tells_late else []
        fields = [field for agg in found for field in agg.fields]
        self.about = About(
            type(spec.assigner).__name__.lower(),
            spec.assigner.size_us,
            getattr(spec.assigner, "every_us", 0),
            spec.assigner.offset_us,
            list(info.key_fields),
            {agg.name: agg.columns_of_result for agg in found},
            spec.tells_pane(info),
            _emptied(spec),
        )
        lasts_us = spec.assigner.size_us - 1 + spec.allow_late_us + spec.keep_us
        self.schema = pane_schema(
            [*mark, *seen, *fields],
            lasts_us=lasts_us,
            clock=spec.assigner.clock,
            about=msgspec.json.encode(self.about).decode(),
        )

    def starts_of(self, merged: pa.RecordBatch) -> Int64s:
        return self.slices.starts(merged.column(0).to_numpy())

    def table(self, panes: Int64s, keys: Keys, accs: Sequence[pa.Array], stamp: Stamp) -> pa.RecordBatch:
        """Accumulators as rows of the table."""
        encoded = keys.encoded
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        stamps = [stamp.mark] * self.marked + [stamp.seen] * self.tells_late
        base = [pa.array(panes), pa.array(keys.hashes), encoded]
        told = [pa.array(np.full(len(panes), each)) for each in stamps]
        return pa.RecordBatch.from_arrays([*base, *told, *accs], schema=self.schema)

    def late(self, merged: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Of merged rows whose first column tells the end of the window, which of them had rows that came after it."""
        if not self.tells_late:
            return np.zeros(merged.num_rows, bool)
        seen = merged.column(SEEN).fill_null(MIN_TIME).to_numpy(zero_copy_only=False)
        late: npt.NDArray[np.bool_] = seen >= merged.column(0).to_numpy() - 1
        return late


def _emptied(spec: WindowSettings) -> str:
    """When windows that give each row once do so before their end: marks of rows count that, and mean nothing else."""
    if not spec.discard or spec.fire is None:
        return ""
    if isinstance(spec.fire, Periodic):
        return f"every {spec.fire.every_us} µs of {spec.fire.clock} time"
    return "with every epoch"


def _fit(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A result in the type of its column: a time from its microseconds, a float from a whole number."""
    if array.type == kind:
        return array
    if pa.types.is_timestamp(kind) and array.type == pa.int64():
        return array.view(kind)
    return array.cast(kind)
