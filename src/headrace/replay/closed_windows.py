"""The rows that windows gave out when they ended, off what state and archive still have of them.

A window that ended is in the state for as long as `keep=` (and late rows) say, and in the archive for good, where there
is one. Its result is the row that the step gave out; what stands between the step and the output makes of it what it
made of it then. So a target of one row per window can be compared with it, and filled from it
(`headrace.runtime.refill`).

Invariants
- Windows that are still open are left out: their rows have not gone out.
- Without an archive only the newest windows are known, so nobody can tell which rows of a target are extra.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.aggregates.list_rules import plain_values
from headrace.errors import Refused
from headrace.model.batch import Int64s, Rows
from headrace.model.columns import as_int64
from headrace.model.ids import MAX_TIME
from headrace.model.job import VALUE_TABLE
from headrace.model.row_kind import AFTER, BEFORE, DELETE
from headrace.model.window import PANE, WINDOW_END, WINDOW_START
from headrace.operators.changelogs.pairs import drop_equal_pairs
from headrace.read.opening import clocks_of, open_reader
from headrace.read.windows import SlicedReader, WindowReader
from headrace.runtime.sink_rows import SinkRows
from headrace.runtime.state_rows import StateRows, join_rows
from headrace.state.manifest import read_state
from headrace.state.panes.table import first_live_pane
from headrace.windows.columnar import ON_TIME, ColumnarWindows
from headrace.windows.kinds import Cumulating, Sliding, Tumbling

if TYPE_CHECKING:
    from headrace.plan.physical import Program
    from headrace.plan.refilling import RefillPlan
    from headrace.state.manifest import JobState, Manifest
    from headrace.state.store import StoreFiles

_AT_ONCE: Final = 20_000


class ClosedWindowRows(StateRows):
    """The rows of one output of a windowed step."""

    def __init__(self, store: StoreFiles, program: Program, plan: RefillPlan) -> None:
        super().__init__(store, program, plan)
        operator = self._fragment.operators[0]
        assert isinstance(operator, ColumnarWindows), "other windows are refused"
        self._settings, self._windows = operator.spec, operator.plan

    @property
    def no_extra(self) -> str:
        """Why rows of the target that the state does not have need not be wrong; empty where they are."""
        if self._settings.archive is not None:
            return ""
        return "windows that are not kept any longer are in no state, so extra rows were not looked for"

    def count(self, state: JobState) -> int:
        return sum(ref.rows for ref in self._refs(state))

    def spans(self, state: JobState) -> list[range]:
        return [range(state.manifest.key_groups)]

    def rows(self, state: JobState, groups: range, *, after: int = -1, since: int = -1) -> Iterator[tuple[int, Rows]]:
        """All rows, some at a time, with how many came up to there. ``after``: so many were compared already.

        ``since`` makes no difference: closed windows that came about since then lie among all others. What is skipped
        may be another row by then; it comes again, because the target has moved on.
        """
        done = 0
        for rows, _ in self._parts(state, groups):
            done += len(rows)
            if done > after:
                yield done, self._pass_through(state, rows)

    def changes(self, start: JobState, ends: Sequence[JobState], groups: range) -> Iterator[Rows]:
        """Windows that ended behind the earlier state go; those that late rows have changed since come as they were."""
        names = self._plan.output.sink.changelog_key or ()
        past_us, late_us = self._now_us(start), self._settings.allow_late_us
        # Of those that had ended only windows that late rows may still change can be others by now.
        parts = [rows for rows, _ in self._in_state(start, groups)] if late_us else []
        then = join_rows(parts, None) if parts else None
        place_then = {} if then is None else {each: place for place, each in enumerate(_ids(then, names))}
        known: set[str] = set()
        changed: list[Rows] = []
        places: list[int] = []
        for end in ends:
            for rows, ended in self._parts(end, groups):
                ids = _ids(rows, names)
                new = (ended - 1 + late_us > past_us) & np.array([each not in known for each in ids])
                known.update(ids[place] for place in np.flatnonzero(new))
                there = np.array([each in place_then for each in ids])
                if (gone := new & ~there).any():
                    yield self._signed(start, rows.take(np.flatnonzero(gone)), [DELETE])
                if (other := new & there).any():
                    changed.append(rows.take(np.flatnonzero(other)))
                    places += [place_then[ids[place]] for place in np.flatnonzero(other)]
        if then is not None and changed:
            both = join_rows([*changed, then.take(np.array(places))], None)
            order = np.arange(len(both)).reshape(2, -1).T.ravel()
            rows = self._signed(start, both.take(order), [BEFORE, AFTER])
            # Where the target may be at several epochs, the row of the newest is not all that it may show.
            several = rows.kinds is None or len(ends) > 1
            yield rows if several else drop_equal_pairs(rows, timed=False)

    def gap(self, start: Manifest, end: Manifest) -> str:
        """Why it is not known which windows ended between two epochs; empty where it is."""
        if {self._cut_in(start), self._cut_in(end)} != {self._settings.windows}:
            return "its windows are cut otherwise now"
        archives = {self._archive_in(start), self._archive_in(end)}
        if self._settings.archive is not None and archives == {self._settings.archive.path}:
            return ""
        # Before the first row came nothing was kept, for whatever time.
        kept_us = min(self._kept_us(start, default=MAX_TIME), self._kept_us(end, default=0))
        if self._clock_of(end) - self._clock_of(start) <= kept_us:
            return ""
        return "windows ended there that are kept no longer: queryable(keep=…) or queryable(archive=…) tells of them"

    def _kept_us(self, manifest: Manifest, *, default: int) -> int:
        """For how long windows stayed in the state at an epoch when they were over, as its tables say."""
        state = read_state(self._store, *manifest.place)
        layers = self._layers(state, range(manifest.key_groups), self._refs(state))
        lasts = [1 - first_live_pane(view.table.schema, 0) for view in layers.views(VALUE_TABLE)]
        assigner = self._settings.assigner
        # What says how long windows last counts from their start; of sessions, from their end.
        size_us = assigner.size_us if isinstance(assigner, Tumbling | Sliding | Cumulating) else 1
        return min(lasts) - (size_us - 1) if lasts else default

    def _cut_in(self, manifest: Manifest) -> str:
        declared = manifest.states.get(self._step_in(manifest), {}).get(VALUE_TABLE)
        return "" if declared is None else declared.windows

    def _signed(self, state: JobState, rows: Rows, kinds: list[int]) -> Rows:
        """Rows of a changelog on their way to the output. ``kinds``: of the rows, by turns."""
        return self._pass_through(state, rows.with_kinds(np.resize(np.array(kinds, np.int8), len(rows))))

    def _parts(self, state: JobState, groups: range) -> Iterator[tuple[Rows, Int64s]]:
        """Rows of windows that ended, with their ends: those that no late row can change first."""
        reader = self._reader(state, groups)
        if reader.archived is not None:
            for frame in reader.archived.frames():
                for part in frame.iter_slices(_AT_ONCE):
                    columns = part.to_arrow().combine_chunks()
                    yield self._of_columns(reader, columns), as_int64(columns[WINDOW_END].combine_chunks()).to_numpy()
        yield from self._in_state(state, groups)

    def _in_state(self, state: JobState, groups: range) -> Iterator[tuple[Rows, Int64s]]:
        reader = self._reader(state, groups)
        if not isinstance(reader, SlicedReader):
            return
        now_us = self._now_us(state)
        for merged in reader.merged_rows():
            # The first column is where windows end.
            ends = merged.column(0).to_numpy()
            mine = ends - 1 <= now_us
            if reader.archived is not None:
                # Those that no late row can change any more are in the archive.
                mine &= ends - 1 + self._settings.allow_late_us > now_us
            if mine.any():
                yield self._of_merged(reader, merged.filter(pa.array(mine))), ends[mine]

    def _now_us(self, state: JobState) -> int:
        return self._clock_of(state.manifest)

    def _clock_of(self, manifest: Manifest) -> int:
        """How far the clock of the windows had come."""
        return clocks_of(manifest, self._step_in(manifest))[self._settings.assigner.clock]

    def _archive_in(self, manifest: Manifest) -> str | None:
        declared = manifest.states.get(self._step_in(manifest), {}).get(VALUE_TABLE)
        return None if declared is None or declared.archive is None else declared.archive.path

    def _of_merged(self, reader: SlicedReader, merged: pa.RecordBatch) -> Rows:
        label = reader.window_columns(merged, [PANE])[PANE] if reader.tells_pane else ON_TIME
        return self._windows.rows(merged, label)

    def _of_columns(self, reader: WindowReader, columns: pa.Table) -> Rows:
        """Rows of the archive, which were written as the results of the step."""
        renamed = {WINDOW_START: self._settings.start_column, WINDOW_END: self._settings.end_column}
        names = [renamed.get(name, name) for name in columns.column_names]
        rows = zip(*(plain_values(column.combine_chunks()) for column in columns.columns))
        codec = self._windows.codec
        return Rows.of_objects(codec, [reader.typed(b"", dict(zip(names, row))) for row in rows])

    def _reader(self, state: JobState, groups: range) -> WindowReader:
        step = self._step_in(state.manifest)
        layers = self._layers(state, groups, self._refs(state))
        reader = open_reader(
            self._store, layers, VALUE_TABLE, state.manifest, step, address=step, value=self._windows.codec.type
        )
        assert isinstance(reader, WindowReader)
        if self._cut_in(state.manifest) != self._settings.windows:
            raise Refused(
                f"the windows of the step {step} are not cut as this program cuts them",
                where=self._store.url,
                expected=self._cut_in(state.manifest),
                found=self._settings.windows,
                next_move="give the program that the job runs",
            )
        return reader

    def _step_in(self, manifest: Manifest) -> str:
        """The name that the step has in the store."""
        plan = self._program.steps[self._plan.step]
        return plan.step if plan.step in manifest.states else plan.was or plan.step


def _ids(rows: Rows, names: Sequence[str]) -> list[str]:
    """What the target finds rows by, so that it can be compared whatever its type."""
    columns = [plain_values(rows.columns[rows.codec.index(name)]) for name in names]
    return list(map(repr, zip(*columns)))


def state_rows_of(store: StoreFiles, program: Program, plan: RefillPlan) -> StateRows:
    """The rows of an output, off the state of its step, whichever step that is."""
    if plan.windows:
        return ClosedWindowRows(store, program, plan)
    return (SinkRows if plan.of_sink else StateRows)(store, program, plan)
