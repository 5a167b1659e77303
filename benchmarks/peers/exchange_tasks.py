"""What the workers of `exchange` run: in a module of its own, so that they import it once."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.batch import Rows
from headrace.model.wire import read_frames
from headrace.plan.physical import Program
from headrace.plan.ship import load_program
from headrace.runtime.fragment import LiveFragment
from headrace.runtime.framing import FrameCutter, RowGatherer
from headrace.runtime.source_rows import chain_input

COUNTED = "count BIGINT, total BIGINT"

_programs: dict[bytes, Program] = {}
"""A worker unpacks a program once."""


def _loaded(packed: bytes) -> Program:
    if packed not in _programs:
        _programs[packed] = load_program(packed)
    return _programs[packed]


_frozen: list[bool] = []


def _freeze() -> None:
    """Spark collects garbage after every task; both ways are spared what is loaded once, as the engine's workers."""
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen.append(True)


def cut(packed: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _freeze()
    plan = _loaded(packed)
    source, edge = plan.sources[0], plan.edges[0]
    cutter = FrameCutter(plan, 0, 0)
    fields = len(source.out.schema)
    for batch in chain_input(source, LiveFragment(source.fragment), batches, None):
        cutter.add(edge, Rows.of_columns(source.out, batch.columns[:fields]))
        yield from cutter.drain()
    yield from cutter.drain(last=True)


def gather(packed: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _freeze()
    gatherer = RowGatherer(_loaded(packed).edges)
    count = total = 0
    arrivals = (each for batch in batches for frame in read_frames(batch) for each in gatherer.take(frame))
    for arrived in arrivals:
        count, total = count + len(arrived.rows), total + (pc.sum(arrived.rows.columns[1]).as_py() or 0)
    for arrived in gatherer.rest():
        count, total = count + len(arrived.rows), total + (pc.sum(arrived.rows.columns[1]).as_py() or 0)
    yield _counted(count, total)


def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _freeze()
    count = total = 0
    for batch in batches:
        count, total = count + batch.num_rows, total + (pc.sum(batch.column(1)).as_py() or 0)
    yield _counted(count, total)


def _counted(count: int, total: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([count]), pa.array([total])], names=["count", "total"])
