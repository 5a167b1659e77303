"""Exports: states of one epoch as files, for other programs or for `headrace bootstrap`.

In the form ``results`` a state is written as readers see it, with typed columns: keys and values, entries, elements,
times of timers, windows with their bounds and results, and where rows expire when. In the form ``exact`` every table of
every step is written as it is stored, what readers never see as well: partial aggregates, rows of joins, timers' index.

All files of an export are of one epoch. States are walked over batch by batch, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import ProgramError, StoreError
from headrace.model.ids import MIN_TIME
from headrace.model.nearest import did_you_mean
from headrace.model.time import format_time
from headrace.read.batches import json_rows, typed_batches
from headrace.read.forms import JSON
from headrace.read.snapshot import Snapshot
from headrace.state import layout
from headrace.state.adapters import Adapters
from headrace.state.fold import rebatch
from headrace.state.lookup import Layers, open_layers
from headrace.state.spark_offsets import source_offsets
from headrace.transfer.counting import DoneRows, Progress
from headrace.transfer.folder import ExportFolder
from headrace.transfer.record import EXACT, RECORD, RESULTS, ExportedTable, ExportRecord, write_export

if TYPE_CHECKING:
    from headrace.read.reader import Reader
    from headrace.state.manifest import JobState
    from headrace.state.store import StoreFiles


PARQUET: Final = "parquet"
JSON_LINES: Final = "jsonl"
PART_ROWS: Final = 2_000_000
"""Rows of one file: many readers take files side by side."""
_GROUP_ROWS: Final = 131_072
"""Rows of one row group."""
_GROUP_BYTES: Final = 64 * 2**20
_FORMATS: Final = (PARQUET, JSON_LINES)


class ExportRequest(NamedTuple):
    """What somebody wants of a store."""

    folder: str
    states: Sequence[str] = ()
    """Addresses of states; none: all."""
    file_format: str = PARQUET
    form: str = RESULTS


def export_state(
    files: StoreFiles, app: str, state: JobState, request: ExportRequest, progress: Progress | None = None
) -> ExportRecord:
    """Writes states of an epoch into a folder. An export that was interrupted is begun again."""
    _check(request)
    tables = _stored_tables(files, state, request) if request.form == EXACT else _readable(files, app, state, request)
    manifest = state.manifest
    folder = ExportFolder(request.folder)
    folder.begin({"store": files.url, "epoch": state.epoch}, RECORD)
    rows = DoneRows(sum(table.weight for table in tables), progress)
    exported = [table.write(folder, rows) for table in tables]
    steps = {table.step for table in exported}
    record = ExportRecord(
        form=request.form,
        file_format=request.file_format,
        app=app,
        store=files.url,
        timeline=manifest.timeline,
        epoch=state.epoch,
        published=format_time(manifest.published_us),
        clock_us=manifest.clock_us,
        next_due_us=manifest.next_due_us,
        key_groups=manifest.key_groups,
        watermarks={step: time for step, time in manifest.time.steps.items() if time > MIN_TIME and step in steps},
        offsets=source_offsets(manifest.offsets),
        tables=exported,
        declared={step: states for step, states in manifest.states.items() if step in steps},
    )
    write_export(folder, record)
    folder.end()
    return record


def _check(request: ExportRequest) -> None:
    if request.file_format not in _FORMATS:
        raise ProgramError(
            "an export has no such format", where="export", expected=" or ".join(_FORMATS), found=request.file_format,
            next_move=did_you_mean(request.file_format, _FORMATS, "choose one of them"),
        )  # fmt: skip
    if request.form not in (RESULTS, EXACT):
        raise ProgramError("an export has no such form", where="export", expected=f"{RESULTS} or {EXACT}",
                           found=request.form, next_move="choose one of them")  # fmt: skip
    if request.form == EXACT and request.file_format != PARQUET:
        raise ProgramError(
            "an exact export holds bytes as they are stored, which JSON has no word for",
            where="export",
            expected="the format parquet",
            found=request.file_format,
            next_move="leave out the format, or export results",
        )


# --- what readers see


class _ReadableState(NamedTuple):
    reader: Reader
    step: str
    table: str
    file_format: str
    broadcast: bool

    @property
    def weight(self) -> int:
        """How many rows will be walked over, about: to write typed columns a state is walked twice."""
        return self.reader.stored_rows * (2 if self.file_format == PARQUET else 1)

    def write(self, folder: ExportFolder, rows: DoneRows) -> ExportedTable:
        reader, name = self.reader, layout.segment(self.reader.address)
        if self.file_format == PARQUET:
            schema, batches = typed_batches(reader, times=True, expires=True, tell=rows.add)
            files, count = write_parquet(folder, name, schema, batches)
            columns = {field.name: str(field.type) for field in schema}
        else:
            files, count = write_lines(folder, name, json_rows(reader, "", JSON, expires=True, tell=rows.add))
            columns = {}
        return ExportedTable(
            state=reader.address, step=self.step, table=self.table, kind=reader.kind, rows=count, files=files,
            columns=columns, broadcast=self.broadcast,
        )  # fmt: skip


def _readable(files: StoreFiles, app: str, state: JobState, request: ExportRequest) -> list[_ReadableState]:
    snapshot = Snapshot(files, app, state)
    chosen = [_known_address(each, snapshot.addresses, files.url) for each in request.states] or snapshot.addresses
    tables = []
    for address in dict.fromkeys(chosen):
        reader = snapshot.table(address)
        assert reader is not None, f"{address} is known and cannot be read"
        step, table, declared = snapshot.declared(address)
        broadcast = declared is not None and declared.kind == "broadcast"
        tables.append(_ReadableState(reader, step, table, request.file_format, broadcast))
    return tables


def _known_address(address: str, known: Sequence[str], where: str) -> str:
    if address in known:
        return address
    raise StoreError(
        "the job keeps no such state",
        where=where,
        expected=" or ".join(known) or "a state that has been written",
        found=address,
        next_move=did_you_mean(address, known, "`headrace state STORE` lists the states"),
    )


# --- what is stored


class _StoredTable(NamedTuple):
    layers: Layers
    listed: str
    """The name under which its runs are listed."""
    table: str

    @property
    def weight(self) -> int:
        return sum(view.table.rows for view in self.layers.views(self.table))

    def write(self, folder: ExportFolder, rows: DoneRows) -> ExportedTable:
        kind = self.layers.tables[self.table]
        step = layout.step_of(self.listed)
        batches = stored_batches(self.layers, self.table)
        first = next(batches, None)
        schema = _without_hash(self.layers.views(self.table)[0].table.schema) if first is None else first.schema

        def walk() -> Iterator[pa.RecordBatch]:
            batch: Any = first
            while batch is not None:
                yield batch
                rows.add(batch.num_rows)
                batch = next(batches, None)

        name = f"{layout.segment(self.listed)}/{layout.segment(self.table)}"
        files, count = write_parquet(folder, name, schema, walk())
        return ExportedTable(
            state=f"{step}.{self.table}", step=step, table=self.table, kind=kind, rows=count, files=files,
            columns={field.name: str(field.type) for field in schema}, broadcast=layout.is_broadcast(self.listed),
        )  # fmt: skip


def stored_batches(layers: Layers, table: str) -> Iterator[pa.RecordBatch]:
    """The rows of a table as they are stored, without hashes, which follow from the keys."""
    for batch in layers.scan(table):
        yield batch.select(_without_hash(batch.schema).names)


def _without_hash(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.get_field_index("hash"))


def _stored_tables(files: StoreFiles, state: JobState, request: ExportRequest) -> list[_StoredTable]:
    steps = sorted({layout.step_of(name) for name, runs in state.runs.items() if runs})
    wanted = {_known_address(each.partition(".")[0], steps, files.url) for each in request.states} or set(steps)
    groups = state.manifest.key_groups
    tables = []
    for listed, refs in sorted(state.runs.items()):
        step = layout.step_of(listed)
        if step not in wanted or not refs:
            continue
        # An export does not say which of its rows are of older types, so all of them are of the newest.
        adapters = Adapters(step, state.manifest.states.get(step, {}), rewrites=True)
        hidden = state.manifest.hidden.get(step, {})
        layers = open_layers(
            files, refs, lo=0, hi=groups, groups=groups, states=adapters.states, hidden=hidden, adapters=adapters
        )
        tables += [_StoredTable(layers, listed, table) for table in sorted(layers.tables)]
    return tables


# --- rows into files, in parts of bounded size


def write_parquet(
    folder: ExportFolder, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[list[str], int]:
    """Paths of the files, and how many rows are in them; a state without rows is a file without rows."""
    files: list[str] = []
    groups = rebatch(batches, _GROUP_ROWS, _GROUP_BYTES)
    group = next(groups, pa.RecordBatch.from_pylist([], schema))
    total = 0
    while True:
        path = f"{name}/part-{len(files):05d}.parquet"
        files.append(path)
        rows = 0
        with folder.open(path, "wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            while group is not None and rows < PART_ROWS:
                writer.write_batch(group)
                rows += group.num_rows
                group = next(groups, None)
        total += rows
        if group is None:
            return files, total


def write_lines(folder: ExportFolder, name: str, rows: Iterable[list[bytes]]) -> tuple[list[str], int]:
    """The same of rows that are JSON already, some at a time."""
    files: list[str] = []
    groups = iter(rows)
    group = next(groups, None)
    total = 0
    while True:
        path = f"{name}/part-{len(files):05d}.jsonl"
        files.append(path)
        count = 0
        with folder.open(path, "wb") as file:
            while group is not None and count < PART_ROWS:
                file.write(b"".join(row + b"\n" for row in group))
                count += len(group)
                group = next(groups, None)
        total += count
        if group is None:
            return files, total
