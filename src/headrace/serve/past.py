"""Epochs of the past that a server answers from: opened when somebody asks for one, and a few of them kept open.

A moment is an epoch by its number, a savepoint by its name, or a time. What an epoch or a past time means stays the
same within a line of epochs and is remembered; a savepoint may be deleted and taken anew, so its record is read each
time.

Invariants
- At most `MOST_SNAPSHOTS` snapshots are held here, those asked for last; nobody else keeps one longer than a request.
- One is opened at a time, so that many requests for many epochs do not open them all at once.
- A snapshot is given only when every file of it could be opened: a sweep that was faster is an error, and none later.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.errors import MissingFile, NoSuchMoment
from headrace.read.snapshot import Snapshot
from headrace.state.lineage import read_places
from headrace.state.manifest import epoch_ranges, read_state
from headrace.state.moments import AtEpoch, AtSavepoint, AtTime, Moment, find_moment

if TYPE_CHECKING:
    from headrace.state.layout import ManifestName

MOST_SNAPSHOTS: Final = 4
_MOST_PLACES: Final = 1024
"""Moments whose epoch is remembered; two numbers each."""


class PastSnapshots:
    """The past of one served store. Used on the event loop; files are read beside it."""

    def __init__(self, newest: Callable[[], Snapshot | None]) -> None:
        """``newest``: the snapshot that answers of the present are made from."""
        self._newest = newest
        self._open: OrderedDict[tuple[int, ManifestName], Snapshot] = OrderedDict()
        """By the store in this place, timeline and epoch."""
        self._places: OrderedDict[tuple[object, Moment], ManifestName] = OrderedDict()
        self._turn = asyncio.Lock()

    def ready(self, moment: Moment) -> Snapshot | None:
        """The snapshot of a moment if nothing has to be read for it."""
        newest = self._newest()
        if newest is None:
            return None
        place = self._known_place(newest, moment)
        return None if place is None else self._known_snapshot(newest, place)

    async def at(self, moment: Moment) -> Snapshot:
        """The snapshot of a moment. NoSuchMoment where the store does not hold it, also before the first epoch."""
        newest = self._newest()
        if newest is None:
            raise NoSuchMoment("no epoch has been published yet", next_move="ask again when the job has run its first")
        place = self._known_place(newest, moment)
        if place is None:
            place = await asyncio.to_thread(find_moment, newest.files, moment)
        if _lasts(moment, newest):
            self._places[newest.line, moment] = place
            while len(self._places) > _MOST_PLACES:
                self._places.popitem(last=False)
        known = self._known_snapshot(newest, place)
        if known is not None:
            return known
        async with self._turn:
            known = self._known_snapshot(newest, place)
            if known is not None:
                return known
            found = await asyncio.to_thread(_open_snapshot, newest, place)
            self._open[newest.line[0], place] = found
            while len(self._open) > MOST_SNAPSHOTS:
                self._open.popitem(last=False)
            return found

    def _known_place(self, newest: Snapshot, moment: Moment) -> ManifestName | None:
        if isinstance(moment, AtEpoch) and moment.epoch == newest.epoch:
            return newest.place
        return self._places.get((newest.line, moment))

    def _known_snapshot(self, newest: Snapshot, place: ManifestName) -> Snapshot | None:
        if place == newest.place:
            return newest
        known = self._open.get((newest.line[0], place))
        if known is not None:
            self._open.move_to_end((newest.line[0], place))
        return known


def _lasts(moment: Moment, newest: Snapshot) -> bool:
    """Whether a moment means the same epoch for as long as this line of epochs goes on."""
    if isinstance(moment, AtSavepoint):
        return False
    return not isinstance(moment, AtTime) or moment.time_us < newest.published_us


def _open_snapshot(newest: Snapshot, place: ManifestName) -> Snapshot:
    try:
        return Snapshot(newest.files, newest.app, read_state(newest.files, *place), newest)
    except MissingFile as missing:
        kept = [each.epoch for each in read_places(newest.files)]
        raise NoSuchMoment(
            f"epoch {place.epoch} was swept a moment ago",
            where=newest.files.url,
            expected=f"one of {epoch_ranges(kept)}",
            found=missing.what,
            next_move="older epochs are swept; run with a larger `retain` to keep more of them, or take savepoints",
        ) from missing
