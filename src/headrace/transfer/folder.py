"""A folder of exported files, on a disk or behind a URL: what is read and written there, and when it is whole.

Invariants
- An export is whole when its record is there (`headrace.transfer.record`), which is written last.
- Before the first file a mark is written. A folder with anything else in it is left alone, so an export that was
  interrupted is begun again in its place, and nothing of anybody else's is overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

from headrace.errors import AlreadyExists, MissingFile, StoreError
from headrace.state.remote_errors import missing_package

MARK: Final = "exporting.json"


class ExportFolder:
    """Files below one folder, by paths relative to it."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        try:
            self._files, self._root = fsspec.core.url_to_fs(
                url, use_listings_cache=False, **({} if "://" in url else {"auto_mkdir": True})
            )
        except (ImportError, ValueError) as error:
            raise missing_package(url, error) from None

    def list(self) -> list[str]:
        """Every file, sorted; an absent folder is empty."""
        try:
            return sorted(path.removeprefix(self._root).lstrip("/") for path in self._files.find(self._root))
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes:
        try:
            content: bytes = self._files.cat_file(self._full(path))
        except FileNotFoundError:
            raise MissingFile(
                f"the file {path} is not there",
                where=self.url,
                expected="every file that the export's record names",
                next_move="give the folder as it was exported, or export again",
            ) from None
        return content

    def write(self, path: str, data: bytes) -> None:
        with self.open(path, "wb") as file:
            file.write(data)

    @contextmanager
    def open(self, path: str, mode: str = "rb") -> Iterator[BinaryIO]:
        """A file for reading, or for writing."""
        try:
            with self._files.open(self._full(path), mode) as file:
                yield file
        except FileNotFoundError as error:
            raise MissingFile("there is no such file", where=f"{self.url}/{path}", next_move="give another") from error
        except OSError as error:
            raise StoreError(
                f"a file of the export could not be {'read' if mode == 'rb' else 'written'}",
                where=f"{self.url}/{path}",
                found=f"{type(error).__name__}: {error}",
                next_move="check free space, permissions, credentials and the network, then give the command again",
            ) from error

    def begin(self, mark: dict[str, Any], record: str) -> None:
        """Says that an export is being written here. ``record``: the file that a whole one has."""
        import msgspec

        there = self.list()
        if record in there or (there and MARK not in there):
            raise AlreadyExists(
                "there is something else where the export is to go",
                where=self.url,
                expected="an empty folder, or an interrupted export",
                found="an export" if record in there else f"{there[0]} and maybe more",
                next_move="give another folder, or delete what is there",
            )
        self.write(MARK, msgspec.json.encode(mark))
        for path in there:
            if path != MARK:
                self._files.rm_file(self._full(path))

    def end(self) -> None:
        """The export is whole."""
        self._files.rm_file(self._full(MARK))

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"
