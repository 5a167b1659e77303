"""Rows as JSON documents, with times as ISO text.

msgspec writes and reads everything else by itself; a `Timestamp` is an int to it. So where a row type holds times,
their places are found once, and only values at those places are turned into text and back. Reading accepts whole
microseconds as well as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args, get_origin

import msgspec

from headrace.model.columns import getter
from headrace.model.shapes import field_shapes, is_record_class, split_optional, strip, union_members
from headrace.model.time import Timestamp, encode_span, format_time, parse_time

Fix = Callable[[Any], Any]


class JsonForm:
    """Both directions for one row type."""

    def __init__(self, row_type: Any) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=encode_span)
        self._type = row_type
        self._write = _fixer(row_type, _to_text, frozenset())
        self._read = _fixer(row_type, _from_text, frozenset())
        self._decoder = msgspec.json.Decoder(row_type) if self._read is None else None
        self._twin = _Twin(row_type) if _Twin.fits(row_type) else None

    def encode(self, objects: Iterable[Any]) -> Iterator[bytes]:
        encode, write = self._encoder.encode, self._write
        if write is None:
            return map(encode, objects)
        if self._twin is not None:
            return map(encode, self._twin.of(list(objects)))
        return (encode(write(msgspec.to_builtins(each, str_keys=True, enc_hook=encode_span))) for each in objects)

    def decode(self, line: bytes) -> Any:
        if self._decoder is not None:
            return self._decoder.decode(line)
        assert self._read is not None
        return msgspec.convert(self._read(msgspec.json.decode(line)), self._type, str_keys=True)


class _Twin:
    """A Struct with the same names whose times are text: the quick way for flat records, most of all rows."""

    def __init__(self, cls: Any) -> None:
        fields = field_shapes(cls)
        self._columns = [(getter(f.name), split_optional(f.type)[0] is Timestamp) for f in fields]
        members = [(f"f{i}", Any, msgspec.field(name=f.encode_name)) for i, f in enumerate(fields)]
        self._build = msgspec.defstruct("Twin", members, gc=False)

    @staticmethod
    def fits(row_type: Any) -> bool:
        if not is_record_class(row_type) or (config := getattr(row_type, "__struct_config__", None)) is None:
            return False
        if config.tag is not None or config.array_like or config.omit_defaults:
            return False
        others = (f.type for f in field_shapes(row_type) if split_optional(f.type)[0] is not Timestamp)
        return all(_fixer(other, _to_text, frozenset()) is None for other in others)

    def of(self, objects: list[Any]) -> Iterable[Any]:
        lists = [_texts(get(objects)) if is_time else get(objects) for get, is_time in self._columns]
        return map(self._build, *lists)


def _texts(times: list[int | None]) -> list[str | None]:
    """ISO text of many times. Rows of one batch share their seconds, so each second is spelled once."""
    known: dict[int, str] = {}
    out: list[str | None] = []
    for us in times:
        if us is None:
            out.append(None)
            continue
        whole, fraction = divmod(us, 1_000_000)
        second = known.get(whole)
        if second is None:
            second = known[whole] = format_time(whole * 1_000_000)[:-1]
        if not fraction:
            out.append(f"{second}Z")
        elif fraction % 10:
            out.append(f"{second}.{fraction:06d}Z")
        else:
            out.append(f"{second}.{fraction:06d}".rstrip("0") + "Z")
    return out


def _to_text(value: Any) -> Any:
    return format_time(value) if isinstance(value, int) else value


def _from_text(value: Any) -> Any:
    return parse_time(value) if isinstance(value, str) else value


def _fixer(annotation: Any, fix: Fix, opened: frozenset[Any]) -> Fix | None:
    """What turns the times inside a value of builtins around, or None where there are none."""
    bare, _ = split_optional(strip(annotation))
    if bare is Timestamp:
        return fix
    members = union_members(bare)
    if members:
        return _union_fixer(members, fix, opened)
    if is_record_class(bare):
        return _record_fixer(bare, fix, opened)
    origin, parts = get_origin(bare), get_args(bare)
    if origin is None or not parts:
        return None
    if len(parts) == 2 and isinstance(origin, type) and hasattr(origin, "keys"):
        inner = _fixer(parts[1], fix, opened)
        return inner and (lambda value: value and {key: inner(each) for key, each in value.items()})
    places = [_fixer(part, fix, opened) for part in parts if part is not Ellipsis]
    if not any(places):
        return None
    if len(places) == 1 or Ellipsis in parts or len(set(parts)) == 1:
        every = places[0]
        assert every is not None
        return lambda value: value and [every(each) for each in value]
    return lambda value: value and [turn(each) if turn else each for turn, each in zip(places, value)]


def _record_fixer(cls: Any, fix: Fix, opened: frozenset[Any]) -> Fix | None:
    if cls in opened:
        return None  # Times inside a record that contains itself stay whole microseconds.
    fixes = [(f.encode_name, _fixer(f.type, fix, opened | {cls})) for f in field_shapes(cls)]
    places = [(name, turn) for name, turn in fixes if turn is not None]
    if not places:
        return None

    def turn_record(value: Any) -> Any:
        if isinstance(value, dict):
            for name, turn in places:
                if value.get(name) is not None:
                    value[name] = turn(value[name])
        return value

    return turn_record


def _union_fixer(members: tuple[Any, ...], fix: Fix, opened: frozenset[Any]) -> Fix | None:
    """Only tagged records can be told apart among builtins; times in other unions stay whole microseconds."""
    by_tag = {}
    for member in members:
        config = getattr(member, "__struct_config__", None)
        if config is not None and config.tag is not None:
            by_tag[config.tag] = (config.tag_field, _record_fixer(member, fix, opened))
    if not any(turn for _, turn in by_tag.values()):
        return None
    tag_field = next(iter(by_tag.values()))[0]

    def turn_union(value: Any) -> Any:
        known = by_tag.get(value.get(tag_field)) if isinstance(value, dict) else None
        return known[1](value) if known is not None and known[1] is not None else value

    return turn_union
