"""The manifest of an epoch: the one file whose appearance makes the epoch true.

Invariants
- A manifest is created only if absent and never changed.
- ``parent_epoch`` is ``epoch − 1``, of the same timeline or of the one that a rewind continues, or −1. The first
  manifest of a timeline lists every step whole, so that a state is read from one timeline.
- A timeline that was abandoned ends with a *seal*, under the name of the manifest that would have been next: it says
  which timeline goes on, and a driver that slept through it cannot publish.
- The runs of a step are listed newest first. A manifest lists a step either whole (``runs``) or by what it adds to its
  parent (``added``); at least every ``FULL_EVERY`` epochs every step is listed whole, so that reading a state
  touches a bounded number of manifests.
- A change of any of its bytes is noticed: fields that are unknown or absent mean something, so JSON alone would not do.
- Bytes that travel inline are part of the manifest; every other file it names was durable before it was published.

This module knows the content and how to read it back. When to publish one is the business of `headrace.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from headrace.errors import CorruptFile, MissingFile
from headrace.model.behind import Behind
from headrace.model.closed_windows import derive_closed
from headrace.model.ended_ttl import derive_ended
from headrace.model.job import DeclaredState, JobFacts, without_states
from headrace.model.order import Dropped
from headrace.model.pace import EpochCost
from headrace.model.report import RunRef, StagedPart
from headrace.model.type_shape import TypeShape
from headrace.model.watermarks import TimedSource, TimeState
from headrace.state import layout
from headrace.state.checked import check_format, decode_checked, encode_checked
from headrace.state.record import Branch
from headrace.state.store import StoreFiles

FORMAT: Final = 1
FULL_EVERY: Final = 16


class StepRuns(msgspec.Struct, frozen=True, omit_defaults=True):
    """The runs of a step, whole or as a change."""

    runs: list[RunRef] | None = None
    added: list[RunRef] = []

    def apply_to(self, before: tuple[RunRef, ...]) -> tuple[RunRef, ...]:
        if self.runs is not None:
            return tuple(self.runs)
        return (*self.added, *before)


class TaskStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task did, for people: `headrace epochs` shows it."""

    level: int
    shard: int
    rows_in: int = 0
    rows_read: int = 0
    """Rows that entered the job in this task."""
    bytes_in: int = 0
    times_us: dict[str, int] = {}
    steps: dict[str, dict[str, int]] = {}
    """Step → rows_in, rows_out, late, fired, delta_rows, delta_bytes."""
    staged: dict[str, int] = {}
    """Output → rows."""


ERASE: Final = "erase"
"""Kind of the note of an epoch in which a key was taken out of all epochs."""


class EpochNote(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a person had done to the state in an epoch: who, when and why."""

    kind: str
    """``edit``, ``erase``, ``bootstrap``, …"""
    by: str
    """Who, as the operating system names the user."""
    at_us: int
    """When it was asked for, by the clock of whoever did."""
    why: str = ""
    changed: dict[str, int] = {}
    """``step`` or ``step.state`` → how many of its keys."""
    request: str = ""
    """Of a running job: what was asked, by the mark of its command."""
    deleted: list[str] = []
    """Those states of ``changed`` in which keys were deleted."""


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    app: str
    timeline: int
    epoch: int
    nonce: str
    fence: int
    program: str
    """Fingerprint of the program that wrote it."""
    parallelism: int
    key_groups: int
    clock_us: int
    parent_epoch: int = -1
    parent: str = ""
    """Nonce of the parent; empty for the first."""
    parent_timeline: int | None = None
    """The timeline of the parent, in the first epoch behind a rewind; None: the same."""
    format: int = FORMAT
    offsets: str = ""
    """Text of Spark's offsets entry of this epoch."""
    retired: dict[str, str] = {}
    """Sources that the program no longer has → their last offset, in case they come back."""
    time: TimeState = TimeState()
    timed: list[TimedSource] = []
    """The sources with event time, as the program reads them; with ``reads`` they explain the watermarks."""
    reads: dict[str, list[str]] = {}
    """Step → the sources with event time above it."""
    waits_for: dict[str, int] = {}
    """Step → event time at which the next thing is due there; a hint."""
    waiting: dict[str, int] = {}
    """Step that handles rows in the order of their time → how many wait for it; those that were erased count on."""
    full: bool = False
    steps: dict[str, StepRuns] = {}
    states: dict[str, dict[str, DeclaredState]] = {}
    """Step → state → what the program declared."""
    former_names: dict[str, list[str]] = {}
    """Step → the names it had before, the newest first: epochs of then have it under those."""
    tables: dict[str, str] = {}
    """Step → what it stores, in words, where the program chose among several operators; it may not change."""
    rules: dict[str, dict[str, str]] = {}
    """Step → what it does with what it keeps: name of the rule → words for it."""
    hidden: dict[str, dict[str, int]] = {}
    """Step → table that a person dropped → the epoch from which on its rows count again: older runs may still hold
    some, until folds leave them out."""
    closed: dict[str, int] = {}
    """Step → event time up to which its windows were closed before it began to allow rows to be later."""
    ended_ttl: dict[str, dict[str, int]] = {}
    """Step → state whose TTL was taken away → the time by its clock up to which entries had expired by then."""
    sources: dict[str, str] = {}
    """Source → its kind."""
    sinks: dict[str, str] = {}
    """Output → the kind of its sink."""
    loop_types: dict[str, TypeShape] = {}
    """Loop → the type of its rows."""
    outputs: dict[str, list[StagedPart]] = {}
    held: list[str] = []
    """Outputs of which the epoch gave nothing out, because it had gone out before a rewind."""
    loops: dict[str, list[StagedPart]] = {}
    """Loop → rows that the next epoch reads; also those of loops that the program no longer has, as they were left."""
    next_due_us: int | None = None
    """Wall clock at which something is due with or without data."""
    final: bool = False
    """The last epoch of drained input."""
    ending: bool = False
    """Time has ended, but rows are still in loops: only epochs that take them out may follow."""
    counters: dict[str, dict[str, int]] = {}
    """Step → counter → total since the beginning."""
    tasks: list[TaskStats] = []
    took_us: dict[str, int] = {}
    """Where the epoch's time went until publishing, as the driver saw it."""
    paced: EpochCost | None = None
    """Where the time of the parent epoch went, as far as the same run knows."""
    behind: dict[str, Behind] = {}
    """Source → what was there and not read yet, for those that can tell; a hint."""
    released_us: dict[str, int] = {}
    """Output → how long the release of the parent epoch took; it comes after the parent's own manifest."""
    notes: list[EpochNote] = []
    """What people had done to the state in this epoch."""
    edited_epoch: int = -1
    """The newest epoch of the line, up to this one, that has notes; −1: none. Manifests between may be swept."""
    program_epoch: int = 0
    """Since which epoch of the line the program has been this one."""
    offline: int = 0
    """How many epochs in a row, this one included, were made without Spark (`headrace.checkpoint.offline`)."""

    @property
    def place(self) -> layout.ManifestName:
        return layout.ManifestName(self.timeline, self.epoch)

    @property
    def parent_place(self) -> layout.ManifestName | None:
        """Where the parent is; None in the first epoch of all."""
        if self.parent_epoch < 0:
            return None
        timeline = self.timeline if self.parent_timeline is None else self.parent_timeline
        return layout.ManifestName(timeline, self.parent_epoch)

    @property
    def ran_epoch(self) -> int:
        """The newest epoch that Spark ran, up to this one; −1: none."""
        return self.epoch - self.offline

    @property
    def published_us(self) -> int:
        """When it was published: the clock of an epoch without Spark is that of the epoch before."""
        return self.notes[-1].at_us if self.offline and self.notes else self.clock_us

    def hidden_of(self, step: str, was: Mapping[str, str]) -> dict[str, int]:
        """Table that was dropped → the epoch before which its runs do not count. ``was``: step → its former name."""
        return self.hidden.get(step) or self.hidden.get(was.get(step, ""), {})

    def closed_for(self, job: JobFacts) -> dict[str, int]:
        """Step → event time up to which windows are closed for a program that goes on from here."""
        return derive_closed(self.closed, self.rules, job.rules, self.time.steps, job.was)

    def ended_ttl_for(self, job: JobFacts) -> dict[str, dict[str, int]]:
        """Step → state without a TTL → the time up to which entries had expired while it had one, for a program."""
        clocks = {"event": self.time.steps, "wall": dict.fromkeys(self.states, self.clock_us)}
        return derive_ended(self.ended_ttl, self.states, job.states, job.was, clocks)


class JobState(msgspec.Struct, frozen=True):
    """The state of a job at a published epoch: what its manifest says, with every step listed whole."""

    manifest: Manifest
    runs: dict[str, tuple[RunRef, ...]]

    @property
    def epoch(self) -> int:
        return self.manifest.epoch

    def runs_of(self, step: str) -> tuple[RunRef, ...]:
        """Everything a step has written: states by key and broadcast states, which have runs of their own."""
        return (*self.runs.get(step, ()), *self.runs.get(layout.broadcast(step), ()))

    def followed_by(self, manifest: Manifest) -> JobState:
        """The state after the next manifest of the same line."""
        if manifest.full:
            return JobState(manifest, {step: tuple(change.runs or ()) for step, change in manifest.steps.items()})
        runs = dict(self.runs)
        for step, change in manifest.steps.items():
            runs[step] = change.apply_to(runs.get(step, ()))
        return JobState(manifest, runs)

    def with_loops(self, was: Mapping[str, str]) -> JobState:
        """The same state, loops under the names that a program gives them. ``was``: name → former name.

        Until the first epoch under a new name is published, rows wait under the old one.
        """
        manifest = self.manifest
        names = {
            old: new
            for new, old in was.items()
            if (old in manifest.loops or old in manifest.loop_types)
            and not {new} & {*manifest.loops, *manifest.loop_types}
        }
        if not names:
            return self
        changed = msgspec.structs.replace(
            manifest,
            loops={names.get(name, name): parts for name, parts in manifest.loops.items()},
            loop_types={names.get(name, name): shape for name, shape in manifest.loop_types.items()},
        )
        return JobState(changed, self.runs)

    def without(self, dropped: Dropped | None) -> JobState:
        """The same state without what a person gave up: as the next epoch sees it."""
        if dropped is None:
            return self
        manifest, gone = self.manifest, set(dropped.steps)
        states = {step: dict(states) for step, states in manifest.states.items() if step not in gone}
        hidden = {step: dict(tables) for step, tables in manifest.hidden.items() if step not in gone}
        for step, tables in dropped.tables.items():
            hidden.setdefault(step, {}).update(dict.fromkeys(tables, self.epoch + 1))
            if step in states:
                states[step] = without_states(states[step], tables)
        changed = msgspec.structs.replace(
            manifest,
            states=states,
            hidden=hidden,
            counters={step: counts for step, counts in manifest.counters.items() if step not in gone},
            waiting={step: rows for step, rows in manifest.waiting.items() if step not in {*gone, *dropped.tables}},
            loops={name: parts for name, parts in manifest.loops.items() if name not in dropped.loops},
        )
        runs = {name: () if layout.step_of(name) in gone else refs for name, refs in self.runs.items()}
        return JobState(changed, runs)


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest, checksum and all."""
    return encode_checked(manifest)


def read_manifest(store: StoreFiles, timeline: int, epoch: int) -> Manifest:
    """One manifest, checked for what it claims to be."""
    path = layout.manifest(timeline, epoch)
    try:
        data = store.read(path)
    except MissingFile as missing:
        raise MissingFile(
            f"the manifest of epoch {epoch} is not in the store",
            where=f"{store.url}/{path}",
            next_move="ask for a newer epoch (`headrace epochs` lists what is kept)",
        ) from missing
    try:
        manifest = decode_checked(data, Manifest)
    except msgspec.DecodeError as error:
        if decode_seal(data) is not None:
            raise MissingFile(
                f"epoch {epoch} was never published: timeline {timeline} ended before it, when the job went back",
                where=f"{store.url}/{path}",
                next_move="`headrace epochs` lists what is kept",
            ) from error
        raise CorruptFile(
            "a manifest cannot be read",
            where=f"{store.url}/{path}",
            found=str(error),
            next_move="restore the file from a copy of the store",
        ) from error
    check_format(manifest.format, FORMAT, "the store was written", f"{store.url}/{path}")
    if (manifest.timeline, manifest.epoch) != (timeline, epoch):
        raise CorruptFile(
            "a manifest has the name of another",
            where=f"{store.url}/{path}",
            expected=f"epoch {epoch} of timeline {timeline}",
            found=f"epoch {manifest.epoch} of timeline {manifest.timeline}",
            next_move="restore the file from a copy of the store",
        )
    return manifest


def read_state(store: StoreFiles, timeline: int, epoch: int) -> JobState:
    """The state at an epoch, from its manifest back to the last full one."""
    chain = [read_manifest(store, timeline, epoch)]
    while not chain[-1].full and chain[-1].parent_epoch >= 0:
        newest = chain[-1]
        parent = read_manifest(store, timeline, newest.parent_epoch)
        if parent.nonce != newest.parent:
            raise CorruptFile(
                f"the manifest of epoch {newest.epoch} continues another epoch {parent.epoch} than the store's",
                where=f"{store.url}/{layout.manifest(timeline, newest.epoch)}",
                expected=f"parent {newest.parent}",
                found=f"parent {parent.nonce}",
                next_move="do not mix files of two stores; restore the folder from one copy",
            )
        chain.append(parent)
    oldest = chain.pop()
    state = JobState(oldest, {step: change.apply_to(()) for step, change in oldest.steps.items()})
    while chain:
        state = state.followed_by(chain.pop())
    return state


class _Seal(msgspec.Struct, frozen=True):
    continues: Branch


def encode_seal(branch: Branch) -> bytes:
    """What ends the timeline that a rewind abandons."""
    return encode_checked(_Seal(branch))


def decode_seal(data: bytes) -> Branch | None:
    """The rewind that ended a timeline; None for a manifest."""
    try:
        return decode_checked(data, _Seal).continues
    except msgspec.DecodeError:
        return None


def read_seal(store: StoreFiles, timeline: int, epoch: int) -> Branch | None:
    """The rewind that ended a timeline before an epoch; None where nothing did."""
    try:
        return decode_seal(store.read(layout.manifest(timeline, epoch)))
    except MissingFile:
        return None


def list_epochs(store: StoreFiles, timeline: int) -> list[int]:
    """The epochs of one timeline whose manifests are kept, oldest first."""
    epochs = sorted(layout.epoch_of_manifest(path) for path in store.list(layout.manifests(timeline)))
    # Only the last name can be that of a seal.
    if epochs and read_seal(store, timeline, epochs[-1]) is not None:
        epochs.pop()
    return epochs


def epoch_ranges(epochs: list[int]) -> str:
    """``3, 7–41``: what is there, shortly."""
    parts: list[list[int]] = []
    for epoch in epochs:
        if parts and epoch == parts[-1][1] + 1:
            parts[-1][1] = epoch
        else:
            parts.append([epoch, epoch])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in parts)
