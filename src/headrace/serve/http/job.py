"""A job as HTTP sees it: its newest snapshot, those of the past that are kept, and waiting for what is to come.

Waiting costs a request no queue: a client that waits or reads slowly holds no memory but its own connection.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from headrace.errors import MissingFile
from headrace.net.problems import Problem
from headrace.read.offsets import reaches
from headrace.read.snapshot import Snapshot
from headrace.read.store import Store, newest_manifests, store_over
from headrace.serve.service import Service
from headrace.state.manifest import Manifest, list_epochs, read_state

PAST_SNAPSHOTS: Final = 4
"""How many epochs of the past are kept open for ``?at=``."""
NEWEST_EPOCHS: Final = 1000
"""How many manifests one request may ask for."""

Version = tuple[int, int]
"""Timeline and epoch: a place in the history of a job; later places are greater."""


def name_of(snapshot: Snapshot) -> str:
    """Names the epoch beyond doubt: a store that was made anew counts epochs from the beginning."""
    return f"{snapshot.epoch}-{snapshot.state.manifest.nonce[:8]}"


class ServedJob:
    """One store that is followed and served."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._past: OrderedDict[tuple[object, int], Snapshot] = OrderedDict()
        """By line and epoch."""

    # --- the present

    @property
    def newest(self) -> Snapshot | None:
        return self.service.snapshot

    @property
    def lag_epochs(self) -> int:
        return self.service.lag_epochs

    def snapshot(self) -> Snapshot:
        """The newest snapshot; 503 while there is none."""
        newest = self.service.snapshot
        if newest is None:
            raise waiting(self.service)
        return newest

    def age_ms(self, snapshot: Snapshot) -> int:
        """How long ago the epoch was published, by this machine's clock."""
        return max(0, round(self.service.clock() * 1e3 - snapshot.published_us / 1e3))

    # --- the future

    async def newer_than(self, known: Snapshot, timeout_s: float) -> Snapshot | None:
        """The next snapshot after one; None when nothing came in time."""
        return await self.service.wait_for(lambda snapshot: snapshot is not known, timeout_s)

    async def reaching(
        self, wanted: Version, offsets: Mapping[str, Any], timeout_s: float, store: str = ""
    ) -> Snapshot | None:
        """The first snapshot at or after a version that has read so far; None when it did not come in time.

        ``store``: the id of the store that the version is of. Another one counts anew, so it is not waited for there.
        """

        def reached(snapshot: Snapshot) -> bool:
            elsewhere = store not in ("", snapshot.store_id)
            return (elsewhere or snapshot.version >= wanted) and all(
                reaches(snapshot.offsets.get(source, ""), offset) for source, offset in offsets.items()
            )

        return await self.service.wait_for(reached, timeout_s)

    # --- the past

    async def at(self, epoch: int) -> Snapshot:
        """A past epoch of the present timeline; 410 where it is not kept any more."""
        newest = self.snapshot()
        wanted = (newest.line, epoch)
        if epoch == newest.epoch:
            return newest
        known = self._past.get(wanted)
        if known is None:
            known = await asyncio.to_thread(_open, newest, epoch)
            self._past[wanted] = known
            while len(self._past) > PAST_SNAPSHOTS:
                self._past.popitem(last=False)
        return known

    async def find_seen(self, name: str) -> Snapshot | None:
        """The epoch that somebody says to have seen, if it is of this line of epochs and still kept."""
        epoch, mark, _ = name.partition("-")
        if int(epoch) > self.snapshot().epoch:
            return None
        try:
            past = await self.at(int(epoch))
        except Problem:
            return None
        return past if not mark or name_of(past) == name else None

    def manifests(self, limit: int) -> list[Manifest]:
        """Of the newest epochs, the newest first. Reads files: not for the loop."""
        return newest_manifests(store_over(self.snapshot().files, Store), min(limit, NEWEST_EPOCHS))[::-1]


def waiting(service: Service) -> Problem:
    return Problem(
        503,
        "no epoch has been published yet",
        found=service.trouble,
        next_move="ask again when the job has run its first epoch",
        headers={"Retry-After": "1"},
    )


def _open(newest: Snapshot, epoch: int) -> Snapshot:
    files, timeline = newest.files, newest.timeline
    try:
        return Snapshot(files, newest.app, read_state(files, timeline, epoch), newest)
    except MissingFile:
        kept = list_epochs(files, timeline)
    raise Problem(
        410 if not kept or epoch <= kept[-1] else 404,
        f"epoch {epoch} cannot be read",
        where=newest.app,
        expected=f"one of {kept[0]} to {kept[-1]}" if kept else "a published epoch",
        found=str(epoch),
        next_move="older epochs are swept; the job keeps more of them with a larger `retain`",
    )
