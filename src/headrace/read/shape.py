"""How the stored bytes of a state become what a reader sees: a value, a dict, a list or the times of timers.

A run says whether a table holds single values or entries. Which kind of entries they are is told by their names
(`headrace.state.subs`): the name of a list's element starts with a zero byte, that of a map's entry with the tag of a
key, and anything else is the time of a timer. So a store can be read without the program that wrote it; types are
needed only where plain Python (dicts, lists, numbers, text) is not enough.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from headrace.errors import ProgramError
from headrace.model.values import type_name, value_codec
from headrace.state.subs import LIST_SUB, TIME_SUB, SubCodec, map_sub

Kind = Literal["value", "map", "list", "timers", "windows"]

_LIST_START: Final = 0
_KEY_TAGS: Final = frozenset(b"siybndfm(")

Entry = tuple[bytes, bytes]
"""Name and value of an entry, as stored."""


class Shape(NamedTuple):
    """How one state is read."""

    kind: Kind
    decode: Callable[[bytes], Any]
    """A stored value: the value of a key, of a map's entry, or an element of a list."""
    sub: SubCodec | None = None

    def join(self, entries: Iterable[Entry]) -> Any:
        """The entries of one key as one object; they come in the order of their names."""
        assert self.sub is not None
        if self.kind == "map":
            return {self.sub.decode(sub): self.decode(value) for sub, value in entries}
        if self.kind == "timers":
            return [self.sub.decode(sub) for sub, _ in entries]
        return [self.decode(value) for _, value in entries]


def entries_kind(sub: bytes) -> Kind:
    """What the entries of a table are, told by the name of one of them."""
    if sub[:1] and sub[0] == _LIST_START:
        return "list"
    return "map" if sub[:1] and sub[0] in _KEY_TAGS else "timers"


def derive_shape(a_sub: bytes | None, annotation: Any, where: str, empty: Kind | None = None) -> Shape:
    """How to read entries, given the name of one of them (None: there is none) and the type asked for, if any.

    ``empty``: what they are where there is none to tell, if it is known.
    """
    wanted = None if annotation is Any else annotation
    kind = entries_kind(a_sub) if a_sub is not None else empty or _wanted_kind(wanted)
    if kind == "timers":
        return Shape("timers", _decoder(None, where), TIME_SUB)
    parts = _parts(kind, wanted, where)
    if kind == "list":
        return Shape("list", _decoder(parts[-1], where), LIST_SUB)
    return Shape("map", _decoder(parts[-1], where), map_sub(parts[0]))


def _wanted_kind(annotation: Any) -> Kind:
    """A state without entries looks like any kind; the type asked for decides."""
    return "list" if typing.get_origin(annotation) is list or annotation is list else "map"


def _parts(kind: Kind, annotation: Any, where: str) -> tuple[Any, ...]:
    """Types of the parts: (key, value) of a dict, (element,) of a list; None where nobody said."""
    plain, count = (dict, 2) if kind == "map" else (list, 1)
    if annotation is None or annotation is plain:
        return (None,) * count
    given = typing.get_args(annotation)
    if typing.get_origin(annotation) is not plain or len(given) != count:
        raise ProgramError(
            f"the state is a {kind}, which another type was asked for",
            where=where,
            expected="dict[KeyType, ValueType]" if kind == "map" else "list[ElementType]",
            found=type_name(annotation),
            next_move="ask for that type, or for none to get plain Python",
        )
    return given


def value_decoder(annotation: Any, where: str) -> Callable[[bytes], Any] | None:
    """From stored bytes to the type asked for; None: plain Python is."""
    if annotation is None or annotation is Any or annotation is types.NoneType:
        return None
    return value_codec(annotation, where=where).decode


def _decoder(annotation: Any, where: str) -> Callable[[bytes], Any]:
    return value_decoder(annotation, where) or msgspec.msgpack.decode
