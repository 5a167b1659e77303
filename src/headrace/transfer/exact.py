"""An exact export into the steps of a program: every table as it was stored, under the keys' hashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from headrace.errors import ProgramError
from headrace.model.keys import hash_encoded
from headrace.model.type_change import compare_keys, compare_types
from headrace.model.type_shape import type_text
from headrace.state import layout
from headrace.state.format import PANES, TableData
from headrace.state.panes.about import spans_of
from headrace.transfer.frames import parquet_batches
from headrace.transfer.step_rows import StepTask

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.model.type_shape import TypeShape
    from headrace.plan.physical import Program
    from headrace.transfer.folder import ExportFolder
    from headrace.transfer.record import ExportedTable, ExportRecord

_WAY_OUT: Final = "run the program on a copy of the old store (it reads old values as new ones), and export that"


class ExportedRows(NamedTuple):
    """One table of an export, and where it goes."""

    listed: str
    table: ExportedTable
    folder: ExportFolder

    def tables(self) -> Iterator[TableData]:
        """Its rows, batch by batch."""
        for path in self.table.files:
            with self.folder.open(path) as opened:
                for batch in parquet_batches(opened, f"{self.folder.url}/{path}"):
                    yield self._with_hashes(batch)

    def _with_hashes(self, batch: pa.RecordBatch) -> TableData:
        place = batch.schema.get_field_index("key")
        hashes = pa.array(hash_encoded(batch.column(place)))
        field = pa.field("hash", pa.uint64(), nullable=False)
        schema = batch.schema.insert(place, field)
        columns = [*batch.columns[:place], hashes, *batch.columns[place:]]
        return TableData(self.table.table, self.table.kind, pa.RecordBatch.from_arrays(columns, schema=schema))


def open_stored(program: Program, record: ExportRecord, folder: ExportFolder) -> list[ExportedRows]:
    """All tables of an exact export under the steps of the program; refuses what would be read as something else."""
    renamed = {plan.was: step for step, plan in program.steps.items() if plan.was}
    rows = []
    for table in record.tables:
        step = table.step if table.step in program.steps else renamed.get(table.step, "")
        if not step:
            raise ProgramError(
                f"no step of the program takes the state of {table.step!r}",
                where=folder.url,
                expected=" or ".join(sorted(program.steps)) or "a step that keeps state",
                found=table.step,
                next_move=f'say which step it is now (.named(…, was="{table.step}")), or export without it: '
                "headrace export STORE STEP… --exact",
            )
        _check_state(program, step, table, record, folder)
        rows.append(ExportedRows(layout.broadcast(step) if table.broadcast else step, table, folder))
    return rows


def _check_state(program: Program, step: str, table: ExportedTable, record: ExportRecord, folder: ExportFolder) -> None:
    described = program.steps[step].described
    before = record.declared.get(table.step, {}).get(table.table)
    now = described.get(table.table) or next((known for known in described.values() if table.table in known.was), None)
    if before is not None and now is None:
        raise ProgramError(
            f"the step {step!r} keeps no state {table.table!r}",
            where=folder.url,
            expected=" or ".join(described) or "no state",
            found=f"{step}.{table.table}",
            next_move=f'say which state it is now (hr.state(was="{table.table}")), or export without it',
        )
    if before is not None and now is not None:
        _check_types(f"{step}.{table.table}", before, now, folder)
    if table.kind == PANES:
        _check_windows(program, step, table, folder)


def _check_types(address: str, before: DeclaredState, now: DeclaredState, folder: ExportFolder) -> None:
    change, keys = compare_types(before.type, now.type), compare_keys(before.key_type, now.key_type)
    if keys.kind == "refused":
        raise _type_change(
            f"the keys of {address}", before.key_type, now.key_type, folder, "headrace rewrite STORE --key"
        )
    if change.kind == "refused" or not change.direct or change.drops:
        raise _type_change(f"the values of {address}", before.type, now.type, folder, _WAY_OUT)


def _type_change(
    what: str, before: TypeShape | None, now: TypeShape | None, folder: ExportFolder, next_move: str
) -> ProgramError:
    return ProgramError(
        f"{what} were exported as another type",
        where=folder.url,
        expected="any type" if now is None else type_text(now),
        found="any type" if before is None else type_text(before),
        next_move=next_move,
    )


def _check_windows(program: Program, step: str, table: ExportedTable, folder: ExportFolder) -> None:
    state = StepTask(program, step, clock_us=0, write=lambda tables: None).begin()
    schema = state.pane_schema_of(table.table)
    with folder.open(table.files[0]) as opened:
        import pyarrow.parquet as pq

        stored = spans_of(pq.read_schema(opened))
    if schema is None or spans_of(schema) != stored:
        raise ProgramError(
            f"the windows of {step!r} were cut in another way when they were exported",
            where=folder.url,
            expected="windows kept row by row" if schema is None else spans_of(schema),
            found=stored,
            next_move="give the step the windows that it had, or give it its rows (--rows)",
        )
