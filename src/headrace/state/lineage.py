"""Lineage: which epochs, of which timelines, lead to the present.

A timeline that a rewind began continues an epoch of an older one. What a reader sees as the job's past is that one up
to the epoch, and the new one from there on; what the rewind abandoned is not part of it, though it can be read as long
as a savepoint keeps it. So every epoch has one place in a lineage, and epochs of later places have greater numbers.

What this module deliberately does not do: decide where a rewind may go (`headrace.checkpoint.rewind`).
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from headrace.errors import StoreError
from headrace.state import layout
from headrace.state.manifest import list_epochs, read_seal
from headrace.state.record import StoreRecord, no_store, read_record
from headrace.state.store import StoreFiles

ENDLESS: Final = sys.maxsize


class TimelinePart(NamedTuple):
    """What a lineage has of one timeline: its epochs up to one, or all of them."""

    timeline: int
    last: int = ENDLESS

    def holds(self, place: layout.ManifestName) -> bool:
        return place.timeline == self.timeline and place.epoch <= self.last


Lineage = tuple[TimelinePart, ...]
"""Oldest first."""


def derive_lineage(record: StoreRecord, place: layout.ManifestName | None = None, *, output: str = "") -> Lineage:
    """What leads to a place, or to whatever is newest in the present timeline.

    ``output``: as its target has it. Where a rewind held it back, its rows up to the abandoned end count.

    >>> derive_lineage(StoreRecord("a", 8, ""), layout.ManifestName(0, 41))
    (TimelinePart(timeline=0, last=41),)
    """
    timeline, last = place or (record.timeline, ENDLESS)
    parts = [TimelinePart(timeline, last)]
    while (branch := record.branch(timeline)) is not None:
        before = TimelinePart(*(branch.shown if output in branch.held_outputs else branch.start))
        timeline = before.timeline
        parts.append(before)
    return tuple(reversed(parts))


def is_in(place: layout.ManifestName, lineage: Lineage) -> bool:
    """Whether an epoch is part of a lineage."""
    return any(part.holds(place) for part in lineage)


def list_places(store: StoreFiles, lineage: Lineage) -> list[layout.ManifestName]:
    """The epochs of a lineage whose manifests are kept, oldest first."""
    return [
        layout.ManifestName(part.timeline, epoch)
        for part in lineage
        for epoch in list_epochs(store, part.timeline)
        if epoch <= part.last
    ]


def read_places(store: StoreFiles) -> list[layout.ManifestName]:
    """The epochs that lead to the present, as far as they are kept, oldest first. StoreError where no store is."""
    record = read_record(store)
    if record is None:
        raise no_store(store.url)
    return list_places(store, derive_lineage(record))


def places_until(store: StoreFiles, place: layout.ManifestName) -> list[layout.ManifestName]:
    """The epochs that lead to a place, itself included, as far as they are kept, oldest first."""
    record = read_record(store)
    lineage = (TimelinePart(*place),) if record is None else derive_lineage(record, place)
    return list_places(store, lineage)


def published_places(store: StoreFiles) -> list[layout.ManifestName]:
    """The same, where there must be one: the last is the newest, or right behind a rewind the one it went back to."""
    places = read_places(store)
    if not places:
        raise StoreError(
            "no epoch has been published yet",
            where=store.url,
            next_move="wait for the job's first epoch, or look at what it says",
        )
    return places


def is_going_back(store: StoreFiles) -> bool:
    """Whether a rewind was begun, or a fork that takes outputs over, and nothing was published since: the first epoch
    belongs to it."""
    record = read_record(store)
    if record is None:
        return False
    epochs = list_epochs(store, record.timeline)
    if epochs and record.passing_at == layout.ManifestName(record.timeline, epochs[-1]):
        return True
    if not epochs:
        return record.branch(record.timeline) is not None
    return read_seal(store, record.timeline, epochs[-1] + 1) is not None
