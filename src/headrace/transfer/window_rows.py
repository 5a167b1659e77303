"""Windows and their results into partial aggregates: of tumbling windows a slice each, of sessions a fragment each.

Windows of other kinds share slices, so their results cannot be taken apart: such a step is given its rows, or an exact
export.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.list_rules import LIST
from headrace.aggregates.rules import nothing, rule_of
from headrace.errors import ProgramError
from headrace.model.time import format_time
from headrace.model.window import WINDOW_END, WINDOW_START
from headrace.read.columns import EXPIRES_AT
from headrace.state.format import PANES, TableData
from headrace.state.panes.about import SESSION, TUMBLING, parse_about
from headrace.state.panes.fragments import START
from headrace.state.panes.table import PANE_COLUMNS, read_about
from headrace.transfer.state_rows import StateImport, StateTarget, too_little
from headrace.transfer.values_in import read_times

_ITSELF: Final = frozenset({"count", "sum", "min", "max", "collect"})


class WindowRows(StateImport):
    """Windows whose partial aggregates lie in columns."""

    def __init__(self, target: StateTarget) -> None:
        super().__init__(target)
        schema = target.state.pane_schema_of(target.table)
        if schema is None:
            raise no_windows(self.where, "windows that are kept row by row")
        self.schema = schema
        self.about = parse_about(read_about(schema))
        if self.about.windows not in (TUMBLING, SESSION) or self.about.emptied:
            raise no_windows(self.where, f"{self.about.windows} windows")
        self._result_of = {
            column: (name, kind, len(columns))
            for name, (kind, *columns) in self.about.results.items()
            for column in columns
        }

    def make(self, batch: pa.RecordBatch, base: dict[str, pa.Array]) -> list[TableData]:
        starts, ends = (
            read_times(self.column(batch, name, "the bounds of windows"), self.where, name, self.rows)
            for name in (WINDOW_START, WINDOW_END)
        )
        self._check_bounds(starts, ends)
        sessions = self.about.windows == SESSION
        columns = [ends if sessions else starts, base["hash"], base["key"]]
        for field in list(self.schema)[len(PANE_COLUMNS) :]:
            columns.append(starts if field.name == START else self._cells(batch, field))
        return [TableData(self.target.table, PANES, pa.RecordBatch.from_arrays(columns, schema=self.schema))]

    def _cells(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        """One column of partial aggregates: by its own name, or the result that is the same."""
        if field.name.startswith("!"):
            return nothing(field, batch.num_rows)
        name, kind, parts = self._result_of[field.name]
        if field.name in batch.schema.names:
            column = batch.column(field.name)
        elif kind in _ITSELF and parts == 1 and (kind != "collect" or rule_of(field) == LIST):
            column = self.column(batch, name, f"the aggregate {name!r}")
        else:
            more = [each for each, (of, _, _) in self._result_of.items() if of == name]
            raise too_little(self.where, name, kind, " and ".join(map(repr, more)))
        if pa.types.is_timestamp(column.type) and pa.types.is_int64(field.type):
            column = read_times(column, self.where, name, self.rows)
        try:
            cast = column if column.type == field.type else column.cast(field.type)
        except pa.ArrowInvalid as error:
            raise ProgramError(
                f"the aggregate {name!r} does not fit its type", where=self.where, expected=str(field.type),
                found=str(error), next_move="cast the column",
            ) from error  # fmt: skip
        if cast.null_count and not field.nullable:
            return pc.if_else(cast.is_valid(), cast, nothing(field, batch.num_rows))
        return cast

    def _check_bounds(self, starts: pa.Int64Array, ends: pa.Int64Array) -> None:
        first, last = starts.to_numpy(zero_copy_only=False), ends.to_numpy(zero_copy_only=False)
        if starts.null_count or ends.null_count:
            fits = starts.is_valid().to_numpy(zero_copy_only=False) & ends.is_valid().to_numpy(zero_copy_only=False)
        elif self.about.windows == SESSION:
            fits = last > first
        else:
            size = self.about.size_us
            fits = (last - first == size) & ((first - self.about.offset_us) % size == 0)
        if fits.all():
            return
        row = int(np.flatnonzero(~fits)[0])
        shown = [format_time(each) if each is not None else "null" for each in (starts[row].as_py(), ends[row].as_py())]
        raise ProgramError(
            "a window is none of the step's",
            where=f"{self.where}, row {self.rows + row:,}",
            expected=self.about.spans,
            found=f"from {shown[0]} to {shown[1]}",
            next_move="give windows as the program cuts them, or give the step the rows themselves (--rows)",
        )

    def expiry(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        raise AssertionError(f"windows end with time, without a column {EXPIRES_AT}")


def no_windows(where: str, found: str) -> ProgramError:
    return ProgramError(
        "the results of these windows do not say what the windows were made of",
        where=where,
        expected="tumbling windows or sessions of declared aggregates",
        found=found,
        next_move="give the step the rows themselves (--rows), or an exact export (--from)",
    )
