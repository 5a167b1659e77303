"""A stream that runs while others read its state: first every key once, then random keys at a steady pace, until told.

The pace is that of the wall clock: row `--keys` + n is due at `--began` + n / `--rate`, so whoever reads knows when a
row came into being. Every tenth of those rows has the key `probe`: the count of that key tells up to which row the
state can be read. The job ends when a file `stop` lies beside the store.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from headrace_program import CountSum, Event

import headrace as hr
from headrace.connectors.reading import position, slice_range
from headrace.connectors.source_contract import Offset, Source, Split, SplitReader
from headrace.model.rows import RowCodec

PROBE_EVERY = 10
PER_EPOCH = 250_000
MIX = 0x9E3779B97F4A7C15


class PacedReader(SplitReader):
    def __init__(self, schema: pa.Schema, keys: int, rate: float, began_s: float) -> None:
        self.schema = schema
        self.keys, self.rate, self.began_s = keys, rate, began_s

    def initial(self) -> Offset:
        return {"i": 0}

    def latest(self, start: Offset, limit: int | None) -> Offset:
        at = position(start)
        due = self.keys + int((time.time() - self.began_s) * self.rate)
        return {"i": max(at, min(due, at + min(PER_EPOCH, limit or PER_EPOCH)))}

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        return slice_range(position(start), position(end), 2)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        rows = np.arange(position(split.start), position(split.end), dtype=np.uint64)
        mixed = ((rows * np.uint64(MIX)) >> np.uint64(20)) % np.uint64(self.keys)
        ids = np.where(rows < self.keys, rows, mixed)
        digits = pc.utf8_lpad(pc.cast(pa.array(ids), pa.string()), width=12, padding="0")
        probe = (rows >= self.keys) & ((rows - np.uint64(self.keys)) % np.uint64(PROBE_EVERY) == 0)
        names = pc.if_else(pa.array(probe), "probe", pc.binary_join_element_wise("key", digits, ""))
        values = pa.array((mixed % np.uint64(100)).astype(np.int64))
        yield pa.RecordBatch.from_arrays([names, values], schema=self.schema)


class Paced(Source):
    kind = "paced"
    python = True

    def __init__(self, keys: int, rate: float, began_s: float) -> None:
        self.keys, self.rate, self.began_s = keys, rate, began_s

    @property
    def bounded(self) -> bool:
        return False

    def reader(self, codec: RowCodec) -> PacedReader:
        return PacedReader(codec.schema, self.keys, self.rate, self.began_s)


def run(options: argparse.Namespace) -> dict:
    app = hr.App("stream")
    source = Paced(options.keys, options.rate, options.began)
    app.read("events", source, Event).key_by(Event.key).process(CountSum()).write(hr.sink.discard())
    running = app.start(
        until="stopped", store=str(options.store), parallelism=2, master="local[2]", epoch=options.epoch, plain=True
    )
    stop = options.store.with_name("stop")
    while not stop.exists():
        running.wait(0.1)
    epoch = running.epoch
    running.stop()
    return {"version": f"headrace {hr.__version__}", "epochs": epoch + 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--began", type=float, required=True, help="when row number `keys` was due, in seconds")
    parser.add_argument("--epoch", required=True)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
