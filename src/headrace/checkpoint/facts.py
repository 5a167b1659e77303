"""What recovery looks at: read once at start, then decided upon without touching anything."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from headrace.errors import MissingFile
from headrace.state import layout
from headrace.state.manifest import JobState, Manifest, list_epochs, read_manifest, read_state
from headrace.state.record import Branch, Passing, StoreRecord, read_record
from headrace.state.savepoints import previous_offsets
from headrace.state.store import StoreFiles


class ReleasedNote(msgspec.Struct, frozen=True):
    """The newest epoch whose outputs are out, as far as it was noted: at the end of a run, in a remote store always."""

    timeline: int
    epoch: int


@dataclass(frozen=True)
class RecoveryFacts:
    record: StoreRecord | None
    state: JobState | None
    """The newest published state, or None before the first epoch."""
    previous_offsets: str | None = None
    """Offsets of the epoch before the newest, where its manifest is kept."""
    committed: int | None = None
    """The newest epoch that is known to be done, outputs and all: by Spark's folders in the store, or by our note."""
    branch: Branch | None = None
    """The rewind that began the present timeline, as long as that has no epoch: the state is of the one before."""
    shown: Manifest | None = None
    """With a rewind that holds outputs: the epoch up to which they have gone out."""
    passing: Passing | None = None
    """In a fork that takes outputs over and has no epoch of its own yet: what it reads before it gives them out."""
    unreleased: Manifest | None = None
    """The epoch whose outputs have still to be released, if there is one: the newest that Spark ran."""

    @property
    def released(self) -> bool:
        """Whether all outputs are known to be out. Epochs that were made without Spark have none; those that a rewind
        goes back to are out, or were taken back."""
        if self.branch is not None:
            return True
        assert self.state is not None
        return self.committed is not None and self.committed >= self.state.manifest.ran_epoch


def read_facts(store: StoreFiles) -> RecoveryFacts:
    """Reads everything recovery needs to know."""
    record = read_record(store)
    timeline = 0 if record is None else record.timeline
    epochs = list_epochs(store, timeline)
    branch = None if record is None or epochs else record.branch(timeline)
    if branch is not None:
        return _read_rewound(store, record, branch)
    state = read_state(store, timeline, epochs[-1]) if epochs else None
    previous = None
    if state is not None:
        previous = previous_offsets(store, state.manifest) or None
        if previous is None and state.epoch > 0 and state.manifest.parent_place is None:
            # Made of another store, whose epochs it counts on. Spark wants to have the epoch before all the same.
            previous = state.manifest.offsets
    passing = None
    if record is not None and record.forked_from is not None and state is not None:
        passing = record.forked_from.passing if record.passing_at == state.manifest.place else None
    facts = RecoveryFacts(record, state, previous, _newest_commit(store, timeline), passing=passing)
    return facts if state is None or facts.released else replace(facts, unreleased=_newest_run(store, state.manifest))


def _read_rewound(store: StoreFiles, record: StoreRecord | None, branch: Branch) -> RecoveryFacts:
    """What a timeline begins with that has no epoch yet. Nothing that Spark noted is about it."""
    state = read_state(store, *branch.start)
    # Spark wants to have the epoch before, and reads nothing of it. Where it is swept, no range is as good as another.
    previous = previous_offsets(store, state.manifest) or state.manifest.offsets
    shown = read_manifest(store, *branch.shown) if branch.held_outputs else None
    return RecoveryFacts(record, state, previous, branch=branch, shown=shown)


def _newest_run(store: StoreFiles, manifest: Manifest) -> Manifest | None:
    """The newest epoch that Spark ran. No sweep comes between it and the release of its outputs."""
    if not manifest.offline:
        return manifest
    if manifest.ran_epoch < 0:
        return None
    return read_manifest(store, manifest.timeline, manifest.ran_epoch)


def _newest_commit(store: StoreFiles, timeline: int) -> int | None:
    commits = [path.split("/") for path in store.list(layout.SPARK)]
    epochs = [int(parts[-1]) for parts in commits if parts[-2] == "commits" and parts[-1].isdigit()]
    try:
        noted = msgspec.json.decode(store.read(layout.RELEASED), type=ReleasedNote)
    except (MissingFile, msgspec.DecodeError):
        # Without the note outputs are released once more than needed, which is harmless.
        return max(epochs, default=None)
    return max([*epochs, *([noted.epoch] if noted.timeline == timeline else [])], default=None)
