"""Broadcast state: a mapping that every shard of a step has whole, and that all of them change in the same way.

It is stored once, whatever the number of shards: one shard writes what changed, as a run that covers all key groups,
and every shard reads it whole. A table of it is a value table whose keys are the keys of the mapping, so readers of
stores see the mapping itself. All shards tell a digest of their changes, and the driver compares.

Invariants
- The mapping is in memory, encoded; values are decoded when they are first asked for, and anew in each task, so that a
  value somebody changed in place is never seen by the next epoch.
- What is put is encoded and checked at once. Where values can be changed in place, whoever may put has copies of them:
  a change counts when it is put, and can be undone. Readers share one, and must not change it.
- What is read from runs depends on the list of runs alone, so an operator may keep it as long as the list stays.
- Going over the mapping follows the encoded keys, wherever epochs and shards end.

What this module deliberately does not do: decide who writes, or when writing is allowed to begin.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, overload

import msgspec
import pyarrow as pa
import xxhash

from headrace.model.keys import decode_key, encode_key, hash_key
from headrace.model.time import encode_span
from headrace.model.values import ValueCodec
from headrace.state.cells import ABSENT
from headrace.state.fitting import check_fits, unreadable
from headrace.state.format import VALUE, TableData

if TYPE_CHECKING:
    from headrace.state.lookup import Layers

MK = TypeVar("MK")
V = TypeVar("V")
D = TypeVar("D")

_UNKNOWN: Final[Any] = object()
_CANONICAL: Final = msgspec.msgpack.Encoder(order="deterministic", enc_hook=encode_span)
"""Sets and dicts in one order: two shards that hold equal values must write equal bytes."""


def canonical(value: Any) -> bytes:
    """The bytes by which values and rows of several shards are compared."""
    return _CANONICAL.encode(value)


class StoredMapping(NamedTuple):
    """One mapping as the runs hold it; shared by tasks and never changed."""

    identity: Hashable
    """Of the list of runs it was read from."""
    raw: Mapping[Any, bytes]
    """Encoded values by key, in the order of the encoded keys."""


class BroadcastTable:
    """One broadcast state in one task."""

    __slots__ = ("_codec", "_journal", "_live", "_order", "_raw", "_stored", "name", "writable")

    def __init__(self, name: str, codec: ValueCodec, stored: Mapping[Any, bytes]) -> None:
        self.name = name
        self.writable = False
        self._codec = codec
        self._stored = stored
        self._live: dict[Any, Any] = {}
        """What was decoded or set; ABSENT where a key was removed."""
        self._raw: dict[Any, bytes | None] = {}
        """What was set, encoded; None where a key was removed."""
        self._order: list[Any] | None = None
        self._journal: list[tuple[Any, Any, Any]] | None = None

    # --- reading

    def find(self, key: Any) -> Any:
        """The value of a key, or ABSENT."""
        if self.writable and self._codec.changeable:
            raw = self._raw.get(key, _UNKNOWN)
            raw = self._stored.get(key) if raw is _UNKNOWN else raw
            return ABSENT if raw is None else self._decode(raw)
        value = self._live.get(key, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
        raw = self._stored.get(key)
        if raw is None:
            return ABSENT
        value = self._live[key] = self._decode(raw)
        return value

    def _decode(self, raw: bytes) -> Any:
        try:
            return self._codec.decode(raw)
        except msgspec.MsgspecError as error:
            raise unreadable(self.name, error) from error

    def keys(self) -> list[Any]:
        """All keys in their order; the caller must not change the list."""
        if self._order is None:
            live, stored = self._live, self._stored
            new = [key for key in self._raw if key not in stored and live[key] is not ABSENT]
            kept = [key for key in stored if live.get(key) is not ABSENT]
            self._order = sorted([*kept, *new], key=encode_key) if new else kept
        return self._order

    # --- writing

    def put(self, key: Any, value: Any) -> None:
        """Sets the value of a key; ABSENT removes it."""
        if not self.writable:
            raise RuntimeError(
                f"the broadcast state {self.name!r} can be changed in on_broadcast only, outside of for_each_key: "
                "every shard has to change it in the same way, and other calls come to one shard each"
            )
        raw = None
        if value is not ABSENT:
            raw, copy = check_fits(self.name, value, canonical, self._codec)
            value = copy if self._codec.changeable else value
        old = self._live.get(key, _UNKNOWN)
        if self._journal is not None:
            self._journal.append((key, old, self._raw.get(key, _UNKNOWN)))
        if old is ABSENT or value is ABSENT or (old is _UNKNOWN and key not in self._stored):
            self._order = None
        self._live[key] = value
        self._raw[key] = raw

    def begin(self) -> None:
        """From here on changes can be undone."""
        self._journal = []

    def undo(self) -> None:
        """Takes back what was changed since `begin`."""
        while self._journal:
            key, *before = self._journal.pop()
            for known, old in zip((self._live, self._raw), before):
                if old is _UNKNOWN:
                    del known[key]
                else:
                    known[key] = old
        self._order = None

    # --- leaving

    def changes(self) -> dict[bytes, bytes | None]:
        """Encoded key → encoded value, None where it was removed; only what differs from the runs, in order."""
        return {
            encode_key(key): self._raw[key]
            for key in sorted(self._raw, key=encode_key)
            if self._raw[key] != self._stored.get(key)
        }


class SharedState:
    """The broadcast states of one step, seen from one task."""

    def __init__(self, layers: Layers | None = None, identity: Hashable = ()) -> None:
        """``layers``: the runs, open over all key groups; None where nothing was ever written."""
        self._layers = layers
        self._identity = identity
        self._tables: dict[str, BroadcastTable] = {}

    def table(self, name: str, codec: ValueCodec, key_type: Any, kept: dict[str, StoredMapping]) -> BroadcastTable:
        """A state, once per task. ``kept`` is the caller's, from task to task: what was read is not read again."""
        known = kept.get(name)
        if known is None or known.identity != self._identity:
            known = kept[name] = StoredMapping(self._identity, self._read(name, key_type))
        table = self._tables[name] = BroadcastTable(name, codec, known.raw)
        return table

    def _read(self, name: str, key_type: Any) -> dict[Any, bytes]:
        found: dict[bytes, bytes] = {}
        for batch in () if self._layers is None else self._layers.scan(name):
            found.update(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist()))
        return {decode_key(key, key_type): found[key] for key in sorted(found)}

    def flush(self) -> tuple[list[TableData], dict[str, str]]:
        """The changes of the epoch as tables of a run, and a digest of each state that changed."""
        tables: list[TableData] = []
        digests: dict[str, str] = {}
        for table in self._tables.values():
            changed = table.changes()
            if changed:
                tables.append(TableData(table.name, VALUE, _rows(changed)))
                digests[table.name] = _digest(changed)
        return tables, digests


def _rows(changed: Mapping[bytes, bytes | None]) -> pa.Table:
    return pa.table(
        {
            "hash": pa.array([hash_key(key) for key in changed], pa.uint64()),
            "key": pa.array(changed, pa.binary()),
            "value": pa.array(changed.values(), pa.binary()),
        }
    )


def _digest(changed: Mapping[bytes, bytes | None]) -> str:
    digest = xxhash.xxh3_128()
    for key, value in changed.items():
        # Lengths keep neighbours apart: "ab", "c" is not "a", "bc".
        digest.update(len(key).to_bytes(4, "big") + key)
        digest.update(b"-" if value is None else len(value).to_bytes(8, "big") + value)
    return digest.hexdigest()


class BroadcastState(MutableMapping[MK, V]):
    """A mapping that every shard has whole: rules, limits, settings. Written in ``on_broadcast`` only.

    >>> class Match(hr.BroadcastProcess[Shape, Rule, Hit, str]):    # doctest: +SKIP
    ...     rules: hr.BroadcastState[str, Rule]
    ...     def on_broadcast(self, event, ctx):
    ...         self.rules[event.name] = event
    """

    __slots__ = ("_table",)

    def __init__(self, table: BroadcastTable) -> None:
        self._table = table

    def __getitem__(self, key: MK) -> V:
        value = self._table.find(key)
        if value is ABSENT:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]

    @overload
    def get(self, key: MK) -> V | None: ...
    @overload
    def get(self, key: MK, default: V) -> V: ...
    @overload
    def get(self, key: MK, default: D) -> V | D: ...
    def get(self, key: MK, default: Any = None) -> Any:
        """The value of a key, or the default where there is none."""
        value = self._table.find(key)
        return default if value is ABSENT else value

    def __contains__(self, key: object) -> bool:
        return self._table.find(key) is not ABSENT

    def __setitem__(self, key: MK, value: V) -> None:
        self._table.put(key, value)

    def __delitem__(self, key: MK) -> None:
        if self._table.find(key) is ABSENT:
            raise KeyError(key)
        self._table.put(key, ABSENT)

    def __iter__(self) -> Iterator[MK]:
        return iter(self._table.keys())

    def __len__(self) -> int:
        return len(self._table.keys())

    def clear(self) -> None:
        """Removes all entries."""
        for key in list(self._table.keys()):
            self._table.put(key, ABSENT)
