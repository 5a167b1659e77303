"""Copies of savepoints: stores of their own, on another disk or in another object store.

A copy has one epoch and needs nothing of the original: the epoch's manifest, with every step listed whole; the runs and
the rows of loops that it names; what a start needs besides (the offsets before, in the savepoint; copies of Spark's
logs per source; what sources keep); and the record of the store, with the id of the original and a note of where the
copy is from. Rows that the epoch put out are not in it: the original releases them.

Invariants
- A copy is a store when its record is there, which is written last. Until then nobody takes it for one.
- What a copy is of is written first, created only if absent; so an interrupted copy can go on, and never turns into a
  mixture of two.
- Every file is read against its checksum on its way. Paths in manifests are relative, so a copy can be moved.

- A copy that a job starts in becomes a fork: a store with an id of its own. So does one that is made to be one.

What this module deliberately does not do: start a job, or pin what it copies; the savepoint does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from headrace.errors import AlreadyExists, MissingFile, StoreError
from headrace.model import crash
from headrace.state import layout
from headrace.state.checked import decode_checked, encode_checked
from headrace.state.checking import Bytes, Progress, read_pieces, side_by_side
from headrace.state.lineage import derive_lineage
from headrace.state.manifest import JobState, StepRuns, encode_manifest
from headrace.state.record import CopiedFrom, ForkedFrom, Passing, StoreRecord, new_query, no_store, read_record
from headrace.state.savepoints import Clock, Savepoint, StoredFile, check_files, stored_files
from headrace.state.spark_offsets import entries_read
from headrace.state.store import LocalStore, StoreFiles


class CopyReport(NamedTuple):
    url: str
    files: int
    size_bytes: int
    """Of the files whose size a manifest tells: runs, and rows of loops."""
    copied: int
    """How many files this call has copied; the others were there already."""


class _CopyMark(msgspec.Struct, frozen=True):
    """What a copy is of, while it is being made."""

    query: str
    """The id of the original."""
    timeline: int
    epoch: int
    nonce: str
    savepoint: str
    url: str
    asked: str | None = None
    """Of a fork: which moment was asked for, which may mean another epoch by now."""


def copy_savepoint(
    store: StoreFiles, savepoint: Savepoint, target: StoreFiles, *, progress: Progress | None = None,
    clock: Clock = time.time,
) -> CopyReport:  # fmt: skip
    """Makes a store of one savepoint. A copy that was interrupted goes on; one that is whole is left as it is."""
    origin = CopiedFrom(
        url=store.url, savepoint=savepoint.name, timeline=savepoint.timeline, epoch=savepoint.epoch,
        nonce=savepoint.nonce, copied_us=round(clock() * 1e6),
    )  # fmt: skip

    def copy(record: StoreRecord) -> StoreRecord:
        return msgspec.structs.replace(record, copied_from=origin)

    report = _copy(store, savepoint, target, copy, progress)
    target.delete(layout.COPYING)
    return report


def fork_savepoint(
    store: StoreFiles, savepoint: Savepoint, target: StoreFiles, *, asked: str, passing: Passing | None = None,
    progress: Progress | None = None, clock: Clock = time.time,
) -> CopyReport:  # fmt: skip
    """Makes a store that begins with a savepoint of another one, and has an id of its own.

    The note of what it is of stays, until whoever pinned the savepoint for it is done: `end_fork`.
    """

    def fork(record: StoreRecord) -> StoreRecord:
        origin = ForkedFrom(
            url=store.url, query=record.query, savepoint=savepoint.name, timeline=savepoint.timeline,
            epoch=savepoint.epoch, nonce=savepoint.nonce, asked=asked, forked_us=round(clock() * 1e6),
            passing=passing,
        )  # fmt: skip
        return msgspec.structs.replace(record, query=new_query(), copied_from=None, forked_from=origin)

    read = None if passing is None else passing.offsets
    return _copy(store, savepoint, target, fork, progress, asked=asked, read=read)


def begun_fork(store: StoreFiles, target: StoreFiles, asked: str) -> str | None:
    """The savepoint of which a fork was begun here and interrupted, of the same store and asked for in these words."""
    record = read_record(store)
    if record is None or not target.exists(layout.COPYING):
        return None
    mark = _read_mark(target)
    return mark.savepoint if (mark.query, mark.asked) == (record.query, asked) else None


def is_fork_open(target: StoreFiles) -> bool:
    """Whether a fork is there, and whoever made it died before it was done with the original."""
    return target.exists(layout.COPYING)


def end_fork(target: StoreFiles) -> None:
    """Nothing of the original is needed any more."""
    target.delete(layout.COPYING)


def settle_copy(store: StoreFiles, *, clock: Clock = time.time) -> ForkedFrom | None:
    """Makes a fork of a copy in which a job is about to start; None where the store is no copy.

    Sinks know a job by the id of its store. Two stores that go on under one id would take each other's epochs for
    their own, and nobody can see from here whether the original still runs.
    """
    record = read_record(store)
    copied = None if record is None else record.copied_from
    if record is None or copied is None:
        return None
    origin = ForkedFrom(
        url=copied.url, query=record.query, savepoint=copied.savepoint, timeline=copied.timeline, epoch=copied.epoch,
        nonce=copied.nonce, asked=copied.savepoint, forked_us=round(clock() * 1e6),
    )  # fmt: skip
    fork = msgspec.structs.replace(record, query=new_query(), copied_from=None, forked_from=origin)
    store.write(layout.STORE_RECORD, msgspec.json.encode(fork))
    return origin


def _copy(
    store: StoreFiles, savepoint: Savepoint, target: StoreFiles, derive_record: Callable[[StoreRecord], StoreRecord],
    progress: Progress | None, *, asked: str | None = None, read: str | None = None,
) -> CopyReport:  # fmt: skip
    """``read``: offsets behind those of the savepoint, up to which the copy has to know what was listed."""
    record = read_record(store)
    if record is None:
        raise no_store(store.url)
    state = check_files(store, savepoint)
    files = [*stored_files(state), *_beside(store, read or state.manifest.offsets)]
    size_bytes = sum(file.size_bytes for file in files)
    if f"{target.url}/".startswith(f"{store.url}/"):
        raise _occupied_error(target, f"the store {store.url} itself, around it")
    mark = _CopyMark(
        record.query, savepoint.timeline, savepoint.epoch, savepoint.nonce, savepoint.name, store.url, asked
    )
    if _is_whole(target, mark):
        return CopyReport(target.url, len(files), size_bytes, 0)
    _begin(target, mark)
    copied = _copy_files(store, target, files, Bytes(size_bytes, progress), savepoint.epoch)
    _write_head(store, target, state, savepoint)
    crash.reach("copy_written", savepoint.epoch)
    # Of rewinds only those that led here: the numbers of later timelines are free in the copy.
    timelines = {part.timeline for part in derive_lineage(record, savepoint.place)}
    branches = tuple(branch for branch in record.branches if branch.timeline in timelines)
    whole = derive_record(msgspec.structs.replace(record, timeline=savepoint.timeline, branches=branches))
    # Created only if absent: of two that make the same fork, one says which id it has.
    with contextlib.suppress(AlreadyExists):
        target.create(layout.STORE_RECORD, msgspec.json.encode(whole))
    return CopyReport(target.url, len(files), size_bytes, copied)


def _beside(store: StoreFiles, offsets: str) -> list[StoredFile]:
    """What a start needs besides state. Of these files no manifest has sizes or checksums."""
    inputs = entries_read(store.list(layout.INPUTS), offsets)
    return [StoredFile(path, 0, None) for path in (*inputs, *store.list(layout.KEPT))]


def _copy_files(store: StoreFiles, target: StoreFiles, files: list[StoredFile], done: Bytes, epoch: int) -> int:
    there = set(target.list())

    def copy(file: StoredFile) -> bool:
        if file.path in there:
            # A file appears under its name whole or not at all.
            done.add(file.size_bytes)
            return False
        crash.reach("copying", epoch)
        if not _link(store, target, file, done):
            target.write(file.path, read_pieces(store, file, done.add))
        return True

    return sum(side_by_side(copy, files))


def _link(store: StoreFiles, target: StoreFiles, file: StoredFile, done: Bytes) -> bool:
    """On one file system a file of state gets a second name. It is read before, as if it were copied: damage is not
    handed on, and what lies under a name has been looked at.

    Nobody changes such a file, and each store deletes its own names only: neither needs the other.
    """
    source = store.local_path(file.path)
    if source is None or file.crc is None or not isinstance(target, LocalStore) or not target.is_beside(source):
        return False
    for _ in read_pieces(store, file, done.add):
        pass
    if target.link(file.path, source):
        return True
    done.add(-file.size_bytes)
    return False


def _write_head(store: StoreFiles, target: StoreFiles, state: JobState, savepoint: Savepoint) -> None:
    """The manifest, the savepoint, and whose fence was the last: what later drivers write must not look older."""
    steps = {step: StepRuns(runs=list(runs)) for step, runs in state.runs.items() if runs}
    manifest = msgspec.structs.replace(state.manifest, full=True, steps=steps, outputs={})
    target.write(layout.manifest(*savepoint.place), encode_manifest(manifest))
    target.write(layout.savepoint(savepoint.name), encode_checked(savepoint))
    target.write(layout.fence(manifest.fence), msgspec.json.encode({**_fence(store, manifest.fence), "ended": True}))
    # Nothing of the epoch is left to release here.
    target.write(layout.RELEASED, msgspec.json.encode({"timeline": savepoint.timeline, "epoch": savepoint.epoch}))


def _fence(store: StoreFiles, number: int) -> dict[str, Any]:
    with contextlib.suppress(MissingFile, msgspec.DecodeError):
        return msgspec.json.decode(store.read(layout.fence(number)), type=dict[str, Any])
    return {"host": "", "pid": 0, "fence": number}


def _is_whole(target: StoreFiles, mark: _CopyMark) -> bool:
    """Whether the copy is there already. Raises AlreadyExists where another store is."""
    record = read_record(target)
    if record is None:
        return False
    origin, forked = record.copied_from, record.forked_from
    if origin is not None and (record.query, origin.nonce) == (mark.query, mark.nonce):
        return True
    if forked is not None and (forked.query, forked.nonce) == (mark.query, mark.nonce):
        return True
    what = f"a copy of {origin.url}@{origin.savepoint}" if origin is not None else f"the store of app {record.app!r}"
    raise _occupied_error(target, what)


def _begin(target: StoreFiles, mark: _CopyMark) -> None:
    """Says what is being copied here; somebody else's folder is left alone."""
    if not target.exists(layout.COPYING) and (strangers := target.list()):
        raise _occupied_error(target, f"{strangers[0]} and maybe more")
    with contextlib.suppress(AlreadyExists):
        target.create(layout.COPYING, encode_checked(mark))
        return
    before = _read_mark(target)
    if (before.query, before.nonce) != (mark.query, mark.nonce):
        raise _occupied_error(target, f"an unfinished copy of {before.url}@{before.savepoint}")


def _read_mark(target: StoreFiles) -> _CopyMark:
    try:
        return decode_checked(target.read(layout.COPYING), _CopyMark)
    except msgspec.DecodeError as error:
        raise _occupied_error(target, f"a record of a copy that cannot be read: {error}") from error


def _occupied_error(target: StoreFiles, found: str) -> StoreError:
    return StoreError(
        "there is something else where the copy is to go",
        where=target.url,
        expected="an empty folder, or an interrupted copy of the same savepoint",
        found=found,
        next_move="give another folder or URL, or delete what is there",
    )
