"""Edits of a running job: they travel to its driver as a command, and become true with the next epoch.

They are laid over what that epoch's tasks wrote, so they are behind all rows of the epoch and before all rows of the
next one. The manifest that names their runs also names the command: one commit, so they are made once or not at all.
A command is for one driver. If that dies, whoever waits looks for the command in the manifests, and may ask again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.checkpoint.commands import ChangeState, Inbox, JobAnswer, JobCommand, await_answer, parts_of, send_command
from headrace.checkpoint.fence import Beat
from headrace.edit.changing import BeforeAfter
from headrace.edit.edits import Edit
from headrace.edit.offline import Clock, EditedEpoch, edit_note
from headrace.edit.plan import Change, EditPlan, plan_edits
from headrace.errors import HeadraceError, ProgramError, StoreError
from headrace.model.report import RunRef
from headrace.model.type_json import plain_json
from headrace.state.manifest import JobState, Manifest, StepRuns, list_epochs, read_manifest, read_state
from headrace.state.record import read_timeline
from headrace.state.run_writer import RunWriter
from headrace.state.store import StoreFiles

log = logging.getLogger("headrace.edit")

LIVE_EDITS: Final = 10_000
"""More than so many would hold up the job: they are for a stopped one."""


class LiveEdits:
    """The driver's side: commands that wait for an epoch, and their answers. Commands may come from any thread."""

    def __init__(self, store: StoreFiles, clock: Clock = time.time) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[tuple[JobCommand, Inbox]] = []
        self._made: list[tuple[JobCommand, Inbox, EditPlan]] = []
        """In the manifest that is about to be published."""

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def ask(self, command: JobCommand, inbox: Inbox) -> None:
        """Notes edits for the next epoch that is published."""
        with self._lock:
            self._waiting.append((command, inbox))

    def apply(self, state: JobState, fence: int) -> JobState:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for command, inbox in [*self._left_over(), *waiting]:
            try:
                state, plan = self._apply(state, command, fence)
                self._made.append((command, inbox, plan))
            except Exception as error:  # the job must not end because an edit does not fit
                _answer(command, inbox, JobAnswer(state.epoch - 1, refusal=parts_of(error)))
        return state

    def _left_over(self) -> list[tuple[JobCommand, Inbox]]:
        """Commands of an epoch that failed. If it was published all the same, they are done; otherwise they wait."""
        made, self._made = self._made, []
        left = []
        for command, inbox, _ in made:
            found = find_request(self._store, command.mark)
            if found is None:
                left.append((command, inbox))
            else:
                _answer(command, inbox, JobAnswer(found.epoch))
        return left

    def _apply(self, state: JobState, command: JobCommand, fence: int) -> tuple[JobState, EditPlan]:
        order = command.order
        assert isinstance(order, ChangeState)
        edits = [msgspec.convert(each, Edit) for each in order.edits]
        now_us = round(self._clock() * 1e6)
        plan = plan_edits(self._store, state, edits, epoch=state.epoch, now_us=now_us)
        writer = RunWriter(self._store, state.manifest, epoch=state.epoch, fence=fence)
        added = {name: writer.write_runs(name, tables) for name, tables in plan.tables.items()}
        note = edit_note(plan, order.why, command.asked_us)
        note = msgspec.structs.replace(note, by=command.by, request=command.mark)
        return derive_edited(state, added, note, plan.due_us), plan

    def published(self, manifest: Manifest) -> None:
        made, self._made = self._made, []
        for command, inbox, plan in made:
            _answer(
                command, inbox, JobAnswer(manifest.epoch, changes=[_change_data(change) for change in plan.changes])
            )

    def give_up(self, epoch: int) -> None:
        """The run has ended, and these edits were made with no epoch of it."""
        with self._lock:
            waiting, self._waiting = [*((each, box) for each, box, _ in self._made), *self._waiting], []
        for command, inbox in waiting:
            _answer(command, inbox, JobAnswer(epoch, refusal=parts_of(_end_of_job())))


def derive_edited(state: JobState, added: Mapping[str, Sequence[RunRef]], note: Any, due_us: int | None) -> JobState:
    """A state that is about to be published, with runs that are newer than all others of their steps."""
    manifest = state.manifest
    steps, runs = dict(manifest.steps), dict(state.runs)
    for name, new in added.items():
        listed = steps.get(name, StepRuns(runs=[]) if manifest.full else StepRuns())
        if listed.runs is not None:
            steps[name] = StepRuns(runs=[*new, *listed.runs])
        else:
            steps[name] = StepRuns(added=[*new, *listed.added])
        runs[name] = (*new, *runs.get(name, ()))
    dues = [due for due in (manifest.next_due_us, due_us) if due is not None]
    edited = msgspec.structs.replace(
        manifest, steps=steps, notes=[*manifest.notes, note], edited_epoch=manifest.epoch,
        next_due_us=min(dues, default=None),
    )  # fmt: skip
    return JobState(edited, runs)


def _change_data(change: Change) -> list[Any]:
    return [change.key, plain_json(change.values.before), plain_json(change.values.after)]


def _answer(command: JobCommand, inbox: Inbox, answer: JobAnswer) -> None:
    try:
        inbox.answer(command, answer)
    except StoreError as error:
        log.warning("%s could not be told what became of edits: %s", command.by, error)


def _end_of_job() -> StoreError:
    return StoreError(
        "the job ended before the edits were made",
        found="no further epoch of the run",
        next_move="edit again: of a stopped job edits become true at once",
    )


# --- the side of whoever asks


def edit_running(
    store: StoreFiles,
    edits: Sequence[Edit],
    *,
    why: str,
    tell: Callable[[Beat], None] = lambda driver: None,
    sleep: Callable[[float], None] = time.sleep,
) -> EditedEpoch:
    """Has the driver of a store make the edits, and waits until they are true.

    Raises StoreError where nobody drives the store, or where the driver refuses them or goes away.
    """
    if len(edits) > LIVE_EDITS:
        raise ProgramError(
            "these are too many edits for a job that runs",
            where=store.url,
            expected=f"at most {LIVE_EDITS:,} at once",
            found=f"{len(edits):,}",
            next_move="stop the job, edit, and start it again; or edit in several parts",
        )
    timeline = read_timeline(store)
    epochs = list_epochs(store, timeline)
    if epochs:
        # What does not fit is told here, before the job is bothered.
        newest = read_state(store, timeline, epochs[-1])
        plan_edits(store, newest, edits, epoch=newest.epoch + 1)
    plain = [msgspec.to_builtins(edit) for edit in edits]
    command = send_command(store, ChangeState(plain, why))
    try:
        answer = await_answer(store, command, tell=tell, sleep=sleep)
    except HeadraceError:
        found = find_request(store, command.mark)
        if found is None:
            raise
        answer = JobAnswer(found.epoch)
    manifest = read_manifest(store, timeline, answer.epoch)
    changed = next((note.changed for note in manifest.notes if note.request == command.mark), {})
    changes = [
        Change(edit, key, BeforeAfter(before, after)) for edit, (key, before, after) in zip(edits, answer.changes)
    ]
    return EditedEpoch(answer.epoch, answer.epoch - 1, EditPlan(changes, {}, changed, None), live=True)


def find_request(store: StoreFiles, mark: str) -> Manifest | None:
    """The epoch with which a command was made true, though nobody said so."""
    timeline = read_timeline(store)
    for epoch in reversed(list_epochs(store, timeline)):
        manifest = read_manifest(store, timeline, epoch)
        if any(note.request == mark for note in manifest.notes):
            return manifest
    return None
