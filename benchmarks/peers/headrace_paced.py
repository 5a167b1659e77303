"""Headrace under a load that changes a hundredfold: how long rows wait until they are out, and what epochs cost.

Row number i is due at a time that follows from the load alone, so the oldest row of an epoch tells how long it waited
until the epoch's manifest was there, by the clock of the file system. What epochs cost by themselves they say of
themselves. This is the only place that knows the words of a manifest.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from headrace_program import CountSum, Event

import headrace as hr
from headrace.connectors.program.sources import ColumnMaker, GeneratorReader, GeneratorSource
from headrace.model.rows import RowCodec
from headrace.read.store import Store, newest_manifests
from headrace.state.manifest import Manifest
from headrace.state.spark_offsets import source_offsets

KEYS = 10_000
SOURCE = "events"


class Load:
    """How many rows are due by when: phases of a low and a high rate in turn, behind a low one to warm up."""

    def __init__(self, low: float, high: float, warm_up_s: float, phase_s: float) -> None:
        self.rates = (low, high)
        self.warm_up_s = warm_up_s
        self.phase_s = phase_s

    def phase(self, at_s: float) -> int:
        """Which phase a moment lies in; even ones are low, −1 is the warm-up."""
        return int((at_s - self.warm_up_s) // self.phase_s) if at_s >= self.warm_up_s else -1

    def rows(self, at_s: float) -> float:
        """Rows that are due by then."""
        rows, done_s = self.rates[0] * min(at_s, self.warm_up_s), self.warm_up_s
        phase = 0
        while done_s < at_s:
            span_s = min(self.phase_s, at_s - done_s)
            rows += span_s * self.rates[phase % 2]
            done_s += span_s
            phase += 1
        return rows

    def due_s(self, row: int) -> float:
        """When a row is due."""
        low_s, high_s = 0.0, 86_400.0
        while high_s - low_s > 1e-4:
            middle_s = (low_s + high_s) / 2
            low_s, high_s = (middle_s, high_s) if self.rows(middle_s) <= row else (low_s, middle_s)
        return high_s


class LoadClock:
    """Rows that are due now, in the place of seconds: a generator of one row per second then follows the load."""

    def __init__(self, load: Load, began_s: float) -> None:
        self.load = load
        self.began_s = began_s

    def __call__(self) -> float:
        return self.load.rows(time.monotonic() - self.began_s)


class LoadSource(GeneratorSource):
    """Rows as the load has them."""

    def __init__(self, clock: LoadClock) -> None:
        super().__init__(None, _columns, rate=1.0, total=None, seed=1, partitions=2, per_epoch=None)
        self.clock = clock

    def reader(self, codec: RowCodec) -> GeneratorReader:
        maker = ColumnMaker(_columns, codec.schema)
        reader = GeneratorReader(
            maker, rate=1.0, total=None, per_epoch=None, partitions=self.partitions, clock=self.clock
        )
        reader._began = (0.0, 0)
        return reader


def _columns(start: int, stop: int) -> dict[str, Any]:
    numbers = np.arange(start, stop)
    keys = (numbers * 2_654_435_761) % KEYS
    return {"key": [f"user-{key:06d}" for key in keys], "value": numbers % 100}


def run(options: argparse.Namespace) -> dict:
    load = Load(options.low, options.high, options.warm_up, options.phase)
    began_s, began_wall_s = time.monotonic(), time.time()
    app = hr.App("paced")
    events = app.read(SOURCE, LoadSource(LoadClock(load, began_s)), Event)
    events.key_by(Event.key).process(CountSum()).write(hr.sink.discard())
    folder = options.work / "store"
    running = app.start(
        until="stopped", store=str(folder), parallelism=2, master="local[2]", epoch=options.epoch, retain=1_000_000,
        plain=True,
    )  # fmt: skip
    end_s = began_s + options.warm_up + options.phases * options.phase
    while time.monotonic() < end_s:
        running.wait(1.0)
        print(f"progress: epoch {running.epoch}, {end_s - time.monotonic():.0f} s left", flush=True)
    running.stop()
    return result(folder, load, began_wall_s, options)


def result(folder: Path, load: Load, began_s: float, options: argparse.Namespace) -> dict:
    published = {int(file.stem): file.stat().st_mtime - began_s for file in folder.glob("manifests/*/*.json")}
    phases: dict[int, dict[str, list[float]]] = {}
    before: Manifest | None = None
    for manifest in newest_manifests(Store(folder)):
        if before is not None and (start := rows_read(before)) < rows_read(manifest):
            due_s = load.due_s(start)
            out_s = published[manifest.epoch]
            phase = phases.setdefault(load.phase(due_s), {"waited_s": [], "own_s": [], "period_s": []})
            phase["waited_s"].append(out_s - due_s)
            if manifest.paced is not None:
                phase["own_s"].append(manifest.paced.own_us / 1e6)
                phase["period_s"].append(manifest.paced.period_us / 1e6)
        before = manifest
    measured = [{"phase": phase, **each} for phase, each in sorted(phases.items()) if 0 <= phase < options.phases]
    return {"version": f"headrace {hr.__version__}", "epoch": options.epoch, "phases": measured}


def rows_read(manifest: Manifest) -> int:
    """Rows that were read up to an epoch, itself included."""
    return int(json.loads(source_offsets(manifest.offsets)[SOURCE])["i"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for the store")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--epoch", required=True, help="the setting `epoch`")
    parser.add_argument("--low", type=float, default=200, help="rows per second")
    parser.add_argument("--high", type=float, default=20_000)
    parser.add_argument("--warm-up", type=float, default=30, help="seconds before anything is measured")
    parser.add_argument("--phase", type=float, default=20, help="seconds of each rate")
    parser.add_argument("--phases", type=int, default=6)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
