"""What edits come to: the rows of a run for each step, and what was there before and is there afterwards.

Nothing is written here. The runs that hold the keys of the edits are opened, and no others; several edits of one key
follow each other. An edit that does not fit refuses all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from headrace.aggregates.accumulate import TIME_NOTE
from headrace.edit.cells import Cell, EntriesCell, ValueCell, derive_due, derive_table
from headrace.edit.changing import BeforeAfter, Changing
from headrace.edit.edits import Edit
from headrace.edit.targets import EditTarget, find_target, refuse_made_of_rows
from headrace.errors import ProgramError
from headrace.model.job import ROW
from headrace.model.keys import decode_key, encode_key, hash_key, key_group, key_text, possible_keys
from headrace.read.opening import AGGREGATE, open_reader
from headrace.read.reader import Reader
from headrace.state import layout
from headrace.state.adapters import Adapters
from headrace.state.format import ENTRIES, PANES, ROWS, TableData
from headrace.state.lookup import Layers, open_layers
from headrace.state.manifest import JobState
from headrace.state.store import StoreFiles

Progress = Callable[[int, int], None]
"""Called with how many edits are done, and of how many."""


class Change(NamedTuple):
    """What one edit comes to."""

    edit: Edit
    key: str
    """As people write it."""
    values: BeforeAfter


class EditPlan(NamedTuple):
    """What all edits come to."""

    changes: list[Change]
    tables: Mapping[str, list[TableData]]
    """What a manifest lists runs under → the tables of a run."""
    changed: Mapping[str, int]
    """State → how many of its keys."""
    due_us: int | None
    """The earliest wall-clock timer that was set."""


def plan_edits(
    files: StoreFiles, state: JobState, edits: Sequence[Edit], *, epoch: int, now_us: int | None = None,
    progress: Progress | None = None,
) -> EditPlan:  # fmt: skip
    """Reads what the edits are about and makes their changes. Raises ProgramError or StoreError for one that is none.

    ``epoch``: the one that they become true in. ``now_us``: when, by the clock of whoever edits.
    """
    planning = _Planning(files, state, epoch, time.time_ns() // 1000 if now_us is None else now_us)
    targets = {each.state: find_target(state.manifest, each.state, each.describe()) for each in edits}
    keys = [planning.key(targets[each.state], each) for each in edits]
    planning.open({target.runs for target in targets.values()}, keys)
    changes = []
    for number, (edit, key) in enumerate(zip(edits, keys), 1):
        changes.append(planning.change(targets[edit.state], key, edit))
        if progress is not None:
            progress(number, len(edits))
    return planning.result(changes)


class _Planning:
    def __init__(self, files: StoreFiles, state: JobState, epoch: int, now_us: int) -> None:
        self._files = files
        self._state = state
        self._epoch = epoch
        self._now_us = now_us
        self._layers: dict[str, Layers] = {}
        self._cells: dict[str, dict[bytes, Cell]] = {}
        """Address → key → its cell."""
        self._changing: dict[str, tuple[EditTarget, Changing]] = {}
        self._readers: dict[str, Reader] = {}

    def key(self, target: EditTarget, edit: Edit) -> bytes:
        """The key that an edit means: where nobody says of what type keys are, by those that are stored."""
        if target.key_type is not None:
            return target.key(edit, target.key_type)
        reader = self._reader(target)
        try:
            likeliest = target.key(edit, reader.key_type)
        except ProgramError:
            found = self._stored_key(reader, edit)
            if found is None:
                raise
            return found
        return likeliest if reader.has(likeliest) else self._stored_key(reader, edit) or likeliest

    def _stored_key(self, reader: Reader, edit: Edit) -> bytes | None:
        """A key that the state has and that is written so."""
        return next((key for key in map(encode_key, possible_keys(edit.key_text)) if reader.has(key)), None)

    def _reader(self, target: EditTarget) -> Reader:
        """The whole state, to look for keys."""
        if target.address not in self._readers:
            manifest = self._state.manifest
            layers = self._open(target.runs, 0, manifest.key_groups)
            self._readers[target.address] = open_reader(
                self._files, layers, target.table, manifest, target.step, address=target.address
            )
        return self._readers[target.address]

    def open(self, names: set[str], keys: Sequence[bytes]) -> None:
        """Opens the runs of steps for the key groups that these keys lie in."""
        groups = self._state.manifest.key_groups
        touched = [key_group(hash_key(key), groups) for key in keys]
        for name in names:
            self._layers[name] = self._open(name, min(touched), max(touched) + 1)

    def _open(self, name: str, lo: int, hi: int) -> Layers:
        manifest = self._state.manifest
        states = manifest.states.get(layout.step_of(name), {})
        # What is edited is written in the newest version of the step, so it is read in that.
        adapters = Adapters(layout.step_of(name), states, rewrites=True)
        refs = self._state.runs.get(name, ())
        return open_layers(
            self._files, refs, lo=lo, hi=hi, groups=manifest.key_groups, states=adapters.states, adapters=adapters,
            hidden=manifest.hidden.get(layout.step_of(name)),
        )  # fmt: skip

    def change(self, target: EditTarget, key: bytes, edit: Edit) -> Change:
        layers = self._layers[target.runs]
        if target.address not in self._changing:
            _check_stored(target, layers)
            self._changing[target.address] = target, Changing(target, self._epoch, self._now_us)
        changing = self._changing[target.address][1]
        cells = self._cells.setdefault(target.address, {})
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = (EntriesCell if target.stored_as == ENTRIES else ValueCell)(target, layers, key)
        if isinstance(cell, EntriesCell):
            values = changing.change_entries(cell, edit)
        else:
            values = changing.change_value(cell, edit)
        return Change(edit, key_text(decode_key(key), target.key_type), values)

    def result(self, changes: list[Change]) -> EditPlan:
        tables: dict[str, list[TableData]] = {}
        dues: list[int] = []
        for address, (target, changing) in self._changing.items():
            cells = list(self._cells[address].values())
            mine = tables.setdefault(target.runs, [])
            mine.append(derive_table(target, cells))
            if (gone := self._times_gone(target, cells)) is not None:
                mine.append(gone)
            due = derive_due(target, changing.times)
            if due is not None:
                _add_due(mine, due)
            if target.kind == "wall_timer":
                dues += [time_us for times in changing.times.values() for time_us in times]
        keys = Counter({address: len(cells) for address, cells in self._cells.items()})
        return EditPlan(changes, tables, keys, min(dues, default=None))

    def _times_gone(self, target: EditTarget, cells: list[Cell]) -> TableData | None:
        """The time that a rolling step keeps beside a row goes with it."""
        if target.kind != ROW or TIME_NOTE not in self._layers[target.runs].tables:
            return None
        gone: list[Cell] = [cell for cell in cells if isinstance(cell, ValueCell) and cell.stored is None]
        return replace(derive_table(target, gone), name=TIME_NOTE) if gone else None


def _add_due(tables: list[TableData], due: TableData) -> None:
    """Timers of several states of a step stand in one index."""
    for place, table in enumerate(tables):
        if table.name == due.name:
            tables[place] = replace(table, batch=pa.concat_tables([table.batch, due.batch]))
            return
    tables.append(due)


def _check_stored(target: EditTarget, layers: Layers) -> None:
    """Refuses what is stored in another way than what was declared tells."""
    stored = layers.tables.get(target.table)
    if target.kind == AGGREGATE and ROWS in layers.tables.values():
        raise refuse_made_of_rows(target.address, "aggregates over a horizon, beside the rows that they are made of")
    in_windows = stored is None and target.step_has_windows
    if in_windows or (stored is not None and stored != target.stored_as):
        raise refuse_made_of_rows(target.address, "open windows" if stored == PANES else "values of open windows")
