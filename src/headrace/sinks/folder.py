"""Puts finished files into a folder, so that its readers see each of them whole, once, or not at all.

Every file has a name that follows from what is in it (timeline, epoch, output, place in the list), so putting it again
is harmless: a name that is taken by the same bytes is done already. A name taken by other bytes means that somebody
else writes here, and is refused: overwriting would lose rows, skipping would lose others.

A local folder gets a hard link to the staged file, or, where that cannot be (another device, bytes from a manifest), a
copy under a name that begins with a dot, renamed when it is durable. A remote folder gets an object by one put, which
object stores make visible whole.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import SinkFailed


class Folder(Protocol):
    where: str

    def prepare(self) -> None:
        """Makes sure, before anything runs, that files can be put here."""
        ...

    def put(self, name: str, data: pa.Buffer, staged: Path | None) -> None:
        """Makes a file visible under a relative name; `staged` is a local file with the same bytes, if there is one."""
        ...

    def settle(self) -> None:
        """Everything put so far survives a crash of the machine when this returns."""
        ...


def open_folder(path: str) -> Folder:
    if path.startswith("file://"):
        return LocalFolder(path.removeprefix("file://"))
    return RemoteFolder(path) if "://" in path else LocalFolder(path)


class LocalFolder:
    def __init__(self, path: str) -> None:
        self.where = path
        self.root = Path(os.path.abspath(path))
        self._touched: set[Path] = set()

    def prepare(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise failed(self.where, error) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise failed(self.where, PermissionError(errno.EACCES, "no permission to write", str(self.root)))

    def put(self, name: str, data: pa.Buffer, staged: Path | None) -> None:
        target = self.root / name
        try:
            self._ensure_folder(target.parent)
            if not self._link(staged, target):
                self._copy(data, target)
            self._touched.add(target.parent)
        except OSError as error:
            raise failed(self.where, error) from error

    def _link(self, staged: Path | None, target: Path) -> bool:
        """False when a link cannot be made here and the bytes have to be copied."""
        if staged is None:
            return False
        try:
            os.link(staged, target)
        except FileExistsError:
            if not os.path.samefile(staged, target) and not filecmp.cmp(staged, target, shallow=False):
                raise taken(self.where, target.name) from None
        except OSError as error:
            # Another device, a file system without links, or a link limit: all of them still allow a copy.
            if error.errno in (errno.ENOSPC, errno.EACCES, errno.ENOENT, errno.EROFS, errno.EDQUOT):
                raise
            return False
        return True

    def _copy(self, data: pa.Buffer, target: Path) -> None:
        if target.exists():
            if target.stat().st_size != data.size or not data.equals(pa.py_buffer(target.read_bytes())):
                raise taken(self.where, target.name)
            return
        temporary = target.with_name(f".{target.name}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _ensure_folder(self, folder: Path) -> None:
        """A new folder is an entry of the one above, which has to be made durable too."""
        if folder.is_dir():
            return
        missing = folder
        while not missing.parent.exists():
            missing = missing.parent
        folder.mkdir(parents=True, exist_ok=True)
        while folder != missing.parent:
            folder = folder.parent
            self._touched.add(folder)

    def settle(self) -> None:
        touched, self._touched = self._touched, set()
        try:
            for folder in touched:
                handle = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        except OSError as error:
            raise failed(self.where, error) from error


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
                self._opened = fsspec.core.url_to_fs(self.where)
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
                    raise taken(self.where, name)
                return
            fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            fs.pipe_file(target, data.to_pybytes())
        except SinkFailed:
            raise
        except Exception as error:
            raise failed(self.where, error) from error

    def settle(self) -> None:
        """An object store answers a put when the object is durable."""


_NEXT_MOVES = {
    errno.ENOSPC: "the disk is full: free some space and start again",
    errno.EDQUOT: "the quota is used up: free some space and start again",
    errno.EROFS: "the disk is mounted read-only: choose another folder",
    errno.EACCES: "give the user that runs the job the right to write there, or choose another folder",
    errno.EPERM: "give the user that runs the job the right to write there, or choose another folder",
    errno.EEXIST: "the path is a file: choose a folder, or move the file away",
    errno.ENOTDIR: "a part of the path is a file: choose a folder, or move the file away",
    errno.ENAMETOOLONG: "a value of a partition_by column is too long for a folder name: partition by another column",
}


def failed(path: str, error: BaseException) -> SinkFailed:
    code = error.errno if isinstance(error, OSError) else None
    move = _NEXT_MOVES.get(code or 0, "see the cause below; then start again")
    return SinkFailed(
        f"cannot write to {path}",
        where=f"sink.files({path!r})",
        expected="a folder that can be written to",
        found=f"{type(error).__name__}: {error}",
        next_move=f"{move}; the rows stay staged in the store until then",
    )


def taken(path: str, name: str) -> SinkFailed:
    return SinkFailed(
        f"{name} is there already, with other content",
        where=f"sink.files({path!r})",
        expected="a folder that only this output of this store writes to",
        found="the output of another job, or of an earlier run whose store was deleted",
        next_move="choose another folder, or move the old files away; the rows stay staged in the store until then",
    )
