"""One operator watched while it works for one key: what came, what its state became, and what went out, row by row.

The operator itself is the one of production. It is given the rows of the key alone, one at a time, and after each its
changes are written as a run and read back as any reader would; the contract of operators allows both at any time. Its
rows go nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from headrace.model.batch import Keys, Rows
from headrace.model.keys import hash_key
from headrace.model.report import StepReport
from headrace.operators.contract import MAIN, Operator, TaskInfo
from headrace.read.changes import is_same
from headrace.state.lookup import Layers
from headrace.state.shard import ShardState


class RowOut(NamedTuple):
    """A row that went out."""

    outlet: str
    row: Any
    at_us: int | None


class StateChange(NamedTuple):
    """A state of the key that is another one than before; both as readers give it, None: nothing."""

    address: str
    kind: str
    before: Any
    after: Any


class ReplayEvent(NamedTuple):
    """A row that came for the key, or time that went on behind the rows of an epoch."""

    epoch: int
    number: int
    """Of the rows of the replay, from 1 on; 0: time went on."""
    port: int
    row: Any
    at_us: int | None
    """Event time of the row, or how far event time came; None: there is none."""
    changes: list[StateChange]
    out: list[RowOut]


ReadStates = Callable[[Layers, bool], Mapping[str, tuple[str, Any]]]
"""From the runs of a step to its states for the key: address → kind and value. True: as the epoch ends, not begins."""
Call = Callable[[Callable[[], None], int], None]
"""Calls something for the row of a number: by itself, or in a debugger."""


def call_plainly(work: Callable[[], None], number: int) -> None:
    work()


class TracedOperator(Operator):
    """Stands in the place of a step's operator."""

    def __init__(
        self, inner: Operator, key: bytes, read: ReadStates, *, everywhere: frozenset[int] = frozenset(),
        call: Call = call_plainly,
    ) -> None:  # fmt: skip
        """``everywhere``: ports whose rows go to every key, as broadcast ones."""
        super().__init__(inner.step)
        self.events: list[ReplayEvent] = []
        """What happened; whoever shows it takes it out."""
        self.rows = 0
        self.layers: Layers | None = None
        """What the step keeps for the key, as it stands."""
        self._inner = inner
        self._key = key
        self._read = read
        self._everywhere = everywhere
        self._call = call
        self._out: list[RowOut] = []
        self._seen: Mapping[str, tuple[str, Any]] = {}
        inner.outlets = {tag: self._taker(tag) for tag in {MAIN, *inner.outlets}}

    def open(self) -> None:
        self._inner.open()

    def close(self) -> None:
        self._inner.close()

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        assert state is not None, f"step {self.step} keeps state and was given none"
        self._task, self._state = task, state
        self.layers = state.layers
        self.layers.narrow(hash_key(self._key))
        self._inner.begin(task, state)
        self._seen = self._read(self.layers, False)

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        assert keys is not None, f"step {self.step} is keyed and was given rows without keys"
        if port in self._everywhere:
            self._inner.process(port, rows, keys)
            self._note(0, port, None, None, end=False)
            return
        for place in np.flatnonzero(pc.equal(keys.encoded, self._key).to_numpy(zero_copy_only=False)):
            one = np.array([place])
            row, key = rows.take(one), keys.take(one)
            self.rows += 1
            self._call(lambda row=row, key=key: self._inner.process(port, row, key), self.rows)  # type: ignore[misc]
            at = None if row.times is None else int(row.times[0])
            self._note(self.rows, port, row.objects[0], at, end=False)

    def finish(self) -> Iterator[None] | None:
        return self._finish()

    def _finish(self) -> Iterator[None]:
        yield from self._inner.finish() or ()
        self._note(0, 0, None, self._task.ends_at(self.step), end=True)

    def end(self) -> StepReport:
        return self._inner.end()

    def _note(self, number: int, port: int, row: Any, at_us: int | None, *, end: bool) -> None:
        self._state.spill()
        assert self.layers is not None
        now, before = self._read(self.layers, end), self._seen
        changes = [
            StateChange(address, kind, before[address][1] if address in before else None, value)
            for address, (kind, value) in now.items()
            if not is_same(before[address][1] if address in before else None, value)
        ]
        self._seen = now
        if number or changes or self._out:
            self.events.append(ReplayEvent(self._task.epoch, number, port, row, at_us, changes, self._out))
        self._out = []

    def _taker(self, tag: str) -> Callable[[Rows], None]:
        def take(rows: Rows) -> None:
            times = [None] * len(rows) if rows.times is None else rows.times.tolist()
            self._out += [RowOut(tag, row, at) for row, at in zip(rows.objects, times, strict=True)]

        return take
