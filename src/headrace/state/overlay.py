"""The changes of one epoch in memory, laid over the runs: which keys were met, and the single values kept for them.

Each key a task meets gets a *slot*, a small number that is the same in every column of the step. A column is a plain
list by slot: reading or writing a state is one list access, nothing is encoded before the flush, and the flush works
on whole columns. Entry-wise state (lists, maps, many timers) is in `headrace.state.cells`.
Values that can be changed in place are kept otherwise, see `headrace.state.copied`.

Invariants
- A slot is valid until the next `clear`, which happens only between two batches.
- A value that nobody has asked for is ``UNLOADED``. The first question of a batch fetches that state for every key of
  the batch at once; a state that a batch never reads is never fetched, and writing needs no fetch.
- ``None`` means that there is no value. A changed ``None`` becomes a tombstone.

What this module deliberately does not do: decide when to spill (`headrace.state.shard`), or know what a handle means.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, UInt64s
from headrace.model.values import ValueCodec
from headrace.state.fitting import RAW, Misfit, encode_fitting, unreadable, weigh_values
from headrace.state.format import VALUE, TableData
from headrace.state.ttl import Expiry

if TYPE_CHECKING:
    from headrace.state.lookup import Layers

UNLOADED: Final[Any] = object()
"""Stands where a value may exist in the runs but has not been asked for."""

_SAMPLES: Final = 48
_SLOT_BYTES: Final = 24
_KEY_BYTES: Final = 190


class KeyTable:
    """The keys met since the last spill, by slot, and the keys of the batch at hand."""

    __slots__ = (
        "_all_hashes", "_all_keys", "by_slot", "hashes", "index", "keys", "layers", "names", "new", "round", "slots",
    )  # fmt: skip

    def __init__(self, layers: Layers) -> None:
        self.layers = layers
        self.index: dict[bytes, int] = {}
        self.names: list[bytes] = []
        self.round = 0
        """Grows with each batch, so that a column knows what it has fetched for this one."""
        self.slots: Int64s = np.empty(0, np.int64)
        """The slots of the batch at hand, with hashes and keys, in the order in which they were entered …"""
        self.hashes: UInt64s = np.empty(0, np.uint64)
        self.keys: pa.BinaryArray = pa.array([], pa.binary())
        self.new: Int64s = np.empty(0, np.int64)
        """… and the positions among them that are new; their slots are the last ones, without gaps."""
        self.by_slot = True
        """Whether they will be handled in the order of their slots, or as they were entered."""
        self._all_hashes: list[UInt64s] = []
        self._all_keys: list[pa.BinaryArray] = []

    def __len__(self) -> int:
        return len(self.names)

    def enter(self, hashes: UInt64s, keys: pa.BinaryArray) -> int:
        """Takes the distinct keys of a batch; returns how many are new."""
        names: list[bytes] = keys.to_pylist()
        start, count = len(self.names), len(names)
        if start:
            slots = np.fromiter(map(self.index.get, names, repeat(-1)), np.int64, count)
            new = np.flatnonzero(slots < 0)
        else:
            slots = new = np.arange(count)
        if len(new) == count:
            slots = np.arange(start, start + count)
            self._add(names, hashes, keys)
        elif len(new):
            slots[new] = np.arange(start, start + len(new))
            added = keys.take(pa.array(new))
            self._add([names[i] for i in new.tolist()], hashes[new], added)
        self.slots, self.hashes, self.keys, self.new = slots, hashes, keys, new
        self.round += 1
        return len(new)

    def _add(self, names: list[bytes], hashes: UInt64s, keys: pa.BinaryArray) -> None:
        start = len(self.names)
        self.names.extend(names)
        self.index.update(zip(names, range(start, start + len(names))))
        self._all_hashes.append(hashes)
        self._all_keys.append(keys)

    def pick(self, slots: Int64s) -> tuple[UInt64s, pa.BinaryArray]:
        """Hashes and keys of these slots."""
        if not len(slots):
            return np.empty(0, np.uint64), pa.array([], pa.binary())
        if len(self._all_keys) > 1:
            self._all_keys = [pa.concat_arrays(self._all_keys)]
        return self._hashes()[slots], self._all_keys[0].take(pa.array(slots))

    def _hashes(self) -> UInt64s:
        if len(self._all_hashes) > 1:
            self._all_hashes = [np.concatenate(self._all_hashes)]
        return self._all_hashes[0]

    def handled(self) -> Int64s:
        """Positions of the batch at hand in the order in which they will be handled."""
        return np.argsort(self.slots, kind="stable") if self.by_slot else np.arange(len(self.slots))

    def among(self, positions: Int64s) -> tuple[UInt64s, pa.BinaryArray]:
        """Hashes and keys at these positions of the batch at hand, in this order."""
        if len(positions) == len(self.slots) and bool((positions[1:] > positions[:-1]).all()):
            return self.hashes, self.keys
        return self.hashes[positions], self.keys.take(pa.array(positions))

    def hash_of(self, slot: int) -> int:
        return int(self._hashes()[slot])

    def weigh(self) -> int:
        """Estimated bytes of memory."""
        some = self.names[:: max(1, len(self.names) // _SAMPLES)]
        return len(self.names) * (_KEY_BYTES + (2 * sum(map(len, some)) // len(some) if some else 0))

    def clear(self) -> None:
        self.index.clear()
        self.names.clear()
        self._all_hashes.clear()
        self._all_keys.clear()
        self.slots = np.empty(0, np.int64)
        self.new = np.empty(0, np.int64)
        self.round += 1


class ValueColumn:
    """One value per key: ValueState, ReducingState, AggregatingState, Timer, and the accumulators of aggregates."""

    __slots__ = ("_codec", "_fetched_new", "_fetched_old", "_keys", "dirty", "expires", "expiry", "table", "values")

    def __init__(self, keys: KeyTable, table: str, codec: ValueCodec, expiry: Expiry | None) -> None:
        self.table = table
        self.expiry = expiry
        self.values: list[Any] = []
        self.dirty = bytearray()
        self.expires: list[int | None] = []
        """Kept only where the state has a TTL."""
        self._keys = keys
        self._codec = codec
        self._fetched_new = self._fetched_old = -1

    def grow(self, count: int) -> None:
        self.values.extend([UNLOADED] * count)
        self.dirty.extend(bytes(count))
        if self.expiry is not None:
            self.expires.extend([None] * count)

    def get(self, slot: int) -> Any:
        value = self.values[slot]
        return self.load(slot) if value is UNLOADED else value

    def put(self, slot: int, value: Any) -> None:
        self.values[slot] = value
        self.dirty[slot] = 1

    def load(self, slot: int) -> Any:
        """Fetches this slot, and with it what the batch at hand will probably ask for next.

        The first question in a batch fetches all of its new keys. A key met before is usually known; the first that
        is not fetches every other such key of the batch.
        """
        keys, values = self._keys, self.values
        if self._fetched_new != keys.round:
            self._fetched_new = keys.round
            self._fill(keys.new)
        if values[slot] is UNLOADED and self._fetched_old != keys.round:
            self._fetched_old = keys.round
            slots = keys.slots.tolist()
            self._fill(np.array([i for i, each in enumerate(slots) if values[each] is UNLOADED], dtype=np.int64))
        if values[slot] is UNLOADED:
            raw, expires = keys.layers.get(self.table, keys.hash_of(slot), keys.names[slot])
            self._put_all([slot], pa.array([raw], pa.binary()), pa.array([expires], pa.int64()))
        return values[slot]

    def _fill(self, positions: Int64s) -> None:
        """Fetches what is stored for these positions of the batch, but keeps what has been set meanwhile."""
        if len(positions):
            slots: list[int] = self._keys.slots[positions].tolist()
            self._put_all(slots, *self._keys.layers.get_many(self.table, *self._keys.among(positions)))

    def _put_all(self, slots: list[int], found: pa.BinaryArray, expires: pa.Int64Array | None) -> None:
        decoded = self._decode(found)
        if self.expiry is not None and expires is not None and expires.null_count < len(expires):
            self._judge(self.expiry, slots, decoded, expires.to_pylist())
        values, first, last = self.values, slots[0], slots[-1]
        if last - first == len(slots) - 1 and self.dirty.find(1, first, last + 1) < 0:
            values[first : last + 1] = decoded
            return
        for slot, value in zip(slots, decoded):
            if values[slot] is UNLOADED:
                values[slot] = value

    def _decode(self, found: pa.BinaryArray) -> list[Any]:
        if found.null_count == len(found):
            return [None] * len(found)
        raw: list[Any] = found.to_pylist()
        if self._codec is RAW:
            return raw
        decode = self._codec.decode
        try:
            return [None if each is None else decode(each) for each in raw]
        except msgspec.MsgspecError as error:
            raise unreadable(self.table, error) from error

    def _judge(self, expiry: Expiry, slots: list[int], decoded: list[Any], expires: list[int | None]) -> None:
        """Hides what has expired and remembers when the rest will."""
        for i, (slot, expires_us) in enumerate(zip(slots, expires)):
            if expiry.is_hidden(expires_us):
                decoded[i] = None
            elif decoded[i] is not None and self.values[slot] is UNLOADED:
                self.expires[slot] = expires_us

    def save(self, slot: int) -> tuple[Any, int, int | None]:
        """What `restore` needs to undo changes of this slot: values are replaced, never changed, so this is cheap."""
        return self.values[slot], self.dirty[slot], self.expires[slot] if self.expiry is not None else None

    def restore(self, slot: int, saved: tuple[Any, int, int | None]) -> None:
        self.values[slot], self.dirty[slot] = saved[0], saved[1]
        if self.expiry is not None:
            self.expires[slot] = saved[2]

    def changes(self) -> TableData | None:
        """The changed values as rows of a run."""
        slots = changed_slots(self.dirty)
        if not len(slots):
            return None
        hashes, keys = self._keys.pick(slots)
        at = slots.tolist()
        values = list(map(self.values.__getitem__, at))
        try:
            encoded = encode_fitting(self.table, values, self._codec, None)
        except Misfit as misfit:
            misfit.note_key(self._keys.names, at)
            raise
        columns = {"hash": pa.array(hashes), "key": keys, "value": pa.array(encoded, pa.binary())}
        if self.expiry is not None:
            expires = [self.expires[slot] if value is not None else None for slot, value in zip(at, values)]
            if any(each is not None for each in expires):
                columns["expires"] = pa.array(expires, pa.int64())
        return TableData(self.table, VALUE, pa.table(columns))

    def weigh(self) -> int:
        """Estimated bytes of memory, from a sample."""
        step = max(1, len(self.values) // _SAMPLES)
        some = [value for value in self.values[::step] if value is not None and value is not UNLOADED]
        return len(self.values) * _SLOT_BYTES + step * weigh_values(some, self._codec)

    def clear(self) -> None:
        self.values.clear()
        self.dirty.clear()
        self.expires.clear()


def changed_slots(dirty: bytearray) -> Int64s:
    """The slots marked in a column's ``dirty``."""
    # Of a copy: a view would forbid the column to grow as long as it lives.
    return np.flatnonzero(np.frombuffer(bytes(dirty), np.uint8))
