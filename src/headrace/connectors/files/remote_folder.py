"""A folder in an object store, or another file system that fsspec knows: files appear by one put.

Object stores make an object visible whole, and answer when it is durable.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from headrace.connectors.files.folder import FolderFile, failed, name_conflict
from headrace.errors import SinkFailed

T = TypeVar("T")


class RemoteFolder:
    """An object store or another file system that fsspec knows, named by a URL."""

    def __init__(self, url: str) -> None:
        self.where = url
        self._opened: tuple[Any, str] | None = None

    @property
    def _fs(self) -> tuple[Any, str]:
        if self._opened is None:
            import fsspec

            try:
                # A listing that is remembered would hide what others write.
                self._opened = fsspec.core.url_to_fs(self.where, use_listings_cache=False)
            except (ImportError, ValueError) as error:
                raise SinkFailed(
                    f"cannot open {self.where}",
                    where=f"sink.files({self.where!r})",
                    found=str(error),
                    next_move="install the fsspec package for this kind of URL",
                ) from error
        return self._opened

    def prepare(self) -> None:
        fs, root = self._fs
        try:
            fs.makedirs(root, exist_ok=True)
        except Exception as error:
            raise failed(self.where, error) from error

    def put(self, name: str, data: pa.Buffer, staged: Path | None) -> None:
        fs, root = self._fs
        target = f"{root}/{name}"
        try:
            if fs.exists(target):
                if fs.size(target) != data.size or not data.equals(pa.py_buffer(fs.cat_file(target))):
                    raise name_conflict(self.where, name)
                return
            fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            fs.pipe_file(target, data.to_pybytes())
        except SinkFailed:
            raise
        except Exception as error:
            raise failed(self.where, error) from error

    @contextmanager
    def making(self) -> Iterator[Path]:
        with tempfile.NamedTemporaryFile(prefix="headrace-") as file:
            yield Path(file.name)

    def publish(self, made: Path, name: str) -> None:
        fs, root = self._fs
        target = f"{root}/{name}"

        def put() -> None:
            if not fs.exists(target):
                fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                fs.put_file(str(made), target)

        self._ask(put)

    def swap(self, made: Path, name: str) -> None:
        fs, root = self._fs
        self._ask(lambda: fs.put_file(str(made), f"{root}/{name}"))

    def copy(self, source: str, name: str) -> None:
        fs, root = self._fs

        def copied() -> None:
            if not fs.exists(f"{root}/{name}"):
                fs.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
                fs.cp_file(f"{root}/{source}", f"{root}/{name}")

        self._ask(copied)

    def create(self, name: str, data: bytes) -> bool:
        fs, root = self._fs
        target = f"{root}/{name}"

        def put() -> bool:
            fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            try:
                fs.pipe_file(target, data, mode="create")
            except FileExistsError:
                # A client that repeats a request by itself meets its own file.
                return bool(fs.cat_file(target) == data)
            return True

        return self._ask(put)

    def replace(self, name: str, data: bytes) -> None:
        fs, root = self._fs
        self._ask(lambda: fs.pipe_file(f"{root}/{name}", data))

    def read(self, name: str) -> pa.Buffer:
        fs, root = self._fs
        return pa.py_buffer(self._ask(lambda: fs.cat_file(f"{root}/{name}")))

    def list(self, folder: str, *, below: bool = False) -> list[FolderFile]:
        fs, root = self._fs
        top = f"{root}/{folder}".rstrip("/")

        def find() -> Any:
            return fs.find(top, maxdepth=None if below else 1, detail=True)

        fs.invalidate_cache()
        try:
            found = self._ask(find)
        except FileNotFoundError:
            return []
        start = len(root.strip("/")) + 1
        return sorted(
            FolderFile(path.strip("/")[start:], int(told.get("size") or 0), _modified_s(told))
            for path, told in found.items()
            if told.get("type") != "directory"
        )

    def remove(self, names: Iterable[str]) -> None:
        fs, root = self._fs
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._ask(lambda name=name: fs.rm_file(f"{root}/{name}"))  # type: ignore[misc]

    def drop_empty(self, folder: str) -> None:
        """An object store has no folders."""

    def _ask(self, request: Callable[[], T]) -> T:
        """What is missing stays FileNotFoundError; everything else is told in our words."""
        try:
            return request()
        except (FileNotFoundError, SinkFailed):
            raise
        except Exception as error:
            raise failed(self.where, error) from error

    def settle(self) -> None:
        """An object store answers a put when the object is durable."""


def _modified_s(told: dict[str, Any]) -> float | None:
    """When a file was written, in the words of its file system."""
    found: Any = told.get("LastModified") or told.get("mtime") or told.get("created") or told.get("last_modified")
    if isinstance(found, datetime):
        return found.timestamp()
    return float(found) if isinstance(found, int | float) else None
