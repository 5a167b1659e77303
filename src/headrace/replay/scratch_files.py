"""A store to read from, with a folder of this machine in front of it for all that is written.

Tasks that run again write their deltas somewhere. Here that is a folder which goes with the replay; the store itself
is only read, whatever a task does.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from headrace.state.store import Data, LocalStore, StoreFiles


class ScratchFiles:
    """Files of a store, and those that were written since."""

    def __init__(self, origin: StoreFiles, folder: Path) -> None:
        self._origin = origin
        self._own = LocalStore(folder, durable=False)

    @property
    def url(self) -> str:
        return self._origin.url

    def _of(self, path: str) -> StoreFiles:
        return self._own if self._own.exists(path) else self._origin

    def read(self, path: str) -> bytes:
        return self._of(path).read(path)

    def write(self, path: str, data: Data | Iterable[Data]) -> None:
        self._own.write(path, data)

    def create(self, path: str, data: Data) -> None:
        self._own.create(path, data)

    def list(self, prefix: str = "") -> list[str]:
        return sorted({*self._origin.list(prefix), *self._own.list(prefix)})

    def delete(self, path: str) -> None:
        self._own.delete(path)

    def exists(self, path: str) -> bool:
        return self._own.exists(path) or self._origin.exists(path)

    def local_path(self, path: str) -> Path | None:
        return self._of(path).local_path(path)

    def scratch(self) -> StoreFiles:
        return self._own

    def open_buffer(self, path: str, crc: int | None = None) -> pa.Buffer:
        return self._of(path).open_buffer(path, crc)

    def forget(self, path: str) -> None:
        self._of(path).forget(path)

    def tidy(self) -> None:
        """The folder goes as a whole."""
