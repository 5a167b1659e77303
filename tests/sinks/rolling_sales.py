"""Sales that a sink of files writes epoch by epoch, and what a reader of its folder sees of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from headrace import sink
from headrace.connectors.files.gathering import Gathering
from headrace.connectors.sink_contract import Sink
from headrace.model.part_names import HIDDEN, SPANS
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.testing.staging import Staging, stage_rows

HOUR = 3_600_000_000


class Sale(Record):
    shop: str
    day_off: date
    at: Timestamp
    cents: int


CODEC = codec_of(Sale)
SALES = [Sale(f"shop {i % 3}", date(2024, 1, 1 + i % 2), Timestamp(i * HOUR), i) for i in range(60)]


class GatheringBy(Gathering):
    """Puts files together by another function."""

    def __init__(self, by: Callable[[str, Any, Path], None]) -> None:
        self._by = by

    def gather(self, format: str, parts: Any, made: Path) -> None:
        self._by(format, parts, made)


class Writing:
    """A sink of one folder, restarted as often as a test likes; epoch e has the rows e·3 … e·3+2, in two tasks."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.folder = tmp_path / "out"
        self.settings = {"format": "parquet", **settings}
        staged = tmp_path / "staged"
        staged.mkdir(parents=True, exist_ok=True)
        self.staging = Staging(staged, inline_limit_bytes=0)
        self.staged: dict[tuple[int, str], list[Any]] = {}
        self.sink = self.restart()

    def restart(self, **settings: Any) -> Sink:
        self.settings |= settings
        self.sink = sink.files(self.folder, **self.settings).bind(CODEC, "sales")
        self.sink.start()
        return self.sink

    def rows(self, epoch: int) -> list[Sale]:
        return SALES[epoch * 3 : epoch * 3 + 3]

    def release(self, epoch: int, timeline: str = "0", by: Sink | None = None, job: str = "staging") -> None:
        writer = by or self.sink
        if (epoch, timeline) not in self.staged:
            rows = self.rows(epoch)
            self.staged[epoch, timeline] = stage_rows(writer, CODEC, self.staging, epoch, [rows[:1], rows[1:]])
        ctx = self.staging.release(epoch, "sales", timeline)
        ctx.job = job
        writer.release(self.staged[epoch, timeline], ctx)

    def visible(self) -> list[int]:
        """Cents of all rows that a reader sees, who knows nothing of us."""
        return sorted(read_cents(self.folder, self.settings["format"]))

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("part-*") if HIDDEN not in path.parts)

    def hidden(self) -> list[Path]:
        """All that waits. Whose folder it is stays, and where the epochs of a file end."""
        hidden = [path for path in (self.folder / HIDDEN).rglob("*") if path.is_file() and path.suffix != ".claim"]
        return [path for path in hidden if path.suffix != SPANS]

    def forget(self, epoch: int, last: int, timeline: str = "0", by: Sink | None = None) -> None:
        ctx = self.staging.forget(epoch, last, output="sales", timeline=timeline)
        (by or self.sink).check_forget(ctx)
        (by or self.sink).forget(ctx)


def read_cents(folder: Path, format: str) -> list[int]:
    found = []
    for path in folder.rglob(f"*.{format}"):
        if format == "parquet":
            found += pq.read_table(path, partitioning=None)["cents"].to_pylist()
        elif format == "csv":
            found += pl.read_csv(path)["cents"].to_list()
        else:
            found += pl.read_ndjson(path)["cents"].to_list()
    return found


def cents(*epochs: int) -> list[int]:
    return [cent for epoch in epochs for cent in range(epoch * 3, epoch * 3 + 3)]


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "it did not happen in time"
        threading.Event().wait(0.01)
