"""A folder that readers look into: what can be done to it so that they see each file whole, once, or not at all.

Names are relative to the folder, with slashes. Every file has a name that follows from what is in it (timeline, epoch,
output, place in the list), so putting it again is harmless: a name with the same bytes is done already. A
name with other bytes means that somebody else writes here, and is refused: overwriting would lose rows, skipping
would lose others.

How it is done on a disk and in an object store: `local_folder` and `remote_folder` beside this module.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from headrace.errors import SinkFailed, SinkUnavailable


class FolderFile(NamedTuple):
    """A file as a listing shows it."""

    name: str
    size_bytes: int
    modified_s: float | None = None
    """When it was written, where that is known."""


class Folder(Protocol):
    where: str

    def prepare(self) -> None:
        """Makes sure, before anything runs, that files can be put here."""
        ...

    def put(self, name: str, data: pa.Buffer, staged: Path | None) -> None:
        """Makes a file visible under a relative name; `staged` is a local file with the same bytes, if there is one."""
        ...

    def making(self) -> AbstractContextManager[Path]:
        """A new local file to write to, for `publish`; gone when the context ends."""
        ...

    def publish(self, made: Path, name: str) -> None:
        """Lets a finished file appear whole. Where the name exists it was published before, and stays."""
        ...

    def swap(self, made: Path, name: str) -> None:
        """Lets a finished file appear whole in the place of another; readers see the old or the new one."""
        ...

    def copy(self, source: str, name: str) -> None:
        """Lets a file of this folder appear under a second name, without moving its bytes where that can be."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Writes a small file only if there is none of that name; whoever is told False came too late."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Writes a small file in the place of another, if there is one; readers see the old or the new one."""
        ...

    def read(self, name: str) -> pa.Buffer:
        """Raises FileNotFoundError where there is no such file."""
        ...

    def list(self, folder: str, *, below: bool = False) -> list[FolderFile]:
        """The files of a folder inside of this one, and with `below` of all folders in it; none where it is not there.

        Their names are relative to this folder, as everywhere.
        """
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Takes files away; those that are gone already are no trouble."""
        ...

    def drop_empty(self, folder: str) -> None:
        """Takes a folder away, with what is in it, if there is no file in it."""
        ...

    def settle(self) -> None:
        """Everything put so far survives a crash of the machine when this returns."""
        ...


def open_folder(path: str) -> Folder:
    """Nothing is touched before it is used."""
    from headrace.connectors.files.local_folder import LocalFolder
    from headrace.connectors.files.remote_folder import RemoteFolder

    if path.startswith("file://"):
        return LocalFolder(path.removeprefix("file://"))
    return RemoteFolder(path) if "://" in path else LocalFolder(path)


_STAYS: Final = (
    "the rows stay staged in the store until then, under the name of their output: with another folder, "
    "keep it by write(…, name=…)"
)
"""The last part of the folder may be a part of that name."""
_NEXT_MOVES: Final = {
    errno.ENOSPC: "the disk is full: free some space and start again",
    errno.EDQUOT: "the quota is used up: free some space and start again",
    errno.EROFS: "the disk is mounted read-only: choose another folder",
    errno.EACCES: "give the user that runs the job the right to write there, or choose another folder",
    errno.EPERM: "give the user that runs the job the right to write there, or choose another folder",
    errno.EEXIST: "the path is a file: choose a folder, or move the file away",
    errno.ENOTDIR: "a part of the path is a file: choose a folder, or move the file away",
    errno.ENAMETOOLONG: "a name is too long for this file system: choose a folder on another",
}


_NO_ANSWER: Final = frozenset({
    "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError", "HTTPClientError",
    "ProxyConnectionError", "FSTimeoutError", "ClientConnectorError", "ClientConnectorDNSError", "ServerTimeoutError",
    "ServerDisconnectedError", "gaierror", "ServiceRequestError", "ServiceUnavailable", "SlowDown", "InternalError",
})  # fmt: skip
"""What clients of object stores raise, or their services answer, when trying again may help."""


def is_no_answer(error: BaseException | None) -> bool:
    """Whether trying again may help. Clients wrap each other's errors, so the whole chain is looked at."""
    for _ in range(10):
        if error is None:
            return False
        code = getattr(error, "response", None)
        names = {kind.__name__ for kind in type(error).__mro__}
        if isinstance(code, dict):
            names.add(str(code.get("Error", {}).get("Code", "")))
        if names & _NO_ANSWER or isinstance(error, ConnectionError | TimeoutError):
            return True
        error = error.__cause__ or error.__context__
    return False


def failed(path: str, error: BaseException) -> SinkFailed:
    code = error.errno if isinstance(error, OSError) else None
    if is_no_answer(error):
        return SinkUnavailable(
            f"{path} does not answer",
            where=f"sink.files({path!r})",
            expected="an object store that can be reached",
            found=f"{type(error).__name__}: {error}",
            next_move="look at the network, the endpoint and the service; the rows stay staged in the store",
        )
    move = _NEXT_MOVES.get(code or 0, "see the cause below; then start again")
    return SinkFailed(
        f"cannot write to {path}",
        where=f"sink.files({path!r})",
        expected="a folder that can be written to",
        found=f"{type(error).__name__}: {error}",
        next_move=f"{move}; {_STAYS}",
    )


def name_conflict(path: str, name: str) -> SinkFailed:
    return SinkFailed(
        f"{name} is there already, with other content",
        where=f"sink.files({path!r})",
        expected="a folder that only this output of this store writes to",
        found="the output of another job, or of an earlier run whose store was deleted",
        next_move=f"choose another folder, or move the old files away; {_STAYS}",
    )
