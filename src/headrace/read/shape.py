"""How the stored bytes of a state become what a reader sees: a value, a dict, a list or the times of timers.

A run says whether a table holds single values or entries. Which kind of entries they are is told by their names
(`headrace.state.subs`): the name of a list's element starts with a zero byte, that of a map's entry with the tag of a
key, and anything else is the time of a timer. So a store can be read without the program that wrote it; types are
needed only where plain Python (dicts, lists, numbers, text) is not enough.

Here is also how a state becomes a DataFrame: Records keep the types of their columns, so that times stay times.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa

from headrace.errors import ProgramError
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.model.values import type_name, value_codec
from headrace.state.subs import LIST_SUB, TIME_SUB, SubCodec, map_sub

if TYPE_CHECKING:
    import polars as pl


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


def derive_shape(a_sub: bytes | None, annotation: Any, where: str) -> Shape:
    """How to read entries, given the name of one of them (None: there is none) and the type asked for, if any."""
    wanted = None if annotation is Any else annotation
    kind = _wanted_kind(wanted) if a_sub is None else entries_kind(a_sub)
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


# --- as a DataFrame


_TIME = pa.timestamp("us", "UTC")


def to_frame(kind: Kind, pairs: Iterable[tuple[Any, Any]], annotation: Any) -> pl.DataFrame:
    """Keys and values as columns; entries and elements as rows of their own."""
    import polars as pl

    part = _part_type(kind, annotation)
    match kind:
        case "value":
            keys, values = _unzip(pairs, 2)
            columns = {"key": _series(keys), "value": _typed(values, part)}
        case "map":
            keys, names, values = _unzip(((k, name, v) for k, held in pairs for name, v in held.items()), 3)
            columns = {"key": _series(keys), "entry": _series(names), "value": _typed(values, part)}
        case "list":
            keys, places, values = _unzip(((k, i, v) for k, held in pairs for i, v in enumerate(held)), 3)
            columns = {"key": _series(keys), "index": _series(places), "value": _typed(values, part)}
        case "timers":
            keys, times = _unzip(((k, at) for k, held in pairs for at in held), 2)
            columns = {"key": _series(keys), "at": _typed(times, Timestamp)}
    return pl.DataFrame(columns)


def _unzip(rows: Iterable[tuple[Any, ...]], width: int) -> list[list[Any]]:
    columns: list[list[Any]] = [[] for _ in range(width)]
    for row in rows:
        for column, cell in zip(columns, row):
            column.append(cell)
    return columns


def _part_type(kind: Kind, annotation: Any) -> Any:
    if kind == "value":
        return annotation
    parts = typing.get_args(annotation)
    return parts[-1] if parts else None


def _typed(values: list[Any], annotation: Any) -> pl.Series:
    import polars as pl

    if annotation is Timestamp:
        return _from_arrow(pa.array(values, pa.int64()).cast(_TIME))
    if isinstance(annotation, type) and issubclass(annotation, Record):
        codec = codec_of(annotation)
        arrays = codec.to_arrays(values)
        return _from_arrow(pa.StructArray.from_arrays(arrays, fields=list(codec.schema)))
    return _series(values) if values else pl.Series(values=[])


def _series(values: list[Any]) -> pl.Series:
    import polars as pl

    if any(isinstance(value, tuple) for value in values):
        # Parts of a composite key differ in type, which a list column could not hold.
        values = [{f"part_{i}": part for i, part in enumerate(value)} for value in values]
    return pl.Series(values=values, strict=False)


def _from_arrow(array: pa.Array) -> pl.Series:
    import polars as pl

    series = pl.from_arrow(array)
    assert isinstance(series, pl.Series)
    return series
