"""Rows of a loop between two epochs: staged by the tasks that feed it, read back by those of the next epoch.

They are staged as outputs are, Arrow streams beside the report or inside it, but nobody releases them: the manifest of
the epoch that fed them names them, and the tasks of the next one read what it names. Beside the fields of its type a
row has its event time; a row of a stream without time has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from headrace.connectors.staged import ARROW, PartWriter, columns_of, encode_arrow
from headrace.errors import StoreError
from headrace.model.batch import Rows
from headrace.model.order import TASK
from headrace.model.report import StagedPart
from headrace.model.values import type_name
from headrace.model.wire import ROW_TIME
from headrace.runtime.marking import read_times
from headrace.state.staged_parts import open_part

if TYPE_CHECKING:
    from headrace.connectors.sink_contract import StageTask
    from headrace.plan.physical import LoopPlan
    from headrace.state.store import StoreFiles

_TIME: Final = pa.field(ROW_TIME, pa.int64())


class LoopWriter:
    """Stages the rows that one task feeds into one loop."""

    def __init__(self, stage: StageTask, task: str) -> None:
        """``task``: tells the parts of this task from those of others, whose rows need not follow them."""
        self._writer = PartWriter(stage, encode_arrow, ARROW)
        self._task = task

    def write(self, rows: Rows) -> None:
        if not len(rows):
            return
        times = pa.nulls(len(rows), pa.int64()) if rows.times is None else pa.array(rows.times, pa.int64())
        self._writer.add(rows.record_batch.append_column(_TIME, times))

    def finish(self) -> list[StagedPart]:
        return [msgspec.structs.replace(part, extra={TASK: self._task}) for part in self._writer.finish()]


def read_loop(store: StoreFiles, loop: LoopPlan, parts: Sequence[StagedPart]) -> Iterator[Rows]:
    """The rows of these parts, in order."""
    for part in parts:
        data = open_part(store, part)
        with pa.ipc.open_stream(data) as stream:
            for batch in stream:
                yield _rows(loop, batch)


def _rows(loop: LoopPlan, batch: pa.RecordBatch) -> Rows:
    column = batch.column(ROW_TIME)
    fields = batch.drop_columns([ROW_TIME])
    missing = [name for name in loop.codec.required if name not in fields.schema.names]
    if missing:
        raise StoreError(
            f"rows in the loop {loop.name!r} were fed by a program whose type lacks a field",
            where=f"loop {loop.name}",
            expected=f"every field of {type_name(loop.codec.type)} that has no default",
            found=f"rows without {', '.join(missing)}",
            next_move="give the new field a default, or name the new loop otherwise: the rows of the old one stay",
        )
    times = read_times(column) if column.null_count < len(column) else None
    return Rows.of_columns(loop.codec, columns_of(fields, loop.codec), times)
