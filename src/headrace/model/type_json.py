"""Values that people wrote as JSON, made stored values of a type that is known by its shape alone.

A shape becomes an annotation again (`annotation_of`), so that msgspec decides what fits and how it is stored, as it did
in the program that declared the type. In JSON values look as every door shows them: times as ISO text, Decimals and
UUIDs as text, bytes in base64, Records as objects by the names under which fields are stored.

What this module deliberately does not do: read keys (`headrace.model.key_text`), or know kinds of states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Final, ForwardRef, Literal, Union
from uuid import UUID

import msgspec

from headrace.errors import ProgramError
from headrace.model.time import Timestamp, encode_span, parse_time
from headrace.model.time_shape import TIMESTAMP, TimeShape
from headrace.model.type_shape import TypeField, TypeShape, type_text

Encode = Callable[[Any], bytes]
"""From a value as JSON has it to its stored bytes; ValueError in words where it does not fit."""

_SCALARS: Final[Mapping[str, Any]] = {
    "any": Any, "none": None, "bool": bool, "int": int, "float": float, "str": str, "bytes": bytes,
    "datetime": datetime, "date": date, "time": time, "timedelta": timedelta, "decimal": Decimal, "uuid": UUID,
}  # fmt: skip
_encode: Final = msgspec.msgpack.Encoder().encode
_NAMES: Final = "gt|ge|lt|le|multiple_of|min_length|max_length|pattern|tz"
_LIMIT: Final = re.compile(rf"(?P<name>{_NAMES}) (?P<value>.*?)(?=, (?:{_NAMES}) |$)", re.DOTALL)


def value_encoder(shape: TypeShape | None, times: TimeShape | None = None) -> Encode:
    """How values of a type are made from JSON. A type that is not known takes every value as it is.

    >>> encode = value_encoder(TypeShape("list", items=TypeShape("int")))
    >>> encode([1, 2])
    b'\\x92\\x01\\x02'
    >>> encode(["one"])
    Traceback (most recent call last):
        ...
    ValueError: Expected `int`, got `str` - at `$[0]`
    """
    annotation = Any if shape is None else annotation_of(shape)

    def encode(value: Any) -> bytes:
        try:
            read = msgspec.convert(read_times(value, times), annotation, str_keys=True)
            return _encode(read)
        except (ValueError, OverflowError, TypeError, ProgramError) as error:
            raise ValueError(error.found if isinstance(error, ProgramError) else str(error)) from error

    return encode


def plain_json(value: Any) -> Any:
    """A value of Python's as JSON has it: Records are objects, times text, bytes base64."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=encode_span)


def type_in_words(shape: TypeShape | None) -> str:
    """A type for an error's ``expected``, a Record with its fields."""
    if shape is None:
        return "any JSON value"
    if shape.kind != "record":
        return type_text(shape)
    fields = ", ".join(f"{each.stored_name}: {type_text(each.type)}" for each in shape.fields)
    return f"{type_text(shape) or 'an object'} with {fields}" if fields else type_text(shape)


@lru_cache(1024)
def _cached_annotation(raw: bytes) -> Any:
    return _Annotations().build(msgspec.json.decode(raw, type=TypeShape))


def annotation_of(shape: TypeShape) -> Any:
    """An annotation whose values are stored as those of the shape are."""
    return _cached_annotation(msgspec.json.encode(shape))


def key_annotation(shape: TypeShape | None, times: TimeShape | None) -> Any:
    """The annotation that keys of a type are read with; None where the type is not known, or may be several."""
    if shape is None or shape.kind in ("any", "unknown"):
        return None
    if times is not None and times.time and shape.kind == "int":
        return Timestamp
    if shape.kind in ("tuple", "record"):
        # A NamedTuple is a tuple, as a key.
        parts = shape.places or tuple(each.type for each in shape.fields)
        inside = {} if times is None else times.places
        return tuple[tuple(key_annotation(part, inside.get(i)) for i, part in enumerate(parts))]  # type: ignore[misc]
    if shape.kind == "union":
        members = [member for member in shape.members if member.kind != "none"]
        return key_annotation(members[0], times) if len(members) == 1 else None
    if shape.kind == "choice":
        kinds = {type(value) for value in shape.values}
        return kinds.pop() if len(kinds) == 1 else None
    return annotation_of(shape)


class _Annotations:
    """Makes one annotation; keeps the classes of its Records, so that those inside of themselves find each other."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}

    def build(self, shape: TypeShape) -> Any:
        made = self._annotation(shape, ())
        for each in self._classes.values():
            # msgspec looks for names where a class was defined, and in the class.
            for name, other in self._classes.items():
                setattr(each, name, other)
        return made

    def _annotation(self, shape: TypeShape, above: tuple[str, ...]) -> Any:
        """``above``: the names of the classes of the Records around it, the outermost first."""
        limits = {found["name"]: _limit(found["name"], found["value"]) for found in _LIMIT.finditer(shape.limits)}
        bare = self._bare(shape, above)
        return Annotated[bare, msgspec.Meta(**limits)] if limits else bare

    def _bare(self, shape: TypeShape, above: tuple[str, ...]) -> Any:
        items = Any if shape.items is None else self._annotation(shape.items, above)
        match shape.kind:
            case "list":
                return list[items]  # type: ignore[valid-type]
            case "set":
                return set[items]  # type: ignore[valid-type]
            case "map":
                keys = Any if shape.keys is None else self._annotation(shape.keys, above)
                return dict[keys, items]  # type: ignore[valid-type]
            case "tuple":
                return tuple[tuple(self._annotation(each, above) for each in shape.places)]  # type: ignore[misc]
            case "union":
                return Union[tuple(self._annotation(each, above) for each in shape.members)]  # noqa: UP007
            case "choice":
                return Literal[shape.values]
            case "record":
                return self._record(shape, above)
            case "up":
                return ForwardRef(above[-shape.up])
        return _SCALARS.get(shape.kind, Any)

    def _record(self, shape: TypeShape, above: tuple[str, ...]) -> Any:
        # Names must tell two Records apart that have the same, and be none of a field.
        name = f"{shape.name or 'Record'}__{len(self._classes)}"
        self._classes[name] = type(None)
        inside = (*above, name)
        fields = [_field(each, self._annotation(each.type, inside), shape) for each in shape.fields]
        rename = {each.name: each.stored_name for each in shape.fields}
        tag: dict[str, Any] = {} if shape.tag is None else {"tag_field": shape.tag[0], "tag": shape.tag[1]}
        made = msgspec.defstruct(
            name, fields, kw_only=not shape.positional, array_like=shape.positional, omit_defaults=shape.omits,
            forbid_unknown_fields=True, rename=rename, **tag,
        )  # fmt: skip
        self._classes[name] = made
        return made


def _field(field: TypeField, annotation: Any, shape: TypeShape) -> tuple[Any, ...]:
    if field.default is None:
        return field.name, annotation
    try:
        default = msgspec.json.decode(field.default)
    except msgspec.DecodeError:
        # Only the program can make it, and does when it reads a value that has none.
        return field.name, annotation if shape.positional else annotation | msgspec.UnsetType, msgspec.UNSET
    if isinstance(default, list | dict):
        return field.name, annotation, msgspec.field(default_factory=lambda: deepcopy(default))
    return field.name, annotation, default


def _limit(name: str, text: str) -> Any:
    if name in ("pattern", "tz"):
        return text if name == "pattern" else text == "True"
    return int(text) if text.lstrip("-").isdigit() else float(text)


def read_times(value: Any, times: TimeShape | None) -> Any:
    """A JSON value with its ISO times as the numbers that are stored; a `datetime` stays text."""
    return value if times is None else _read_times(value, times, ())


def _read_times(value: Any, times: TimeShape | None, above: tuple[TimeShape, ...]) -> Any:
    """``above``: the shapes of the Records and tuples around it, the outermost first."""
    if times is None or value is None:
        return value
    if times.up:
        return _read_times(value, above[-times.up], above[: -times.up])
    if times.time == TIMESTAMP and isinstance(value, str):
        return parse_time(value)
    inside = (*above, times) if times.fields or times.places else above
    if isinstance(value, dict):
        if times.tag and (case := times.cases.get(str(value.get(times.tag)))) is not None:
            return _read_times(value, case, above)
        names = {name: _read_times(name, times.names, above) for name in value}
        return {
            names[name]: _read_times(each, times.fields.get(name, times.items), inside) for name, each in value.items()
        }
    if isinstance(value, list):
        if times.tag and value and (case := times.cases.get(str(value[0]))) is not None:
            return _read_times(value, case, above)
        return [_read_times(each, times.places.get(place, times.items), inside) for place, each in enumerate(value)]
    return value
