"""Epochs without Spark: what a person does to the state of a stopped job becomes its next published epoch.

Such an epoch reads no input and puts nothing out. It has the offsets, watermarks, clock and loops of the epoch before,
other runs, and a note of who made it, when and why. The next start goes on behind it like behind any other; going back
to before it is a rewind.

    with hold_stopped(store) as stopped:                     # StoreInUse while a job runs on the store
        runs = {"totals": stopped.writer.write_runs("totals", tables)}
        stopped.publish(EpochNote(kind="edit", by=…, at_us=…, why=…), added=runs)

``tables`` are those of `headrace.state.format.TableData`, with key bytes and hashes, over any key groups; newer rows
hide older ones, and rows without a value are tombstones. Whoever writes runs himself calls `write_run` with the key
groups that each is for, or names runs with `run_path`. ``rewritten`` gives a step a new list of runs in place of its
present one: tables whose rows cannot be hidden (partial aggregates, whole rows) are changed so.

Invariants
- The fence of the store is held from before the state is read until the epoch is published.
- Rows that the newest epoch of Spark's staged stay in the store until they are released: no sweep comes before that.
- Of an epoch that was not published nothing is left but runs that no manifest names; the job sweeps them.
- A timer must lie behind the watermark, or the clock, of the epoch: what lies before counts as fired.

What this module deliberately does not do: begin a store, or change the runs of past epochs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from headrace.checkpoint.fence import Fence, take_fence
from headrace.checkpoint.publish import derive_steps, new_nonce, publish_manifest
from headrace.errors import StoreError, StoreInUse
from headrace.model import crash
from headrace.model.report import RunRef
from headrace.state import layout
from headrace.state.lineage import is_going_back
from headrace.state.manifest import EpochNote, JobState, Manifest, list_epochs, read_state
from headrace.state.record import read_timeline
from headrace.state.run_writer import RunWriter
from headrace.state.store import StoreFiles

Runs = Mapping[str, Sequence[RunRef]]
"""Step, or what `headrace.state.layout.broadcast` calls its broadcast states → runs, newest first."""


class StoppedJob:
    """A job that nobody runs, held by its fence. ``state`` is its newest published state."""

    def __init__(self, store: StoreFiles, fence: Fence, state: JobState) -> None:
        self.store = store
        self.state = state
        self._fence = fence
        self.writer = self._new_writer()
        """Writes the runs of the epoch in the making."""

    @property
    def epoch(self) -> int:
        """The epoch in the making."""
        return self.state.epoch + 1

    def reload(self) -> None:
        """Reads the state anew: behind what replaced its manifest."""
        manifest = self.state.manifest
        self.state = read_state(self.store, manifest.timeline, manifest.epoch)
        self.writer = self._new_writer()

    def new_uid(self) -> str:
        """A fresh id for a file that takes the place of an older one."""
        return layout.new_uid(self._fence.number)

    def publish(
        self, note: EpochNote, *, added: Runs | None = None, rewritten: Runs | None = None, due_us: int | None = None
    ) -> JobState:
        """Makes the epoch true, and may be followed by another one.

        ``added``: new runs by step. ``rewritten``: step → what takes the place of all its present runs. ``due_us``: the
        earliest wall-clock timer among what was added.
        """
        crash.reach("offline_written", self.epoch)
        manifest = derive_offline(
            self.state, note, fence=self._fence.number, nonce=new_nonce(), added=added or {}, rewritten=rewritten or {},
            due_us=due_us,
        )  # fmt: skip
        self._fence.check()
        publish_manifest(self.store, manifest)
        # A sweep frees old names, so whoever slept long enough could take one again: then a newer fence exists.
        self._fence.check()
        self.state = self.state.followed_by(manifest)
        self.writer = self._new_writer()
        return self.state

    def _new_writer(self) -> RunWriter:
        return RunWriter(self.store, self.state.manifest, epoch=self.epoch, fence=self._fence.number)


@contextmanager
def hold_stopped(store: StoreFiles, *, clock: Callable[[], float] = time.time) -> Iterator[StoppedJob]:
    """Keeps drivers away from a store for as long as the block lasts. Raises StoreInUse where one is at work."""
    # Asked for first: taking a fence would begin a store where none is.
    timeline = read_timeline(store)
    try:
        fence = take_fence(store, clock=clock)
    except StoreInUse as running:
        # What is done here never takes over from a job.
        running.next_move = "stop it first: headrace stop STORE"
        raise
    try:
        epochs = list_epochs(store, timeline)
        if is_going_back(store):
            raise StoreError(
                "the job is to repeat first what has gone out already, and that has to be finished",
                where=store.url,
                expected="a job that has published an epoch since",
                found="none",
                next_move="start the job and stop it after its first epoch; then ask again",
            )
        if not epochs:
            raise StoreError(
                "no epoch has been published yet, so there is no state to change",
                where=store.url,
                next_move="run the job until its first epoch is published",
            )
        yield StoppedJob(store, fence, read_state(store, timeline, epochs[-1]))
    finally:
        fence.drop()


def derive_offline(
    before: JobState,
    note: EpochNote,
    *,
    fence: int,
    nonce: str,
    added: Runs,
    rewritten: Runs,
    due_us: int | None = None,
) -> Manifest:
    """The manifest of an epoch that reads nothing and puts nothing out."""
    parent = before.manifest
    lists = {step: tuple(runs) for step, runs in rewritten.items()}
    full, steps = derive_steps(before, {step: list(runs) for step, runs in added.items()}, lists, before.epoch + 1)
    dues = [due for due in (parent.next_due_us, due_us) if due is not None]
    return msgspec.structs.replace(
        parent,
        epoch=parent.epoch + 1,
        nonce=nonce,
        fence=fence,
        parent_epoch=parent.epoch,
        parent=parent.nonce,
        parent_timeline=None,
        full=full,
        steps=steps,
        outputs={},
        held=[],
        next_due_us=min(dues, default=None),
        tasks=[],
        took_us={},
        released_us={},
        notes=[note],
        edited_epoch=parent.epoch + 1,
        offline=parent.offline + 1,
    )
