"""The epochs of a range, kept for as long as they are run again.

A job that runs meanwhile sweeps what its `retain` no longer covers, and tells its sources what may go. So every epoch
of the range, and the one before it, has a savepoint of its own until it has been run; sweeps and sources respect those.
They have names that the same command would give again: what a process that died has left, the next attempt takes over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from headrace.errors import NoSuchMoment
from headrace.state.layout import ManifestName
from headrace.state.savepoints import create_savepoint, delete_savepoint
from headrace.state.store import StoreFiles


class PinnedRange:
    """Epochs, each of which can be let go."""

    def __init__(self, store: StoreFiles, name: str) -> None:
        self._store = store
        self._name = name
        self._pins: dict[ManifestName, str] = {}

    def pin(self, place: ManifestName, note: str) -> None:
        self._pins[place] = name = f"{self._name}-{place.timeline}-{place.epoch}"
        create_savepoint(self._store, name=name, note=note, place=place)

    def release(self, place: ManifestName) -> None:
        """Nothing that comes later needs this epoch."""
        pin = self._pins.pop(place, None)
        if pin is not None:
            # Somebody may have deleted it.
            with suppress(NoSuchMoment):
                delete_savepoint(self._store, pin)

    def release_all(self) -> None:
        for place in list(self._pins):
            self.release(place)


@contextmanager
def pinned_range(store: StoreFiles, places: Sequence[ManifestName], name: str, note: str) -> Iterator[PinnedRange]:
    """Pins epochs; lets go of what is left of them at the end, unless the process dies."""
    pinned = PinnedRange(store, name)
    try:
        for place in places:
            pinned.pin(place, note)
        yield pinned
    finally:
        pinned.release_all()
