"""The worker's side of Spark: the functions that ``mapInArrow`` calls, and what a worker keeps between tasks.

The compiled program is shipped once per worker, as a broadcast, and cached under its id, so that operators, the
globals of user code and open runs live across tasks. Nothing here outlives the process, and nothing is shared
between processes but files.
"""

from __future__ import annotations

import atexit
import gc
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from headrace.errors import EpochFailed, HeadraceError
from headrace.model.order import PROPERTY, EpochLimits, EpochOrder, share_parts
from headrace.plan.ship import load_program
from headrace.runtime.fragment import LiveFragment
from headrace.runtime.source_rows import beside_bad
from headrace.runtime.task import TaskEnv, report_failure, run_chain, run_level, run_loop
from headrace.spark.failures import hand_over
from headrace.state.manifest import JobState, read_manifest, read_state
from headrace.state.store import StoreFiles, open_store

if TYPE_CHECKING:
    from pyspark import Broadcast

    from headrace.plan.physical import Program


Work = Callable[[TaskEnv, LiveFragment], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Ship:
    """What a task's closure carries: small, the same for every epoch."""

    id: str
    program: Broadcast[bytes]
    store: str
    limits: EpochLimits
    durable: bool = True


class Worker:
    """What this process keeps for one shipped program."""

    def __init__(self, ship: Ship) -> None:
        self._shipped = ship.program
        self.program: Program = load_program(ship.program.value)
        self.store: StoreFiles = open_store(ship.store, durable=ship.durable)
        self.limits = ship.limits
        self._live: dict[Any, LiveFragment] = {}
        self._built: set[tuple[str, int]] = set()
        self._parent: JobState | None = None

    def live(self, key: tuple[str, int]) -> LiveFragment:
        fragment = self._live.get(key)
        if fragment is None:
            if key in self._built:
                # Functions keep things in their objects, so new operators need them as they were shipped.
                self.program = load_program(self._shipped.value)
            self._built.add(key)
            kind, index = key
            plan = self.program.levels[index - 1] if kind == "level" else None
            if plan is None:
                plan = (self.program.sources if kind == "chain" else self.program.loops)[index].fragment
            fragment = self._live[key] = LiveFragment(plan)
        return fragment

    def run(self, key: tuple[str, int], level: int, given: Assignment, work: Work) -> Iterator[pa.RecordBatch]:
        """One task. After an error operators may be half way through, so the next task starts with new ones."""
        order = given.order
        try:
            env = TaskEnv(self.program, self.store, order, self.limits, self._state(order), given.first_try)
        except (HeadraceError, OSError) as error:
            if given.first_try:
                raise
            yield from report_failure(self.program, order, level, given.shard, given.attempt, error)
            return
        try:
            yield from work(env, self.live(key))
        except BaseException:
            self._live.pop(key, None)
            raise

    def close(self) -> None:
        for live in self._live.values():
            live.close()

    def _state(self, order: EpochOrder) -> JobState | None:
        """The parent's state; usually one small file away from the one this process read last."""
        if order.parent_epoch < 0:
            return None
        known = self._parent
        if known is not None and known.manifest.nonce == order.parent:
            return self._adopted(known, order)
        timeline = order.timeline if order.parent_timeline is None else order.parent_timeline
        manifest = read_manifest(self.store, timeline, order.parent_epoch)
        if manifest.nonce != order.parent:
            raise EpochFailed(
                f"another driver published epoch {order.parent_epoch}",
                where=self.store.url,
                expected=f"the manifest {order.parent}, which this epoch continues",
                found=f"the manifest {manifest.nonce}",
                next_move="another driver is at work on this store; start again once one is left",
            )
        if known is not None and known.manifest.nonce == manifest.parent:
            self._parent = known.followed_by(manifest)
        else:
            self._parent = read_state(self.store, timeline, order.parent_epoch)
        return self._adopted(self._parent, order)

    def _adopted(self, parent: JobState, order: EpochOrder) -> JobState:
        """As the program goes on with it."""
        return parent.without(order.dropped).with_loops(self.program.facts.loop_was)


_GC = (100_000, 50, 100)
"""Values of many keys are no garbage: to look through them every time 700 have come takes half of a task's time."""
MAX_PROGRAMS = 4
"""Jobs of one session share its workers; a worker keeps the programs it served last."""

_workers: dict[str, Worker] = {}


def _worker(ship: Ship) -> Worker:
    worker = _workers.pop(ship.id, None)
    if worker is None:
        while len(_workers) >= MAX_PROGRAMS:
            _workers.pop(next(iter(_workers))).close()
        worker = Worker(ship)
        if not _workers:
            atexit.register(_close_workers)
        # Spark's daemon collects garbage after every task; what is loaded by now will not be garbage for long.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC)
    _workers[ship.id] = worker
    return worker


def load_task(ship: Ship, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """No work of an epoch: has this process load the program while Spark still plans."""
    _worker(ship)
    yield from batches


def _close_workers() -> None:
    """The process ends in good order: users' functions may close what they opened."""
    while _workers:
        _workers.popitem()[1].close()


class Assignment(NamedTuple):
    """What Spark tells a task."""

    order: EpochOrder
    shard: int
    attempt: str
    first_try: bool


def _assignment() -> Assignment:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    text = context.getLocalProperty(PROPERTY)
    assert text is not None, "a task started without an order from the driver"
    order = msgspec.json.decode(text, type=EpochOrder)
    return Assignment(order, context.partitionId(), uuid.uuid4().hex, context.attemptNumber() == 0)


def chain_task(ship: Ship, source: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One partition of a source."""
    worker, given = _worker(ship), _assignment()

    def work(env: TaskEnv, live: LiveFragment) -> Iterator[pa.RecordBatch]:
        plan = worker.program.sources[source]
        return run_chain(env, plan, live, batches, shard=given.shard, attempt=given.attempt)

    return worker.run(("chain", source), 0, given, work)


def decode_task(ship: Ship, source: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of a source that only workers decode, on their way to expressions that only the JVM evaluates."""
    plan = _worker(ship).program.sources[source]
    rows = plan.source.decoder(plan.codec)
    assert rows is not None, "the source says that workers decode it"
    try:
        yield from beside_bad(rows, plan.codec.schema, batches)
    except HeadraceError as error:
        raise RuntimeError(hand_over(error)) from error


def loop_task(ship: Ship, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A share of what waits in loops. The input says which of how many."""
    worker, given = _worker(ship), _assignment()
    for batch in batches:
        for share, shares in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist()):
            for index in range(len(worker.program.loops)):
                mine = given._replace(attempt=uuid.uuid4().hex)
                yield from worker.run(("loop", index), 0, mine, _loop_work(index, share, shares, mine))


def _loop_work(index: int, share: int, shares: int, given: Assignment) -> Work:
    def work(env: TaskEnv, live: LiveFragment) -> Iterator[pa.RecordBatch]:
        loop = env.program.loops[index]
        parts = () if env.parent is None else env.parent.manifest.loops.get(loop.name, ())
        mine = share_parts(parts, share, shares)
        return run_loop(env, loop, live, mine, shard=given.shard, attempt=given.attempt)

    return work


def level_task(ship: Ship, level: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One shard of a keyed level."""
    worker, given = _worker(ship), _assignment()

    def work(env: TaskEnv, live: LiveFragment) -> Iterator[pa.RecordBatch]:
        return run_level(env, level, live, batches, shard=given.shard, attempt=given.attempt)

    return worker.run(("level", level), level, given, work)
