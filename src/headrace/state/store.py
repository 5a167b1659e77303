"""Where the files of a checkpoint live: the contract of a store, and the store on a local disk.

Invariants of every store:
- files are immutable once written, except the few that `StoreFiles.write` replaces whole (``tick.json``, ``lock``);
- a reader sees a file whole or not at all;
- when ``write`` or ``create`` returns, the content survives a crash of the machine;
- of several ``create`` calls for one path exactly one succeeds, on whatever machines they are made.

What a store deliberately does not do: know what its files mean, cache decoded content, or retry the caller's work.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeAlias
from urllib.parse import unquote, urlparse

import pyarrow as pa

from headrace.durable import link, make_folder, move, sync_file, sync_path, try_link
from headrace.errors import AlreadyExists, MissingFile, StoreError
from headrace.model import crash
from headrace.state import layout

Data: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

TEMPORARY_MAX_AGE_S: Final = 24 * 3600.0
_CREATE_FOLDER_ATTEMPTS: Final = 1_000
"""Each that fails is a folder removed in between. A writer and a sweep that meet in one may keep step for a while."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk, what the user may have of it, or what a file may."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})


class StoreFiles(Protocol):
    """What everything else asks of a store. Paths are those of :mod:`headrace.state.layout`.

    Methods may be called from any thread and from any number of processes and machines at once.
    """

    @property
    def url(self) -> str:
        """What :func:`open_store` needs to open the same store on another machine."""

    def read(self, path: str) -> bytes:
        """The whole content. Raises ``MissingFile``."""

    def write(self, path: str, data: Data | Iterable[Data]) -> None:
        """Writes or replaces, atomically and durably; pieces are written one after the other, never held together."""

    def create(self, path: str, data: Data) -> None:
        """Writes only if the name is free; otherwise raises ``AlreadyExists`` and changes nothing.

        Content must be unique to its writer (hold a nonce): after a lost answer a remote store tells its own success
        from somebody else's by reading back.
        """

    def list(self, prefix: str = "") -> list[str]:
        """Sorted paths of all files under a folder, however deep; an absent folder is empty."""

    def delete(self, path: str) -> None:
        """Deletes; an absent file is fine."""

    def exists(self, path: str) -> bool: ...

    def local_path(self, path: str) -> Path | None:
        """Where the file lies on this machine, whether or not it exists; ``None`` for a remote store."""

    def scratch(self) -> StoreFiles:
        """Where files go that other programs of this machine write by path, and that nobody needs after the run.

        A local store keeps them itself; a remote one has a folder on this machine for them.
        """

    def open_buffer(self, path: str, crc: int | None = None) -> pa.Buffer:
        """The content mapped into memory, fetched to this machine first if need be. Raises ``MissingFile``.

        ``crc``: the CRC-32 of the content; what is fetched and differs from it raises ``CorruptFile``. A file that need
        not be fetched is verified by its readers, part by part. The buffer stays valid after the file is deleted.
        """

    def forget(self, path: str) -> None:
        """Drops a fetched copy that turned out damaged; the file itself stays."""

    def tidy(self) -> None:
        """Removes what killed writers left half-written."""


class LocalStore:
    """A folder on a disk of this machine, or on a file system with hard links that machines share (NFS)."""

    def __init__(self, root: str | Path, *, durable: bool = True) -> None:
        """``durable=False`` leaves out every fsync: for tests and throw-away stores only."""
        self.root = Path(root).absolute()
        self._durable = durable
        make_folder(self.root / layout.TEMPORARY, durable=self._durable)

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    @property
    def url(self) -> str:
        return str(self.root)

    def read(self, path: str) -> bytes:
        try:
            return self._full(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise missing_file(self.url, path) from None

    def write(self, path: str, data: Data | Iterable[Data]) -> None:
        target = self._full(path)
        with self._failing(path), self._temporary(path, data) as temporary:
            self._into_folder(target, lambda: move(temporary, target))
            self._sync_folder(target.parent)

    def create(self, path: str, data: Data) -> None:
        target = self._full(path)
        with self._failing(path), self._temporary(path, data) as temporary:
            _reach("manifest_written", path)
            try:
                self._into_folder(target, lambda: link(temporary, target))
            except FileExistsError:
                # Over NFS an answer can be lost and the call repeated: the link count tells that it was ours.
                if os.stat(temporary).st_nlink != 2:
                    raise already_exists(self.url, path) from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise StoreError(
                    "this file system cannot create a file only if it is absent",
                    where=f"store {self.url}",
                    expected="hard links between files of the store",
                    found=f"{type(error).__name__}: {error}",
                    next_move="put the store on a local disk, NFS or an object store",
                ) from error
            self._sync_folder(target.parent)
        _reach("manifest_answer_lost", path)

    def is_beside(self, source: Path) -> bool:
        """Whether a file lies on the file system of this store, as far as can be seen."""
        try:
            return source.stat().st_dev == self.root.stat().st_dev
        except OSError:
            return False

    def link(self, path: str, source: Path) -> bool:
        """Gives a durable file that nobody changes a name in this store, too; False where that cannot be done here.

        The file goes when all its names are gone, so whoever has it under another one need not be asked.
        """
        target = self._full(path)
        linked = False

        def place() -> None:
            nonlocal linked
            linked = try_link(source, target)

        with self._failing(path):
            try:
                self._into_folder(target, place)
            except FileExistsError:
                return False
            if linked:
                self._sync_folder(target.parent)
        return linked

    def list(self, prefix: str = "") -> list[str]:
        top = self._full(prefix.rstrip("/")) if prefix.strip("/") else self.root
        found: list[str] = []
        for folder, _, names in os.walk(top):
            relative = os.path.relpath(folder, self.root)
            start = "" if relative == "." else relative + "/"
            if (start + "/").startswith(layout.TEMPORARY + "/"):
                continue
            found.extend(start + name for name in names)
        return sorted(found)

    def delete(self, path: str) -> None:
        target = self._full(path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            target.unlink()
        with contextlib.suppress(OSError):
            # Folders of swept epochs would pile up otherwise. A writer that loses this race makes the folder again.
            if target.parent != self.root:
                target.parent.rmdir()

    def exists(self, path: str) -> bool:
        return self._full(path).is_file()

    def local_path(self, path: str) -> Path | None:
        return self._full(path)

    def scratch(self) -> StoreFiles:
        return self

    def open_buffer(self, path: str, crc: int | None = None) -> pa.Buffer:
        try:
            return map_file(self._full(path))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise missing_file(self.url, path) from None

    def forget(self, path: str) -> None:
        """There is no copy: the file itself is what was read."""

    def tidy(self) -> None:
        self.clean_temporaries()

    def clean_temporaries(self, max_age_s: float = TEMPORARY_MAX_AGE_S, now_s: float | None = None) -> int:
        """Deletes what killed writers left half-written; answers how many files went."""
        limit = (time.time() if now_s is None else now_s) - max_age_s
        gone = 0
        for entry in os.scandir(self.root / layout.TEMPORARY):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < limit:
                    os.unlink(entry.path)
                    gone += 1
        return gone

    def _full(self, path: str) -> Path:
        check_path(path)
        return self.root / path

    @contextlib.contextmanager
    def _failing(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise request_failed(self.url, path, error) from error

    @contextlib.contextmanager
    def _temporary(self, path: str, data: Data | Iterable[Data]) -> Iterator[Path]:
        temporary = self.root / layout.TEMPORARY / os.urandom(12).hex()
        died = False
        try:
            with open(temporary, "xb") as file:
                _fill(file, path, data)
                file.flush()
                if self._durable:
                    sync_file(file.fileno())
            yield temporary
        except crash.Crash:
            # A death that a test plays has to leave behind what a real one does.
            died = True
            raise
        finally:
            if not died:
                with contextlib.suppress(FileNotFoundError):
                    temporary.unlink()

    def _into_folder(self, target: Path, place: _Place) -> None:
        """Runs ``place`` with the target's folder present, also while a sweep removes empty folders."""
        for attempt in range(_CREATE_FOLDER_ATTEMPTS):
            try:
                place()
                return
            except FileNotFoundError:
                if attempt == _CREATE_FOLDER_ATTEMPTS - 1:
                    raise
                make_folder(target.parent, durable=self._durable)

    def _sync_folder(self, folder: Path) -> None:
        if self._durable:
            sync_path(folder)


class _Place(Protocol):
    def __call__(self) -> None: ...


def open_store(url: str | Path, *, cache_dir: str | Path | None = None, durable: bool = True) -> StoreFiles:
    """A store by its address: a path or ``file://`` is local, anything else goes through fsspec."""
    text = str(url)
    parsed = urlparse(text)
    if parsed.scheme == "file":
        return LocalStore(unquote(parsed.path), durable=durable)
    if "://" not in text:
        return LocalStore(text, durable=durable)
    from headrace.state.remote import RemoteStore

    return RemoteStore(text, cache_dir=cache_dir)


def pieces_of(data: Data | Iterable[Data]) -> Iterable[Data]:
    return (data,) if isinstance(data, bytes | bytearray | memoryview | pa.Buffer) else data


def map_file(path: Path) -> pa.Buffer:
    """A file's content without reading it; pages come as they are touched."""
    if path.stat().st_size == 0:
        # An empty file cannot be mapped.
        return pa.py_buffer(b"")
    with pa.memory_map(str(path), "r") as mapped:
        return mapped.read_buffer()


def check_path(path: str) -> None:
    """Refuses what could leave the store; paths come from manifests, which are data."""
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
        raise StoreError(
            "invalid path in a store", expected="segments with single slashes between them", found=repr(path)
        )


def _fill(file: BinaryIO, path: str, data: Data | Iterable[Data]) -> None:
    run = layout.parse_run(path) if crash.armed() else None
    if run is None:
        for piece in pieces_of(data):
            file.write(piece)
        return
    # Crashes are planned, so the run is cut in the middle; its first half has to be in the file, not in our buffer.
    whole = memoryview(b"".join(pieces_of(data)))
    file.write(whole[: len(whole) // 2])
    file.flush()
    crash.reach("delta_half_written", run.epoch)
    file.write(whole[len(whole) // 2 :])


def _reach(point: str, path: str) -> None:
    name = layout.parse_manifest(path)
    if name is not None:
        crash.reach(point, name.epoch)


def missing_file(url: str, path: str) -> MissingFile:
    return MissingFile(
        f"the file {path} is not there",
        where=f"store {url}",
        expected="every file that a kept manifest names",
        found="no such file",
        next_move="a reader that lags behind starts again from the newest manifest; "
        "if that one names the file too, restore it from a copy of the store",
    )


def request_failed(url: str, path: str, error: Exception) -> StoreError:
    if isinstance(error, OSError) and error.errno in _FULL:
        return StoreError(
            f"there is no room for {path}",
            where=f"store {url}",
            expected="a disk with room for the state, a copy of it while it is folded, and staged rows",
            found=f"{type(error).__name__}: {error}",
            next_move="make room and start again: nothing is lost, the job goes on behind its last published epoch",
        )
    return StoreError(
        f"the store did not do what was asked with {path}",
        where=f"store {url}",
        found=f"{type(error).__name__}: {error}",
        next_move="check free space, permissions, credentials and the network, then start again: nothing is lost",
    )


def already_exists(url: str, path: str) -> AlreadyExists:
    return AlreadyExists(
        f"{path} exists already",
        where=f"store {url}",
        expected="a free name",
        found="a file that another driver created first",
        next_move="read it: its writer decides what this epoch is",
    )
