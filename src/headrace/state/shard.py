"""The state of one step in one shard during one epoch: an overlay of changes over the runs of the parent epoch.

Who calls: an operator asks for its columns when a task begins, enters the keys of each batch before it touches them,
and calls `relieve` after each batch; the task calls `flush` once, at the end, and writes what it gets. Nothing here is
durable: a task that dies leaves no trace.

Invariants
- Memory is bounded: when the overlay outgrows its limit it is handed to ``spill`` as a further run of the epoch,
  forgotten, and read back through the layers, to which whoever spills must have added the run.
- A key outside the shard's key groups is refused: it would be lost at the next rescaling.
- Timers have an index by time beside their own tables (`headrace.state.due_index`). It is a hint and is written from
  the truth at each flush.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import EpochFailed, StoreError
from headrace.model.batch import Int64s, UInt64s
from headrace.model.job import VALUE_TABLE
from headrace.model.values import ValueCodec
from headrace.state.broadcast import SharedState
from headrace.state.cells import EntriesColumn
from headrace.state.copied import CopiedEntries, CopiedValues
from headrace.state.due_index import DueIndexes
from headrace.state.expiring import CopiedEntriesByRow, EntriesByRow
from headrace.state.fitting import Misfit, refusal
from headrace.state.format import ENTRIES, PANES, ROWS, VALUE, TableData, hash_bounds
from headrace.state.overlay import KeyTable, ValueColumn, changed_slots
from headrace.state.panes.column import PaneColumn
from headrace.state.rows.format import Keeps
from headrace.state.rows.table import RowTable
from headrace.state.subs import SubCodec
from headrace.state.ttl import Expiry

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.lookup import Layers

EVENT_DUE: Final = "!event"
WALL_DUE: Final = "!wall"

CHUNK_KEYS: Final = 32_768
"""Keys that are looked at together where a step goes over keys of its own accord, as when timers fire."""
_WEIGH_EVERY_ROWS: Final = 65_536
_FIRST_ROOM_ROWS: Final = 16_384


_ENTRIES: Final[dict[tuple[bool, bool], type[EntriesColumn]]] = {
    (False, False): EntriesColumn,
    (True, False): CopiedEntries,
    (False, True): EntriesByRow,
    (True, True): CopiedEntriesByRow,
}
"""By whether values can be changed in place, and whether expiry is judged at each row's time."""


class DistinctKeys(NamedTuple):
    """Keys without repetition, in the order they first came, and for each row which of them it has."""

    codes: Int64s
    hashes: UInt64s
    keys: pa.BinaryArray


def distinct_keys(hashes: UInt64s, keys: pa.BinaryArray) -> DistinctKeys:
    """Each key once. By their bytes, so that two keys of one hash stay two."""
    encoded = keys.dictionary_encode()
    # Codes are multiplied and shifted beside times and ranks: 32 bits would run over without a word.
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    names = encoded.dictionary
    if len(names) == len(keys):
        return DistinctKeys(codes, hashes, names)
    own = np.empty(len(names), np.uint64)
    own[codes] = hashes
    return DistinctKeys(codes, own, names)


class ShardState:
    """What a step keeps, seen from one task."""

    def __init__(
        self,
        layers: Layers,
        *,
        lo: int,
        hi: int,
        groups: int,
        spill: Callable[[Sequence[TableData]], None],
        overlay_limit_bytes: int,
    ) -> None:
        self._keys = KeyTable(layers)
        self._low, self._high = hash_bounds(lo, hi, groups)
        self._spill = spill
        self.limit_bytes = overlay_limit_bytes
        """Memory that the changes of the epoch may take, estimated."""
        self._weigh_every = min(_WEIGH_EVERY_ROWS, overlay_limit_bytes // 1024)
        self._unweighed = self._weigh_every
        self._rows = 0
        """Handled since the last spill."""
        self.room_rows = _FIRST_ROOM_ROWS
        """How many rows may be handled before the overlay should be weighed again."""
        self._columns: dict[str, ValueColumn | EntriesColumn] = {}
        self._panes: dict[str, PaneColumn] = {}
        self._appended: dict[str, RowTable] = {}
        self.indexes = DueIndexes(self._keys)
        self._tracked: dict[str, list[tuple[UInt64s, pa.BinaryArray]]] = {}
        self.spills = 0
        self.shared = SharedState()
        """What all shards of the step have alike; put here by whoever opens the runs."""
        self.step = ""
        """Name of the step, for messages."""

    @property
    def layers(self) -> Layers:
        """The runs below the overlay; whoever spills adds the new run to it, or puts new layers here."""
        return self._keys.layers

    @layers.setter
    def layers(self, layers: Layers) -> None:
        self._keys.layers = layers

    # --- columns, once per task

    def values(
        self, table: str, codec: ValueCodec, expiry: Expiry | None = None, *, track: bool = False
    ) -> ValueColumn:
        """A column of one value per key. ``track``: `changed` will be asked for its keys at the end."""
        self._check_kind(table, VALUE)
        column = (CopiedValues if codec.changeable else ValueColumn)(self._keys, table, codec, expiry)
        self._columns[table] = column
        if track:
            self._tracked[table] = []
        return column

    def entries(
        self, table: str, codec: ValueCodec, sub: SubCodec, expiry: Expiry | None = None, *, appends: bool = False
    ) -> EntriesColumn:
        """A column of entries per key. ``appends``: names only grow, as in a list."""
        self._check_kind(table, ENTRIES)
        by_row = expiry is not None and expiry.by_row
        kind = _ENTRIES[codec.changeable, by_row]
        column = kind(self._keys, table, codec, sub, expiry, appends=appends)
        self._columns[table] = column
        return column

    def panes(self, table: str, schema: pa.Schema) -> PaneColumn:
        """A column of partial aggregates by slice of time and key; its keys need not be entered."""
        self._check_kind(table, PANES)
        column = self._panes[table] = PaneColumn(lambda: self.layers, table, schema)
        return column

    def rows(
        self, table: str, codec: RowCodec | None, extra: Sequence[pa.Field] = (), *, epoch: int, clock: str = "",
        keeps: Keeps = "all",
    ) -> RowTable:  # fmt: skip
        """Whole rows by key and time; their keys need not be entered. ``clock``: the timer index they expire by."""
        self._check_kind(table, ROWS)
        made = RowTable(lambda: self.layers, table, codec, extra, epoch=epoch, clock=clock, keeps=keeps)
        self._appended[table] = made
        return made

    def _check_kind(self, table: str, kind: str) -> None:
        stored = self.layers.tables.get(table, kind)
        if stored != kind:
            words = {
                VALUE: "one value per key",
                ENTRIES: "entries per key, as a list, a map or single windows",
                PANES: "aggregates per key and window",
                ROWS: "whole rows by key and time",
            }
            # Where a user declares a state of this name, it is none of windows.
            own = table == VALUE_TABLE and PANES in (kind, stored)
            raise StoreError(
                f"{'what this step keeps' if own else f'the state {table!r}'} was stored as another kind of state",
                where=f"step {self.step}",
                expected=words[kind],
                found=words.get(stored, stored),
                next_move=f"{'give the step another' if own else 'declare it under a new'} name; the old state stays "
                "where it is",
            )

    def expiry_of(self, table: str) -> Expiry | None:
        """The time to live of a state; None where its entries stay."""
        column = self._columns.get(table)
        return None if column is None else column.expiry

    def pane_schema_of(self, table: str) -> pa.Schema | None:
        """The columns of a table of partial aggregates; None where the step keeps no such table."""
        column = self._panes.get(table)
        return None if column is None else column.schema

    # --- keys, once per batch

    def enter(self, hashes: UInt64s, keys: pa.BinaryArray, *, by_slot: bool = False) -> Int64s:
        """Makes distinct keys ready and returns their slots.

        They must be handled in the order given, or with ``by_slot`` in that of their slots, which is faster: what
        belongs to them then lies in memory in that order.
        """
        self.check_owned(hashes)
        self._keys.by_slot = by_slot
        new = self._keys.enter(hashes, keys)
        if new:
            for column in self._columns.values():
                column.grow(new)
        return self._keys.slots

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest hash of the shard's keys."""
        return self._low, self._high

    def check_owned(self, hashes: UInt64s) -> None:
        """Refuses keys of other shards."""
        if len(hashes) and (int(hashes.min()) < self._low or int(hashes.max()) > self._high):
            raise EpochFailed(
                "a row came to a shard that does not own its key",
                where="exchange",
                expected=f"hashes from {self._low:#018x} to {self._high:#018x}",
                found=f"{int(hashes.min()):#018x} to {int(hashes.max()):#018x}",
                next_move="look for a function that changes the column its stream is keyed by (a reduce, say): rows "
                "keep the key they came with, so key_by another column for the new value. If there is none, report it",
            )

    def name(self, slot: int) -> bytes:
        """The encoded key of a slot."""
        return self._keys.names[slot]

    def pick(self, slots: Int64s) -> tuple[UInt64s, pa.BinaryArray]:
        """Hashes and encoded keys of these slots."""
        return self._keys.pick(slots)

    @property
    def names(self) -> list[bytes]:
        """Encoded keys by slot; the same list for the whole task."""
        return self._keys.names

    def relieve(self, rows: int) -> bool:
        """Spills if the overlay is too large; ``rows`` is how many were handled since the last call."""
        self._unweighed += rows
        self._rows += rows
        if self._unweighed < self._weigh_every:
            return False
        self._unweighed = 0
        weight = self.weigh()
        self.room_rows = self.limit_bytes * self._rows // (4 * max(weight, 1))
        if weight <= self.limit_bytes:
            return False
        self.spill()
        return True

    def weigh(self) -> int:
        """Estimated bytes of memory that the overlay takes."""
        tables = (*self._columns.values(), *self._panes.values(), *self._appended.values())
        return self._keys.weigh() + self.indexes.weigh() + sum(table.weigh() for table in tables)

    # --- what has changed

    def changed(self, column: ValueColumn) -> Iterator[Int64s]:
        """Slots of the keys whose value this epoch changed, each once, spilled ones included."""
        spilled = self._tracked[column.table]
        if not spilled:
            slots = changed_slots(column.dirty)
            if len(slots):
                yield slots
            return
        self.spill()
        hashes = np.concatenate([each for each, _ in spilled])
        distinct = distinct_keys(hashes, pa.concat_arrays([each for _, each in spilled]))
        for start in range(0, len(distinct.keys), CHUNK_KEYS):
            end = start + CHUNK_KEYS
            yield self.enter(distinct.hashes[start:end], distinct.keys[start:end])
            # They were only read: what the next chunk needs is the room.
            self._forget()

    def keys_with(self, column: ValueColumn | EntriesColumn) -> Iterator[tuple[UInt64s, pa.BinaryArray]]:
        """Every key that may have something in a column, in the runs or since, each once and some at a time.

        In between they may be entered and changed, and the overlay may be spilled.
        """
        hashes, keys = self._keys.pick(changed_slots(column.dirty))
        fresh = dict(zip(keys.to_pylist(), hashes.tolist()))
        last: bytes | None = None
        for batch in self._keys.layers.scan(column.table):
            distinct = distinct_keys(batch.column("hash").to_numpy(), batch.column("key"))
            # The entries of a large key go on in the next batch.
            start = 1 if distinct.keys[0].as_py() == last else 0
            last = distinct.keys[-1].as_py()
            for name in distinct.keys.to_pylist() if fresh else ():
                fresh.pop(name, None)
            if start < len(distinct.keys):
                yield distinct.hashes[start:], distinct.keys[start:]
        if fresh:
            yield np.array(list(fresh.values()), np.uint64), pa.array(fresh, pa.binary())

    # --- leaving

    def spill(self) -> None:
        """Hands the changes so far to whoever writes runs, and forgets them."""
        tables = self.flush()
        if tables:
            self._spill(tables)
            self.spills += 1

    def flush(self) -> list[TableData]:
        """The changes since the last spill as tables of a run, and an empty overlay. Empty if nothing changed."""
        try:
            found = [column.changes() for column in self._columns.values()]
        except Misfit as error:
            raise refusal(self.step, error) from error
        found += self.indexes.changes()
        found += [table.changes() for table in self._panes.values()]
        found += [table.changes() for table in self._appended.values()]
        tables = [table for table in found if table is not None]
        for name, kept in self._tracked.items():
            slots = changed_slots(self._columns[name].dirty)
            if len(slots):
                kept.append(self._keys.pick(slots))
        self._forget()
        return tables

    def _forget(self) -> None:
        for column in (*self._columns.values(), *self._panes.values(), *self._appended.values()):
            column.clear()
        self.indexes.clear()
        self._keys.clear()
        self._rows = 0
