"""One state of one epoch, asked in text and answered in bytes: what all protocols share.

A key comes as people write it (`headrace.model.key_text`); its type is told by the keys that are there. A value goes
out as JSON text or as MessagePack, made straight from the stored bytes where that is possible. What a state is
made of decides what can be asked: a value has fields where it is a Record, a map has entries, a windowed state has
windows, a list has elements.

What this module deliberately does not do: know a protocol, follow the job, or remember anything between two epochs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import ProgramError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.key_bytes import NULL_KEY
from headrace.model.key_text import key_text, parse_key_text
from headrace.model.keys import decode_key, encode_key, hash_key
from headrace.model.time import format_time
from headrace.model.window import Window
from headrace.query.finding import Finder
from headrace.query.paging import Page, Walk
from headrace.query.pane_reading import PaneReader
from headrace.query.ranges import Range, RangePage, read_range
from headrace.query.results import AggregateView, HeldWindowsView
from headrace.query.shape import Kind
from headrace.query.view import StateView
from headrace.query.windows import WindowView
from headrace.state import bulk
from headrace.state.format import VALUE
from headrace.state.subs import TIME_SUB

if TYPE_CHECKING:
    from headrace.query.archive import ArchivedWindows
    from headrace.query.patterns import Pattern
    from headrace.state.lookup import Layers

JSON: Final = "json"
PACKED: Final = "msgpack"

_FEW: Final = 1000
"""Up to this many keys are looked up one by one, at 2 to 3 µs each. A bulk lookup touches every batch of a large state,
which alone takes as long as a thousand of those."""
_TYPE_KEYS: Final = 24
"""So many keys tell the type of all."""
_INT: Final = struct.Struct(">cq")

# Names in JSON are text: those that are none are written as keys are.
_to_json = msgspec.json.Encoder(enc_hook=key_text).encode
_to_packed = msgspec.msgpack.Encoder(enc_hook=str).encode
_from_packed = msgspec.msgpack.Decoder().decode


def encode(value: Any, form: str) -> bytes:
    """A plain value as JSON text or MessagePack."""
    return _to_packed(value) if form == PACKED else _to_json(value)


def json_of(raw: bytes) -> bytes:
    """A stored value as JSON text."""
    return _to_json(_from_packed(raw))


class Table:
    """One state, by key."""

    stable = False
    """Whether the answer for a key stays as it is until the key itself changes: nothing expires, no window ends."""

    def __init__(self, view: StateView[Any], layers: Layers, table: str) -> None:
        self.address = view.address
        self.epoch = view.epoch
        self.kind: Kind = view.kind
        self._view = view
        self._views = layers.views(table)
        self._layers = layers
        self._table = table

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r}, {self.kind}, epoch {self.epoch})"

    def warm(self, rows: int) -> int:
        """Opens batches until so many rows are ready for readers; answers how many of them are left to be."""
        for view in self._views:
            rows -= view.table.rows
            if rows < 0:
                break
            for number in range(len(view.table)):
                view.table.block(number)
        assert self.key_of is not None
        return rows

    # --- keys

    @cached_property
    def key_of(self) -> Callable[[bytes], bytes]:
        """The key that somebody wrote, as it is stored; ValueError where it cannot be a key of this state."""
        kind = self._key_type
        if kind is str:
            return lambda text: b"s" + text
        return self._int_key if kind is int else self._any_key

    def key(self, text: str) -> bytes:
        """The same, of text."""
        return self.key_of(text.encode("utf-8", "surrogatepass"))

    @property
    def by_text(self) -> bool:
        """Whether keys are text, which is written in one way only."""
        return self._key_type is str

    def text(self, key: bytes) -> str:
        """A stored key as people write it."""
        return key[1:].decode() if key[:1] == b"s" else key_text(decode_key(key))

    def _any_key(self, text: bytes) -> bytes:
        try:
            return encode_key(parse_key_text(text.decode(), self._key_type))
        except UnicodeDecodeError:
            raise ValueError("a key is text in UTF-8") from None
        except ProgramError as error:
            raise ValueError(f"{text!r} is no key of {self.address}: expected {error.expected}") from None

    def _int_key(self, text: bytes) -> bytes:
        if text.isdigit() and len(text) < 19:
            return _INT.pack(b"i", int(text))
        return self._any_key(text)

    @cached_property
    def _key_type(self) -> Any:
        """The type of the keys, told by the first one that is not null."""
        for view in self._views:
            if len(view.table):
                for encoded in view.table.block(0).key[:_TYPE_KEYS].to_pylist():
                    if encoded != NULL_KEY:
                        return _type_of(decode_key(encoded))
        return self._declared_key_type

    @property
    def _declared_key_type(self) -> Any:
        """What keys are where there is none to look at."""
        return str

    # --- values

    def get(self, key: bytes, form: str = JSON) -> bytes | None:
        """The value of a key: of a windowed state the newest window, of a map or list all of it."""
        value = self.value(key)
        return None if value is None else encode(value, form)

    def get_many(self, keys: Sequence[bytes], form: str = JSON) -> list[bytes | None]:
        """The values of several keys, in the order asked."""
        return [self.get(key, form) for key in keys]

    def has(self, key: bytes) -> bool:
        return self.value(key) is not None

    def value(self, key: bytes) -> Any:
        """The value as plain Python; None where there is none."""
        return self._view._find(key)

    def expires_us(self, key: bytes) -> int | None:
        """When the value of a key ends; None where it does not, or is not there."""
        return None

    @property
    def now_us(self) -> int | None:
        """The time by which values of this state expire; None where it is not known."""
        return getattr(self._view, "_now_us", None)

    # --- parts of a value

    def fields(self, key: bytes) -> dict[str, Any] | None:
        """Entries of a map, windows of a key, fields of a Record; None where the key is not there.

        TypeError where the value has no such parts.
        """
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise TypeError(f"{self.address} keeps a {type(value).__name__}")
        return {name if isinstance(name, str) else key_text(name): each for name, each in value.items()}

    def field(self, key: bytes, name: str) -> Any:
        """One of them; None where it is not there."""
        found = self.fields(key)
        return None if found is None else found.get(name)

    def elements(self, key: bytes) -> list[Any] | None:
        """Elements of a list, times of timers; None where the key is not there."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise TypeError(f"{self.address} keeps a {type(value).__name__}")
        return value

    # --- all of it

    def count(self) -> int:
        """How many keys there are, counted one by one."""
        return len(self._view)

    def estimate(self) -> int:
        """How many keys there are: counted where they are few, and told from a sample otherwise."""
        return self._walk.estimate()

    @property
    def stored_rows(self) -> int:
        """Rows in the runs before merging: at least the number of keys, where a key is one row."""
        return self._walk.rows

    def page(self, from_hash: int, count: int, matches: Pattern | None = None) -> Page:
        """Keys in the order of their hashes, from a hash on; all keys of one hash stand on one page."""
        wanted = None if matches is None else lambda key: matches.matches(self.text(key))
        return self._walk.page(from_hash, count, wanted)

    @cached_property
    def _walk(self) -> Walk:
        return Walk(self._views, self.now_us)

    def items(self, prefix: str = "") -> Iterator[tuple[bytes, Any]]:
        """(key, value) of every key whose text starts so."""
        return self._view._pairs(prefix)

    def frame(self) -> Any:
        """The whole state as a polars DataFrame."""
        return self._view.to_polars()

    def window_pieces(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """A windowed state in pieces of bounded size, each a column of values by name: keys, windows, results."""
        raise TypeError(f"{self.address} has no windows")


class ValueTable(Table):
    """One value per key, found in the runs directly."""

    def __init__(self, view: StateView[Any], layers: Layers, table: str) -> None:
        super().__init__(view, layers, table)
        self.finder = Finder(self._views, layers.groups)
        self.stable = not self.finder.expires
        self._finish = view.finished if isinstance(view, AggregateView) else None

    def warm(self, rows: int) -> int:
        for run in self.finder.runs():
            rows -= run.rows
            if rows < 0:
                break
            run.warm()
        assert self.key_of is not None
        return rows

    @property
    def plain_json(self) -> bool:
        """Whether keys are text and values are told as they are stored."""
        return self.stable and self._finish is None and self.by_text

    def raw(self, key: bytes) -> bytes | None:
        """The stored bytes of a key."""
        return self.finder.raw(key) if self.stable else self.finder.raw_at(key, self.now_us)

    def get(self, key: bytes, form: str = JSON) -> bytes | None:
        raw = self.finder.raw(key) if self.stable else self.finder.raw_at(key, self.now_us)
        return None if raw is None else self._told(key, raw, form)

    def get_many(self, keys: Sequence[bytes], form: str = JSON) -> list[bytes | None]:
        if len(keys) <= _FEW:
            return [self.get(key, form) for key in keys]
        distinct = list(dict.fromkeys(keys))
        hashes = np.array([hash_key(key) for key in distinct], dtype=np.uint64)
        values, expires = bulk.find_values(self._views, hashes, pa.array(distinct, pa.binary()))
        ends = [None] * len(distinct) if expires is None else expires.to_pylist()
        now_us = self.now_us
        found: dict[bytes, bytes | None] = {}
        for key, raw, end in zip(distinct, values.to_pylist(), ends):
            over = end is not None and now_us is not None and end <= now_us
            found[key] = None if raw is None or over else self._told(key, raw, form)
        return [found[key] for key in keys]

    def has(self, key: bytes) -> bool:
        return self.raw(key) is not None

    def value(self, key: bytes) -> Any:
        raw = self.raw(key)
        if raw is None:
            return None
        return _from_packed(raw) if self._finish is None else self._finish(key, _from_packed(raw))

    def expires_us(self, key: bytes) -> int | None:
        return self.finder.expires_us(key) if self.finder.expires else None

    def _told(self, key: bytes, raw: bytes, form: str) -> bytes:
        if self._finish is not None:
            return encode(self._finish(key, _from_packed(raw)), form)
        return raw if form == PACKED else json_of(raw)


class EntryTable(Table):
    """A map, a list or timers: entries under each key."""

    def __init__(self, view: StateView[Any], layers: Layers, table: str) -> None:
        super().__init__(view, layers, table)
        self.stable = not any(each.table.has_expires for each in self._views)

    def has(self, key: bytes) -> bool:
        return any(True for _ in self._rows(key))

    def rows_of(self, key: bytes) -> int:
        """At least as many rows as the key has entries; costs little to tell."""
        hash_ = hash_key(key)
        return sum(piece.end - piece.start for view in self._views for piece in view.pieces(hash_, key))

    def walk_fields(self, key: bytes) -> Iterator[tuple[str, Any]]:
        """Entries of a map one after the other, however many there are."""
        for sub, value in self._rows(key):
            name = decode_key(sub)
            yield name if isinstance(name, str) else key_text(name), _from_packed(value)

    def walk_elements(self, key: bytes) -> Iterator[Any]:
        """Elements of a list, or times of timers, one after the other."""
        for sub, value in self._rows(key):
            yield TIME_SUB.decode(sub) if self.kind == "timers" else _from_packed(value)

    def _rows(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        for sub, value, expires in self._layers.entries(self._table, hash_key(key), key):
            if not self._view._is_over(expires):
                yield sub, value

    def field(self, key: bytes, name: str) -> Any:
        if self.kind != "map":
            return super().field(key, name)
        sub = self._sub(name)
        raw, expires = (None, None) if sub is None else self._layers.entry(self._table, hash_key(key), key, sub)
        return None if raw is None or self._view._is_over(expires) else _from_packed(raw)

    def _sub(self, name: str) -> bytes | None:
        try:
            return encode_key(parse_key_text(name, self._entry_type))
        except ProgramError:
            return None

    @cached_property
    def _entry_type(self) -> Any:
        """The type of the names of entries, told by the first one."""
        first = self._view._first_sub()
        return str if first is None else _type_of(decode_key(first))


class WindowTable(Table):
    """Windows by key: those merged from slices, and those that are kept one by one."""

    _view: WindowView[Any] | HeldWindowsView[Any]
    archived: ArchivedWindows | None = None
    """Windows that are closed for good, where they are archived."""

    def __init__(self, view: WindowView[Any] | HeldWindowsView[Any], layers: Layers, table: str) -> None:
        super().__init__(view, layers, table)
        self._reader = PaneReader(view) if isinstance(view, WindowView) else None

    @property
    def _declared_key_type(self) -> Any:
        return str if self.archived is None else self.archived.key_type

    def value(self, key: bytes) -> Any:
        return self._view._find(key) if self._reader is None else self._reader.newest(key)

    def windows(self, key: bytes) -> dict[Window, Any]:
        """Every window of a key that is kept, in the order of their ends."""
        return self._view.windows(decode_key(key)) if self._reader is None else self._reader.windows(key)

    def range(self, key: bytes, wanted: Range, count: int) -> RangePage:
        """Windows of a key by their ends, from state and archive together. May read files: not for the loop."""
        return read_range(self.windows(key), self._archived_in(wanted), key, wanted, count)

    def reads_archive(self, wanted: Range) -> bool:
        """Whether such a question has to look into files."""
        return self._archived_in(wanted) is not None

    def _archived_in(self, wanted: Range) -> ArchivedWindows | None:
        """None where all windows that are asked for are still open."""
        now_us = self.now_us
        first, _ = wanted.ends()
        return None if now_us is not None and first > now_us + 1 else self.archived

    def fields(self, key: bytes) -> dict[str, Any] | None:
        return {window_name(window): value for window, value in self.windows(key).items()} or None

    @cached_property
    def _walk(self) -> Walk:
        if isinstance(self._view, HeldWindowsView):
            return super()._walk
        return Walk(self._view.run_views, self.now_us, self._view.live)

    def window_pieces(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        yield from self._view.pieces(prefix)


def open_table(view: StateView[Any], layers: Layers, table: str) -> Table:
    """A state of a snapshot, in the form that fits what it keeps."""
    if isinstance(view, WindowView | HeldWindowsView):
        return WindowTable(view, layers, table)
    if layers.tables.get(table, VALUE) == VALUE:
        return ValueTable(view, layers, table)
    return EntryTable(view, layers, table)


def window_name(window: Window) -> str:
    """A window as people write it: its two ends, as ISO 8601 does; two dots where it has none."""
    start, end = int(window.start), int(window.end)
    return f"{format_time(start) if start > MIN_TIME else '..'}/{format_time(end) if end < MAX_TIME else '..'}"


def _type_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple[tuple(_type_of(part) for part in value)]  # type: ignore[misc]
    return type(value)


def json_many(values: Iterable[bytes | None]) -> bytes:
    """Values that are JSON already, as one JSON list."""
    return b"[" + b",".join(b"null" if value is None else value for value in values) + b"]"
