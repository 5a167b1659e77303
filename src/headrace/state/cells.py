"""Entries in the overlay: many small values under one key, for lists, maps and sets of timers.

A key that has entries at hand has a *cell*. A cell starts out knowing nothing; what it learns depends on the question:
writing an entry needs no knowledge, asking for one fetches the key's older entries still encoded (or, where they are
many, that entry alone), and walking over all decodes them. Entries are addressed by what the user calls them (a map's
key, a position in a list, a time) and become bytes at the flush.

Invariants
- ``items`` holds every entry that differs from the runs, and whatever else has been decoded; ``changed`` says which.
- ``whole``: ``items`` holds all live entries. Otherwise ``ABSENT`` in ``items`` marks one known not to exist.
- Walking goes in the order of the encoded names, whether entries are new or old, so it does not depend on where epochs
  end. Older entries are fetched a window of keys at a time, and unchanged cells of past windows are dropped.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s
from headrace.model.values import ValueCodec
from headrace.state.fitting import Misfit, encode_fitting, encode_names, unreadable, weigh_values
from headrace.state.format import ENTRIES, TableData
from headrace.state.overlay import KeyTable, changed_slots
from headrace.state.subs import SubCodec
from headrace.state.ttl import Expiry

ABSENT: Final[Any] = object()
_UNKNOWN: Final[Any] = object()

SMALL_ENTRIES: Final = 64
"""Up to this many stored rows, all entries of a key are fetched together."""
WINDOW_KEYS: Final = 8192
_CELL_BYTES: Final = 600
_ENTRY_BYTES: Final = 130
_SAMPLES: Final = 48

Older = dict[bytes, tuple[bytes, int | None]]


class Cell:
    """The entries of one key, as far as they are known."""

    __slots__ = ("changed", "cleared", "expires", "fetched", "items", "older", "order", "whole")

    def __init__(self, *, cleared: bool = False) -> None:
        self.items: dict[Any, Any] = {}
        self.changed: dict[Any, None] = {}
        self.expires: dict[Any, int | None] = {}
        self.cleared = cleared
        self.whole = cleared
        self.fetched = cleared
        self.older: Older | None = None
        """Stored entries that are not decoded yet; None with ``fetched`` and not ``whole``: too many to hold."""
        self.order: list[Any] | None = None


class EntriesColumn:
    """The entries of one state for all keys of the overlay."""

    __slots__ = (
        "_ahead", "_codec", "_keys", "_round", "_window", "appends", "cells", "dirty", "expiry", "journal", "sub",
        "table",
    )  # fmt: skip

    def __init__(
        self, keys: KeyTable, table: str, codec: ValueCodec, sub: SubCodec, expiry: Expiry | None, *, appends: bool
    ) -> None:
        self.table = table
        self.sub = sub
        self.expiry = expiry
        self.appends = appends
        """Names only grow, so the order of insertion is the order of names."""
        self.cells: list[Cell | None] = []
        self.dirty = bytearray()
        self.journal: list[tuple[Any, ...]] | None = None
        """While set, every change is noted here so that `undo` can take it back."""
        self._keys = keys
        self._codec = codec
        self._round = -1
        self._ahead: Int64s = np.empty(0, np.int64)
        self._window: list[int] = []

    def grow(self, count: int) -> None:
        self.cells.extend([None] * count)
        self.dirty.extend(bytes(count))

    # --- reading

    def find(self, slot: int, name: Any) -> Any:
        """The value of an entry, or ABSENT."""
        cell = self.cells[slot]
        if cell is not None:
            value = cell.items.get(name, _UNKNOWN)
            if value is not _UNKNOWN:
                return value
            if cell.whole:
                return ABSENT
        return self._look_up(slot, name)

    def _look_up(self, slot: int, name: Any) -> Any:
        cell = self._fetched_cell(slot)
        if cell.whole:
            return cell.items.get(name, ABSENT)
        sub = self.sub.encode(name)
        if cell.older is not None:
            raw, expires = cell.older.get(sub, (None, None))
        else:
            raw, expires = self._keys.layers.entry(self.table, self._keys.hash_of(slot), self._keys.names[slot], sub)
        if raw is None or self._is_hidden(expires):
            cell.items[name] = ABSENT
            return ABSENT
        value = cell.items[name] = self._decode(raw)
        if self.expiry is not None:
            cell.expires[name] = expires
        return value

    def entries(self, slot: int) -> Iterator[tuple[Any, Any]]:
        """All entries, in the order of their names. Changes made meanwhile do not show."""
        cell = self._fetched_cell(slot)
        if self._complete(cell):
            items = cell.items
            return iter([(name, items[name]) for name in self._ordered(cell)])
        return ((name, value) for name, value, _ in self._walk(slot, cell))

    def count(self, slot: int) -> int:
        cell = self._fetched_cell(slot)
        return len(cell.items) if self._complete(cell) else sum(1 for _ in self._walk(slot, cell))

    def hold_all(self, slot: int) -> Cell:
        """The cell with every entry decoded, however many: for states that bound their own number of entries."""
        cell = self._fetched_cell(slot)
        if not self._complete(cell):
            walked = list(self._walk(slot, cell))
            cell.items = {name: value for name, value, _ in walked}
            if self.expiry is not None:
                cell.expires = {name: expires for name, _, expires in walked}
            cell.whole = True
        return cell

    def expiry_of(self, slot: int, name: Any) -> int | None:
        """The stored expiry of an entry that `find` or `entries` gave."""
        cell = self.cells[slot]
        return None if cell is None else cell.expires.get(name)

    def _complete(self, cell: Cell) -> bool:
        """Decodes the older entries if they are at hand; False where they are too many to hold."""
        if cell.whole:
            return True
        if cell.older is None:
            return False
        known, decode_sub, items = cell.items, self.sub.decode, {}
        for sub, (raw, expires) in cell.older.items():
            name = decode_sub(sub)
            if name not in known and not self._is_hidden(expires):
                items[name] = self._decode(raw)
                if self.expiry is not None:
                    cell.expires[name] = expires
        if self.appends and known:
            # What was asked for out of turn belongs where it was stored, before what was appended since.
            merged = {**items, **{name: value for name, value in known.items() if value is not ABSENT}}
            items = dict(sorted(merged.items()))
        else:
            items.update((name, value) for name, value in known.items() if value is not ABSENT)
        cell.items, cell.older, cell.whole, cell.order = items, None, True, None
        return True

    def _ordered(self, cell: Cell) -> list[Any]:
        if self.appends:
            return list(cell.items)
        if cell.order is None:
            cell.order = sorted(cell.items, key=self.sub.encode)
        return cell.order

    def _walk(self, slot: int, cell: Cell) -> Iterator[tuple[Any, Any, int | None]]:
        """Entries of a key that has too many to hold: stored ones streamed, merged with those at hand."""
        keys, encode, decode = self._keys, self.sub.encode, self.sub.decode
        # Only changes count: anything else at hand is a copy of what the stream brings.
        ours = sorted((encode(name), 0, name, cell.items.get(name, ABSENT)) for name in cell.changed)
        expiries = {name: cell.expires.get(name) for name in cell.changed}
        stored = keys.layers.entries(self.table, keys.hash_of(slot), keys.names[slot])
        theirs = ((sub, 1, raw, expires) for sub, raw, expires in stored)
        last: bytes | None = None
        for sub, age, first, second in heapq.merge(ours, theirs, key=lambda row: row[:2]):
            if sub == last:
                continue
            last = sub
            if age == 0:
                if second is not ABSENT:
                    yield first, second, expiries[first]
            elif not self._is_hidden(second):
                yield decode(sub), self._decode(first), second

    # --- fetching

    def cell(self, slot: int) -> Cell:
        """The cell of a key, made where there is none; nothing is fetched."""
        found = self.cells[slot]
        if found is None:
            found = self.cells[slot] = Cell()
        return found

    def _fetched_cell(self, slot: int) -> Cell:
        cell = self.cells[slot]
        if cell is None or not cell.fetched:
            self._fetch(slot)
            cell = self.cell(slot)
        return cell

    def _fetch(self, slot: int) -> None:
        """Fetches older entries of this key and of the keys that will be handled after it."""
        positions = self._next_window(slot)
        if not len(positions):
            keys = self._keys
            hashes = np.array([keys.hash_of(slot)], dtype=np.uint64)
            names = pa.array([keys.names[slot]], pa.binary())
            found = keys.layers.entries_many(self.table, hashes, names, SMALL_ENTRIES)
            self._take_in(slot, found[0])
            return
        slots: list[int] = self._keys.slots[positions].tolist()
        hashes, names = self._keys.among(positions)
        for each, older in zip(slots, self._keys.layers.entries_many(self.table, hashes, names, SMALL_ENTRIES)):
            self._take_in(each, older)
        self._window = slots

    def _next_window(self, slot: int) -> Int64s:
        """Positions in the batch from this slot on whose cells know nothing yet; empty if the slot lies behind."""
        keys, cells = self._keys, self.cells
        if self._round != keys.round:
            self._round, self._ahead, self._window = keys.round, keys.handled(), []
        found = np.flatnonzero(keys.slots[self._ahead] == slot)
        if not len(found):
            return found
        for past in self._window:
            if not self.dirty[past]:
                cells[past] = None
        end = int(found[0]) + WINDOW_KEYS
        window, self._ahead = self._ahead[int(found[0]) : end], self._ahead[end:]
        knows_nothing = [(cell := cells[each]) is None or not cell.fetched for each in keys.slots[window].tolist()]
        return window[np.array(knows_nothing, dtype=np.bool_)]

    def _take_in(self, slot: int, older: Older | None) -> None:
        cell = self.cell(slot)
        cell.fetched = True
        cell.older = older
        if older is not None and not older:
            cell.items = {name: value for name, value in cell.items.items() if value is not ABSENT}
            cell.older, cell.whole = None, True

    # --- writing

    def put(self, slot: int, name: Any, value: Any, expires_us: int | None = None) -> None:
        cell = self.cells[slot]
        if cell is None:
            cell = self.cells[slot] = Cell()
        if self.journal is not None:
            self._note(slot, cell, name)
        if cell.order is not None and name not in cell.items:
            cell.order = None
        cell.items[name] = value
        cell.changed[name] = None
        if self.expiry is not None:
            cell.expires[name] = expires_us
        self.dirty[slot] = 1

    def remove(self, slot: int, name: Any) -> None:
        cell = self.cell(slot)
        if self.journal is not None:
            self._note(slot, cell, name)
        if cell.whole:
            cell.items.pop(name, None)
        else:
            cell.items[name] = ABSENT
        cell.changed[name] = None
        cell.expires.pop(name, None)
        cell.order = None
        self.dirty[slot] = 1

    def clear_key(self, slot: int) -> None:
        if self.journal is not None:
            self.journal.append((slot, self.cells[slot]))
        self.cells[slot] = Cell(cleared=True)
        self.dirty[slot] = 1

    def _note(self, slot: int, cell: Cell, name: Any) -> None:
        assert self.journal is not None
        old = cell.items.get(name, ABSENT if cell.whole else _UNKNOWN)
        self.journal.append((slot, name, old, name in cell.changed, cell.expires.get(name)))

    def undo(self) -> None:
        """Takes back everything in the journal, newest first, and empties it."""
        journal = self.journal or []
        while journal:
            noted = journal.pop()
            if len(noted) == 2:
                self.cells[noted[0]] = noted[1]
            else:
                self._undo_entry(*noted)

    def _undo_entry(self, slot: int, name: Any, old: Any, was_changed: bool, expires_us: int | None) -> None:
        cell = self.cell(slot)
        cell.order = None
        if not was_changed:
            cell.changed.pop(name, None)
        if old is _UNKNOWN and cell.whole:
            # What lies below the change was never looked at, and the cell has been completed since: forget, ask again.
            cell.items = {each: cell.items[each] for each in cell.changed if each in cell.items}
            cell.items.update((each, ABSENT) for each in cell.changed if each not in cell.items)
            cell.whole = cell.fetched = False
        elif old is _UNKNOWN or (old is ABSENT and cell.whole):
            cell.items.pop(name, None)
        else:
            cell.items[name] = old
            if self.appends:
                cell.items = dict(sorted(cell.items.items()))
        if self.expiry is not None:
            cell.expires[name] = expires_us

    # --- leaving

    def changed_cells(self) -> Iterator[tuple[int, Cell]]:
        for slot in changed_slots(self.dirty).tolist():
            cell = self.cells[slot]
            if cell is not None:
                yield slot, cell

    def changes(self) -> TableData | None:
        """The changed entries as rows of a run, a clear marker before them where the key was cleared."""
        cleared: list[int] = []
        slots: list[int] = []
        names: list[Any] = []
        values: list[Any] = []
        expires: list[int | None] = []
        for slot, cell in self.changed_cells():
            before = len(names)
            if cell.cleared:
                cleared.append(slot)
            for name in cell.changed:
                value = cell.items.get(name, ABSENT)
                if value is ABSENT and cell.cleared:
                    continue
                names.append(name)
                values.append(value)
                expires.append(None if value is ABSENT else cell.expires.get(name))
            slots.extend([slot] * (len(names) - before))
        if not slots and not cleared:
            return None
        try:
            subs = encode_names(self.table, names, self.sub)
            encoded = encode_fitting(self.table, values, self._codec, ABSENT)
        except Misfit as misfit:
            misfit.note_key(self._keys.names, slots)
            raise
        hashes, keys = self._keys.pick(np.array(cleared + slots, dtype=np.int64))
        nothing = [None] * len(cleared)
        columns = {
            "hash": pa.array(hashes),
            "key": keys,
            "sub": pa.array(nothing + subs, pa.binary()),
            "value": pa.array(nothing + encoded, pa.binary()),
        }
        if any(each is not None for each in expires):
            columns["expires"] = pa.array(nothing + expires, pa.int64())
        return TableData(self.table, ENTRIES, pa.table(columns))

    def weigh(self) -> int:
        """Estimated bytes of memory, from a sample of cells."""
        step = max(1, len(self.cells) // _SAMPLES)
        total = 0
        for cell in self.cells[::step]:
            if cell is not None:
                some = [value for value in list(cell.items.values())[:_SAMPLES] if value is not ABSENT]
                each = weigh_values(some, self._codec) // len(some) if some else 0
                older = len(cell.older) if cell.older else 0
                total += _CELL_BYTES + (len(cell.items) + older) * (_ENTRY_BYTES + each)
        return len(self.cells) * 16 + total * step

    def clear(self) -> None:
        self.cells.clear()
        self.dirty.clear()
        self._window = []

    # --- small things

    def _is_hidden(self, expires_us: int | None) -> bool:
        return self.expiry is not None and self.expiry.is_hidden(expires_us)

    def _decode(self, raw: bytes) -> Any:
        try:
            return self._codec.decode(raw)
        except msgspec.MsgspecError as error:
            raise unreadable(self.table, error) from error
