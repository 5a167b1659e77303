"""Edits of a stopped job: its next epoch, made without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.checkpoint.fence import read_owner
from headrace.checkpoint.offline import hold_stopped
from headrace.edit.edits import Edit
from headrace.edit.plan import EditPlan, Progress, plan_edits
from headrace.state.manifest import EpochNote
from headrace.state.store import StoreFiles

Clock = Callable[[], float]
EDIT = "edit"
"""The kind of a note."""


class EditedEpoch(NamedTuple):
    """What edits came to, and where."""

    epoch: int
    """The epoch in which they are true."""
    before: int
    """The one to rewind to, to undo them."""
    plan: EditPlan
    live: bool = False
    """Whether the job was running."""


def edit_stopped(
    store: StoreFiles, edits: Sequence[Edit], *, why: str, progress: Progress | None = None, clock: Clock = time.time
) -> EditedEpoch:
    """Publishes the next epoch of a job that nobody runs: all edits, or none. Raises StoreInUse where one runs it."""
    with hold_stopped(store, clock=clock) as stopped:
        now_us = round(clock() * 1e6)
        plan = plan_edits(store, stopped.state, edits, epoch=stopped.epoch, now_us=now_us, progress=progress)
        before = stopped.state.epoch
        added = {name: stopped.writer.write_runs(name, tables) for name, tables in plan.tables.items()}
        stopped.publish(edit_note(plan, why, now_us), added=added, due_us=plan.due_us)
        return EditedEpoch(stopped.state.epoch, before, plan)


def edit_note(plan: EditPlan, why: str, at_us: int) -> EpochNote:
    """What the manifest says of edits: how many keys of which states, by whom and why; not which keys."""
    deleted = sorted({change.edit.state for change in plan.changes if change.values.after is None})
    return EpochNote(kind=EDIT, by=read_owner().user, at_us=at_us, why=why, changed=dict(plan.changed), deleted=deleted)
