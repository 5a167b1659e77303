"""A step of the program, ready to be given state: its operator, begun as a task of the first epoch, over nothing.

`StepTask` is asked for the state of its operator by those who write tables themselves, or given rows as they come into
the step: then it is an epoch whose results nobody gets, and whatever the step keeps of the rows is its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import BadRow, ProgramError
from headrace.model.batch import Rows
from headrace.model.ids import MIN_TIME
from headrace.model.nearest import did_you_mean
from headrace.operators.contract import TaskInfo
from headrace.runtime.fragment import derive_keys
from headrace.state.format import TableData
from headrace.state.lookup import Layers
from headrace.state.run import open_ref
from headrace.state.shard import ShardState
from headrace.transfer.frames import GivenRows
from headrace.transfer.values_in import read_times

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.model.keyspec import KeySpec
    from headrace.model.rows import RowCodec
    from headrace.plan.physical import OpPlan, Program
    from headrace.state.store import StoreFiles
    from headrace.transfer.runs import RunSorter

ROW_TIME: Final = "row_time"
"""The column with the event time of rows that do not hold it themselves."""
OVERLAY_BYTES: Final = 256 * 2**20


class StepPort(NamedTuple):
    """One input of a step."""

    number: int
    codec: RowCodec
    key: KeySpec
    time: str | None
    """The column that tells event time; None: rows have none."""


def find_op(program: Program, step: str) -> OpPlan:
    """The operator of a step that keeps state."""
    ops = [op for fragment in program.fragments for op in fragment.ops if op.stateful]
    for op in ops:
        if op.step == step:
            return op
    raise ProgramError(
        f"no step {step!r} of the program keeps state",
        where="bootstrap",
        expected=" or ".join(sorted(op.step for op in ops)) or "a step that keeps state",
        found=step,
        next_move=did_you_mean(step, [op.step for op in ops], "name the step in the program: .named(…)"),
    )


def find_ports(program: Program, step: str) -> list[StepPort]:
    """The inputs of a step whose rows have keys."""
    op = find_op(program, step)
    if op.rekey is not None and op.codec is not None:
        return [StepPort(0, op.codec, op.rekey, _time_of(program, step, op.codec))]
    ports = []
    for fragment in program.levels:
        for edge, targets in fragment.entries.items():
            for target in targets:
                plan = program.edges[edge]
                if target.kind == "op" and fragment.ops[target.place].step == step and plan.key is not None:
                    codec = plan.codec
                    ports.append(StepPort(target.port, codec, plan.key, _time_of(program, step, codec)))
    return sorted(ports, key=lambda port: port.number)


def _time_of(program: Program, step: str, codec: RowCodec) -> str | None:
    above = program.steps[step].sources
    if not above:
        return None
    texts = {source.time for source in program.sources if source.name in above}
    text = texts.pop() if len(texts) == 1 else None
    return text if text in codec.names else ROW_TIME


class StepTask:
    """One step in its first epoch."""

    def __init__(
        self, program: Program, step: str, *, clock_us: int, write: Callable[[Sequence[TableData]], None]
    ) -> None:
        """``write``: takes what does not fit into memory, as what hides all that was written before."""
        self.program = program
        self.step = step
        self.operator = find_op(program, step).build()
        self.operator.outlets = {}
        groups = program.key_groups
        self.state = ShardState(
            Layers([], lo=0, hi=groups, groups=groups), lo=0, hi=groups, groups=groups, spill=write,
            overlay_limit_bytes=OVERLAY_BYTES,
        )  # fmt: skip
        self.task = TaskInfo(0, 0, clock_us)

    def begin(self) -> ShardState:
        """The state of the operator: what it keeps, and how."""
        self.operator.begin(self.task, self.state)
        return self.state


class RowsIntoStep:
    """Runs rows through a step, as an epoch before the first whose results nobody gets."""

    def __init__(self, program: Program, step: str, store: StoreFiles, writer: RunSorter, *, clock_us: int) -> None:
        self.step = step
        self.next_due_us: int | None = None
        self._writer = writer
        self._store = store
        self._inner = StepTask(program, step, clock_us=clock_us, write=self._spill)
        self._ports = find_ports(program, step)

    def port(self, name: str) -> StepPort:
        """An input by its name: the only one, or ``left`` and ``right``."""
        names = ["left", "right"] if len(self._ports) > 1 else [""]
        if name in names:
            return self._ports[names.index(name)]
        raise ProgramError(
            f"the step {self.step!r} has no such input",
            where="bootstrap",
            expected=" or ".join(f"{self.step}.{each}" if each else self.step for each in names),
            found=f"{self.step}.{name}" if name else self.step,
            next_move="name the input whose rows these are",
        )

    def run(self, frames: Mapping[str, GivenRows], watermark_us: int, tell: Callable[[int], None]) -> dict[str, int]:
        """Takes all rows of all inputs; answers how many there were of each."""
        inner, operator = self._inner, self._inner.operator
        operator.open()
        inner.begin()
        counts: dict[str, int] = {}
        for name, frame in frames.items():
            port = self.port(name)
            address = f"{self.step}.{name}" if name else self.step
            counts[address] = 0
            for batch in frame.batches:
                rows = read_rows(batch, port, f"rows of {address}", counts[address])
                operator.process(port.number, rows, derive_keys(port.key, rows, self.step))
                counts[address] += len(rows)
                tell(len(rows))
        inner.task.end_watermark[self.step] = watermark_us
        _exhaust(operator.finish() or ())
        self.next_due_us = operator.end().next_due_us
        if tables := inner.state.flush():
            self._writer.write(tables)
        operator.close()
        return counts

    def _spill(self, tables: Sequence[TableData]) -> None:
        ref = self._writer.write(tables)
        self._inner.state.layers.prepend(ref, open_ref(self._store, ref))


def read_rows(batch: pa.RecordBatch, port: StepPort, where: str, first_row: int) -> Rows:
    """Rows of a step's input out of columns that somebody gives."""
    codec, columns = port.codec, []
    for field in codec.schema:
        columns.append(_column(batch, field, codec, where, first_row))
    bad = codec.bad_rows(columns)
    if bad is not None and bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise BadRow(
            "a row lacks a value that its type requires",
            where=f"{where}, row {first_row + row:,}",
            expected=f"values for {', '.join(codec.required)}",
            found=str(batch.slice(row, 1).to_pylist()[0]),
            next_move="leave such rows out, or give the field a default",
        )
    if port.time is None:
        return Rows.of_columns(codec, columns)
    times = read_times(_need(batch, port.time, where), where, port.time, first_row).fill_null(MIN_TIME)
    return Rows.of_columns(codec, columns, times.to_numpy(zero_copy_only=False))


def _need(batch: pa.RecordBatch, name: str, where: str) -> pa.Array:
    if name in batch.schema.names:
        return batch.column(name)
    raise ProgramError(
        "a column is missing",
        where=where,
        expected=f"a column {name!r}" + (", the event time of the rows" if name == ROW_TIME else ""),
        found=", ".join(batch.schema.names),
        next_move="rename the column, or add it",
    )


def _column(batch: pa.RecordBatch, field: pa.Field, codec: RowCodec, where: str, first_row: int) -> pa.Array:
    name = field.name
    if name not in batch.schema.names and name in codec.defaults:
        return codec.columns[name].encode([codec.defaults[name]] * batch.num_rows)
    column = _need(batch, name, where)
    try:
        if pa.types.is_timestamp(field.type) and not pa.types.is_timestamp(column.type):
            return read_times(column, where, name, first_row).cast(field.type)
        return column if column.type == field.type else column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ProgramError(
            "a column does not fit the rows of the step",
            where=f"{where}, rows from {first_row:,}, column {name}",
            expected=str(field.type),
            found=f"{column.type}: {error}",
            next_move="cast the column",
        ) from error


def _exhaust(steps: Iterable[None]) -> None:
    for _ in steps:
        pass
