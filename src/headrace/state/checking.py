"""Reading files of a state whole, against the checksums in its manifest.

Tasks and readers verify what they touch, batch by batch. Here every byte is read: before a copy is made of it, and when
a person asks whether all of it is well. Memory is bounded by a piece for each of a few threads.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from headrace.errors import CorruptFile, MissingFile
from headrace.state.manifest import JobState
from headrace.state.savepoints import StoredFile, stored_files
from headrace.state.store import StoreFiles

PIECE_BYTES: Final = 8 * 2**20
THREADS: Final = 4
"""How many files are read at once: disks and object stores are faster so, and checksums leave Python alone."""

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with how many bytes are done, and of how many."""


class Damage(NamedTuple):
    """A file that is not what was written."""

    path: str
    what: str


class Verification(NamedTuple):
    """What reading all files of a state came to."""

    files: int
    size_bytes: int
    damages: tuple[Damage, ...]


class Bytes:
    """Counts bytes from several threads for somebody who looks on."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0
        self._one = threading.Lock()
        self.add(0)

    def add(self, count: int) -> None:
        with self._one:
            self._done += count
            if self._progress is not None:
                self._progress(self._done, max(self._total, self._done))


def verify_state(store: StoreFiles, state: JobState, progress: Progress | None = None) -> Verification:
    """Reads every file of a state; what is missing or damaged is listed, and the others are read all the same."""
    files = stored_files(state)
    total = sum(file.size_bytes for file in files)
    done = Bytes(total, progress)

    def verify(file: StoredFile) -> Damage | None:
        # What was fetched once says nothing of what lies in the store now.
        store.forget(file.path)
        try:
            for _ in read_pieces(store, file, done.add):
                pass
        except (MissingFile, CorruptFile) as error:
            return Damage(file.path, f"{error.what}, found {error.found}")
        return None

    damages = [damage for damage in side_by_side(verify, files) if damage is not None]
    return Verification(len(files), total, tuple(damages))


def read_pieces(store: StoreFiles, file: StoredFile, tell: Callable[[int], None]) -> Iterator[memoryview]:
    """The content of a file, piece by piece, each told by its length. Raises MissingFile, at the end CorruptFile."""
    data = memoryview(store.open_buffer(file.path, file.crc))
    crc = 0
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        crc = zlib.crc32(piece, crc)
        yield piece
        tell(len(piece))
    if file.crc is not None and crc != file.crc:
        raise CorruptFile(
            "a file of the state is damaged",
            where=f"{store.url}/{file.path}",
            expected=f"{file.size_bytes:,} bytes with the checksum {file.crc:#010x}",
            found=f"{len(data):,} bytes with {crc:#010x}",
            next_move="restore the file from a copy of the store: any copy will do, as files never change",
        )


def side_by_side(work: Callable[[StoredFile], T], files: Sequence[StoredFile]) -> list[T]:
    """The results of work on several files at once. The first error ends it; what is begun is finished."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="headrace-files") as pool:
        try:
            return list(pool.map(work, files))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
