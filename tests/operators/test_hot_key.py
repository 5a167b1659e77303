"""A key with far more rows than fit into memory, in the order of their time and with bounded memory."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.dataflow.functions import declarations
from headrace.model.batch import Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.model.keys import encode_key, hash_key
from headrace.model.report import RunRef
from headrace.model.rows import codec_of
from headrace.operators.contract import TaskInfo
from headrace.operators.order_spec import TimeOrder
from headrace.operators.ordered import OrderedProcessOperator
from headrace.state.format import TableData
from headrace.state.lookup import Layers
from headrace.state.run import encode_run, open_ref
from headrace.state.shard import ShardState
from headrace.state.store import LocalStore

GROUPS = 16
BATCH_ROWS = 65_536


class Hit(hr.Record):
    page: str
    n: int
    at: hr.Timestamp


HITS = codec_of(Hit)


class InOrder(hr.Process[Hit, int, str]):
    """Fails where time goes back, and gives how many rows there were when it has been quiet."""

    last: hr.ValueState[int]
    count: hr.ValueState[int]
    quiet: hr.Timer

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> None:
        assert event.at >= self.last.get(0), "time went back"
        self.last.set(int(event.at))
        self.count.set(self.count.get(0) + 1)
        if event.n % 1000 == 0:
            self.quiet.set(event.at + hr.seconds(10_000))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Sequence[int]:
        return [self.count.get(0)]


class Watched:
    """The most memory of its own that the process took meanwhile; mapped files are not counted."""

    def __init__(self) -> None:
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watched:
        gc.collect()
        pa.default_memory_pool().release_unused()
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
            kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
            self.most = max(self.most, kilobytes * 1024)


def handle_one_epoch(folder: Path, rows: int, limit_bytes: int) -> tuple[list[int], int]:
    """All rows of one key in one epoch, in no order: what comes out, and how many runs they were written in."""
    store = LocalStore(folder, durable=False)
    layers = Layers([], lo=0, hi=GROUPS, groups=GROUPS)
    written: list[str] = []

    def spill(tables: Sequence[TableData]) -> None:
        data = encode_run(tables, lo=0, hi=GROUPS, groups=GROUPS)
        written.append(f"runs/{len(written)}")
        store.write(written[-1], data)
        ref = RunRef(0, 0, GROUPS, rows=0, size_bytes=len(data), crc=0, file=written[-1])
        layers.prepend(ref, open_ref(store, ref))

    state = ShardState(layers, lo=0, hi=GROUPS, groups=GROUPS, spill=spill, overlay_limit_bytes=limit_bytes)
    function, order = InOrder(), TimeOrder(("n",))
    operator = OrderedProcessOperator(
        "step", function, declarations(InOrder), (HITS,), codec_of(int), order, key_type=str
    )
    given: list[int] = []
    operator.outlets = {"main": lambda out: given.extend(out.objects)}
    task = TaskInfo(0, 0, 0, start_watermark={"step": MIN_TIME})
    operator.begin(task, state)
    random = np.random.default_rng(1)
    key = encode_key("hot")
    for start in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - start)
        at = random.integers(1, 3_600_000_000, count)
        times = pa.array(at).cast(HITS.schema.field("at").type)
        columns = [pa.array(["hot"] * count), pa.array(np.arange(start, start + count)), times]
        keys = Keys(np.full(count, hash_key(key), np.uint64), pa.array([key] * count, pa.binary()))
        operator.process(0, Rows.of_columns(HITS, columns, at), keys)
    task.end_watermark["step"] = 100_000_000_000
    for _ in operator.finish():
        pass
    operator.end()
    return given, len(written)


def test_a_hot_key_is_handled_in_order_though_its_rows_were_written_in_many_runs(tmp_path: Path) -> None:
    given, runs = handle_one_epoch(tmp_path, 150_000, 1 << 20)
    assert given == [150_000] and runs > 2


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("HEADRACE_SOAK"), reason="takes minutes: HEADRACE_SOAK=1 asks for it")
def test_ten_million_rows_of_one_key_are_handled_within_half_a_gigabyte(tmp_path: Path) -> None:
    with Watched() as memory:
        given, runs = handle_one_epoch(tmp_path, 10_000_000, 64 << 20)
    assert given == [10_000_000] and runs > 2
    assert memory.most < 512 << 20, f"{memory.most >> 20} MB"
