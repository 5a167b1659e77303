"""The rows that every peer reads: seeded, written once per run, split into epochs.

Owns the layout of the input folder. An epoch is `FILES_PER_EPOCH` Parquet files with ascending modification times, so
that a file source that takes that many files per trigger sees exactly one epoch at a time; the same rows lie beside
them as CSV for engines that have no Parquet reader at hand.

Three phases: `start` is one tiny epoch whose end marks the end of an engine's start-up, `fill` touches every key once,
and `steady` is what is measured: keys drawn uniformly at random. Nothing here knows any engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

FILES_PER_EPOCH = 2
"""One per core of the machine the bars are set for; a single file would be read by one core in every engine."""

START_ROWS = 1_000


@dataclass(frozen=True)
class EpochOfRows:
    phase: str
    rows: int


@dataclass(frozen=True)
class Events:
    """A written input: its folder, its number of keys and its epochs in order."""

    folder: Path
    keys: int
    epochs: tuple[EpochOfRows, ...]
    checksum: int
    """Sum of the running count over all output rows: the same for every order in which events are handled."""

    @property
    def total_rows(self) -> int:
        return sum(epoch.rows for epoch in self.epochs)


def plan_epochs(keys: int, events: int, per_epoch: int) -> tuple[EpochOfRows, ...]:
    """The fill is never shorter than two whole epochs, so that code is compiled before anything is measured."""
    sizes = [("start", START_ROWS)]
    sizes += [("fill", rows) for rows in _cut(max(keys, 2 * per_epoch), per_epoch)]
    sizes += [("steady", rows) for rows in _cut(events, per_epoch)]
    return tuple(EpochOfRows(phase, rows) for phase, rows in sizes)


def write_events(folder: Path, *, keys: int, events: int, per_epoch: int, seed: int = 7, csv: bool = False) -> Events:
    """Writes the input into `folder` and returns what was written."""
    epochs = plan_epochs(keys, events, per_epoch)
    seen = np.zeros(keys, dtype=np.int64)
    (folder / "parquet").mkdir(parents=True)
    if csv:
        (folder / "csv").mkdir()
    for number, (ids, values) in enumerate(_epochs_of_ids(epochs, keys, seed)):
        seen += np.bincount(ids, minlength=keys)
        table = pa.table({"key": key_names(ids), "value": pa.array(values)})
        for part in range(FILES_PER_EPOCH):
            _write_part(folder, number, part, table.slice(*_span(table.num_rows, part)), csv)
    result = Events(folder, keys, epochs, int((seen * (seen + 1) // 2).sum()))
    described = {"keys": keys, "checksum": result.checksum, "epochs": [asdict(epoch) for epoch in epochs]}
    (folder / "events.json").write_text(json.dumps(described))
    return result


def add_epoch(events: Events, rows: int = START_ROWS) -> None:
    """One more small epoch behind the others, for a job that is started again; it is in no description."""
    number = len(events.epochs)
    random = np.random.default_rng(number)
    table = pa.table({"key": key_names(random.integers(0, events.keys, rows)), "value": pa.array([1] * rows)})
    for part in range(FILES_PER_EPOCH):
        _write_part(events.folder, number, part, table.slice(*_span(rows, part)), csv=False)


def key_names(ids: np.ndarray) -> pa.Array:
    """`user-000042` for 42."""
    digits = pc.utf8_lpad(pc.cast(pa.array(ids), pa.string()), width=6, padding="0")
    return pc.binary_join_element_wise("user-", digits, "")


def _epochs_of_ids(epochs: tuple[EpochOfRows, ...], keys: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    filling = random.permutation(keys)
    filled = 0
    for epoch in epochs:
        if epoch.phase == "fill":
            ids = filling[np.arange(filled, filled + epoch.rows) % keys]
            filled += epoch.rows
        else:
            ids = random.integers(0, keys, epoch.rows)
        yield ids, random.integers(1, 100, epoch.rows)


def _write_part(folder: Path, number: int, part: int, rows: pa.Table, csv: bool) -> None:
    parquet = folder / "parquet" / f"e{number:05d}-{part}.parquet"
    pq.write_table(rows, parquet, compression="snappy")
    # File sources take files by modification time, which some file systems keep in whole seconds.
    written_s = 1_700_000_000 + number * 60 + part
    os.utime(parquet, (written_s, written_s))
    if csv:
        options = pa_csv.WriteOptions(include_header=False, quoting_style="none")
        pa_csv.write_csv(rows, folder / "csv" / f"e{number:05d}-{part}.csv", options)


def _span(rows: int, part: int) -> tuple[int, int]:
    start, stop = rows * part // FILES_PER_EPOCH, rows * (part + 1) // FILES_PER_EPOCH
    return start, stop - start


def _cut(rows: int, per_epoch: int) -> list[int]:
    whole, rest = divmod(rows, per_epoch)
    return [per_epoch] * whole + ([rest] if rest else [])
