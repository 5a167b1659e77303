"""A state of one epoch, asked by the bytes of keys: the one reader under views, the Redis protocol and HTTP.

There is a reader for each kind of table: `ValueReader`, `AggregateReader`, `EntryReader`, `SlicedReader` and
`HeldWindowsReader`; `headrace.read.opening` chooses. What can be asked of all of them stands here. A value is given as
plain Python, or as the type that the reader was opened with; as bytes it goes out in one of two forms
(`headrace.read.forms`). A key comes as it is stored, or as people write it (`headrace.model.key_text`): then its type
is told by the keys that are there. What a state is made of decides what else can be asked: a value has fields where it
is a Record, a map has entries, a windowed state has windows, a list has elements.

Invariants
- A reader is of one epoch. Its files are mapped when it is opened, so a sweep that deletes them does not disturb it.
- What has expired is hidden, judged by the clock of the epoch and not by the reader's.
- All keys come in the order of their hashes, which is no order for people.

What this module deliberately does not do: know a protocol, follow the job, or remember anything between two epochs.
"""

from __future__ import annotations

import struct
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.errors import ProgramError, StoreError
from headrace.model.key_bytes import NULL_KEY
from headrace.model.key_text import float_words, key_text, parse_key_text, text_key, written_key
from headrace.model.keys import decode_columns, decode_key, encode_key
from headrace.model.time import format_time
from headrace.model.time_shape import Replace, TimeShape, key_type_with_times, time_writer
from headrace.model.values import type_name
from headrace.read.columns import Piece, frame_of, names_of, no_rows
from headrace.read.forms import JSON, PACKED, WRITE_TIME, encode
from headrace.read.paging import Page, Walk
from headrace.read.shape import Kind

if TYPE_CHECKING:
    import polars as pl

    from headrace.read.patterns import Pattern
    from headrace.read.stored_version import StoredVersion, TypeVersions
    from headrace.state.lookup import Layers

_TYPE_KEYS: Final = 24
"""So many keys tell the type of all."""
_INT: Final = struct.Struct(">cq")


class ReaderOptions(NamedTuple):
    """What a reader is opened with, beside the table."""

    address: str
    """``step`` or ``step.state``."""
    epoch: int
    now_us: int | None
    """What expired at or before it is hidden; None hides nothing."""
    value_type: Any = None
    """The annotation of values; None: plain Python."""
    key_type: Any = None
    """The annotation of keys, where what is stored does not tell (datetime, UUID, an Enum)."""
    times: TimeShape | None = None
    """Where the times of a value are; None: it has none, or the store does not tell."""
    key_times: TimeShape | None = None
    """The same of keys."""
    lasts: bool = False
    """Whether what has not expired by ``now_us`` never does: the state has lost its TTL."""


class Reader:
    """One state, by key."""

    kind: Kind
    stable = False
    """Whether the answer for a key stays as it is until the key itself changes: nothing expires, no window ends."""

    types: TypeVersions | None = None
    """The types that the state had; None: it has one only."""

    def __init__(self, layers: Layers, table: str, options: ReaderOptions) -> None:
        self.address, self.epoch, self.now_us, self.value_type, self.key_annotation = options[:5]
        self._times, self._key_times, self.lasts = options[5:]
        self.layers = layers
        self.table = table
        self.views = layers.views(table)
        """What the runs hold, newest first."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r}, {self.kind}, epoch {self.epoch})"

    def is_over(self, expires_us: int | None) -> bool:
        """Whether something that ends at this time is hidden."""
        return expires_us is not None and self.now_us is not None and expires_us <= self.now_us

    def fit(self, key: bytes, convert: Callable[[], Any]) -> Any:
        """A value as the type that was asked for; an error that names the state and the key where it is another."""
        try:
            return convert()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(
                "a stored value does not fit the type it was asked for as",
                where=f"state {self.address}, key {self.text(key)}",
                expected=type_name(self.value_type),
                found=str(error),
                next_move="ask for the type the program declares, or for none to get plain Python",
            ) from error

    def warm(self, rows: int) -> int:
        """Opens batches until so many rows are ready for readers; answers how many of them are left to be."""
        for view in self.views:
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
            return text_key
        return self._int_key if kind is int else self._any_key

    def key(self, text: str) -> bytes:
        """The same, of text."""
        return self.key_of(text.encode("utf-8", "surrogatepass"))

    @property
    def key_type(self) -> Any:
        """The type of the keys, as an annotation would say it: what `key_of` reads."""
        return self._key_type

    @property
    def key_times(self) -> TimeShape | None:
        """Where the times of keys are."""
        return self._key_times

    @property
    def by_text(self) -> bool:
        """Whether keys are text, which is written in one way only."""
        return self._key_type is str

    def decoded(self, key: bytes) -> Any:
        """A stored key as Python has it."""
        return decode_key(key, self.key_annotation)

    def text(self, key: bytes) -> str:
        """A stored key as people write it."""
        written = written_key(key)
        return self._key_text(decode_key(key)) if written is None else written.decode()

    def _key_text(self, key: Any) -> str:
        return key_text(key) if self._key_times is None else key_text(key, self._key_type)

    def shown_key(self, key: bytes) -> Any:
        """A stored key as plain Python for JSON, its times as text."""
        replace = time_writer(self._key_times, format_time)
        plain = decode_key(key)
        if isinstance(plain, float):
            return float_words(plain)
        return plain if replace is None else replace(plain)

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
        """The type of the keys, told by those that are stored; which of their numbers are times, by the manifest."""
        return key_type_with_times(self._stored_key_type, self._key_times)

    @property
    def _stored_key_type(self) -> Any:
        """What the first keys are that are not null and have no part that is."""
        known: Any = None
        for view in self.views:
            if len(view.table):
                for encoded in view.table.block(0).key[:_TYPE_KEYS].to_pylist():
                    if encoded != NULL_KEY:
                        known = _common_type(known, type_of_key(decode_key(encoded)))
                        if not _has_null(known):
                            return known
        return self._declared_key_type if known is None else known

    @property
    def _declared_key_type(self) -> Any:
        """What keys are where there is none to look at."""
        return str

    # --- times

    @property
    def value_times(self) -> TimeShape | None:
        """Where the times of a value are, as `value` gives it."""
        return self._times

    @property
    def column_times(self) -> dict[str, TimeShape | None]:
        """The same of the columns of `pieces`."""
        return {"key": self._key_times, "value": self.value_times}

    @cached_property
    def _time_writers(self) -> dict[str, Replace | None]:
        return {form: time_writer(self.value_times, write) for form, write in WRITE_TIME.items()}

    def shown(self, value: Any, form: str = JSON) -> Any:
        """A plain value as a form has it: its times as text or numbers."""
        replace = self._time_writers.get(form)
        return value if replace is None else replace(value)

    # --- values

    def get(self, key: bytes, form: str = JSON) -> bytes | None:
        """The value of a key: of a windowed state the newest window, of a map or list all of it."""
        value = self.value(key)
        return None if value is None else encode(self.shown(value, form), form)

    def get_many(self, keys: Sequence[bytes], form: str = JSON) -> list[bytes | None]:
        """The values of several keys, in the order asked."""
        return [self.get(key, form) for key in keys]

    def each_of(self, keys: Sequence[bytes], form: str = JSON) -> Iterator[bytes | None]:
        """The same, little by little: who bounds an answer notices large values before all of them are there."""
        return (self.get(key, form) for key in keys)

    def has(self, key: bytes) -> bool:
        return self.value(key) is not None

    def value(self, key: bytes) -> Any:
        """The value of a key; None where there is none."""
        raise NotImplementedError

    def values(self, keys: Sequence[bytes]) -> list[Any]:
        """The values of several keys, in the order asked; where they are many, far cheaper than one by one."""
        return [self.value(key) for key in keys]

    def reads_like(self, other: Reader) -> bool:
        """Whether another reader makes the same of what is stored."""
        return type(self) is type(other) and self.kind == other.kind

    def whole(self, key: bytes) -> Any:
        """All that is kept under a key: of windows every one, and not only the newest. None: nothing is."""
        return self.value(key)

    def wholes(self, keys: Sequence[bytes]) -> list[Any]:
        """The same of several keys, in the order asked."""
        return self.values(keys)

    def shown_whole(self, whole: Any) -> Any:
        """The same as people read it: times as text, windows by their names. None stays None."""
        return None if whole is None else self.shown(whole)

    def expires_us(self, key: bytes) -> int | None:
        """When the value of a key ends; None where it does not, or is not there."""
        return None

    def changes_us(self, key: bytes) -> int | None:
        """When the value of a key will change though nobody writes it, or should be looked at again; None: never."""
        return self.expires_us(key)

    def stored_version(self, key: bytes) -> StoredVersion | None:
        """In which version the value of a key was written; None where it is of the newest type."""
        return None if self.types is None else self.types.of(self.views, key, self.now_us)

    # --- parts of a value

    def fields(self, key: bytes, form: str = PACKED) -> dict[str, Any] | None:
        """Entries of a map, windows of a key, fields of a Record, as a form has them; None where the key is not there.

        TypeError where the value has no such parts.
        """
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise TypeError(f"{self.address} keeps a {type(value).__name__}")
        value = self.shown(value, form)
        return {name if isinstance(name, str) else key_text(name): each for name, each in value.items()}

    def field(self, key: bytes, name: str, form: str = PACKED) -> Any:
        """One of them; None where it is not there."""
        found = self.fields(key, form)
        return None if found is None else found.get(name)

    def elements(self, key: bytes, form: str = PACKED) -> list[Any] | None:
        """Elements of a list, times of timers; None where the key is not there."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise TypeError(f"{self.address} keeps a {type(value).__name__}")
        shown: list[Any] = self.shown(value, form)
        return shown

    # --- all of it

    def count(self) -> int:
        """How many keys there are, counted one by one."""
        return sum(1 for _ in self.keys())

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
        return Walk(self.views, self.now_us)

    def keys(self) -> Iterator[bytes]:
        """Every key."""
        return (key for key, _ in self.items())

    def items(self, prefix: str = "") -> Iterator[tuple[bytes, Any]]:
        """(key, value) of every key whose text starts so."""
        raise NotImplementedError

    def pieces(self, prefix: str = "", *, expires: bool = False) -> Iterator[Piece]:
        """The whole state as columns, in pieces of bounded size, in the order of the keys' hashes.

        ``expires``: with the time when each row ends, where rows of this state may.
        """
        raise NotImplementedError

    def key_column(self, keys: pa.BinaryArray) -> Sequence[Any] | pa.Array:
        """Stored keys as a column: of text and whole numbers at once, of anything else key by key."""
        if self.key_annotation is None and len(keys):
            for kind in (pa.string(), pa.int64()):
                columns = decode_columns(keys, [kind])
                if columns is not None and not columns[0].null_count:
                    return columns[0]
        return [self.decoded(key) for key in keys.to_pylist()]

    def _matching(self, batch: pa.RecordBatch, prefix: str) -> pa.RecordBatch:
        """The rows whose keys, as people write them, start so."""
        if not prefix:
            return batch
        return batch.filter(
            pa.array([self.matches(key, prefix) for key in batch.column("key").to_pylist()], pa.bool_())
        )

    def frame(self) -> pl.DataFrame:
        """The whole state as a DataFrame; of windows a row per key and window."""
        return frame_of(self.pieces(), self.no_rows)

    @property
    def no_rows(self) -> Piece:
        """The columns that `pieces` would have, where there are none."""
        return no_rows(names_of(self.kind))

    def matches(self, key: bytes, prefix: str) -> bool:
        """Whether a key, as people write it, starts so."""
        if not prefix:
            return True
        text = self.text(key) if self.key_annotation is None else key_text(self.decoded(key), self.key_annotation)
        return text.startswith(self.quoted(prefix))

    def quoted(self, prefix: str) -> str:
        """The beginning of a key as `text` has it; times may be given without the quotes that JSON has around them."""
        is_time = self._key_times is not None and self._key_times.time
        return f'"{prefix}' if is_time and prefix[:1].isdecimal() else prefix


def _has_null(kind: Any) -> bool:
    return kind is Any or any(map(_has_null, typing.get_args(kind)))


def _common_type(one: Any, other: Any) -> Any:
    """What is known of the type of keys by two of them: a part that is null in one tells nothing."""
    if one is None or one is Any:
        return other
    parts, others = typing.get_args(one), typing.get_args(other)
    if len(parts) != len(others) or not parts:
        return one
    return tuple[tuple(map(_common_type, parts, others))]  # type: ignore[misc]


def type_of_key(key: Any) -> Any:
    """The type of a key, as an annotation would say it; of a composite one with the types of its parts."""
    if isinstance(key, tuple):
        return tuple[tuple(type_of_key(part) for part in key)]  # type: ignore[misc]
    return Any if key is None else type(key)
