"""What is stored for one key and one open window, and the bytes it is stored under.

The table ``value`` of a windowed step holds one entry for each open window of a key, named by the window's start and
end as a map is by its keys: what the rows came to so far, and what the trigger has to remember. Rows that must be kept
themselves lie in a table of their own (`headrace.windows.by_row.row_contents`).

A program may come back with other windows while some are open (`headrace.upgrade.windows` says with which). An open
window goes on as it was until it is over, beside the new ones.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.values import ValueCodec, value_codec
from headrace.state.subs import SubCodec

if TYPE_CHECKING:
    from headrace.aggregates.own import GuardedAccumulators


WINDOWS_TABLE: Final = "value"

WindowName = tuple[int, int]
"""Start and end of a window."""

EVER: Final = (MIN_TIME, MAX_TIME)
"""The window of those that have no bounds."""

_NAME: Final = struct.Struct(">cIcqIcq")
"""The bytes of a key of two whole numbers (`headrace.model.key_bytes`), so that a reader finds a map."""


def encode_name(name: WindowName) -> bytes:
    return _NAME.pack(b"(", 9, b"i", name[0], 9, b"i", name[1])


def decode_name(sub: bytes) -> WindowName:
    _, _, _, start, _, _, end = _NAME.unpack(sub)
    return start, end


NAME_BYTES: Final = _NAME.size
WINDOW_SUB: Final = SubCodec(encode_name, decode_name)


class OpenWindow:
    """One open window of one key. Changed in place; whoever changes it writes it again (`KeyWindows`)."""

    __slots__ = (
        "accs", "awaited", "changed", "count", "early", "event_timers", "gone", "guarded", "home", "late", "mark",
        "newest", "rows", "since", "size", "stored_as", "timeout", "wall_timers",
    )  # fmt: skip

    accs: list[Any]
    """Accumulators in the order of their aggregates, or the one reduced row; nothing where rows are kept."""
    size: int
    """Rows in the window; 0: it is empty, and gives no results."""
    changed: bool
    """Whether rows came since the last result."""
    late: bool
    """Whether it gave a result after its end had passed."""
    newest: int | None
    """Time of the newest row; only of windows without an end, whose results have no other time."""
    count: int
    """Rows since the last result, for a trigger that counts."""
    early: int | None
    """When a periodic trigger wants the next result, where something changed."""
    timeout: int | None
    """When waiting for another trigger is over."""
    mark: Any
    """What a trigger of differences compares with."""
    event_timers: list[int]
    """Times that an own trigger waits for …"""
    wall_timers: list[int]
    """… on each clock."""
    since: int
    """Rows that came before this place were thrown away; only where windows overlap and share their rows."""
    gone: list[int]
    """Places of rows that an evictor threw away; likewise."""
    home: WindowName | None
    """The name under which the states of this window lie; None: its own. A session keeps its first."""

    # Not stored: while the key is at hand.
    stored_as: WindowName | None
    """Its name in the table; None: it is not there yet."""
    awaited: frozenset[tuple[bool, int]]
    """The times that the timetables hold for it under that name (`Schedule.awaited_times`)."""
    rows: list[int]
    """Rows of the batch that were put in and are not in the accumulators yet."""
    guarded: GuardedAccumulators | None
    """The own accumulators, where a row that they refuse must be undone."""

    def __init__(self, accumulators: int) -> None:
        self.accs = [None] * accumulators
        self.size = 0
        self.changed = False
        self.late = False
        self.newest = None
        self.count = 0
        self.early = None
        self.timeout = None
        self.mark = None
        self.event_timers = []
        self.wall_timers = []
        self.since = 0
        self.gone = []
        self.home = None
        self.stored_as = None
        self.awaited = frozenset()
        self.rows = []
        self.guarded = None

    def empty(self) -> None:
        """Throws away what the window holds; what its trigger remembers stays."""
        self.accs = [None] * len(self.accs)
        self.guarded = None
        self.size = 0
        self.newest = None

    @property
    def is_bare(self) -> bool:
        """Whether nothing would be lost with it: it holds no rows, and no trigger remembers or waits for anything."""
        waits = self.early is not None or self.timeout is not None or self.event_timers or self.wall_timers
        return not (self.size or self.count or self.mark is not None or waits)


_FIELDS: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("size", int, 0),
    ("changed", bool, False),
    ("late", bool, False),
    ("newest", int | None, None),
    ("count", int, 0),
    ("early", int | None, None),
    ("timeout", int | None, None),
    ("event_timers", list[int], []),
    ("wall_timers", list[int], []),
    ("since", bytes, b""),
    ("gone", list[bytes], []),
    ("home", tuple[int, int] | None, None),
)


def window_codec(kinds: Mapping[str, Any], mark: Any) -> ValueCodec:
    """How open windows are stored: accumulators by the name of their aggregate, the rest under names with a mark.

    ``kinds``: the type of each accumulator. ``mark``: the type of what the trigger compares with.
    """
    fields: list[Any] = []
    for i, (name, kind) in enumerate(kinds.items()):
        fields.append((f"acc{i}", kind | None, msgspec.field(default=None, name=name)))
    fields.append(("mark", mark | None, msgspec.field(default=None, name="!mark")))
    for name, kind, default in _FIELDS:
        fields.append((name, kind, msgspec.field(default=default, name=f"!{name}")))
    stored = msgspec.defstruct("OpenWindow", fields, gc=False, omit_defaults=True)
    inner = value_codec(stored)
    count = len(kinds)

    def encode(window: OpenWindow) -> bytes:
        since = place_bytes(window.since) if window.since else b""
        return inner.encode(
            stored(
                *window.accs, window.mark, window.size, window.changed, window.late, window.newest, window.count,
                window.early, window.timeout, window.event_timers, window.wall_timers,
                since, [place_bytes(place) for place in window.gone], window.home,
            )
        )  # fmt: skip

    def decode(raw: bytes) -> OpenWindow:
        read = inner.decode(raw)
        window = OpenWindow(count)
        window.accs = [getattr(read, f"acc{i}") for i in range(count)]
        for name in ("mark", *(field[0] for field in _FIELDS)):
            setattr(window, name, getattr(read, name))
        window.since = int.from_bytes(read.since, "big")
        window.gone = [int.from_bytes(place, "big") for place in read.gone]
        return window

    return ValueCodec(encode, decode)


def place_bytes(place: int) -> bytes:
    """A row's place, which is wider than the numbers of MessagePack."""
    return place.to_bytes(16, "big")
