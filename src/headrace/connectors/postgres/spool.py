"""The copy of a table that a job reads: Arrow files, made once by the driver and then only read.

A table changes, and a job that reads it again after a crash must find the same rows. So the table is copied, in one
snapshot of the database, into a folder of the job's store before the first row is read; positions in the source are
row numbers of that copy, and name it. Invariants:

- ``<id>.json`` appears when all files of the copy are durable, and nothing of a copy is changed afterwards;
- a position says which copy it belongs to, so two drivers that both made one (the older was thought dead) do no harm:
  the job goes on in the one that its first epoch named;
- rows that could not be decoded are told in files of their own, which come first and are numbered like all others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.connectors.source_contract import BadRows
from headrace.durable import make_folder, write_whole
from headrace.errors import InputLost, StoreError

BATCH_ROWS: Final = 50_000
"""Rows of a batch at most."""
BAD: Final = pa.schema([pa.field("bad", pa.string())])
"""Of a file of rows that could not be decoded."""


class SpoolFile(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    rows: int
    bad: bool = False
    """Its rows are texts of `BadRows`, in one column."""


class Copy(msgspec.Struct, frozen=True):
    """What a finished copy says of itself."""

    id: str
    taken_from: str
    """The table or the query."""
    schema: str
    """The columns, as text to compare."""
    files: list[SpoolFile]

    @property
    def rows(self) -> int:
        """All that is numbered, the bad ones too."""
        return sum(file.rows for file in self.files)

    @property
    def bad(self) -> int:
        return sum(file.rows for file in self.files if file.bad)


class Spool:
    """The folder of one source's copies. Travels to the tasks, which only read."""

    def __init__(self, folder: str) -> None:
        self.folder = folder.removeprefix("file://").rstrip("/")
        self._known: dict[str, Copy] = {}

    @property
    def local(self) -> bool:
        return "://" not in self.folder

    def copies(self) -> list[str]:
        """The ids of finished copies, the one to use first."""
        if self.local:
            names = sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else []
        else:
            fs, root = self._fs()
            names = sorted(each.rpartition("/")[2] for each in fs.ls(root, detail=False)) if fs.exists(root) else []
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def describe(self, id: str) -> Copy:
        if id not in self._known:
            try:
                self._known[id] = msgspec.json.decode(self._read(f"{id}.json"), type=Copy)
            except FileNotFoundError as error:
                raise self._loss(f"{id}.json") from error
        return self._known[id]

    def put(self, name: str, data: pa.Buffer | bytes) -> None:
        """A new file, durable when this returns."""
        try:
            if self.local:
                folder = Path(self.folder).absolute()
                make_folder(folder)
                write_whole(folder / name, [data])
            else:
                fs, root = self._fs()
                fs.pipe_file(f"{root}/{name}", bytes(data))
        except OSError as error:
            raise StoreError(
                "the copy of a table cannot be written",
                where=f"{self.folder}/{name}",
                found=f"{type(error).__name__}: {error}",
                next_move="make room there, or give spool= another folder",
            ) from error

    def finish(self, copy: Copy) -> None:
        self.put(f"{copy.id}.json", msgspec.json.encode(copy))
        self._known[copy.id] = copy

    def remove(self, name: str) -> None:
        """A file of a copy that was given up by whoever made it; nobody else may."""
        if self.local:
            Path(self.folder, name).unlink(missing_ok=True)
        else:
            fs, root = self._fs()
            fs.rm_file(f"{root}/{name}")

    def read(self, id: str, start: int, stop: int) -> Iterator[pa.RecordBatch | BadRows]:
        """Rows of a copy, by their numbers."""
        first = 0
        for file in self.describe(id).files:
            if first + file.rows > start and first < stop:
                for batch in self._slice(file.name, max(0, start - first), min(file.rows, stop - first)):
                    yield BadRows(batch.column(0).to_pylist()) if file.bad else batch
            first += file.rows

    def _slice(self, name: str, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_file(self._open(name)) as reader:
            first = 0
            for number in range(reader.num_record_batches):
                # Of a batch before the range no more is looked at than how long it is.
                batch = reader.get_batch(number)
                low, high = max(0, start - first), min(batch.num_rows, stop - first)
                if low < high:
                    yield batch.slice(low, high - low)
                first += batch.num_rows
                if first >= stop:
                    return

    def _open(self, name: str) -> Any:
        try:
            return pa.memory_map(f"{self.folder}/{name}") if self.local else pa.py_buffer(self._read(name))
        except FileNotFoundError as error:
            raise self._loss(name) from error

    def _read(self, name: str) -> bytes:
        if self.local:
            return Path(self.folder, name).read_bytes()
        fs, root = self._fs()
        return bytes(fs.cat_file(f"{root}/{name}"))

    def _fs(self) -> tuple[Any, str]:
        import fsspec

        fs, root = fsspec.core.url_to_fs(self.folder)
        return fs, str(root)

    def _loss(self, name: str) -> InputLost:
        return InputLost(
            "the copy of a table that this job reads is gone",
            where=f"{self.folder}/{name}",
            expected="the files that were written when the job first started",
            next_move="restore the folder from a copy of the store, or begin anew: headrace run --fresh",
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "_known": {}}
