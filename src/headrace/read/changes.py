"""What differs between two values of a key, part by part: entries of a map, windows, fields of a row, elements.

One meaning for all who show a change: the history of a key, the difference of two stores, a replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import msgspec

from headrace.read.forms import PACKED, encode


class Absent(msgspec.Struct, frozen=True):
    """In the place of what is not there; None may be a value."""

    def __repr__(self) -> str:
        return "–"


ABSENT: Final = Absent()


class PartChange(NamedTuple):
    """One part of a value that is another one."""

    name: Any
    """An entry, a window, a field, the place of an element; None: the value as a whole."""
    before: Any
    """`ABSENT`: it was not there."""
    after: Any
    """`ABSENT`: it is not there any more."""


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same to a reader; a NaN is the same as itself."""
    if one is other:
        return True
    try:
        return bool(one == other) or encode(one, PACKED) == encode(other, PACKED)
    except TypeError:
        return False


def parts_changed(kind: str, before: Any, after: Any) -> Iterator[PartChange]:
    """The parts of a value that changed; None: the key is not there. Nothing where both are the same."""
    if kind in ("map", "windows"):
        yield from _of_fields(before or {}, after or {})
    elif kind == "timers":
        yield from _of_times(before or [], after or [])
    elif kind == "list":
        yield from _of_elements(before or [], after or [])
    elif isinstance(before, dict) and isinstance(after, dict):
        yield from _of_fields(before, after)
    elif not is_same(before, after):
        yield PartChange(None, ABSENT if before is None else before, ABSENT if after is None else after)


def _of_fields(before: dict[Any, Any], after: dict[Any, Any]) -> Iterator[PartChange]:
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name, ABSENT), after.get(name, ABSENT)
        if not is_same(was, now):
            yield PartChange(name, was, now)


def _of_times(before: Sequence[int], after: Sequence[int]) -> Iterator[PartChange]:
    """A timer has no value: it is set, or not."""
    for at in sorted({*before} ^ {*after}):
        was = at in before
        yield PartChange(None, at if was else ABSENT, ABSENT if was else at)


def _of_elements(before: Sequence[Any], after: Sequence[Any]) -> Iterator[PartChange]:
    """Lists grow at their end and are cut at their beginning; any other change is told place by place."""
    cut = next((n for n in range(len(before) + 1) if _begins_with(after, before[n:])), 0)
    if cut < len(before) or not before:
        yield from (PartChange(place, each, ABSENT) for place, each in enumerate(before[:cut]))
        left = len(before) - cut
        yield from (PartChange(place, ABSENT, each) for place, each in enumerate(after[left:], left))
        return
    for place, (was, now) in enumerate(zip_longest(before, after, fillvalue=ABSENT)):
        if not is_same(was, now):
            yield PartChange(place, was, now)


def _begins_with(whole: Sequence[Any], head: Sequence[Any]) -> bool:
    return len(head) <= len(whole) and is_same(list(whole[: len(head)]), list(head))
