"""The folder of an archive, as a reader sees it: which files there are, and what row groups of them hold.

Invariants
- Files of an archive never change while their timeline goes on; they appear whole, and go only when their rows lie in
  another file that appeared before. So what waits is always listed before what is visible: a file that moves in between
  is then seen twice, which readers of windows notice, and never not at all. From files of an abandoned timeline the
  rows behind its end are taken, which readers leave out anyway.
- A folder that cannot be reached, or is not the archive of this store, is an error and not an empty answer.

Memory is bounded: of files the rows that were asked for are held while they are, and some footers, and small files of
object stores, are kept for the next question.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import StoreError
from headrace.model.archive import EPOCH, HASH, MARKER
from headrace.model.part_names import HIDDEN, FolderClaim, parse_visible, parse_waiting

KEPT_BYTES: Final = 64 * 2**20
"""Of opened files, per process."""
KEPT_FILES: Final = 2048
_WHOLE_BYTES: Final = 16 * 2**20
"""Files of an object store up to this size are fetched at once."""
_SMALL_BYTES: Final = 2**20
"""Files up to this size are decoded once and not for each question."""
_GREATEST: Final = 2**63 - 1
_FOOTER_BYTES: Final = 4096
"""About what an opened file costs beside its bytes."""


class File(NamedTuple):
    """A file of the archive: rows of some epochs."""

    path: str
    """Relative to the archive."""
    size_bytes: int
    timeline: int
    first: int
    """The first of its epochs, and the last."""
    last: int


class LocalReading:
    """A file system with the archive in it. Raises FileNotFoundError for what is not there."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def files(self, folder: str) -> list[tuple[str, int]]:
        """Names and sizes of the files right in a folder."""
        found = []
        with os.scandir(self._root / folder) as entries:
            for entry in entries:
                if entry.is_file():
                    try:
                        found.append((entry.name, entry.stat().st_size))
                    except FileNotFoundError:
                        continue
        return found

    def folders(self, folder: str) -> list[str]:
        """Names of the folders right in a folder."""
        with os.scandir(self._root / folder) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def open(self, path: str, size_bytes: int) -> tuple[Any, int]:
        """What Parquet reads from, and how much memory that holds."""
        # Mapped: a file that is taken away meanwhile can still be read.
        return pa.memory_map(str(self._root / path)), 0


class RemoteReading:
    """The same over a file system of fsspec."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)

    def read(self, path: str) -> bytes:
        return bytes(self._fs.cat_file(f"{self._root}/{path}"))

    def files(self, folder: str) -> list[tuple[str, int]]:
        return [(name, size) for name, kind, size in self._list(folder) if kind == "file"]

    def folders(self, folder: str) -> list[str]:
        return [name for name, kind, _ in self._list(folder) if kind == "directory"]

    def _list(self, folder: str) -> list[tuple[str, str, int]]:
        self._fs.invalidate_cache()
        top = f"{self._root}/{folder}".rstrip("/")
        told = self._fs.ls(top, detail=True)
        return [(each["name"].rstrip("/").rpartition("/")[2], each["type"], int(each["size"] or 0)) for each in told]

    def open(self, path: str, size_bytes: int) -> tuple[Any, int]:
        full = f"{self._root}/{path}"
        if size_bytes > _WHOLE_BYTES:
            return self._fs.open(full, "rb"), 0
        data = self._fs.cat_file(full)
        return pa.BufferReader(data), len(data)


class OpenedFile:
    """A Parquet file whose footer has been read; of a small file the rows have been, too."""

    def __init__(self, source: Any, held_bytes: int) -> None:
        self._file = pq.ParquetFile(source)
        footer = self._file.metadata
        self._lock = threading.Lock()
        self._bounds = _bounds(footer)
        self._rows: pa.Table | None = None
        self.held_bytes = held_bytes + _FOOTER_BYTES + footer.serialized_size
        if sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)) <= _SMALL_BYTES:
            self._rows = self._file.read(use_threads=False)
            self.held_bytes += self._rows.nbytes

    def rows_until(self, epoch: int) -> pa.Table:
        """All rows that were there in this epoch."""
        rows = self._rows
        if rows is None:
            with self._lock:
                rows = self._file.read(use_threads=False)
        there = rows.column(EPOCH).to_numpy() <= epoch
        return rows if there.all() else rows.filter(pa.array(there))

    def rows_of(self, hash_: int, epoch: int) -> pa.Table | None:
        """Rows of keys with this hash that were there in this epoch; None where there is none."""
        groups = [number for number, (low, high) in enumerate(self._bounds) if low <= hash_ <= high]
        if not groups:
            return None
        rows = self._rows
        if rows is None:
            with self._lock:
                rows = self._file.read_row_groups(groups, use_threads=False)
        hashes = rows.column(HASH).to_numpy()
        start, end = np.searchsorted(hashes, [hash_, hash_ + 1]).tolist() if hash_ < _GREATEST else (0, len(hashes))
        found = rows.slice(start, end - start)
        if start == end:
            return None
        there = (found.column(EPOCH).to_numpy() <= epoch) & (found.column(HASH).to_numpy() == hash_)
        if there.all():
            return found
        return found.filter(pa.array(there)) if there.any() else None


def _bounds(footer: Any) -> list[tuple[int, int]]:
    """Least and greatest hash of each row group."""
    place = footer.schema.names.index(HASH)
    bounds = []
    for number in range(footer.num_row_groups):
        told = footer.row_group(number).column(place).statistics
        known = told is not None and told.has_min_max
        bounds.append((int(told.min), int(told.max)) if known else (-(2**63), 2**63 - 1))
    return bounds


class ArchiveFolder:
    """One archive, shared by all questions of a process."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._reading: LocalReading | RemoteReading | None = None
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, OpenedFile] = OrderedDict()
        self._held_bytes = 0
        self._owner: str | None = None

    def check(self, job: str) -> None:
        """Refuses a folder that cannot be reached, or is the archive of another store. ``job``: id of this one."""
        if self._owner is not None and self._owner == job:
            return
        try:
            found = msgspec.json.decode(self._ask(lambda reading: reading.read(MARKER)), type=FolderClaim)
        except FileNotFoundError:
            raise StoreError(
                "the archive is not where the job writes it",
                where=self.url,
                expected="the folder of the archive, as the job's machine has it",
                found=f"no {MARKER} in it" if self._is_there() else "no such folder",
                next_move="serve where the folder can be reached, or let the job archive to a URL: archive='s3://…'",
            ) from None
        except msgspec.DecodeError as error:
            raise self._trouble(error) from error
        if found.job and job and found.job != job:
            raise StoreError(
                "this is the archive of another store",
                where=self.url,
                expected=f"files of store {job}",
                found=f"files of store {found.job}",
                next_move="serve where the folder of this job's archive can be reached",
            )
        owner = found.job or None
        if self._owner != owner:
            # Made anew in its old place, an archive has other files under the names of the old ones.
            self._forget()
        self._owner = owner

    def ends(self) -> dict[str, int]:
        """Timelines that the store has abandoned → the newest epoch of each that is still here."""
        return msgspec.json.decode(self._ask(lambda reading: reading.read(MARKER)), type=FolderClaim).ends

    def _is_there(self) -> bool:
        try:
            self._ask(lambda reading: reading.folders(""))
        except FileNotFoundError:
            return False
        return True

    # --- what is there

    def buckets(self, output: str) -> set[str]:
        """Folders that hold files, or wait to."""
        return {*self._folders(f"{HIDDEN}/{output}"), *self._folders("")} - {HIDDEN}

    def files(self, output: str, bucket: str) -> list[File]:
        """The files of a folder; a file may be listed together with those that it was put together from."""
        waiting = []
        for name, size in self._files(f"{HIDDEN}/{output}/{bucket}"):
            held = parse_waiting(name)
            if held is not None:
                path = f"{HIDDEN}/{output}/{bucket}/{name}"
                waiting.append(File(path, size, held.timeline, held.epoch, held.epoch))
        visible = []
        for name, size in self._files(bucket):
            told = parse_visible(name)
            if told is not None:
                visible.append(File(f"{bucket}/{name}", size, told.timeline, told.first, told.last))
        return visible + waiting

    def _files(self, folder: str) -> list[tuple[str, int]]:
        try:
            found: list[tuple[str, int]] = self._ask(lambda reading: reading.files(folder))
        except FileNotFoundError:
            return []
        return found

    def _folders(self, folder: str) -> list[str]:
        try:
            found: list[str] = self._ask(lambda reading: reading.folders(folder))
        except FileNotFoundError:
            return []
        return found

    # --- what is in it

    def open(self, file: File) -> OpenedFile:
        """A file, kept for the next question. Raises FileNotFoundError where it has gone into another one."""
        # With its size: a file of an abandoned timeline that was cut is another one.
        return self.opened(
            f"{file.path}:{file.size_bytes}",
            lambda: OpenedFile(*self._ask(lambda reading: reading.open(file.path, file.size_bytes))),
        )

    def opened(self, name: str, make: Any) -> OpenedFile:
        """What was opened before under a name, or is now."""
        with self._lock:
            found = self._opened.get(name)
            if found is not None:
                self._opened.move_to_end(name)
                return found
        try:
            made: OpenedFile = make()
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise self._trouble(error) from error
        with self._lock:
            if self._opened.setdefault(name, made) is made:
                self._held_bytes += made.held_bytes
            while len(self._opened) > KEPT_FILES or self._held_bytes > KEPT_BYTES:
                _, gone = self._opened.popitem(last=False)
                self._held_bytes -= gone.held_bytes
        return made

    def _forget(self) -> None:
        with self._lock:
            self._opened.clear()
            self._held_bytes = 0

    def _ask(self, request: Any) -> Any:
        try:
            if self._reading is None:
                self._reading = RemoteReading(self.url) if "://" in self.url else LocalReading(self.url)
            return request(self._reading)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._trouble(error) from error

    def _trouble(self, error: Exception) -> StoreError:
        return StoreError(
            "the archive cannot be read",
            where=self.url,
            expected="a folder of Parquet files that this server may read",
            found=f"{type(error).__name__}: {error}",
            next_move="look whether the server reaches it and may read it; windows in state can still be asked for",
        )


@lru_cache(64)
def folder_of(url: str) -> ArchiveFolder:
    """One per archive and process."""
    return ArchiveFolder(url)
