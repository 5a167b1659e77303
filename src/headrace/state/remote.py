"""A store behind fsspec: an object store, or any file system that can create a file only if it is absent.

Reading goes through a cache folder of this machine, by name, as files never change. Runs written here are put into the
cache as well, since the next epoch will read them.

Invariant: ``create`` is the one call that excludes; it is tried out before its first use, and an answer that got lost
is settled by reading back. A file system that only pretends (looks first, then writes) is refused.

What this module deliberately does not do: retry transient failures of single requests, which clients do themselves.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import fsspec
import pyarrow as pa
import xxhash
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from headrace.durable import link, move
from headrace.errors import AlreadyExists, CorruptFile, MissingFile, SettingsError, StoreError
from headrace.model import crash
from headrace.state import layout
from headrace.state.cache import FileCache
from headrace.state.remote_errors import (
    cache_failed,
    is_disk_full,
    is_explained,
    missing_package,
    no_bucket,
    store_failed,
)
from headrace.state.store import Data, LocalStore, StoreFiles, already_exists, check_path, map_file, pieces_of

CREATE_ATTEMPTS: Final = 3
FETCH_ATTEMPTS: Final = 2

T = TypeVar("T")


class RemoteStore:
    """A store at an fsspec address. ``fs`` and ``root`` may be given instead of letting the address decide.

    ``cache_dir`` is a folder of this machine for fetched files; other stores must not use the same.
    """

    def __init__(
        self,
        url: str,
        *,
        cache_dir: str | Path | None = None,
        cache_bytes: int | None = None,
        fs: AbstractFileSystem | None = None,
        root: str = "",
    ) -> None:
        self._url = url.rstrip("/")
        if fs is None:
            fs, root = _open_file_system(url)
        self._fs = fs
        self._root = root.rstrip("/")
        self._folder = Path(cache_dir) if cache_dir else cache_folder(self._url)
        limit = cache_limit_bytes(self._folder) if cache_bytes is None else cache_bytes
        self._cache = FileCache(self._folder / "files", limit)
        self._links = isinstance(_innermost(fs), LocalFileSystem)
        self._whole = _in_one_request(_innermost(fs))
        self._proved = False
        self._scratch: LocalStore | None = None

    def __repr__(self) -> str:
        return f"RemoteStore({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    def read(self, path: str) -> bytes:
        return bytes(self._ask(path, lambda: self._fs.cat_file(self._full(path), **self._whole)))

    def write(self, path: str, data: Data | Iterable[Data]) -> None:
        """Content goes to the cache folder first where it is a run or comes in pieces, then up in one request."""
        run = layout.parse_run(path)
        if run is None and isinstance(data, bytes | bytearray | memoryview | pa.Buffer):
            self._ask(path, lambda: self._put_bytes(self._full(path), bytes(data)))
            return

        def make(local: Path) -> None:
            with open(local, "wb") as file:
                for piece in pieces_of(data):
                    file.write(piece)
            if run is not None:
                crash.reach("delta_half_written", run.epoch)
            self._ask(path, lambda: self._put_file(local, self._full(path)))

        self._cache.drop(path)
        with self._caching():
            self._cache.put(path, make)

    def create(self, path: str, data: Data) -> None:
        if not self._proved:
            self._prove()
            self._proved = True
        name = layout.parse_manifest(path)
        if name is not None:
            crash.reach("manifest_written", name.epoch)
        self._create(path, bytes(data))
        if name is not None:
            crash.reach("manifest_answer_lost", name.epoch)

    def list(self, prefix: str = "") -> list[str]:
        top = self._full(prefix.strip("/")) if prefix.strip("/") else self._root
        self._fs.invalidate_cache()
        try:
            names = self._ask(prefix.strip("/") or layout.STORE_RECORD, lambda: self._fs.find(top))
        except MissingFile:
            return []
        start = len(self._root.strip("/"))
        paths = [str(name).strip("/")[start:].strip("/") for name in names]
        return sorted(path for path in paths if not path.startswith(layout.TEMPORARY + "/"))

    def delete(self, path: str) -> None:
        with contextlib.suppress(MissingFile):
            self._ask(path, lambda: self._fs.rm_file(self._full(path)))
        self._cache.drop(path)

    def exists(self, path: str) -> bool:
        self._fs.invalidate_cache()
        try:
            # Not `isfile`, which answers no to everything that goes wrong.
            return bool(self._ask(path, lambda: self._fs.info(self._full(path)))["type"] == "file")
        except MissingFile:
            return False

    def local_path(self, path: str) -> Path | None:
        check_path(path)
        return None

    def scratch(self) -> StoreFiles:
        if self._scratch is None:
            self._scratch = LocalStore(self._folder / "scratch", durable=False)
        return self._scratch

    def open_buffer(self, path: str, crc: int | None = None) -> pa.Buffer:
        check_path(path)
        with self._caching():
            return self._cache.open(path, lambda local: self._fetch(path, local, crc))

    def forget(self, path: str) -> None:
        self._cache.drop(path)

    def tidy(self) -> None:
        """Half-sent files are the business of the object store: give the bucket a rule that ends old uploads."""

    def _fetch(self, path: str, local: Path, crc: int | None) -> None:
        """A file as it was when it was written: its checksum is compared before anybody sees the copy."""
        found = 0
        for _ in range(FETCH_ATTEMPTS):
            self._ask(path, lambda: self._fs.get_file(self._full(path), str(local)))
            found = 0 if crc is None else zlib.crc32(map_file(local))
            if crc is None or found == crc:
                return
        raise CorruptFile(
            "a file of the store is damaged",
            where=f"{self.url}/{path}",
            expected=f"content with the checksum {crc:#010x}",
            found=f"{found:#010x}, each of {FETCH_ATTEMPTS} times it was fetched",
            next_move="restore the file from a copy of the store: any copy will do, as files never change",
        )

    def _create(self, path: str, data: bytes) -> None:
        for attempt in range(CREATE_ATTEMPTS):
            try:
                self._create_once(self._full(path), data)
                return
            except Exception as error:
                # Whatever was said or not said, what counts is what is there now: the answer to a success may have
                # been lost, and a client that repeats a request by itself meets its own file.
                failed = store_failed(self.url, path, error)
                if isinstance(error, PermissionError) or no_bucket(error):
                    raise failed from None
                found = self._read_or_none(path)
                if found == data:
                    return
                if found is not None:
                    raise already_exists(self.url, path) from None
                if attempt == CREATE_ATTEMPTS - 1:
                    raise failed from (None if is_explained(failed) else error)

    def _create_once(self, full: str, data: bytes) -> None:
        if not self._links:
            self._fs.pipe_file(full, data, mode="create")
            return
        temporary = self._temporary()
        self._put_bytes(temporary, data)
        try:
            self._fs.makedirs(full.rpartition("/")[0], exist_ok=True)
            link(self._real(temporary), self._real(full))
        finally:
            self._fs.rm_file(temporary)

    def _prove(self) -> None:
        """Creates a file twice: the second time must fail."""
        if not self._links and not _creates_by_itself(_innermost(self._fs)):
            raise _cannot_create(self.url, f"{type(_innermost(self._fs)).__name__} looks first and then writes")
        path = layout.probe(os.urandom(8).hex())
        self._create(path, b"first")
        try:
            self._create(path, b"second")
        except AlreadyExists:
            return
        finally:
            self.delete(path)
        raise _cannot_create(self.url, "a second file under the same name was accepted")

    def _read_or_none(self, path: str) -> bytes | None:
        try:
            return self.read(path)
        except MissingFile:
            return None

    def _put_bytes(self, full: str, data: bytes) -> None:
        if self._links:
            with tempfile.NamedTemporaryFile() as local:
                local.write(data)
                local.flush()
                self._put_file(Path(local.name), full)
        else:
            self._fs.pipe_file(full, data)

    def _put_file(self, local: Path, full: str) -> None:
        if not self._links:
            self._fs.put_file(str(local), full)
            return
        # On a file system a copy grows before the reader's eyes; a rename does not.
        temporary = self._temporary()
        for folder in {temporary.rpartition("/")[0], full.rpartition("/")[0]}:
            self._fs.makedirs(folder, exist_ok=True)
        self._fs.put_file(str(local), temporary)
        move(self._real(temporary), self._real(full))

    def _temporary(self) -> str:
        return self._full(f"{layout.TEMPORARY}/{os.urandom(8).hex()}")

    def _real(self, full: str) -> str:
        """Where a file of a local file system lies, also behind a folder file system."""
        fs = self._fs
        while isinstance(fs, DirFileSystem):
            full, fs = fs._join(full), fs.fs
        return str(fs._strip_protocol(full))

    def _full(self, path: str) -> str:
        check_path(path)
        return f"{self._root}/{path}" if self._root else path

    def _ask(self, path: str, request: Callable[[], T]) -> T:
        check_path(path)
        try:
            return request()
        except StoreError:
            raise
        except Exception as error:
            if is_disk_full(error) and not self._links:
                raise
            failed = store_failed(self.url, path, error)
            raise failed from (None if is_explained(failed) else error)

    @contextlib.contextmanager
    def _caching(self) -> Iterator[None]:
        """What is left over of errors in here is about the folder of this machine."""
        try:
            yield
        except OSError as error:
            raise cache_failed(self._cache.folder, error) from error


def _open_file_system(url: str) -> tuple[AbstractFileSystem, str]:
    try:
        # A listing that is remembered would hide what other machines write.
        fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise missing_package(url, error) from None
    except Exception as error:
        failed = store_failed(url, layout.STORE_RECORD, error)
        raise failed from (None if is_explained(failed) else error)
    return fs, root


def _innermost(fs: AbstractFileSystem) -> Any:
    while isinstance(fs, DirFileSystem):
        fs = fs.fs
    return fs


def _in_one_request(fs: AbstractFileSystem) -> dict[str, Any]:
    """How to read a small file: clients that could fetch its parts side by side would ask for its size first."""
    cat = type(fs)._cat_file if isinstance(fs, AsyncFileSystem) else type(fs).cat_file
    return {"max_concurrency": 1} if "max_concurrency" in inspect.signature(cat).parameters else {}


def _creates_by_itself(fs: AbstractFileSystem) -> bool:
    """Whether the file system has its own create-if-absent; fsspec's own fallback looks first, then writes."""
    kind = type(fs)
    if isinstance(fs, AsyncFileSystem):
        put = kind._pipe_file
        own = put is not AsyncFileSystem._pipe_file
    else:
        put = kind.pipe_file
        own = put is not AbstractFileSystem.pipe_file
    return own and "mode" in inspect.signature(put).parameters


def _cannot_create(url: str, found: str) -> StoreError:
    return StoreError(
        "this file system cannot create a file only if it is absent",
        where=f"store {url}",
        expected="the second create of a name to fail, which keeps two drivers apart",
        found=found,
        next_move="use an object store with conditional writes, or a folder on a local disk or NFS",
    )


# --- where a machine keeps fetched files of remote stores, and how many
# ``HEADRACE_CACHE_DIR`` names the folder (by default one in the folder for temporary files, readable by its user only)
# and ``HEADRACE_CACHE_GB`` the limit per store. They come from the environment because every process that opens a store
# needs them, the driver, the workers and readers, and each machine may have its own.


FOLDER: Final = "HEADRACE_CACHE_DIR"
LIMIT: Final = "HEADRACE_CACHE_GB"
CACHE_BYTES: Final = 32 * 2**30
"""At most, and never more than half of the disk: folders for temporary files often are small, or in memory."""


def cache_folder(url: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder for the files of one store, made where it is not there."""
    named = environment.get(FOLDER)
    base = Path(named) if named else Path(tempfile.gettempdir()) / f"headrace-cache-{os.getuid()}"
    folder = base / xxhash.xxh64_hexdigest(url.encode())
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        owner = base.stat().st_uid
    except OSError as error:
        raise _unusable(base, f"{type(error).__name__}: {error}") from error
    if not named and owner != os.getuid():
        # Whoever made it first could put files there for us to read.
        raise _unusable(base, f"a folder of user {owner}")
    return folder


def cache_limit_bytes(folder: Path, environment: Mapping[str, str] = os.environ) -> int:
    """How large the cache of one store may grow."""
    text = environment.get(LIMIT)
    if not text:
        folder.mkdir(parents=True, exist_ok=True)
        return min(CACHE_BYTES, shutil.disk_usage(folder).total // 2)
    try:
        limit = int(float(text) * 1e9)
    except ValueError:
        limit = -1
    if limit < 0:
        raise SettingsError(
            "the size of the cache has the wrong form",
            where=f"the environment ({LIMIT})",
            expected="gigabytes, as 20 or 0.5",
            found=repr(text),
            next_move="write a number alone, without a unit, or unset it",
        )
    return limit


def _unusable(folder: Path, found: str) -> StoreError:
    return StoreError(
        "the cache for files of a remote store cannot be used",
        where=str(folder),
        expected="a folder of our own that can be written to",
        found=found,
        next_move=f"name another folder: {FOLDER}=…",
    )
