"""Rows with event time for the benchmarks of windows and joins: seeded, written once per run, the same for every peer.

Event time advances evenly with the rows and is shuffled within half a second, so that nothing is ever later than
`OUT_OF_ORDER_S`. An epoch is `FILES_PER_EPOCH` Parquet files, as in `benchmarks.lib.events`. Engines without epochs
read the same rows as CSV: one file per core and phase, each in the order of time, so that no row is late for them.

Phases: `start` is one tiny epoch, `fill` brings every engine to its working temperature, `steady` is measured. Nothing
here knows any engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.lib.events import FILES_PER_EPOCH, START_ROWS, EpochOfRows, key_names

BEGIN_US = 1_700_000_000_000_000
OUT_OF_ORDER_S = 1
_JITTER_US = 500_000


@dataclass(frozen=True)
class TimedEvents:
    """A written input."""

    folder: Path
    keys: int
    epochs: tuple[EpochOfRows, ...]
    streams: tuple[str, ...]

    @property
    def total_rows(self) -> int:
        """Rows of all streams together."""
        return sum(epoch.rows for epoch in self.epochs)


def write_timed_events(
    folder: Path,
    *,
    keys: int,
    events: int,
    per_epoch: int,
    rows_per_second: int,
    streams: tuple[str, ...] = ("events",),
    fill_epochs: int = 2,
    seed: int = 11,
) -> TimedEvents:
    """Writes the input. ``rows_per_second`` is in event time, over all streams; each stream gets every n-th row."""
    sizes = [("start", START_ROWS), *[("fill", per_epoch)] * fill_epochs]
    sizes += [("steady", per_epoch)] * (events // per_epoch)
    epochs = tuple(EpochOfRows(phase, rows) for phase, rows in sizes)
    random = np.random.default_rng(seed)
    made = 0
    for number, epoch in enumerate(epochs):
        step_us = 1_000_000 / rows_per_second
        times = BEGIN_US + ((made + np.arange(epoch.rows)) * step_us).astype(np.int64)
        times += random.integers(0, _JITTER_US, epoch.rows)
        # Flink's event time has milliseconds, so everybody's has.
        times -= times % 1000
        ids = random.integers(0, keys, epoch.rows)
        values = random.integers(1, 100, epoch.rows)
        made += epoch.rows
        for place, stream in enumerate(streams):
            mine = slice(place, None, len(streams))
            table = pa.table(
                {
                    "key": key_names(ids[mine]),
                    "at": pa.array(times[mine], pa.timestamp("us", "UTC")),
                    "value": pa.array(values[mine]),
                }
            )
            _write_epoch(folder / stream, number, epoch.phase, table)
    described = {"keys": keys, "streams": list(streams), "epochs": [asdict(epoch) for epoch in epochs]}
    (folder / "events.json").write_text(json.dumps(described))
    return TimedEvents(folder, keys, epochs, streams)


def read_columns(events: TimedEvents, stream: str, phases: tuple[str, ...]) -> Iterator[pa.Table]:
    """The rows of some phases, epoch by epoch, for computing what a peer must come to."""
    for number, epoch in enumerate(events.epochs):
        if epoch.phase in phases:
            parts = [_parquet(events.folder / stream, number, part) for part in range(FILES_PER_EPOCH)]
            yield pa.concat_tables([pq.read_table(part) for part in parts])


def _write_epoch(folder: Path, number: int, phase: str, table: pa.Table) -> None:
    (folder / "parquet").mkdir(parents=True, exist_ok=True)
    texts = pa.table(
        {
            "key": table.column("key"),
            # The way Flink's CSV reads a TIMESTAMP(3).
            "at": table.column("at").cast(pa.timestamp("ms")).cast(pa.string()),
            "value": table.column("value"),
        }
    )
    for part in range(FILES_PER_EPOCH):
        mine = np.arange(part, table.num_rows, FILES_PER_EPOCH)
        path = _parquet(folder, number, part)
        pq.write_table(table.take(mine), path, compression="snappy")
        written_s = 1_700_000_000 + number * 60 + part
        os.utime(path, (written_s, written_s))
        csv = folder / ("csv-steady" if phase == "steady" else "csv-warm")
        csv.mkdir(exist_ok=True)
        options = pa_csv.WriteOptions(include_header=False, quoting_style="none")
        with (csv / f"part-{part}.csv").open("ab") as file:
            pa_csv.write_csv(texts.take(mine), file, options)


def _parquet(folder: Path, number: int, part: int) -> Path:
    return folder / "parquet" / f"e{number:05d}-{part}.parquet"
