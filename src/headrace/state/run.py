"""Reading a run: an immutable sorted file, mapped, opened by name and verified batch by batch.

A :class:`StateRun` is shared by everything in the process that reads the file; it never changes. A record batch is
decoded and its checksum verified when it is first touched, once per process. A file that does not hold what it claims
raises ``CorruptFile`` with its name; nothing here ever answers with empty state instead.

What this module deliberately does not do: search (see `headrace.state.lookup`), or write (see `headrace.state.encode`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import CorruptFile, MissingFile
from headrace.model.report import RunRef
from headrace.state.block import Block
from headrace.state.cache import LruCache
from headrace.state.encode import describe_run, encode_run, run_crc
from headrace.state.format import BY_TIME, MAGIC, TRAILER_BYTES, VERSION, BatchEntry, Footer, TableData, TableEntry
from headrace.state.panes.names import present_rows, present_schema
from headrace.state.store import StoreFiles, map_file

__all__ = [
    "RunTable",
    "StateRun",
    "TableData",
    "clear_open_runs",
    "describe_run",
    "encode_run",
    "open_ref",
    "open_run",
    "run_crc",
]

OPEN_RUNS: Final = 1024
"""How many runs a process keeps open by name; an evicted one costs a new mapping and verification."""

_open_runs: LruCache[StateRun] = LruCache(OPEN_RUNS)


class StateRun:
    """One open run file. ``name`` is for people; ``tables`` by name."""

    def __init__(self, name: str, data: pa.Buffer, *, on_corrupt: Callable[[], None]) -> None:
        self.name = name
        self.size_bytes = data.size
        self._on_corrupt = on_corrupt
        footer = self._read_footer(data)
        self.lo, self.hi, self.groups = footer.lo, footer.hi, footer.groups
        self.tables = {entry.name: RunTable(self, entry, data) for entry in footer.tables}
        self.rows = sum(entry.rows for entry in footer.tables)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, rows={self.rows}, tables={sorted(self.tables)})"

    def corrupt(self, expected: str, found: str) -> CorruptFile:
        """The error to raise; also makes sure that nobody gets this copy of the file again."""
        self._on_corrupt()
        return CorruptFile(
            "a file of the state is damaged",
            where=self.name,
            expected=expected,
            found=found,
            next_move="a fetched copy is dropped and fetched again at the next attempt; if the file in the store "
            "is damaged itself, restore it from a copy of the store",
        )

    def _read_footer(self, data: pa.Buffer) -> Footer:
        if data.size < len(MAGIC) + TRAILER_BYTES:
            raise self.corrupt("a run file", f"{data.size} bytes")
        view = memoryview(data)
        head, trailer = bytes(view[: len(MAGIC)]), bytes(view[-TRAILER_BYTES:])
        length, crc = struct.unpack("<II", trailer[:8])
        if head != MAGIC or trailer[8:] != MAGIC or length > data.size - len(MAGIC) - TRAILER_BYTES:
            raise self.corrupt(f"{MAGIC.decode()} at both ends", f"{head!r} and {trailer[8:]!r}")
        text = view[data.size - TRAILER_BYTES - length : data.size - TRAILER_BYTES]
        if zlib.crc32(text) != crc:
            raise self.corrupt("a footer that matches its checksum", "one that does not")
        try:
            footer = msgspec.msgpack.decode(text, type=Footer)
        except msgspec.DecodeError as error:
            raise self.corrupt("a footer of this format", str(error)) from error
        if footer.version != VERSION:
            raise self.corrupt(f"version {VERSION}", f"version {footer.version}")
        return footer


class RunTable:
    """One table of a run: its batches, opened as they are needed."""

    def __init__(self, run: StateRun, entry: TableEntry, data: pa.Buffer) -> None:
        self.run = run
        self.name = entry.name
        self.kind = entry.kind
        self.rows = entry.rows
        self.firsts = [batch.first for batch in entry.batches]
        """First hash (time in a due table, slice in a panes table) of each batch, ascending: for bisect …"""
        self.first_array: npt.NDArray[Any] = np.array(self.firsts, np.int64 if entry.kind in BY_TIME else np.uint64)
        """… and for searchsorted."""
        self._entry = entry
        self._data = data
        self._schema: pa.Schema | None = None
        self._blocks: list[Block | None] = [None] * len(entry.batches)
        self._renamed: dict[frozenset[tuple[str, str]], RunTable] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def entries(self) -> list[BatchEntry]:
        """Where each batch lies and what it begins with, without opening it."""
        return self._entry.batches

    @cached_property
    def has_expires(self) -> bool:
        return "expires" in self.schema.names

    def renamed(self, names: Mapping[str, str]) -> RunTable:
        """A table of partial aggregates, whose columns have other names by now (`headrace.state.panes.names`)."""
        known = frozenset(names.items())
        if known not in self._renamed:
            self._renamed[known] = _RenamedTable(self.run, self._entry, self._data, dict(names))
        return self._renamed[known]

    @property
    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = self._read_schema()
        return self._schema

    def _read_schema(self) -> pa.Schema:
        entry = self._entry
        data = self._read_checked(entry.offset, entry.schema_length, entry.schema_crc, "schema")
        return _parse_schema(data.to_pybytes())

    def _read_batch(self, data: pa.Buffer) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(data, self.schema)

    def block(self, index: int) -> Block:
        """One batch. Two threads may open it at once; they get equal blocks and one of them stays."""
        found = self._blocks[index]
        if found is None:
            found = self._blocks[index] = self._open(index)
        return found

    def _open(self, index: int) -> Block:
        entry = self._entry.batches[index]
        data = self._read_checked(entry.offset, entry.length, entry.crc, f"batch {index}")
        block = Block(self._read_batch(data))
        if block.rows != entry.rows or not block.sorted_from(entry.first):
            raise self.run.corrupt(f"{entry.rows} sorted rows in batch {index} of table {self.name}", f"{block.rows}")
        return block

    def _read_checked(self, offset: int, length: int, crc: int, what: str) -> pa.Buffer:
        if offset < 0 or length < 0 or offset + length > self._data.size:
            raise self.run.corrupt(f"{what} of table {self.name} inside the file", f"it would end at {offset + length}")
        data = self._data.slice(offset, length)
        found = zlib.crc32(data)
        if found != crc:
            raise self.run.corrupt(f"{what} of table {self.name} with checksum {crc:#010x}", f"{found:#010x}")
        return data


class _RenamedTable(RunTable):
    """The same table with the present names of its columns."""

    def __init__(self, run: StateRun, entry: TableEntry, data: pa.Buffer, names: Mapping[str, str]) -> None:
        super().__init__(run, entry, data)
        self._names = names

    def _read_schema(self) -> pa.Schema:
        return present_schema(super()._read_schema(), self._names)

    def _read_batch(self, data: pa.Buffer) -> pa.RecordBatch:
        stored = pa.ipc.read_record_batch(data, super()._read_schema())
        return present_rows(stored, self._names, self.schema)


def open_run(source: pa.Buffer | bytes | Path, *, name: str = "", cached: bool = True) -> StateRun:
    """A run from its bytes or a local file. Files are kept open by path, bytes are opened each time."""
    if not isinstance(source, Path):
        data = pa.py_buffer(source) if isinstance(source, bytes) else source
        return StateRun(name or "inline run", data, on_corrupt=_nothing)
    path = source
    label = name or str(path)

    def load() -> StateRun:
        try:
            data = map_file(path)
        except FileNotFoundError:
            raise MissingFile(
                "a file of the state is not there",
                where=str(path),
                found="no such file",
                next_move="start again from the newest manifest",
            ) from None
        return StateRun(label, data, on_corrupt=lambda: _open_runs.drop(str(path)))

    return _open_runs.get(str(path), load) if cached else load()


def open_ref(store: StoreFiles, ref: RunRef, *, cached: bool = True) -> StateRun:
    """The run that a manifest names: the way in for tasks, queries and folds. Cached by name or content.

    Without ``cached`` it lives as long as the caller holds it: for those who know how long they need it.
    """
    if not ref.file:
        inline = ref.inline
        key = f"inline {ref.epoch} {ref.crc} {ref.lo} {ref.size_bytes}"
        name = f"a run inside the manifest of epoch {ref.epoch}"

        def make() -> StateRun:
            return StateRun(name, pa.py_buffer(inline), on_corrupt=lambda: _open_runs.drop(key))

        return _open_runs.get(key, make) if cached else make()
    key = f"{store.url}\n{ref.file}"

    def drop() -> None:
        _open_runs.drop(key)
        store.forget(ref.file)

    def load() -> StateRun:
        run = StateRun(f"{store.url}/{ref.file}", store.open_buffer(ref.file, ref.crc), on_corrupt=drop)
        if run.size_bytes != ref.size_bytes:
            raise run.corrupt(f"{ref.size_bytes} bytes", f"{run.size_bytes} bytes")
        return run

    return _open_runs.get(key, load) if cached else load()


def clear_open_runs() -> None:
    """Forgets every open run; mappings go when their last reader does."""
    _open_runs.clear()


@lru_cache(256)
def _parse_schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _nothing() -> None:
    pass
