"""What is stored for one key and one open window, and the bytes it is stored under.

The table ``value`` of a windowed step holds one entry for each open window of a key, named by the window's start and
end as a map is by its keys: what the rows came to so far, and what the trigger has to remember. Rows that must be kept
themselves lie in a table of their own (`headrace.windows.by_row.row_contents`).

A program may come back with other windows while some are open. An open window goes on as it was until it is over,
beside the new ones, if its bounds mean the same to both: windows of another clock would never end, and a session takes
any open window that it touches for a session. Otherwise the program is refused, in its first epoch, unless no window is
open on any shard.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from headrace.errors import StoreError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.values import ValueCodec, value_codec
from headrace.state.cells import ABSENT
from headrace.state.subs import SubCodec

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.state.shard import ShardState
    from headrace.windows.kinds import Assigner


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
    """One open window of one key. Changed in place; whoever changes it puts it into its table again."""

    __slots__ = (
        "accs", "changed", "count", "early", "event_timers", "gone", "home", "late", "mark", "newest", "since",
        "size", "timeout", "wall_timers",
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

    def empty(self) -> None:
        """Throws away what the window holds; what its trigger remembers stays."""
        self.accs = [None] * len(self.accs)
        self.size = 0
        self.newest = None

    @property
    def is_bare(self) -> bool:
        """Whether nothing would be lost with it: it holds no rows, and no trigger remembers or waits for anything."""
        waits = self.early is not None or self.timeout is not None or self.event_timers or self.wall_timers
        return not (self.size or self.count or self.mark is not None or waits)


class _Field(NamedTuple):
    name: str
    kind: Any
    default: Any


_FIELDS: Final = (
    _Field("size", int, 0),
    _Field("changed", bool, False),
    _Field("late", bool, False),
    _Field("newest", int | None, None),
    _Field("count", int, 0),
    _Field("early", int | None, None),
    _Field("timeout", int | None, None),
    _Field("event_timers", list[int], []),
    _Field("wall_timers", list[int], []),
    _Field("since", bytes, b""),
    _Field("gone", list[bytes], []),
    _Field("home", tuple[int, int] | None, None),
)


def window_codec(kinds: Mapping[str, Any], mark: Any, *, each: bool = False) -> ValueCodec:
    """How open windows are stored: accumulators by the name of their aggregate, the rest under names with a mark.

    ``kinds``: the type of each accumulator. ``mark``: the type of what the trigger compares with. ``each``: whether
    accumulators are made by functions of the user's, and need not fit their type.
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

    def encode(held: OpenWindow) -> bytes:
        return inner.encode(
            stored(
                *held.accs, held.mark, held.size, held.changed, held.late, held.newest, held.count, held.early,
                held.timeout, held.event_timers, held.wall_timers,
                place_bytes(held.since) if held.since else b"", [place_bytes(place) for place in held.gone], held.home,
            )
        )  # fmt: skip

    def decode(raw: bytes) -> OpenWindow:
        found = inner.decode(raw)
        held = OpenWindow(count)
        held.accs = [getattr(found, f"acc{i}") for i in range(count)]
        for name in ("mark", *(field.name for field in _FIELDS)):
            setattr(held, name, getattr(found, name))
        held.since = int.from_bytes(found.since, "big")
        held.gone = [int.from_bytes(place, "big") for place in found.gone]
        return held

    return ValueCodec(encode, decode, each=each)


def place_bytes(place: int) -> bytes:
    """A row's place, which is wider than the numbers of MessagePack."""
    return place.to_bytes(16, "big")


class OpenWindows:
    """The open windows of all keys during one task."""

    def __init__(self, state: ShardState, codec: ValueCodec, accumulators: int) -> None:
        self._column = state.entries(WINDOWS_TABLE, codec, WINDOW_SUB)
        self._accumulators = accumulators

    def find(self, slot: int, name: WindowName) -> OpenWindow | None:
        found = self._column.find(slot, name)
        return None if found is ABSENT else found

    def fresh(self) -> OpenWindow:
        """A window that nothing was put into yet."""
        return OpenWindow(self._accumulators)

    def of_key(self, slot: int) -> list[tuple[WindowName, OpenWindow]]:
        """All open windows of a key, by start."""
        return sorted(self._column.entries(slot), key=_name)

    def put(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        """The window is new, or has changed."""
        self._column.put(slot, name, held)

    def remove(self, slot: int, name: WindowName) -> None:
        self._column.remove(slot, name)


def _name(entry: tuple[WindowName, OpenWindow]) -> WindowName:
    return entry[0]


SESSION: Final = "session"
"""How the words for sessions begin."""


def check_windows(state: ShardState, assigner: Assigner, words: str, *, alone: bool) -> None:
    """Refuses windows that cannot go on beside these. ``words`` say how these are cut; ``alone``: none can."""
    before = state.declared_before.get(WINDOWS_TABLE)
    if before is None or before.kind != "windows" or _goes_on(before, assigner, words, alone):
        return
    if next(state.layers.scan(WINDOWS_TABLE), None) is None:
        return
    raise StoreError(
        "the windows of this step were others, and some are still open",
        where=f"step {state.step}",
        expected=before.windows or f"windows of {before.clock or 'no'} time, as stored",
        found=words,
        next_move="take the old ones until none is open; or give the step another name, and it begins anew",
    )


def _goes_on(before: DeclaredState, assigner: Assigner, words: str, alone: bool) -> bool:
    clock = assigner.clock if assigner.timed else ""
    if before.clock != clock:
        return False
    if not before.windows or before.windows == words:
        return True
    were, are = before.windows.startswith(SESSION), words.startswith(SESSION)
    # Sessions of another gap are sessions: their rows keep them open as long as they said when they came.
    return were == are and (are or not alone)
