"""The record of a store: whose store it is, and which of its timelines is the present one.

Written when the store is made, and again when a timeline begins: a rewind continues a past epoch, ``--fresh`` begins
from nothing.
"""

from __future__ import annotations

import uuid
from typing import Final, Literal

import msgspec

from headrace.errors import CorruptFile, MissingFile, MissingStore
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


class Passing(msgspec.Struct, frozen=True, kw_only=True):
    """Outputs that a fork takes over: it gives nothing out of them until it has read what the original had read."""

    outputs: tuple[str, ...]
    timeline: int
    epoch: int
    """The newest epoch of the original."""
    offsets: str
    """How far that had read."""
    marks: dict[str, dict[str, int]]
    """How far event time had come there: source → split → time."""


class ForkedFrom(msgspec.Struct, frozen=True, kw_only=True):
    """Which epoch of which store a fork began with. It has a store id of its own, and shares no files."""

    url: str
    """Where the original was then."""
    query: str
    """The id of the original, as in its record."""
    savepoint: str
    timeline: int
    epoch: int
    nonce: str
    """Of the epoch's manifest, the same in the fork."""
    asked: str
    """The savepoint, epoch or time, as it was asked for; empty: the newest epoch."""
    forked_us: int
    passing: Passing | None = None

    @property
    def place(self) -> layout.ManifestName:
        return layout.ManifestName(self.timeline, self.epoch)


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A rewind: a timeline that goes on behind a past epoch, instead of the line of epochs that was abandoned."""

    timeline: int
    from_timeline: int
    from_epoch: int
    """The newest epoch that stays; the first of the timeline follows it."""
    end_timeline: int
    end_epoch: int
    """The newest epoch that was abandoned."""
    outputs: dict[str, Literal["repeat", "hold"]] = {}
    """What becomes of rows that went out of the abandoned epochs; outputs of which none went out are left out."""
    shown_timeline: int
    shown_epoch: int
    """How far outputs that hold have gone out already. The newest abandoned epoch, unless that was a rewind's own
    beginning, of which nothing came out yet."""
    asked: str
    """The savepoint, epoch or time, as it was asked for."""
    at_us: int
    mark: str
    """Unique to this rewind."""

    @property
    def start(self) -> layout.ManifestName:
        return layout.ManifestName(self.from_timeline, self.from_epoch)

    @property
    def end(self) -> layout.ManifestName:
        return layout.ManifestName(self.end_timeline, self.end_epoch)

    @property
    def shown(self) -> layout.ManifestName:
        return layout.ManifestName(self.shown_timeline, self.shown_epoch)

    @property
    def held_outputs(self) -> frozenset[str]:
        """The outputs of which nothing goes out until the abandoned end is passed."""
        return frozenset(output for output, choice in self.outputs.items() if choice == "hold")


class StoreRecord(msgspec.Struct, frozen=True):
    """What a store says of itself."""

    app: str
    key_groups: int
    query: str
    """Text of Spark's ``metadata`` file; the same query id for the life of the store."""
    format: int = FORMAT
    timeline: int = 0
    copied_from: CopiedFrom | None = None
    """Of a copy (`headrace.state.copying`): it has the id of the original in ``query``, so only one may go on."""
    forked_from: ForkedFrom | None = None
    branches: tuple[Branch, ...] = ()
    """All rewinds since the store was made or started over, the oldest first."""

    def branch(self, timeline: int) -> Branch | None:
        """How a timeline began; None where it continues nothing."""
        return next((branch for branch in self.branches if branch.timeline == timeline), None)

    @property
    def passing_at(self) -> layout.ManifestName | None:
        """The epoch behind which a fork passes what its original had given out; None where it gives out everything."""
        forked = self.forked_from
        return None if forked is None or forked.passing is None else forked.place

    @property
    def store_id(self) -> str:
        """The id that Spark's query has in it, for the life of the store: what sinks know the job by."""
        return str(msgspec.json.decode(self.query)["id"])


def new_query() -> str:
    """Text of Spark's ``metadata`` file with a new id, by which sinks tell the store from all others."""
    return f'{{"id":"{uuid.uuid4()}"}}'


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


def no_store(path: str) -> MissingStore:
    return MissingStore(
        "there is no store here",
        where=path,
        expected=f"a folder with {layout.STORE_RECORD}, as a job makes it",
        next_move="give the folder that the job was started with (--store; by default .headrace/ and the app's name)",
    )
