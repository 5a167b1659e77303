"""What a step of sessions keeps as partial aggregates: the columns of its table of fragments, and how rows become such.

Which fragments are one session, and when they are over, is told in `headrace.state.panes.fragments`. Fragments are
merged in any order, because their content is written again when a session goes on. So every aggregate for which it
matters notes when its rows came: lists and what another column chooses do so wherever windows are made of several
partials, ``first`` and ``last`` only here, because rows of one time may be in several fragments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.aggregates.lifting import PaneAggregate
from headrace.aggregates.rules import BESIDE, MAX, MIN, merge_field, rule_of
from headrace.model.batch import Int64s, Keys, Rows
from headrace.state.panes.about import SESSION, About
from headrace.state.panes.fragments import START, WAS_LATE
from headrace.state.panes.table import pane_schema
from headrace.windows.kinds import Session
from headrace.windows.sliced.plan import MARK, AggregatePlan

if TYPE_CHECKING:
    from headrace.operators.spec import StepInfo
    from headrace.windows.settings import WindowSettings


class SessionPlan(AggregatePlan):
    """The table of one step of sessions."""

    def __init__(self, spec: WindowSettings, info: StepInfo) -> None:
        super().__init__(spec, info)
        assert isinstance(spec.assigner, Session)
        self.tells_late = spec.allow_late_us > 0
        self._came = 0
        mark = [merge_field(MARK, pa.int64(), MAX)] if self.marked else []
        was_late = [merge_field(WAS_LATE, pa.int8(), MAX)] if self.tells_late else []
        fields = [_fields(agg) for agg in self.aggs]
        self.about = About(
            SESSION,
            key=list(info.key_fields),
            results={agg.name: agg.columns_of_result for agg in self.aggs},
            pane=spec.tells_pane(info),
            late_us=spec.allow_late_us,
            clock=spec.assigner.clock,
        )
        self.schema = pane_schema(
            [merge_field(START, pa.int64(), MIN), *mark, *was_late, *(field for mine in fields for field in mine)],
            # The last instant of a session is the one before its end.
            lasts_us=spec.allow_late_us - 1,
            clock=spec.assigner.clock,
            about=msgspec.json.encode(self.about).decode(),
        )

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._came = epoch << 32

    def starts_of(self, merged: pa.RecordBatch) -> Int64s:
        starts: Int64s = merged.column(START).to_numpy()
        return starts

    def fragments(self, rows: Rows, keys: Keys, ends: Int64s, mark: int) -> pa.RecordBatch:
        """Each row as a fragment of its own; rows have to be given in the order in which they came."""
        assert rows.times is not None
        encoded = keys.encoded
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        columns = [pa.array(ends), pa.array(keys.hashes), encoded, pa.array(rows.times)]
        if self.marked:
            columns.append(pa.array(np.full(len(rows), mark)))
        if self.tells_late:
            columns.append(pa.nulls(len(rows), pa.int8()))
        came = pa.array(np.arange(self._came, self._came + len(rows)))
        self._came += len(rows)
        for agg in self.aggs:
            columns += agg.lift(rows)
            if agg.timed:
                columns.append(came)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def was_late(self, merged: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which sessions have given a result after their end had passed."""
        if not self.tells_late:
            return np.zeros(merged.num_rows, bool)
        flags: npt.NDArray[np.bool_] = merged.column(WAS_LATE).fill_null(0).to_numpy(zero_copy_only=False) == 1
        return flags


def _fields(agg: PaneAggregate) -> list[pa.Field]:
    if not agg.timed:
        return agg.fields
    by, value = agg.fields
    came = f"{agg.name}.came"
    return [
        merge_field(by.name, by.type, rule_of(by), ties=came),
        value,
        merge_field(came, pa.int64(), BESIDE, of=by.name),
    ]
