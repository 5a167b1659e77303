"""A folder on a disk: files appear by a hard link to what was staged, or by a rename once they are durable.

What cannot be linked (another device, bytes from a manifest) is copied to a name that begins with a dot first.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa

from headrace.connectors.files.folder import FolderFile, failed, name_conflict
from headrace.durable import make_folder, move, sync_path, take_name, try_link, write_whole
from headrace.model.part_names import HIDDEN

_SCRATCH: Final = f"{HIDDEN}/making"
"""Where files are made that are to appear whole."""


class LocalFolder:
    def __init__(self, path: str) -> None:
        self.where = path
        self.root = Path(os.path.abspath(path))
        self._touched: set[Path] = set()
        """Folders with names that no sync has made durable yet; each is added behind its name."""
        self._settling = threading.Lock()

    def prepare(self) -> None:
        try:
            make_folder(self.root)
        except OSError as error:
            raise failed(self.where, error) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise failed(self.where, PermissionError(errno.EACCES, "no permission to write", str(self.root)))

    def put(self, name: str, data: pa.Buffer, staged: Path | None) -> None:
        target = self.root / name
        try:
            make_folder(target.parent)
            if not self._link(staged, target):
                self._copy(data, target)
            self._touched.add(target.parent)
        except OSError as error:
            raise failed(self.where, error) from error

    def _link(self, staged: Path | None, target: Path) -> bool:
        """False when a link cannot be made here and the bytes have to be copied."""
        try:
            return staged is not None and try_link(staged, target)
        except FileExistsError:
            if staged is None or not (os.path.samefile(staged, target) or filecmp.cmp(staged, target, shallow=False)):
                raise name_conflict(self.where, target.name) from None
            return True

    def _copy(self, data: pa.Buffer, target: Path) -> None:
        if target.exists():
            if target.stat().st_size != data.size or not data.equals(pa.py_buffer(target.read_bytes())):
                raise name_conflict(self.where, target.name)
            return
        write_whole(target, [data], settle=False)

    @contextmanager
    def making(self) -> Iterator[Path]:
        with self._failing():
            (self.root / _SCRATCH).mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.root / _SCRATCH)
            os.close(handle)
        made = Path(name)
        try:
            yield made
        finally:
            with contextlib.suppress(OSError):
                made.unlink()

    def publish(self, made: Path, name: str) -> None:
        with self._failing():
            target = self._make_durable(made, name)
            take_name(made, target)
            self._touched.add(target.parent)

    def swap(self, made: Path, name: str) -> None:
        with self._failing():
            target = self._make_durable(made, name)
            move(made, target)
            self._touched.add(target.parent)

    def _make_durable(self, made: Path, name: str) -> Path:
        """Makes what is in a file durable; gives back where it is to appear."""
        target = self.root / name
        sync_path(made)
        # Private while it was being made; as readable as any new file from here on.
        made.chmod(0o666 & ~_umask())
        make_folder(target.parent)
        return target

    def copy(self, source: str, name: str) -> None:
        self.put(name, self.read(source), self.root / source)

    def create(self, name: str, data: bytes) -> bool:
        target = self.root / name
        with self.making() as made, self._failing():
            made.write_bytes(data)
            sync_path(made)
            make_folder(target.parent)
            is_ours = take_name(made, target)
            self._touched.add(target.parent)
            return is_ours

    def replace(self, name: str, data: bytes) -> None:
        with self.making() as made, self._failing():
            made.write_bytes(data)
            self.swap(made, name)

    def read(self, name: str) -> pa.Buffer:
        with pa.memory_map(str(self.root / name)) as file:
            return file.read_buffer()

    def list(self, folder: str, *, below: bool = False) -> list[FolderFile]:
        found = []
        with self._failing():
            for root, folders, names in os.walk(self.root / folder, onerror=_unless_missing):
                for name in names:
                    path = Path(root, name)
                    with contextlib.suppress(FileNotFoundError):
                        told = path.stat()
                        found.append(FolderFile(str(path.relative_to(self.root)), told.st_size, told.st_mtime))
                if not below:
                    folders.clear()
        return sorted(found)

    def remove(self, names: Iterable[str]) -> None:
        with self._failing():
            for name in names:
                (self.root / name).unlink(missing_ok=True)

    def drop_empty(self, folder: str) -> None:
        # Innermost first; one that is not empty, or gone already, stays as it is.
        for root, _, _ in os.walk(self.root / folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(root)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise failed(self.where, error) from error

    def settle(self) -> None:
        # Files are let appear side by side: nobody goes on while somebody else syncs what is theirs.
        with self._settling, self._failing():
            while self._touched:
                folder = self._touched.pop()
                try:
                    sync_path(folder)
                except FileNotFoundError:
                    pass  # It was empty, so it was taken away.
                except OSError:
                    self._touched.add(folder)
                    raise


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
