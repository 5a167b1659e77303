"""The state of one step in one shard during one epoch: opened from the runs of the parent, written as a delta.

Small runs and outputs travel inside the report of their task, and so inside the manifest, up to a budget per task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.model.job import derive_states
from headrace.model.keys import group_range
from headrace.model.report import RunRef
from headrace.state import layout
from headrace.state.adapters import Adapters
from headrace.state.broadcast import SharedState
from headrace.state.encode import encode_run, run_crc
from headrace.state.format import TableData
from headrace.state.lookup import Layers, open_layers
from headrace.state.run import open_ref
from headrace.state.shard import ShardState

if TYPE_CHECKING:
    from headrace.model.order import EpochLimits, EpochOrder
    from headrace.plan.physical import Program
    from headrace.state.manifest import JobState
    from headrace.state.store import StoreFiles


class InlineBudget:
    """Shared by everything one task writes."""

    def __init__(self, total_bytes: int) -> None:
        self._left_bytes = total_bytes

    def take(self, size_bytes: int, limit_bytes: int) -> bool:
        """Whether something of this size may travel inline; if so, it is counted."""
        if size_bytes > min(limit_bytes, self._left_bytes):
            return False
        self._left_bytes -= size_bytes
        return True


@dataclass
class OpenShard:
    """One step's state in one task."""

    store: StoreFiles
    order: EpochOrder
    limits: EpochLimits
    budget: InlineBudget
    step: str
    shard: int
    groups: range
    key_groups: int
    layers: Layers
    version: int = 0
    """Of the step: what the types of its values are."""
    state: ShardState = field(init=False)
    written: list[RunRef] = field(default_factory=list)
    """Runs of this epoch so far, newest first."""

    def spill(self, tables: Sequence[TableData]) -> None:
        """Writes part of the epoch's changes as a run of their own, and reads it from then on."""
        ref = self.write(tables)
        self.layers.prepend(ref, open_ref(self.store, ref))

    def write(self, tables: Sequence[TableData]) -> RunRef:
        """Writes a run of the shard's key groups."""
        ref = self._write(tables, self.step, self.groups)
        self.written.insert(0, ref)
        return ref

    def write_shared(self) -> tuple[list[RunRef], dict[str, str]]:
        """What changed in the step's broadcast states: the run, which one shard writes for all, and their digests."""
        tables, digests = self.state.shared.flush()
        if self.shard or not tables:
            return [], digests
        return [self._write(tables, layout.broadcast(self.step), range(self.key_groups))], digests

    def _write(self, tables: Sequence[TableData], name: str, groups: range) -> RunRef:
        lo, hi = groups.start, groups.stop
        data = encode_run(tables, lo=lo, hi=hi, groups=self.key_groups)
        path, inline = "", b""
        if self.budget.take(len(data), self.limits.inline_run_bytes):
            inline = data.to_pybytes()
        else:
            path = layout.run(name, self.order.epoch, self.shard, layout.new_uid(self.order.fence))
            self.store.write(path, data)
        return RunRef(
            epoch=self.order.epoch,
            lo=lo,
            hi=hi,
            rows=sum(table.batch.num_rows for table in tables),
            size_bytes=len(data),
            crc=run_crc(data),
            file=path,
            inline=inline,
            version=self.version,
        )


def open_shard(
    store: StoreFiles,
    parent: JobState | None,
    program: Program,
    step: str,
    shard: int,
    order: EpochOrder,
    limits: EpochLimits,
    budget: InlineBudget,
) -> OpenShard:
    """Opens the runs that the parent's manifest lists for this step and shard."""
    groups = group_range(shard, program.parallelism, program.key_groups)
    plan = program.steps[step]
    runs = {} if parent is None else parent.runs
    # Until the first epoch under a new name is published, the runs are listed under the old one.
    refs = runs.get(step) or runs.get(plan.was or "", ())
    facts = program.facts
    before = {} if parent is None else parent.manifest.states
    states = derive_states(facts.states, before, facts.was)[step]
    adapters = Adapters(step, states, facts.migrations, facts.annotations.get(step))
    hidden = {} if parent is None else parent.manifest.hidden_of(step, facts.was)
    layers = open_layers(
        store, refs, lo=groups.start, hi=groups.stop, groups=program.key_groups, states=adapters.states,
        hidden=hidden, adapters=adapters,
    )  # fmt: skip
    opened = OpenShard(store, order, limits, budget, step, shard, groups, program.key_groups, layers, adapters.version)
    opened.state = ShardState(
        layers, lo=groups.start, hi=groups.stop, groups=program.key_groups, spill=opened.spill,
        overlay_limit_bytes=limits.overlay_bytes,
    )  # fmt: skip
    if any(kind.stored.kind == "broadcast" for kind in plan.types.values()):
        refs = runs.get(layout.broadcast(step)) or runs.get(layout.broadcast(plan.was or ""), ())
        opened.state.shared = open_shared(store, refs, groups=program.key_groups, hidden=hidden, adapters=adapters)
    return opened


def open_shared(
    store: StoreFiles, refs: Sequence[RunRef], *, groups: int, hidden: Mapping[str, int], adapters: Adapters
) -> SharedState:
    """The broadcast states of a step, whole, whatever the shard."""
    layers = open_layers(
        store, refs, lo=0, hi=groups, groups=groups, states=adapters.states, hidden=hidden, adapters=adapters
    )
    return SharedState(layers, tuple(refs))


def write_delta(opened: OpenShard) -> list[RunRef]:
    """Makes the changes of the epoch durable; returns its runs, newest first."""
    tables = opened.state.flush()
    if tables:
        opened.write(tables)
    return opened.written
