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
from headrace.model.job import ROW
from headrace.model.order import TASK
from headrace.model.report import StagedPart
from headrace.model.row_adapter import RowAdapter
from headrace.model.type_history import derive_change
from headrace.model.type_shape import TypeShape, describe_type, type_text
from headrace.model.wire import ROW_TIME
from headrace.runtime.marking import read_times
from headrace.state.staged_parts import open_part

if TYPE_CHECKING:
    from headrace.connectors.sink_contract import StageTask
    from headrace.model.migrations import Migration
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


def read_loop(
    store: StoreFiles,
    loop: LoopPlan,
    parts: Sequence[StagedPart],
    stored: TypeShape | None,
    migrations: Sequence[Migration],
) -> Iterator[Rows]:
    """The rows of these parts, in order. ``stored``: their type when they were fed, if it is known."""
    adapter = None if stored is None else _adapter(loop, stored, migrations)
    for part in parts:
        data = open_part(store, part)
        with pa.ipc.open_stream(data) as stream:
            for batch in stream:
                yield _rows(loop, batch if adapter is None else adapter.rows(batch))


def _rows(loop: LoopPlan, batch: pa.RecordBatch) -> Rows:
    column = batch.column(ROW_TIME)
    times = read_times(column) if column.null_count < len(column) else None
    columns = columns_of(batch.drop_columns([ROW_TIME]), loop.codec, f"loop {loop.name}")
    return Rows.of_columns(loop.codec, columns, times)


def _adapter(loop: LoopPlan, stored: TypeShape, migrations: Sequence[Migration]) -> RowAdapter | None:
    """What makes rows that were fed by another program rows of this one; None: they are."""
    now = describe_type(loop.codec.type)
    change = derive_change(ROW, (stored, now), migrations)
    if change.kind == "refused":
        raise StoreError(
            f"rows in the loop {loop.name!r} were fed by a program with another type",
            where=f"loop {loop.name}",
            expected=type_text(stored),
            found=f"{type_text(now)}: {change.text}",
            next_move="give new fields a default, or say with hr.migrate how the old type becomes the new one; or give "
            "the new loop another name: the rows of the old one stay",
        )
    return None if change.kind == "same" else RowAdapter(f"loop {loop.name}", (stored, now), change, loop.codec.type)
