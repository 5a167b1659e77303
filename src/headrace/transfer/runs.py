"""Rows of a step into sorted runs, however many they are: an external sort by key.

Rows are gathered up to a bound and written as a run of their own, a *chunk*; at the end the chunks are merged into one
run, as a fold does it, in bounded memory. A single chunk is the run.

Where rows come from people no key may come twice: a second row would replace the first without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ProgramError
from headrace.model import crash
from headrace.model.amounts import count_of
from headrace.model.job import VALUE_TABLE
from headrace.model.key_text import key_text
from headrace.model.keys import decode_key
from headrace.model.report import RunRef
from headrace.state import layout
from headrace.state.encode import describe_run, encode_run
from headrace.state.fold import RunFold, write_fold
from headrace.state.format import ENTRIES, PANES, VALUE, TableData
from headrace.state.lookup import open_layers
from headrace.state.store import StoreFiles

CHUNK_ROWS: Final = 1 << 20
CHUNK_BYTES: Final = 256 * 2**20
FIRST_FENCE: Final = 1
"""The fence under which a store is made."""

_UNIQUE: Final = {VALUE: ("key",), ENTRIES: ("key", "sub"), PANES: ("key", "pane")}
_ONE: Final = {VALUE: ("a key", "key"), ENTRIES: ("an entry", "entry of a key"), PANES: ("a window", "window of a key")}
"""What comes twice, and of what there is one row each."""


class RunPlace(NamedTuple):
    """Where runs of a step belong."""

    listed: str
    """The step, or what `layout.broadcast` calls its broadcast states."""
    epoch: int
    lo: int
    hi: int
    groups: int


class RunSorter:
    """Takes tables of one step in any order; ``refs`` are what they came to, newest first."""

    def __init__(
        self,
        store: StoreFiles,
        place: RunPlace,
        *,
        unique: bool,
        keeps_dead: bool = False,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        """``unique``: a key that comes twice is refused. ``keeps_dead``: tombstones stay, as they hide older rows."""
        self._keeps_dead = keeps_dead
        self._store = store
        self._place = place
        self._unique = unique
        self._chunk_rows = chunk_rows
        self._waiting: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        self._rows = self._size = 0
        self._chunks: list[RunRef] = []
        self.rows: dict[str, int] = {}
        """Table → rows that were taken."""

    def add(self, tables: Sequence[TableData]) -> None:
        for table in tables:
            if not table.batch.num_rows:
                continue
            batches = table.batch.to_batches() if isinstance(table.batch, pa.Table) else [table.batch]
            self._waiting.setdefault((table.name, table.kind), []).extend(batches)
            self._rows += table.batch.num_rows
            self._size += table.batch.nbytes
            self.rows[table.name] = self.rows.get(table.name, 0) + table.batch.num_rows
        if self._rows >= self._chunk_rows or self._size >= CHUNK_BYTES:
            self._write_chunk()

    def write(self, tables: Sequence[TableData]) -> RunRef:
        """Writes rows that replace older ones as a chunk of their own: what an operator spills."""
        place = self._place
        path = layout.run(place.listed, place.epoch, place.lo, layout.new_uid(FIRST_FENCE))
        data = encode_run(tables, lo=place.lo, hi=place.hi, groups=place.groups)
        crash.reach("making", place.epoch)
        self._store.write(path, data)
        ref = describe_run(data, epoch=place.epoch, file=path)
        self._chunks.insert(0, ref)
        return ref

    def finish(self) -> list[RunRef]:
        """The runs of everything that was taken: one, or none where nothing was."""
        self._write_chunk()
        if len(self._chunks) < 2:
            return self._chunks
        place = self._place
        fold = RunFold(place.lo, place.hi, tuple(self._chunks), level=1, oldest=not self._keeps_dead)
        path = layout.run(place.listed, place.epoch, place.lo, layout.new_uid(FIRST_FENCE))
        merged = write_fold(self._store, fold, path, groups=place.groups)
        if self._unique and merged is not None and merged.rows < sum(ref.rows for ref in self._chunks):
            self._refuse_repeated()
        for ref in self._chunks:
            self._store.delete(ref.file)
        return [] if merged is None else [merged]

    def _write_chunk(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._rows = self._size = 0
        if not waiting:
            return
        tables = [TableData(name, kind, pa.Table.from_batches(batches)) for (name, kind), batches in waiting.items()]
        if self._unique:
            for table in tables:
                _check_unique(table, layout.step_of(self._place.listed))
        self.write(tables)

    def _refuse_repeated(self) -> None:
        """Looks again, slowly, for a key that two chunks have."""
        place = self._place
        layers = [
            open_layers(self._store, [ref], lo=place.lo, hi=place.hi, groups=place.groups) for ref in self._chunks
        ]
        for name, kind in layers[0].tables.items():
            columns = _UNIQUE.get(kind)
            if columns is not None:
                _check_unique(
                    TableData(name, kind, _narrow((each.scan(name) for each in layers), columns)),
                    layout.step_of(place.listed),
                )


def _narrow(scans: Iterator[Iterator[pa.RecordBatch]], columns: Sequence[str]) -> pa.Table:
    batches = [batch for scan in scans for batch in scan]
    return pa.table({name: pa.chunked_array([batch.column(name) for batch in batches]) for name in columns})


def _check_unique(table: TableData, step: str) -> None:
    columns = _UNIQUE.get(table.kind)
    if columns is None:
        return
    rows = table.batch.select(list(columns))
    counted = rows.group_by(list(columns)).aggregate([([], "count_all")])
    if counted.num_rows == rows.num_rows:
        return
    twice = counted.filter(pc.greater(counted.column("count_all"), 1)).slice(0, 1).to_pylist()[0]
    what, each = _ONE[table.kind]
    raise ProgramError(
        f"{what} comes {count_of(twice['count_all'], 'time')}",
        where=f"state {step}" if table.name == VALUE_TABLE else f"state {step}.{table.name}",
        expected=f"one row for each {each}",
        found=f"key {key_text(decode_key(twice['key']))}",
        next_move="aggregate the rows first, or give the rows themselves to the step (--rows)",
    )
