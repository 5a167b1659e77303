"""``lookup``: each row beside what a function that awaits finds for its key.

One request is in flight per key, however many rows want it. Rows leave in their order, as pairs whose right side is
missing where nothing was found. Answers may be remembered for a while: by the wall clock of epochs, so that a replay at
the same clock judges their age alike, and for all operators of the step in this process.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.errors import BadRow
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.pairs import NONE, PairCodec, PairRows, SideRows
from headrace.model.requests import CachePlan, RequestPlan
from headrace.operators.asynchronous import RequestOperator
from headrace.operators.contract import TaskInfo
from headrace.operators.failures import GUARD_KEY, function_failed
from headrace.operators.requests import LoopFactory, RequestAnswer

if TYPE_CHECKING:
    from headrace.model.keyspec import KeySpec
    from headrace.state.shard import ShardState


class AnswerCache:
    """Answers by key, each for a while, the least used first to go."""

    def __init__(self, plan: CachePlan) -> None:
        self._plan = plan
        self._kept: OrderedDict[Any, tuple[Any, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Any, clock_us: int) -> RequestAnswer | None:
        found = self._kept.get(key)
        if found is None:
            return None
        value, until_us = found
        if clock_us >= until_us:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return RequestAnswer(NONE, value, None)

    def put(self, key: Any, value: Any, clock_us: int) -> None:
        if value is None and not self._plan.none:
            return
        self._kept[key] = (value, clock_us + self._plan.for_us)
        self._kept.move_to_end(key)
        while len(self._kept) > self._plan.size:
            self._kept.popitem(last=False)


class _Waiting(NamedTuple):
    """A batch and the answers it has so far."""

    rows: Rows
    keys: list[Any]
    found: dict[Any, RequestAnswer]
    missing: set[Any]


class _LeftRows(SideRows):
    """Rows as they came, which may be objects already."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows.codec, len(rows), lambda index: rows.columns[index])
        self._rows = rows

    @cached_property
    def objects(self) -> list[Any]:
        return self._rows.objects


class LookupOperator(RequestOperator):
    """One pair out for each row in, once its key is answered."""

    def __init__(
        self,
        step: str,
        plan: RequestPlan,
        by: KeySpec,
        cache: CachePlan | None,
        codec: PairCodec,
        *,
        loop_factory: LoopFactory = asyncio.new_event_loop,
    ) -> None:
        super().__init__(step, plan, loop_factory)
        self.by = by
        self.codec = codec
        self.cache: AnswerCache | None = None
        if cache is not None:
            self.cache = plan.shared.setdefault("cache", AnswerCache(cache))
        self._waiting: deque[_Waiting] = deque()
        self._asked: dict[int, Any] = {}
        """Number of each open request → its key."""
        self._open: set[Any] = set()
        self._count = 0

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self._waiting.clear()
        self._asked, self._open, self._count = {}, set(), 0

    # --- rows

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.report.rows_in += len(rows)
        if not len(rows):
            return
        wanted = self._keys(rows)
        waiting = _Waiting(rows, wanted, {}, set())
        asked: list[tuple[int, Any]] = []
        for key in dict.fromkeys(wanted):
            known = None if self.cache is None or key is None else self.cache.get(key, self.task.clock_us)
            if known is not None:
                waiting.found[key] = known
            elif key is not None:
                waiting.missing.add(key)
                if key not in self._open:
                    asked.append((self._count, key))
                    self._asked[self._count] = key
                    self._count += 1
                    self._open.add(key)
        self._waiting.append(waiting)
        self.pool.submit(asked)
        self._settle(self.plan.capacity)

    def finish(self) -> Iterator[None] | None:
        self._settle(0)
        return None

    def _keys(self, rows: Rows) -> list[Any]:
        if self.by.columns is not None:
            index = rows.codec.index(self.by.columns[0])
            return rows.codec.columns[self.by.columns[0]].decode(rows.columns[index])
        assert self.by.fn is not None
        made: list[Any] = []
        try:
            made.extend(map(self.by.fn, rows.objects))
        except Exception as error:
            row = rows.objects[len(made)]
            raise function_failed(error, step=self.step, function=self.by.fn, row=row, way_out=GUARD_KEY) from error
        return made

    # --- answers

    def row_of(self, number: int) -> Any:
        key = self._asked[number]
        for waiting in self._waiting:
            if key in waiting.missing:
                return waiting.rows.objects[waiting.keys.index(key)]
        return key

    def _settle(self, at_most: int) -> None:
        for answer in self.answers(at_most):
            key = self._asked.pop(answer.id)
            self._open.discard(key)
            if self.cache is not None and answer.error is None:
                self.cache.put(key, answer.value, self.task.clock_us)
            for waiting in self._waiting:
                if key in waiting.missing:
                    waiting.missing.discard(key)
                    waiting.found[key] = answer
        while self._waiting and not self._waiting[0].missing:
            self._give(self._waiting.popleft())

    def _give(self, waiting: _Waiting) -> None:
        rows, keys, found, _ = waiting
        bad = {key for key, answer in found.items() if answer.error is not None}
        if bad:
            rows, keys = self._part_failed(rows, keys, found, bad)
        if not len(rows):
            return
        answers = [(key, answer.value) for key, answer in found.items() if answer.value is not None]
        place = {key: position for position, (key, _) in enumerate(answers)}
        right_at: Int64s = np.array([place.get(key, NONE) for key in keys], dtype=np.int64)
        right = self._right([value for _, value in answers])
        left_at: Int64s = np.arange(len(rows))
        self.emit(PairRows(self.codec, _LeftRows(rows), left_at, right, right_at, rows.times))

    def _right(self, values: list[Any]) -> SideRows:
        codec = self.codec.right
        try:
            columns = codec.to_arrays(values)
        except BadRow as bad:
            bad.where = bad.where or f"step {self.step}"
            raise
        return SideRows(codec, len(values), lambda index: columns[index])

    def _part_failed(
        self, rows: Rows, keys: list[Any], found: dict[Any, RequestAnswer], bad: set[Any]
    ) -> tuple[Rows, list[Any]]:
        times = [None] * len(rows) if rows.times is None else rows.times.tolist()
        self.give_failed(
            [(row, at, found[key].error) for row, at, key in zip(rows.objects, times, keys, strict=True) if key in bad]
        )
        good = np.array([position for position, key in enumerate(keys) if key not in bad], dtype=np.int64)
        return rows.take(good), [key for key in keys if key not in bad]
