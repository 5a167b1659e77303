"""Savepoints, and other epochs that are kept, as a reader sees them: what is in one, and whether it is whole."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from headrace.errors import StoreError
from headrace.model.order import waiting
from headrace.read.steps import StateInfo, identity_of
from headrace.read.store import Store, files_of, job_state_of
from headrace.state import layout
from headrace.state.checking import Damage, Progress, Verification, verify_state
from headrace.state.manifest import JobState, Manifest, read_state
from headrace.state.moments import AtSavepoint, find_moment, parse_moment
from headrace.state.record import CopiedFrom, ForkedFrom, read_record
from headrace.state.savepoints import (
    Savepoint,
    default_name,
    list_savepoints,
    read_saved_state,
    read_savepoint,
    stored_files,
)
from headrace.state.spark_offsets import source_offsets


class SavedSize(NamedTuple):
    size_bytes: int
    files: int
    """Small states have none: they lie in the manifest."""


class SavedEpoch(NamedTuple):
    """What is in one."""

    manifest: Manifest
    savepoint: Savepoint | None
    """None: an epoch that `retain` keeps."""
    copied_from: CopiedFrom | None
    """Where the whole store comes from, if it is a copy."""
    forked_from: ForkedFrom | None
    """The same of a fork."""
    states: tuple[StateInfo, ...]
    size: SavedSize
    offsets: dict[str, str]
    """Source → its offset, as Spark writes it."""
    loops: dict[str, int]
    """Loop → rows that wait in it."""


def describe_moment(store: Store, moment: str) -> SavedEpoch:
    """What a savepoint, or another epoch that is kept, has in it."""
    files, at = files_of(store), store.at(moment)
    state = job_state_of(at)
    record = read_record(files)
    return SavedEpoch(
        state.manifest,
        _savepoint_of(store, moment),
        None if record is None else record.copied_from,
        None if record is None else record.forked_from,
        tuple(at.states()),
        derive_size(state),
        source_offsets(state.manifest.offsets),
        waiting(state.manifest.loops, state.manifest.loops),
    )


def size_of_savepoint(store: Store, savepoint: Savepoint) -> SavedSize | None:
    """How large it is; None where its manifests cannot be read."""
    with contextlib.suppress(StoreError):
        return derive_size(read_saved_state(files_of(store), savepoint))
    return None


def derive_size(state: JobState) -> SavedSize:
    """State and rows in loops, each run once however many ranges of it are listed."""
    runs = {identity_of(ref): ref.size_bytes for refs in state.runs.values() for ref in refs}
    looped = sum(part.size_bytes for parts in state.manifest.loops.values() for part in parts)
    return SavedSize(sum(runs.values()) + looped, len(stored_files(state)))


def find_savepoint(store: Store, name: str) -> Savepoint:
    """A savepoint by its name; says so where a moment is none."""
    moment = parse_moment(name)
    if isinstance(moment, AtSavepoint):
        return read_savepoint(files_of(store), moment.name)
    names = [each.name for each in list_savepoints(files_of(store))]
    place = find_moment(files_of(store), moment)
    raise StoreError(
        f"{name} is no savepoint but an epoch, which the setting `retain` keeps",
        where=store.url,
        expected=" or ".join(names) if names else "a savepoint; the store has none",
        found=name,
        next_move=f"give the name of a savepoint; one that nobody named is called {default_name(place)}",
    )


def verify_moment(store: Store, moment: str, progress: Progress | None = None) -> Verification:
    """Reads every file of a savepoint, or of another epoch that is kept, against its checksum."""
    files = files_of(store)
    try:
        state = _read(store, moment)
    except StoreError as error:
        savepoint = _savepoint_of(store, moment)
        if savepoint is None:
            raise
        # Of what a manifest cannot tell any more, nothing can be read.
        return Verification(0, 0, (Damage(layout.manifest(*savepoint.place), f"{error.what}, found {error.found}"),))
    return verify_state(files, state, progress)


def _read(store: Store, moment: str) -> JobState:
    savepoint = _savepoint_of(store, moment)
    if savepoint is not None:
        return read_saved_state(files_of(store), savepoint)
    return read_state(files_of(store), *find_moment(files_of(store), parse_moment(moment)))


def _savepoint_of(store: Store, moment: str) -> Savepoint | None:
    parsed = parse_moment(moment)
    return read_savepoint(files_of(store), parsed.name) if isinstance(parsed, AtSavepoint) else None
