"""One state of one epoch, asked in text and answered in bytes: what all protocols share, whatever a state keeps.

A key comes as people write it (`headrace.model.key_text`); its type is told by the keys that are there. A value goes
out in one of two forms (`headrace.query.forms`). What a state is made of decides what can be asked: a value has fields
where it is a Record, a map has entries, a windowed state has windows, a list has elements. How each kind is read is
told in `headrace.query.answers_by_kind`.

What this module deliberately does not do: know a protocol, follow the job, or remember anything between two epochs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ProgramError
from headrace.model.key_bytes import NULL_KEY
from headrace.model.key_text import key_text, parse_key_text
from headrace.model.keys import decode_key, encode_key
from headrace.query.forms import JSON, encode
from headrace.query.paging import Page, Walk
from headrace.query.shape import Kind
from headrace.query.view import StateView

if TYPE_CHECKING:
    from headrace.query.patterns import Pattern
    from headrace.state.lookup import Layers

_TYPE_KEYS: Final = 24
"""So many keys tell the type of all."""
_INT: Final = struct.Struct(">cq")


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
    def key_type(self) -> Any:
        """The type of the keys, as an annotation would say it: what `key_of` reads."""
        return self._key_type

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
                        return type_of_key(decode_key(encoded))
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

    def each_of(self, keys: Sequence[bytes], form: str = JSON) -> Iterator[bytes | None]:
        """The same, little by little: who bounds an answer notices large values before all of them are there."""
        return (self.get(key, form) for key in keys)

    def has(self, key: bytes) -> bool:
        return self.value(key) is not None

    def value(self, key: bytes) -> Any:
        """The value as plain Python; None where there is none."""
        return self._view._find(key)

    def expires_us(self, key: bytes) -> int | None:
        """When the value of a key ends; None where it does not, or is not there."""
        return None

    def changes_us(self, key: bytes) -> int | None:
        """When the value of a key will change though nobody writes it, or should be looked at again; None: never."""
        return self.expires_us(key)

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


def type_of_key(key: Any) -> Any:
    """The type of a key, as an annotation would say it; of a composite one with the types of its parts."""
    if isinstance(key, tuple):
        return tuple[tuple(type_of_key(part) for part in key)]  # type: ignore[misc]
    return type(key)
