"""Which parts of a stored value are times: derived from its annotation, kept in manifests, applied by readers.

In MessagePack a `Timestamp` is a bare int, so nobody who lacks the program can tell it from a count. A `TimeShape` says
which parts are times; what has none has no shape. It is derived from the annotation, once, when the program is compiled
(`headrace.plan.state_times`); `time_writer` makes of it a function that replaces the times of a plain value, and leaves
everything else as it is.

What this module deliberately does not do: say how a time is written (`headrace.model.time.format_time`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, get_args

import msgspec

from headrace.errors import ProgramError
from headrace.model.key_bytes import MICROSECOND
from headrace.model.time import Timestamp, parse_time

TIMESTAMP: Final = "timestamp"
DATETIME: Final = "datetime"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TimeShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the times of a value are. A part that is not mentioned is none and has none."""

    time: str = ""
    """``timestamp`` or ``datetime`` where the value itself is a time. Of the latter also text is one."""
    fields: dict[str, TimeShape] = {}
    """Of a Record, by the names under which fields are stored."""
    tag: str = ""
    """Of a union of Records: the field that says which of them it is, and …"""
    cases: dict[str, TimeShape] = {}
    """… the shapes by what stands there."""
    items: TimeShape | None = None
    """Of a list every element, of a map every value."""
    names: TimeShape | None = None
    """Of a map every key."""
    places: dict[int, TimeShape] = {}
    """Of a tuple, by place."""
    up: int = 0
    """A Record inside of itself: the shape of the Record so many levels above it."""

    @property
    def some(self) -> TimeShape | None:
        """The shape; None where nothing is a time."""
        return None if self == TimeShape() else self


TIME: Final = TimeShape(time=TIMESTAMP)


def timestamps_of(shape: TimeShape) -> TimeShape:
    """The shape without datetimes, which are stored as such and not as numbers."""

    def each_of(shapes: dict[Any, TimeShape]) -> dict[Any, TimeShape]:
        return {name: timestamps_of(each) for name, each in shapes.items()}

    # Records stay Records, also those without any time: `up` counts them.
    return msgspec.structs.replace(
        shape,
        time=shape.time if shape.time == TIMESTAMP else "",
        fields=each_of(shape.fields),
        cases=each_of(shape.cases),
        places=each_of(shape.places),
        items=None if shape.items is None else timestamps_of(shape.items),
        names=None if shape.names is None else timestamps_of(shape.names),
    )


# --- to a plain value

Write = Callable[[int], Any]
"""How a time is written, given in microseconds."""
Replace = Callable[[Any], Any]
"""A plain value with its times written."""


@lru_cache(1024)
def _cached_writer(raw: bytes, write: Write) -> Replace:
    return _writer_of(msgspec.json.decode(raw, type=TimeShape), write, ())


def time_writer(shape: TimeShape | None, write: Write) -> Replace | None:
    """What replaces the times of a value; None where there is nothing to replace."""
    return None if shape is None else _cached_writer(msgspec.json.encode(shape), write)


def _writer_of(shape: TimeShape, write: Write, above: tuple[list[Replace], ...]) -> Replace:
    """``above``: where the functions for the Records around it will be, the outermost first."""
    if shape.up:
        return lambda value, mine=above[-shape.up]: mine[0](value)  # type: ignore[misc]
    mine: list[Replace] = []
    inside = (*above, mine) if shape.fields or shape.places else above
    fields = {name: _writer_of(each, write, inside) for name, each in shape.fields.items()}
    places = {place: _writer_of(each, write, inside) for place, each in shape.places.items()}
    cases = {name: _writer_of(each, write, above) for name, each in shape.cases.items()}
    names = None if shape.names is None else _writer_of(shape.names, write, above)
    items = None if shape.items is None else _writer_of(shape.items, write, above)

    def replace(value: Any) -> Any:
        if isinstance(value, dict):
            case = cases.get(str(value.get(shape.tag))) if shape.tag else None
            if case is not None:
                value = case(value)
            if fields:
                return {name: fields[name](each) if name in fields else each for name, each in value.items()}
            if names is not None:
                value = {names(name): each for name, each in value.items()}
            return value if items is None else {name: items(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            case = cases.get(str(value[0])) if shape.tag and value else None
            if case is not None:
                return case(value)
            if places:
                parts = [places[i](each) if i in places else each for i, each in enumerate(value)]
            else:
                parts = value if items is None else [items(each) for each in value]  # type: ignore[assignment]
            return parts if isinstance(value, list) else tuple(parts)
        return _write_one(value, shape.time, write) if shape.time else value

    mine.append(replace)
    return replace


def _write_one(value: Any, kind: str, write: Write) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return write(value)
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return write((aware - _EPOCH) // MICROSECOND)
    if kind == DATETIME and isinstance(value, str):
        # A datetime without a zone is stored as text.
        try:
            return write(parse_time(value))
        except ProgramError:
            return value
    return value


# --- keys


def key_type_with_times(kind: Any, shape: TimeShape | None) -> Any:
    """The type of keys, told by stored ones, with times for the numbers that are times."""
    if shape is None:
        return kind
    if shape.time:
        return Timestamp if kind is int else kind
    parts = get_args(kind)
    if not shape.places or not parts:
        return kind
    return tuple[tuple(key_type_with_times(part, shape.places.get(i)) for i, part in enumerate(parts))]  # type: ignore[misc]
