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
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import fsspec
import pyarrow as pa
import xxhash
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from headrace.errors import AlreadyExists, MissingFile, StoreError
from headrace.state import layout
from headrace.state.cache import FileCache
from headrace.state.store import Data, already_exists, check_path, map_file, missing_file, pieces_of, request_failed

CACHE_BYTES: Final = 32 * 2**30
CREATE_ATTEMPTS: Final = 3

T = TypeVar("T")


class RemoteStore:
    """A store at an fsspec address. ``fs`` and ``root`` may be given instead of letting the address decide."""

    def __init__(
        self,
        url: str,
        *,
        cache_dir: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        fs: AbstractFileSystem | None = None,
        root: str = "",
    ) -> None:
        self._url = url.rstrip("/")
        if fs is None:
            # A listing that is remembered would hide what other machines write.
            fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        self._fs = fs
        self._root = root.rstrip("/")
        self._cache = FileCache(Path(cache_dir) if cache_dir else _cache_folder(self._url), cache_bytes)
        self._links = isinstance(_innermost(fs), LocalFileSystem)
        self._proved = False

    def __repr__(self) -> str:
        return f"RemoteStore({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    def read(self, path: str) -> bytes:
        return bytes(self._ask(path, lambda: self._fs.cat_file(self._full(path))))

    def write(self, path: str, data: Data | Iterable[Data]) -> None:
        """Content goes to the cache folder first where it is a run or comes in pieces, then up in one request."""
        if layout.parse_run(path) is None and isinstance(data, bytes | bytearray | memoryview | pa.Buffer):
            self._ask(path, lambda: self._put_bytes(self._full(path), bytes(data)))
            return

        def make(local: Path) -> None:
            with open(local, "wb") as file:
                for piece in pieces_of(data):
                    file.write(piece)
            self._ask(path, lambda: self._put_file(local, self._full(path)))

        self._cache.drop(path)
        self._cache.get(path, make)

    def create(self, path: str, data: Data) -> None:
        if not self._proved:
            self._prove()
            self._proved = True
        self._create(path, bytes(data))

    def list(self, prefix: str = "") -> list[str]:
        top = self._full(prefix.strip("/")) if prefix.strip("/") else self._root
        self._fs.invalidate_cache()
        try:
            names = self._fs.find(top)
        except FileNotFoundError:
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
        return bool(self._ask(path, lambda: self._fs.isfile(self._full(path))))

    def local_path(self, path: str) -> Path | None:
        check_path(path)
        return None

    def open_buffer(self, path: str) -> pa.Buffer:
        full = self._full(path)

        def fetch(local: Path) -> None:
            self._ask(path, lambda: self._fs.get_file(full, str(local)))

        with contextlib.suppress(FileNotFoundError):
            return map_file(self._cache.get(path, fetch))
        # Another process evicted the copy between fetching and mapping.
        return map_file(self._cache.get(path, fetch))

    def forget(self, path: str) -> None:
        self._cache.drop(path)

    def tidy(self) -> None:
        """Half-sent files are the business of the object store: give the bucket a rule that ends old uploads."""

    def _create(self, path: str, data: bytes) -> None:
        for attempt in range(CREATE_ATTEMPTS):
            try:
                self._create_once(self._full(path), data)
                return
            except Exception as error:
                # Whatever was said or not said, what counts is what is there now: the answer to a success may have
                # been lost, and a client that repeats a request by itself meets its own file.
                found = self._read_or_none(path)
                if found == data:
                    return
                if found is not None:
                    raise already_exists(self.url, path) from error
                if attempt == CREATE_ATTEMPTS - 1:
                    raise request_failed(self.url, path, error) from error

    def _create_once(self, full: str, data: bytes) -> None:
        if not self._links:
            self._fs.pipe_file(full, data, mode="create")
            return
        temporary = self._temporary()
        self._put_bytes(temporary, data)
        try:
            self._fs.makedirs(full.rpartition("/")[0], exist_ok=True)
            os.link(self._real(temporary), self._real(full))
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
        os.replace(self._real(temporary), self._real(full))

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
        except FileNotFoundError:
            raise missing_file(self.url, path) from None
        except StoreError:
            raise
        except OSError as error:
            raise request_failed(self.url, path, error) from error


def _innermost(fs: AbstractFileSystem) -> Any:
    while isinstance(fs, DirFileSystem):
        fs = fs.fs
    return fs


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


def _cache_folder(url: str) -> Path:
    return Path(tempfile.gettempdir()) / f"headrace-cache-{os.getuid()}" / xxhash.xxh64_hexdigest(url.encode())


def _cannot_create(url: str, found: str) -> StoreError:
    return StoreError(
        "this file system cannot create a file only if it is absent",
        where=f"store {url}",
        expected="a second create of one name that fails: it is what keeps two drivers apart",
        found=found,
        next_move="use an object store with conditional writes, or a folder on a local disk or NFS",
    )
