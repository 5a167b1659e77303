"""The worker's side of Spark: the functions that ``mapInArrow`` calls, and what a worker keeps between tasks.

The compiled program is shipped once per worker, as a broadcast, and cached under its id, so that operators, the
globals of user code and open runs live across tasks. Nothing here outlives the process, and nothing is shared
between processes but files.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headrace.model.order import PROPERTY, EpochOrder, Limits
from headrace.plan.ship import load_program
from headrace.runtime.fragment import LiveFragment
from headrace.runtime.task import TaskEnv, run_chain, run_level
from headrace.state.manifest import JobState, read_manifest, read_state
from headrace.state.store import Store, open_store

if TYPE_CHECKING:
    from pyspark import Broadcast

    from headrace.plan.physical import Program


@dataclass(frozen=True)
class Ship:
    """What a task's closure carries: small, the same for every epoch."""

    id: str
    program: Broadcast[bytes]
    store: str
    limits: Limits
    durable: bool = True


class Worker:
    """What this process keeps for one shipped program."""

    def __init__(self, ship: Ship) -> None:
        self.program: Program = load_program(ship.program.value)
        self.store: Store = open_store(ship.store, durable=ship.durable)
        self.limits = ship.limits
        self._live: dict[Any, LiveFragment] = {}
        self._parent: JobState | None = None

    def live(self, key: tuple[str, int]) -> LiveFragment:
        fragment = self._live.get(key)
        if fragment is None:
            kind, index = key
            plan = self.program.sources[index].fragment if kind == "chain" else self.program.levels[index - 1]
            fragment = self._live[key] = LiveFragment(plan)
        return fragment

    def forget(self, key: tuple[str, int]) -> None:
        """After an unexpected error operators may be half way through a task: the next one starts with new ones."""
        self._live.pop(key, None)

    def env(self, order: EpochOrder) -> TaskEnv:
        return TaskEnv(self.program, self.store, order, self.limits, self._state(order))

    def _state(self, order: EpochOrder) -> JobState | None:
        """The parent's state; usually one small file away from the one this process read last."""
        if order.parent_epoch < 0:
            return None
        known = self._parent
        if known is not None and known.manifest.nonce == order.parent:
            return known
        manifest = read_manifest(self.store, order.timeline, order.parent_epoch)
        if known is not None and known.manifest.nonce == manifest.parent:
            self._parent = known.followed_by(manifest)
        else:
            self._parent = read_state(self.store, order.timeline, order.parent_epoch)
        return self._parent


_workers: dict[str, Worker] = {}


def _worker(ship: Ship) -> Worker:
    worker = _workers.get(ship.id)
    if worker is None:
        _workers.clear()
        worker = _workers[ship.id] = Worker(ship)
        # Spark's daemon collects garbage after every task; what is loaded by now will never be garbage.
        gc.collect()
        gc.freeze()
    return worker


def _order() -> tuple[EpochOrder, int]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    text = context.getLocalProperty(PROPERTY)
    assert text is not None, "a task started without an order from the driver"
    return msgspec.json.decode(text, type=EpochOrder), context.partitionId()


def chain_task(ship: Ship, source: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One partition of a source."""
    worker = _worker(ship)
    order, partition = _order()
    key = ("chain", source)
    try:
        yield from run_chain(
            worker.env(order), worker.program.sources[source], worker.live(key), batches,
            shard=partition, attempt=uuid.uuid4().hex,
        )  # fmt: skip
    except BaseException:
        worker.forget(key)
        raise


def level_task(ship: Ship, level: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One shard of a keyed level."""
    worker = _worker(ship)
    order, partition = _order()
    key = ("level", level)
    try:
        yield from run_level(
            worker.env(order), level, worker.live(key), batches, shard=partition, attempt=uuid.uuid4().hex
        )
    except BaseException:
        worker.forget(key)
        raise
