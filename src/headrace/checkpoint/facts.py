"""What recovery looks at: read once at start, then decided upon without touching anything."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.errors import CorruptFile, MissingFile
from headrace.state import layout
from headrace.state.manifest import JobState, list_epochs, read_state
from headrace.state.store import Store

FORMAT = 1


class StoreRecord(msgspec.Struct, frozen=True):
    """Written once when a store is made."""

    app: str
    key_groups: int
    query: str
    """Text of Spark's ``metadata`` file; the same query id for the life of the store."""
    format: int = FORMAT
    timeline: int = 0


@dataclass(frozen=True)
class SparkFacts:
    """What Spark's own checkpoint folder says."""

    offsets: dict[int, str]
    """Epoch → text of its offsets entry, for the newest two."""
    committed: int | None
    """The newest epoch Spark was told is done."""

    @property
    def planned(self) -> int | None:
        """The newest epoch whose offsets Spark has fixed."""
        return max(self.offsets, default=None)


@dataclass(frozen=True)
class RecoveryFacts:
    record: StoreRecord | None
    state: JobState | None
    """The newest published state, or None before the first epoch."""
    previous_offsets: str | None
    """Offsets of the epoch before the newest, where its manifest is kept."""
    spark: SparkFacts


def read_facts(store: Store) -> RecoveryFacts:
    """Reads everything recovery needs to know."""
    record = _read_record(store)
    timeline = 0 if record is None else record.timeline
    epochs = list_epochs(store, timeline)
    state = read_state(store, timeline, epochs[-1]) if epochs else None
    previous = None
    if state is not None and state.epoch > 0 and state.epoch - 1 in epochs:
        previous = read_state(store, timeline, state.epoch - 1).manifest.offsets
    return RecoveryFacts(record, state, previous, _read_spark(store))


def _read_record(store: Store) -> StoreRecord | None:
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


def _read_spark(store: Store) -> SparkFacts:
    offsets = sorted(_entries(store, layout.spark_offsets()))
    commits = _entries(store, layout.spark_commits())
    texts = {epoch: store.read(layout.spark_offset(epoch)).decode() for epoch in offsets[-2:]}
    return SparkFacts(texts, max(commits, default=None))


def _entries(store: Store, folder: str) -> list[int]:
    names = (path.rsplit("/", 1)[-1] for path in store.list(folder))
    return [int(name) for name in names if name.isdigit()]
