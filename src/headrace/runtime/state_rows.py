"""What a rolling step would give out for all it keeps: its state at one epoch, as rows of an output.

The operators are those of the program, so a row is what an epoch would have made of the same value. Nothing is written:
state is read some keys at a time, and memory is bounded by those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

from headrace.model.batch import Rows, UInt64s
from headrace.model.job import VALUE_TABLE, derive_states
from headrace.operators.contract import TaskInfo
from headrace.runtime.fragment import LiveFragment
from headrace.state.lookup import Layers, open_layers
from headrace.state.shard import ShardState

if TYPE_CHECKING:
    from headrace.model.report import RunRef
    from headrace.operators.rolling import RollingOperator
    from headrace.plan.physical import Program
    from headrace.plan.refilling import RefillPlan
    from headrace.state.format import TableData
    from headrace.state.manifest import JobState
    from headrace.state.store import StoreFiles

KEYS_AT_ONCE: Final = 20_000
_NO_LIMIT: Final = 2**62


class StateRows:
    """The rows of one output, off the state of its step."""

    def __init__(self, store: StoreFiles, program: Program, plan: RefillPlan) -> None:
        self._store = store
        self._program = program
        self._plan = plan
        self._fragment = LiveFragment(plan.fragment)
        self._fragment.open()
        self._operator = cast("RollingOperator", self._fragment.operators[0])
        self._given: list[Rows] = []
        self._fragment.attach(self)

    def close(self) -> None:
        self._fragment.close()

    def count(self, state: JobState) -> int:
        """About how many keys there are: what runs hold, older values of the same keys included."""
        return sum(ref.rows for ref in self._refs(state))

    def spans(self, state: JobState) -> list[range]:
        """All key groups, cut into pieces that hold about as many keys as are read at once, or one group."""
        groups = state.manifest.key_groups
        width = max(1, groups * KEYS_AT_ONCE // max(self.count(state), 1))
        return [range(start, min(start + width, groups)) for start in range(0, groups, width)]

    def rows(self, state: JobState, groups: range, *, after: int = -1, since: int = -1) -> Iterator[tuple[int, Rows]]:
        """The rows of some key groups, some at a time, with the hash of the last key they are of.

        ``after``: only keys whose hash is greater. ``since``: only keys that epochs behind this one wrote.
        """
        layers = self._layers(state, groups, self._refs(state))
        wanted = layers if since < 0 else self._layers(state, groups, [r for r in self._refs(state) if r.epoch > since])
        for batch in wanted.scan(VALUE_TABLE):
            hashes = batch.column("hash").to_numpy()
            start = int(np.searchsorted(hashes, np.uint64(after), side="right")) if after >= 0 else 0
            while start < batch.num_rows:
                end = min(start + KEYS_AT_ONCE, batch.num_rows)
                # Keys of one hash stay together: where the last one was is known by its hash.
                end = int(np.searchsorted(hashes, hashes[end - 1], side="right"))
                keys = batch.column("key").slice(start, end - start)
                yield int(hashes[end - 1]), self._rows_of(state, layers, hashes[start:end], keys)
                start = end

    def _rows_of(self, state: JobState, layers: Layers, hashes: UInt64s, keys: pa.BinaryArray) -> Rows:
        shard = ShardState(
            layers, lo=layers.lo, hi=layers.hi, groups=layers.groups, spill=_refuse_spill,
            overlay_limit_bytes=_NO_LIMIT,
        )  # fmt: skip
        task = TaskInfo(state.epoch, 0, state.manifest.clock_us)
        self._given = []
        for number, operator in enumerate(self._fragment.operators):
            operator.begin(task, None if number else shard)
        slots = shard.enter(hashes, keys, by_slot=True)
        self._operator.emit(self._operator.results(slots.tolist()))
        for operator in self._fragment.operators[1:]:
            for _ in operator.finish() or ():
                pass
        codec = self._plan.output.codec
        given = [rows for rows in self._given if len(rows)]
        if len(given) == 1:
            return given[0]
        if not given:
            return Rows.of_objects(codec, [])
        columns = [pa.concat_arrays([rows.columns[i] for rows in given]) for i in range(len(codec.names))]
        return Rows.of_columns(codec, columns)

    def _refs(self, state: JobState) -> Sequence[RunRef]:
        plan = self._program.steps[self._plan.step]
        return state.runs.get(plan.step) or state.runs.get(plan.was or "", ())

    def _layers(self, state: JobState, groups: range, refs: Sequence[RunRef]) -> Layers:
        facts = self._program.facts
        states = derive_states(facts.states, state.manifest.states, facts.was)[self._plan.step]
        renamed = {name: known.was for name, known in states.items() if known.was}
        lo, hi, among = groups.start, groups.stop, state.manifest.key_groups
        hidden = state.manifest.hidden_of(self._plan.step, facts.was)
        return open_layers(self._store, refs, lo=lo, hi=hi, groups=among, renamed=renamed, hidden=hidden)

    # --- where rows leave the fragment

    def to_output(self, output: int, rows: Rows) -> None:
        self._given.append(rows)

    def to_edge(self, edge: int, rows: Rows) -> None:
        raise AssertionError("a refill leads to an output only")

    def to_loop(self, loop: int, rows: Rows) -> None:
        raise AssertionError("a refill leads to an output only")


def _refuse_spill(tables: Sequence[TableData]) -> Any:
    raise AssertionError("a refill changes no state")
