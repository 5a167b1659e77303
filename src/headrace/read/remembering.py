"""What a replica remembers on its own machine: the newest epoch it answered from, for a start without its store.

The files of that epoch lie in the folder of fetched files already; what is missing there is which files they are. So a
replica that is started again while its store cannot be reached answers as the one did that goes on running then: from
what it has, which grows older.

Invariants
- What is read back was written whole, of the same store; anything else is as if nothing had been remembered.
- Nothing depends on it: a replica whose store can be reached never looks at it, and a failure to write is no trouble.
"""

from __future__ import annotations

import logging
import zlib
from pathlib import Path
from typing import Final

import msgspec

from headrace.durable import write_whole
from headrace.state.manifest import JobState

log = logging.getLogger("headrace.serving")

_NAME: Final = "newest-epoch"
_CRC_BYTES: Final = 4


class Remembered(msgspec.Struct, frozen=True):
    """An epoch of a store, as its manifests told it."""

    url: str
    app: str
    store_id: str
    state: JobState


class Memory:
    """The one file of a folder in which a replica of one store remembers."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._path = folder / _NAME

    def read(self) -> Remembered | None:
        """What was remembered last; None where there is nothing that can be used."""
        try:
            data = self._path.read_bytes()
            crc, packed = int.from_bytes(data[:_CRC_BYTES]), data[_CRC_BYTES:]
            found = msgspec.msgpack.decode(packed, type=Remembered) if zlib.crc32(packed) == crc else None
        except (OSError, msgspec.DecodeError):
            return None
        return found if found is not None and found.url == self.url else None

    def write(self, app: str, store_id: str, state: JobState) -> None:
        """Remembers an epoch instead of the one before. Several processes may do so at once: each file is whole."""
        packed = msgspec.msgpack.encode(Remembered(self.url, app, store_id, state))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Not durable: after a crash of the machine an older epoch, or none, costs a start its store at most.
            pieces = [zlib.crc32(packed).to_bytes(_CRC_BYTES), packed]
            write_whole(self._path, pieces, durable=False, unique=True)
        except OSError as error:
            log.warning("the newest epoch is not remembered for a start without the store: %s", error)
