"""What edits make of single keys, laid over the runs of an epoch; at the end the rows that hide the older ones.

Several edits may be of one key: each finds what the one before left. A key of a map whose single entries are edited is
never loaded whole, however large it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace.edit.targets import EditTarget
from headrace.model.keys import hash_key
from headrace.state.format import DUE, ENTRIES, VALUE, TableData
from headrace.state.lookup import Layers
from headrace.state.subs import first_place

Stored = tuple[bytes, int | None]
"""A stored value, and when it expires."""


class ValueCell:
    """One value of one key."""

    def __init__(self, target: EditTarget, layers: Layers, key: bytes) -> None:
        self.key = key
        raw, expires = layers.get(target.table, hash_key(key), key)
        self.stored: Stored | None = None if raw is None or is_over(target, expires) else (raw, expires)

    def rows(self) -> Iterator[tuple[bytes | None, Stored | None]]:
        yield None, self.stored


class EntriesCell:
    """The entries of one key, as far as they were asked for."""

    def __init__(self, target: EditTarget, layers: Layers, key: bytes) -> None:
        self.key = key
        self.cleared = False
        self._target = target
        self._layers = layers
        self._changed: dict[bytes, Stored | None] = {}

    def find(self, sub: bytes) -> Stored | None:
        """One entry."""
        if sub in self._changed or self.cleared:
            return self._changed.get(sub)
        raw, expires = self._layers.entry(self._target.table, hash_key(self.key), self.key, sub)
        return None if raw is None or is_over(self._target, expires) else (raw, expires)

    def entries(self) -> dict[bytes, Stored]:
        """All of them, in the order of their names."""
        found: dict[bytes, Stored | None] = {}
        if not self.cleared:
            for sub, raw, expires in self._layers.entries(self._target.table, hash_key(self.key), self.key):
                if not is_over(self._target, expires):
                    found[sub] = raw, expires
        found.update(self._changed)
        return {sub: stored for sub, stored in sorted(found.items()) if stored is not None}

    def put(self, sub: bytes, stored: Stored | None) -> None:
        """Sets an entry; None takes it away."""
        self._changed[sub] = stored

    def clear(self) -> None:
        """Takes all of them away."""
        self.cleared = True
        self._changed = {}

    def next_place(self, epoch: int) -> int:
        """Of a list: the name of an element behind all that are there, and before all that a later epoch appends."""
        last = next(reversed(self.entries()), None)
        return max(first_place(epoch), 0 if last is None else int.from_bytes(last, "big") + 1)

    def rows(self) -> Iterator[tuple[bytes | None, Stored | None]]:
        if self.cleared:
            yield None, None
        for sub, stored in self._changed.items():
            if stored is not None or not self.cleared:
                yield sub, stored


def is_over(target: EditTarget, expires_us: int | None) -> bool:
    """Whether something with this expiry is gone."""
    return expires_us is not None and target.now_us is not None and expires_us <= target.now_us


Cell = ValueCell | EntriesCell


def derive_table(target: EditTarget, cells: list[Cell]) -> TableData:
    """The rows of a run that say what became of these keys."""
    rows = [(cell.key, sub, stored) for cell in cells for sub, stored in cell.rows()]
    keys = [key for key, _, _ in rows]
    values = [None if stored is None else stored[0] for _, _, stored in rows]
    expires = [None if stored is None else stored[1] for _, _, stored in rows]
    columns: dict[str, Any] = {"hash": pa.array([hash_key(key) for key in keys], pa.uint64()),
                               "key": pa.array(keys, pa.binary())}  # fmt: skip
    if target.stored_as == ENTRIES:
        columns["sub"] = pa.array([sub for _, sub, _ in rows], pa.binary())
    columns["value"] = pa.array(values, pa.binary())
    if any(each is not None for each in expires):
        columns["expires"] = pa.array(expires, pa.int64())
    return TableData(target.table, ENTRIES if target.stored_as == ENTRIES else VALUE, pa.table(columns))


def derive_due(target: EditTarget, times: dict[bytes, set[int]]) -> TableData | None:
    """The rows of the index by time for timers that were set."""
    rows = sorted((time, hash_key(key), key) for key, each in times.items() for time in each)
    if not rows or target.due_table is None:
        return None
    columns = {
        "time": pa.array([time for time, _, _ in rows], pa.int64()),
        "hash": pa.array([hashed for _, hashed, _ in rows], pa.uint64()),
        "key": pa.array([key for _, _, key in rows], pa.binary()),
        "timer": pa.array([0] * len(rows), pa.uint8()),
    }
    return TableData(target.due_table, DUE, pa.table(columns))
