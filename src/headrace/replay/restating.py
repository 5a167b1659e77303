"""Outputs brought back to what a state of before says, where their targets hold one row per key.

When a job goes back, the target of an output holds what epochs behind the one gone back to have made of it. The state
of its step knows what should be there instead: for every key whose value differs, the row of then comes, or the row
that was not there goes. These rows are staged like those of an epoch, and their release is one: of the new timeline,
under the number of the epoch gone back to. So it is exactly once, fences drivers of the abandoned timeline, and needs
nothing of the sink that it cannot do anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from headrace.errors import ProgramError
from headrace.plan.refilling import RefillPlan, derive_restating
from headrace.runtime.shards import InlineBudget
from headrace.state import layout
from headrace.state.manifest import read_state

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.model.report import StagedPart
    from headrace.plan.physical import Program
    from headrace.runtime.state_rows import StateRows
    from headrace.state.layout import ManifestName
    from headrace.state.manifest import Manifest
    from headrace.state.store import StoreFiles

_INLINE_BYTES: Final = 32 * 1024
"""Of a part that lies in the note of the rewind, and of all of them together eight times as much."""


class StateRestating:
    """What the outputs of one program can be brought back to."""

    def __init__(self, store: StoreFiles, program: Program) -> None:
        self._store = store
        self._program = program

    @cached_property
    def _ways(self) -> tuple[dict[str, RefillPlan], dict[str, str]]:
        """Output → the way to it; or why there is none. Only a start that goes back asks."""
        plans: dict[str, RefillPlan] = {}
        reasons: dict[str, str] = {}
        for output in self._program.outputs:
            if output.sink.in_process:
                continue
            try:
                plans[output.name] = derive_restating(self._program, output.name)
            except ProgramError as error:
                reasons[output.name] = error.found
        return plans, reasons

    @property
    def reasons(self) -> dict[str, str]:
        """Output that cannot be brought back → why not."""
        return self._ways[1]

    def step_of(self, output: str) -> str | None:
        """The step whose state says what the target should have; None: no state does."""
        plan = self._ways[0].get(output)
        return None if plan is None else plan.step

    def gap(self, output: str, start: Manifest, end: Manifest) -> str:
        """Why no state says what the target should have had between two epochs; empty where one does."""
        rows = self._rows_of(self._ways[0][output])
        try:
            return rows.gap(start, end)
        finally:
            rows.close()

    def _rows_of(self, plan: RefillPlan) -> StateRows:
        # Readers of state are no part of an ordinary start.
        from headrace.replay.closed_windows import state_rows_of

        return state_rows_of(self._store, self._program, plan)

    def stage(self, output: str, start: ManifestName, ends: Sequence[ManifestName], *, fence: int) -> list[StagedPart]:
        """Rows that lead from wherever the target is to what it was at the start, durable when this returns.

        ``ends``: the epochs behind the start that the target may show, the newest first.
        """
        plan = self._ways[0][output]
        sink, codec = plan.output.sink, plan.output.codec
        before, behind = read_state(self._store, *start), [read_state(self._store, *end) for end in ends]
        rows = self._rows_of(plan)
        try:
            writer = sink.open_writer(codec, RestagedOutput(self._store, output, start.epoch, fence))
            for groups in rows.spans(behind[0]):
                for batch in rows.changes(before, behind, groups):
                    writer.write(batch)
            return writer.finish()
        finally:
            rows.close()


class RestagedOutput:
    """The staging area of one output (a `StageTask`), of which no task and no epoch is."""

    shard = 0

    def __init__(self, store: StoreFiles, output: str, epoch: int, fence: int) -> None:
        self.output = output
        self.epoch = epoch
        self.uid = layout.new_uid(fence)
        self._store = store
        self._fence = fence
        self._budget = InlineBudget(8 * _INLINE_BYTES)

    def put(self, data: bytes | pa.Buffer, ext: str) -> tuple[str, int]:
        path = layout.staged(self.epoch, self.output, self.shard, layout.new_uid(self._fence), ext)
        self._store.write(path, data)
        return path, len(data)

    def take_inline(self, size_bytes: int) -> bool:
        return self._budget.take(size_bytes, _INLINE_BYTES)
