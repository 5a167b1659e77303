"""What a rolling step would give out for all it keeps: its state at one epoch, as rows of an output.

The operators are those of the program, so a row is what an epoch would have made of the same value; values of older
types are adapted as a task would. Nothing is written: state is read some keys at a time, and memory is bounded by
those.

`changes` says what turns the rows of some states into those of an earlier one: of each key whose value differs, what
goes and what comes, as a changelog has it. So what stands between the step and the output (a condition, a function)
decides for both halves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.batch import Int64s, Rows, UInt64s
from headrace.model.job import VALUE_TABLE, derive_states
from headrace.model.keys import hash_encoded
from headrace.model.row_kind import AFTER, BEFORE, DELETE, INSERT, Kinds
from headrace.operators.changelogs.pairs import drop_equal_pairs
from headrace.operators.contract import TaskInfo
from headrace.runtime.fragment import LiveFragment
from headrace.state.adapters import Adapters
from headrace.state.lookup import Layers, open_layers
from headrace.state.shard import ShardState

if TYPE_CHECKING:
    from headrace.model.report import RunRef
    from headrace.model.rows import RowCodec
    from headrace.plan.physical import Program
    from headrace.plan.refilling import RefillPlan
    from headrace.state.format import TableData
    from headrace.state.manifest import JobState, Manifest
    from headrace.state.store import StoreFiles

KEYS_AT_ONCE: Final = 20_000
_NO_LIMIT: Final = 2**62


class KeepsRows(Protocol):
    """An operator that keeps, of each key, the row that holds."""

    codec: RowCodec

    def results(self, slots: list[int]) -> Rows: ...

    def emit(self, rows: Rows) -> None: ...


class StateRows:
    """The rows of one output, off the state of its step."""

    def __init__(self, store: StoreFiles, program: Program, plan: RefillPlan) -> None:
        self._store = store
        self._program = program
        self._plan = plan
        self._fragment = LiveFragment(plan.fragment)
        self._fragment.open()
        self._operator = cast("KeepsRows", self._fragment.operators[0])
        self._given: list[Rows] = []
        self._fragment.attach(self)

    def close(self) -> None:
        self._fragment.close()

    @property
    def no_extra(self) -> str:
        """Why rows of the target that the state does not have need not be wrong; empty where they are."""
        return ""

    def gap(self, start: Manifest, end: Manifest) -> str:
        """Why it is not known what the step had between two epochs; empty where it is."""
        return ""

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

    def changes(self, start: JobState, ends: Sequence[JobState], groups: range) -> Iterator[Rows]:
        """What turns the rows of any of these states into those of an earlier one, for some key groups.

        ``ends``: states behind the earlier one, the newest first; a target may be at any of them.
        """
        earlier = self._layers(start, groups, self._refs(start))
        later = [self._layers(end, groups, self._refs(end)) for end in ends]
        keys = self._keys_between(start, earlier, ends, later, groups)
        for at in range(0, len(keys), KEYS_AT_ONCE):
            yield self._changes_of(start, earlier, list(zip(ends, later)), keys.slice(at, KEYS_AT_ONCE))

    def _keys_between(
        self, start: JobState, earlier: Layers, ends: Sequence[JobState], later: Sequence[Layers], groups: range
    ) -> pa.BinaryArray:
        """The keys that may differ: those that epochs between wrote, and those of the earlier state that are gone.

        A fold leaves no trace of a key that was deleted.
        """
        keys: list[pa.BinaryArray] = []
        for end, layers in zip(ends, later):
            behind = self._layers(end, groups, [ref for ref in self._refs(end) if ref.epoch > start.epoch])
            keys += [batch.column("key") for batch in behind.scan(VALUE_TABLE, dead=True)]
            for batch in earlier.scan(VALUE_TABLE):
                hashes, held = batch.column("hash").to_numpy(), batch.column("key")
                keys.append(held.filter(layers.get_many(VALUE_TABLE, hashes, held)[0].is_null()))
        return pc.unique(pa.chunked_array(keys, pa.binary()))

    def _changes_of(
        self, start: JobState, earlier: Layers, ends: Sequence[tuple[JobState, Layers]], keys: pa.BinaryArray
    ) -> Rows:
        hashes = hash_encoded(keys)
        now = earlier.get_many(VALUE_TABLE, hashes, keys)[0]
        comes = now.is_valid().to_numpy(zero_copy_only=False)
        goes = np.full(len(keys), -1)
        differs = np.zeros(len(keys), np.bool_)
        for place, (_, layers) in enumerate(ends):
            then = layers.get_many(VALUE_TABLE, hashes, keys)[0]
            there = then.is_valid().to_numpy(zero_copy_only=False)
            same = pc.equal(now, then).fill_null(False).to_numpy(zero_copy_only=False)
            differs |= (there | comes) & ~same
            goes[there & (goes < 0)] = place
        old = [self._results(*each, hashes, keys, np.flatnonzero(differs & (goes == i))) for i, each in enumerate(ends)]
        gone = np.concatenate([np.flatnonzero(differs & (goes == i)) for i in range(len(ends))])
        new_places = np.flatnonzero(differs & comes)
        new = self._results(start, earlier, hashes, keys, new_places)
        kinds = np.concatenate([np.where(comes[gone], BEFORE, DELETE), np.where(goes[new_places] < 0, INSERT, AFTER)])
        order = np.argsort(np.concatenate([2 * gone, 2 * new_places + 1]), kind="stable")
        rows = join_rows([*old, new], kinds.astype(np.int8)).take(order)
        passed = self._pass_through(start, rows)
        return drop_equal_pairs(passed, timed=False) if passed.kinds is not None else passed

    def _rows_of(self, state: JobState, layers: Layers, hashes: UInt64s, keys: pa.BinaryArray) -> Rows:
        return self._pass_through(state, self._results(state, layers, hashes, keys, np.arange(len(keys))))

    def _results(self, state: JobState, layers: Layers, hashes: UInt64s, keys: pa.BinaryArray, places: Int64s) -> Rows:
        """What the step would give out for the keys in these places, all of which it has."""
        if not len(places):
            return Rows.of_objects(self._operator.codec, [])
        shard = self._shard(layers)
        self._fragment.operators[0].begin(self._task(state), shard)
        slots = shard.enter(hashes[places], keys.take(pa.array(places)), by_slot=True)
        return self._operator.results(slots.tolist())

    def _shard(self, layers: Layers) -> ShardState:
        return ShardState(
            layers, lo=layers.lo, hi=layers.hi, groups=layers.groups, spill=_refuse_spill,
            overlay_limit_bytes=_NO_LIMIT,
        )  # fmt: skip

    def _pass_through(self, state: JobState, rows: Rows) -> Rows:
        """What becomes of rows of the step on their way to the output."""
        self._given = []
        for operator in self._fragment.operators[1:]:
            operator.begin(self._task(state), None)
        self._operator.emit(rows)
        for operator in self._fragment.operators[1:]:
            for _ in operator.finish() or ():
                pass
        given = [each for each in self._given if len(each)]
        if not given:
            return Rows.of_objects(self._plan.output.codec, [])
        kinds = [each.kinds for each in given if each.kinds is not None]
        return join_rows(given, np.concatenate(kinds) if kinds else None)

    def _task(self, state: JobState) -> TaskInfo:
        return TaskInfo(state.epoch, 0, state.manifest.clock_us)

    def _refs(self, state: JobState) -> Sequence[RunRef]:
        plan = self._program.steps[self._plan.step]
        return state.runs.get(plan.step) or state.runs.get(plan.was or "", ())

    def _layers(self, state: JobState, groups: range, refs: Sequence[RunRef]) -> Layers:
        facts, step = self._program.facts, self._plan.step
        states = derive_states(facts.states, state.manifest.states, facts.was)[step]
        adapters = Adapters(step, states, facts.migrations, facts.annotations.get(step))
        lo, hi, among = groups.start, groups.stop, state.manifest.key_groups
        hidden = state.manifest.hidden_of(step, facts.was)
        return open_layers(
            self._store, refs, lo=lo, hi=hi, groups=among, states=adapters.states, hidden=hidden, adapters=adapters
        )

    # --- where rows leave the fragment

    def to_output(self, output: int, rows: Rows) -> None:
        self._given.append(rows)

    def to_edge(self, edge: int, rows: Rows) -> None:
        raise AssertionError("a refill leads to an output only")

    def to_loop(self, loop: int, rows: Rows) -> None:
        raise AssertionError("a refill leads to an output only")


def join_rows(parts: Sequence[Rows], kinds: Kinds | None) -> Rows:
    """Rows of one type, one part behind the other, without their times."""
    if len(parts) == 1:
        return parts[0].with_kinds(kinds)
    codec = parts[0].codec
    columns = [pa.concat_arrays([rows.columns[i] for rows in parts]) for i in range(len(codec.names))]
    return Rows.of_columns(codec, columns, kinds=kinds)


def _refuse_spill(tables: Sequence[TableData]) -> Any:
    raise AssertionError("a refill changes no state")
