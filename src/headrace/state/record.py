"""The record of a store: written once when the store is made, it says whose store it is."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.errors import CorruptFile, MissingFile, StoreError
from headrace.state import layout
from headrace.state.store import StoreFiles

FORMAT: Final = 1


class CopiedFrom(msgspec.Struct, frozen=True, kw_only=True):
    """Which savepoint of which store a copy was made of."""

    url: str
    """Where the original was then."""
    savepoint: str
    timeline: int
    epoch: int
    nonce: str
    """Of the epoch's manifest, the same in the copy."""
    copied_us: int
    """When the copy was begun, by the clock of whoever made it."""


class StoreRecord(msgspec.Struct, frozen=True):
    """Written once when a store is made."""

    app: str
    key_groups: int
    query: str
    """Text of Spark's ``metadata`` file; the same query id for the life of the store."""
    format: int = FORMAT
    timeline: int = 0
    copied_from: CopiedFrom | None = None
    """Of a copy (`headrace.state.copying`): it has the id of the original in ``query``, so only one may go on."""


def read_record(store: StoreFiles) -> StoreRecord | None:
    """The record of a store, or None where nothing was ever started."""
    try:
        data = store.read(layout.STORE_RECORD)
    except MissingFile:
        return None
    try:
        return msgspec.json.decode(data, type=StoreRecord)
    except msgspec.DecodeError as error:
        raise CorruptFile(
            "the record of the store cannot be read",
            where=f"{store.url}/{layout.STORE_RECORD}",
            found=str(error),
            next_move="restore the file from a copy of the store",
        ) from error


def read_timeline(store: StoreFiles) -> int:
    """The present line of epochs. Raises StoreError where there is no store."""
    record = read_record(store)
    if record is None:
        raise no_store(store.url)
    return record.timeline


def no_store(path: str) -> StoreError:
    return StoreError(
        "there is no store here",
        where=path,
        expected=f"a folder with {layout.STORE_RECORD}, as a job makes it",
        next_move="give the folder that the job was started with (--store; by default .headrace/ and the app's name)",
    )
