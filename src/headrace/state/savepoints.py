"""Savepoints: published epochs that are kept because a person asked. A savepoint is a small record, nothing is copied.

Invariants
- A savepoint names one manifest, by timeline, epoch and nonce, for as long as its record lies in the store. No sweep
  deletes that manifest, or anything that it is read with.
- Its record is created only if absent and never changed; every byte of it is under a checksum.
- It is pinned first and verified second, so that no sweep can come between (see `headrace.state.condemned`). A process
  that dies in between leaves a savepoint that may name an epoch that is gone: whoever reads it is told.

What this module deliberately does not do: copy files (`headrace.state.copying`), or decide what a sweep deletes.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from headrace.errors import AlreadyExists, CorruptFile, MissingFile, NoSuchMoment, StoreError
from headrace.model import crash
from headrace.model.time import format_time
from headrace.state import layout
from headrace.state.checked import check_format, decode_checked, encode_checked
from headrace.state.condemned import read_condemned
from headrace.state.lineage import read_places
from headrace.state.manifest import JobState, Manifest, epoch_ranges, list_epochs, read_manifest, read_state
from headrace.state.store import StoreFiles

Clock = Callable[[], float]

FORMAT: Final = 1
NAME_MAX_CHARS: Final = 100
NAME_FORM: Final = f"a letter, then letters, digits, '.', '_' and '-', {NAME_MAX_CHARS} characters at most"
_NAME: Final = re.compile(rf"[A-Za-z][A-Za-z0-9._-]{{0,{NAME_MAX_CHARS - 1}}}")


class Savepoint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The record of a savepoint."""

    name: str
    timeline: int
    epoch: int
    nonce: str
    """Of the manifest."""
    app: str
    program: str
    """Fingerprint of the program that wrote the epoch."""
    clock_us: int
    """When the epoch was published, by the clock of the job."""
    taken_us: int
    """When the savepoint was taken, by the clock of whoever took it."""
    mark: str
    """Unique to whoever wrote the record: after a lost answer it tells its own from another."""
    note: str = ""
    previous_offsets: str = ""
    """Offsets of the epoch before, which Spark's log is made from; its manifest may be swept."""
    format: int = FORMAT

    @property
    def place(self) -> layout.ManifestName:
        return layout.ManifestName(self.timeline, self.epoch)


def create_savepoint(
    store: StoreFiles, *, name: str = "", note: str = "", place: layout.ManifestName | None = None,
    clock: Clock = time.time,
) -> Savepoint:  # fmt: skip
    """Pins a published epoch, the newest unless ``place`` says another. Taking the same savepoint again is fine.

    May be called while the job runs, from any process. Without a name it is called after its epoch.
    """
    place = place or _newest(store)
    name = check_name(name) if name else default_name(place)
    manifest = read_manifest(store, *place)
    savepoint = Savepoint(
        name=name,
        timeline=manifest.timeline,
        epoch=manifest.epoch,
        nonce=manifest.nonce,
        app=manifest.app,
        program=manifest.program,
        clock_us=manifest.published_us,
        taken_us=round(clock() * 1e6),
        mark=os.urandom(8).hex(),
        note=note,
        previous_offsets=previous_offsets(store, manifest),
    )
    fresh = True
    try:
        store.create(layout.savepoint(name), encode_checked(savepoint))
    except AlreadyExists:
        savepoint, fresh = _same(store, savepoint), False
    crash.reach("savepoint_pinned", savepoint.epoch)
    try:
        refuse_condemned(store, savepoint.place)
        check_files(store, savepoint)
    except StoreError:
        # One that was there before is somebody else's, or tells what is missing.
        if fresh:
            store.delete(layout.savepoint(name))
        raise
    return savepoint


def read_savepoint(store: StoreFiles, name: str) -> Savepoint:
    """One savepoint by its name; the error for a name that is not there lists those that are."""
    try:
        return _read(store, layout.savepoint(check_name(name)))
    except MissingFile:
        names = [each.name for each in list_savepoints(store)]
        raise NoSuchMoment(
            f"there is no savepoint {name!r} in this store",
            where=store.url,
            expected=" or ".join(names) if names else "a savepoint; the store has none",
            found=name,
            next_move="`headrace savepoints STORE` lists them" if names else "`headrace savepoint STORE` takes one",
        ) from None


def list_savepoints(store: StoreFiles) -> list[Savepoint]:
    """All savepoints of a store, those of the oldest epoch first."""
    savepoints = []
    for path in store.list(layout.SAVEPOINTS):
        # A person may delete a savepoint at any time.
        with contextlib.suppress(MissingFile):
            savepoints.append(_read(store, path))
    return sorted(savepoints, key=lambda each: (each.timeline, each.epoch, each.taken_us, each.name))


def delete_savepoint(store: StoreFiles, name: str) -> Savepoint:
    """Lets an epoch go: the next sweeps of the job delete what nothing else keeps. Answers what was deleted."""
    savepoint = read_savepoint(store, name)
    store.delete(layout.savepoint(name))
    return savepoint


def read_saved_state(store: StoreFiles, savepoint: Savepoint) -> JobState:
    """The state at a savepoint. Raises MissingFile or CorruptFile where the store no longer holds what was pinned."""
    state = read_state(store, savepoint.timeline, savepoint.epoch)
    if state.manifest.nonce != savepoint.nonce:
        raise CorruptFile(
            f"the savepoint {savepoint.name!r} is of another epoch {savepoint.epoch} than the store's",
            where=f"{store.url}/{layout.savepoint(savepoint.name)}",
            expected=f"manifest {savepoint.nonce}",
            found=f"manifest {state.manifest.nonce}",
            next_move="do not mix files of two stores; restore the folder from one copy",
        )
    return state


def check_files(store: StoreFiles, savepoint: Savepoint) -> JobState:
    """Reads the manifests of a savepoint and sees that every file they name is there; one listing, no content."""
    state = read_saved_state(store, savepoint)
    check_state_files(store, state, f"{store.url}, savepoint {savepoint.name!r}")
    return state


def check_state_files(store: StoreFiles, state: JobState, where: str) -> None:
    """Sees that every file of a state is there."""
    lying = {*store.list(layout.RUNS), *store.list(layout.STAGED)}
    absent = sorted(state_files(state) - lying)
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise MissingFile(
            f"files of epoch {state.epoch} are not in the store",
            where=where,
            expected="every file that its manifest names",
            found=f"no {absent[0]}{more}",
            next_move="restore them from a copy of the store, or take a savepoint of a newer epoch",
        )


class StoredFile(NamedTuple):
    """A file that a state cannot do without."""

    path: str
    size_bytes: int
    crc: int | None
    """CRC-32 of its content, where that was noted."""


def stored_files(state: JobState) -> list[StoredFile]:
    """What a state cannot do without, each file once: runs, and the rows of loops."""
    refs = [StoredFile(ref.file, ref.size_bytes, ref.crc) for runs in state.runs.values() for ref in runs]
    loops = state.manifest.loops.values()
    parts = [StoredFile(part.file, part.size_bytes, part.crc) for parts in loops for part in parts]
    return list({file.path: file for file in (*refs, *parts) if file.path}.values())


def state_files(state: JobState) -> set[str]:
    """The paths of these files."""
    return {file.path for file in stored_files(state)}


def check_name(name: str) -> str:
    """The name, if a savepoint can have it: never a number or a time, which address epochs."""
    if not _NAME.fullmatch(name):
        raise StoreError(
            "a savepoint cannot have this name",
            expected=NAME_FORM,
            found=repr(name),
            next_move="choose another name, such as before-v2; numbers and times address epochs",
        )
    return name


def check_free(store: StoreFiles, name: str) -> None:
    """Raises StoreError where a savepoint that is yet to be taken could not have this name."""
    try:
        old = _read(store, layout.savepoint(check_name(name)))
    except MissingFile:
        return
    raise _name_taken(store, old)


def default_name(place: layout.ManifestName) -> str:
    """What a savepoint is called that nobody named.

    >>> default_name(layout.ManifestName(0, 41)), default_name(layout.ManifestName(2, 7))
    ('epoch-41', 'epoch-7-timeline-2')
    """
    return f"epoch-{place.epoch}" + (f"-timeline-{place.timeline}" if place.timeline else "")


def _newest(store: StoreFiles) -> layout.ManifestName:
    places = read_places(store)
    if not places:
        raise StoreError(
            "no epoch has been published yet, so there is nothing to keep",
            where=store.url,
            next_move="wait for the job's first epoch",
        )
    return places[-1]


def previous_offsets(store: StoreFiles, manifest: Manifest) -> str:
    """Offsets of the epoch before, which Spark's log is made from; empty where nothing tells them."""
    parent = manifest.parent_place
    if parent is None:
        return ""
    with contextlib.suppress(MissingFile):
        return read_manifest(store, *parent).offsets
    # A copy has the one manifest only, and knows the offsets from the savepoint that it was made of.
    for savepoint in list_savepoints(store):
        if savepoint.nonce == manifest.nonce:
            return savepoint.previous_offsets
    return ""


def _same(store: StoreFiles, new: Savepoint) -> Savepoint:
    """The savepoint that has the name already, if it is this very one."""
    old = read_savepoint(store, new.name)
    if (old.nonce, old.epoch) == (new.nonce, new.epoch) and new.note in ("", old.note):
        return old
    raise _name_taken(store, old)


def _name_taken(store: StoreFiles, old: Savepoint) -> AlreadyExists:
    return AlreadyExists(
        f"there is a savepoint {old.name!r} already",
        where=store.url,
        expected="a free name",
        found=f"a savepoint of epoch {old.epoch}, taken {format_time(old.taken_us)}"
        + (f": {old.note}" * bool(old.note)),
        next_move=f"choose another name, or delete it: headrace savepoints STORE {old.name} --delete",
    )


def refuse_condemned(store: StoreFiles, place: layout.ManifestName) -> None:
    """Raises StoreError for an epoch that a sweep may delete at any moment, whoever pins it now."""
    if not any(place in epochs for epochs in read_condemned(store).values()):
        return
    left = [epoch for epoch in list_epochs(store, place.timeline) if epoch > place.epoch]
    raise StoreError(
        f"epoch {place.epoch} is about to be swept, so it can no longer be kept",
        where=store.url,
        expected=f"one of {epoch_ranges(left)}" if left else "a newer epoch",
        found=f"epoch {place.epoch}",
        next_move="take a newer epoch; run the job with a larger `retain` to keep more of them",
    )


def _read(store: StoreFiles, path: str) -> Savepoint:
    try:
        savepoint = decode_checked(store.read(path), Savepoint)
    except msgspec.DecodeError as error:
        raise CorruptFile(
            "the record of a savepoint cannot be read",
            where=f"{store.url}/{path}",
            found=str(error),
            next_move="restore the file from a copy of the store, or move it away if it is none of ours",
        ) from error
    check_format(savepoint.format, FORMAT, "a savepoint was taken", f"{store.url}/{path}")
    return savepoint
