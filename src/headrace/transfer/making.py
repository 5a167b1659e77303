"""Making a store that no run of a job has made: out of files, or of another store.

Invariants
- It is a store when its record is there, which is written last. Until then nobody takes it for one.
- What it is being made of is written first, created only if absent, so that whoever was interrupted can begin again:
  what lies there then is thrown away. Somebody else's folder is left alone.
- The first epoch counts as made without Spark; a start goes on behind it with the next.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.checkpoint.fence import create_fence, read_owner
from headrace.checkpoint.publish import publish_manifest
from headrace.errors import StoreError
from headrace.model import crash
from headrace.state import layout
from headrace.state.checked import decode_checked, encode_checked
from headrace.state.manifest import Manifest
from headrace.state.record import StoreRecord, read_record
from headrace.state.store import StoreFiles
from headrace.transfer.runs import FIRST_FENCE

Clock = Callable[[], float]


class MakingMark(msgspec.Struct, frozen=True):
    """What a store is being made of."""

    app: str
    what: str
    """In words, for people."""
    nonce: str = ""
    """Of the attempt: a later one takes over what an earlier one has left, and the earlier one may still be at it."""


def system_user() -> str:
    """Who asks for it, as the operating system names the user."""
    return read_owner().user


def begin_store(store: StoreFiles, app: str, what: str) -> MakingMark:
    """Says what is being made here, and clears away what an interrupted attempt has left."""
    record = read_record(store)
    if record is not None:
        raise _occupied_error(store, f"the store of app {record.app!r}")
    there = store.list()
    if there and layout.MAKING not in there:
        raise _occupied_error(store, f"{there[0]} and maybe more")
    before = _read_mark(store) if there else None
    if before is not None and before.app != app:
        raise _occupied_error(store, f"an unfinished store of app {before.app!r}, {before.what}")
    mark = MakingMark(app, what, os.urandom(8).hex())
    store.write(layout.MAKING, encode_checked(mark))
    for path in there:
        if path != layout.MAKING:
            store.delete(path)
    return mark


def finish_store(store: StoreFiles, mark: MakingMark, manifest: Manifest, *, clock: Clock = time.time) -> StoreRecord:
    """Publishes the first epoch, and then the record that makes all of it a store."""
    if not store.exists(layout.MAKING) or _read_mark(store).nonce != mark.nonce:
        raise _occupied_error(store, "another attempt, which was begun later")
    create_fence(store, read_owner(), FIRST_FENCE, locked=False, clock=clock)
    _end_fence(store)
    publish_manifest(store, manifest)
    crash.reach("store_made", manifest.epoch)
    record = StoreRecord(
        app=manifest.app, key_groups=manifest.key_groups, query=f'{{"id":"{uuid.uuid4()}"}}', timeline=manifest.timeline
    )
    store.create(layout.STORE_RECORD, msgspec.json.encode(record))
    store.delete(layout.MAKING)
    return record


def _end_fence(store: StoreFiles) -> None:
    """Nobody holds the fence any more: the next driver need not wait for it."""
    taken: dict[str, Any] = msgspec.json.decode(store.read(layout.fence(FIRST_FENCE)))
    store.write(layout.fence(FIRST_FENCE), msgspec.json.encode({**taken, "ended": True}))


def _read_mark(store: StoreFiles) -> MakingMark:
    try:
        return decode_checked(store.read(layout.MAKING), MakingMark)
    except msgspec.DecodeError as error:
        raise _occupied_error(store, f"a record of an unfinished store that cannot be read: {error}") from error


def _occupied_error(store: StoreFiles, found: str) -> StoreError:
    return StoreError(
        "there is something else where the new store is to be",
        where=store.url,
        expected="an empty folder, or what an interrupted attempt has left",
        found=found,
        next_move="give another folder or URL, or delete what is there",
    )
