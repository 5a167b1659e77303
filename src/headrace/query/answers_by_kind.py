"""How each kind of state is answered: single values, entries under a key, windows by key.

Each reads what `headrace.query.answers.Table` promises in the way that suits how its kind is stored: values and entries
straight from the runs, windows through the view that merges them. `open_table` chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import ProgramError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.key_text import key_text, parse_key_text
from headrace.model.keys import decode_key, encode_key, hash_key
from headrace.model.time import format_time
from headrace.model.window import Window
from headrace.query.answers import Table, type_of_key
from headrace.query.finding import Finder
from headrace.query.forms import JSON, PACKED, encode, json_of, unpack
from headrace.query.paging import Walk
from headrace.query.pane_reading import PaneReader
from headrace.query.ranges import Range, RangePage, read_range
from headrace.query.results import AggregateView, HeldWindowsView
from headrace.query.session_reading import SessionReader
from headrace.query.view import StateView
from headrace.query.windows import WINDOW_END, WINDOW_START, WindowView
from headrace.state import bulk
from headrace.state.format import VALUE
from headrace.state.subs import TIME_SUB

if TYPE_CHECKING:
    from headrace.query.archive import ArchivedWindows
    from headrace.state.lookup import Layers

_FEW: Final = 1000
"""Up to this many keys are looked up one by one, at 2 to 3 µs each. A bulk lookup touches every batch of a large state,
which alone takes as long as a thousand of those."""
_AT_ONCE: Final = 2000
"""More are looked up in several goes, where it matters how much is held meanwhile."""


class ValueTable(Table):
    """One value per key, found in the runs directly."""

    def __init__(self, view: StateView[Any], layers: Layers, table: str) -> None:
        super().__init__(view, layers, table)
        self.finder = Finder(self._views, layers.groups)
        self.stable = not self.finder.expires
        self._finish = view.finished if isinstance(view, AggregateView) else None

    def warm(self, rows: int) -> int:
        for run in self.finder.runs():
            rows -= run.rows
            if rows < 0:
                break
            run.warm()
        assert self.key_of is not None
        return rows

    @property
    def plain_json(self) -> bool:
        """Whether keys are text and values are told as they are stored."""
        return self.stable and self._finish is None and self.by_text

    def raw(self, key: bytes) -> bytes | None:
        """The stored bytes of a key."""
        return self.finder.raw(key) if self.stable else self.finder.raw_at(key, self.now_us)

    def get(self, key: bytes, form: str = JSON) -> bytes | None:
        raw = self.finder.raw(key) if self.stable else self.finder.raw_at(key, self.now_us)
        return None if raw is None else self._told(key, raw, form)

    def get_many(self, keys: Sequence[bytes], form: str = JSON) -> list[bytes | None]:
        if len(keys) <= _FEW:
            return [self.get(key, form) for key in keys]
        distinct = list(dict.fromkeys(keys))
        hashes = np.array([hash_key(key) for key in distinct], dtype=np.uint64)
        values, expires = bulk.find_values(self._views, hashes, pa.array(distinct, pa.binary()))
        ends = [None] * len(distinct) if expires is None else expires.to_pylist()
        now_us = self.now_us
        found: dict[bytes, bytes | None] = {}
        for key, raw, end in zip(distinct, values.to_pylist(), ends):
            over = end is not None and now_us is not None and end <= now_us
            found[key] = None if raw is None or over else self._told(key, raw, form)
        return [found[key] for key in keys]

    def each_of(self, keys: Sequence[bytes], form: str = JSON) -> Iterator[bytes | None]:
        for at in range(0, len(keys), _AT_ONCE):
            part = keys[at : at + _AT_ONCE]
            yield from super().each_of(part, form) if len(part) <= _FEW else self.get_many(part, form)

    def has(self, key: bytes) -> bool:
        return self.raw(key) is not None

    def value(self, key: bytes) -> Any:
        raw = self.raw(key)
        if raw is None:
            return None
        return unpack(raw) if self._finish is None else self._finish(key, unpack(raw))

    def expires_us(self, key: bytes) -> int | None:
        return self.finder.expires_us(key) if self.finder.expires else None

    def _told(self, key: bytes, raw: bytes, form: str) -> bytes:
        if self._finish is not None:
            return encode(self._finish(key, unpack(raw)), form)
        return raw if form == PACKED else json_of(raw)


class EntryTable(Table):
    """A map, a list or timers: entries under each key."""

    def __init__(self, view: StateView[Any], layers: Layers, table: str) -> None:
        super().__init__(view, layers, table)
        self.stable = not any(each.table.has_expires for each in self._views)

    def has(self, key: bytes) -> bool:
        return any(True for _ in self._rows(key))

    def changes_us(self, key: bytes) -> int | None:
        rows = self._layers.entries(self._table, hash_key(key), key)
        ends = (expires for _, _, expires in rows if expires is not None and not self._view._is_over(expires))
        return None if self.stable else min(ends, default=None)

    def rows_of(self, key: bytes) -> int:
        """At least as many rows as the key has entries; costs little to tell."""
        hash_ = hash_key(key)
        return sum(piece.end - piece.start for view in self._views for piece in view.pieces(hash_, key))

    def walk_fields(self, key: bytes) -> Iterator[tuple[str, Any]]:
        """Entries of a map one after the other, however many there are."""
        for sub, value in self._rows(key):
            name = decode_key(sub)
            yield name if isinstance(name, str) else key_text(name), unpack(value)

    def walk_elements(self, key: bytes) -> Iterator[Any]:
        """Elements of a list, or times of timers, one after the other."""
        for sub, value in self._rows(key):
            yield TIME_SUB.decode(sub) if self.kind == "timers" else unpack(value)

    def _rows(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        for sub, value, expires in self._layers.entries(self._table, hash_key(key), key):
            if not self._view._is_over(expires):
                yield sub, value

    def field(self, key: bytes, name: str) -> Any:
        if self.kind != "map":
            return super().field(key, name)
        sub = self._sub(name)
        raw, expires = (None, None) if sub is None else self._layers.entry(self._table, hash_key(key), key, sub)
        return None if raw is None or self._view._is_over(expires) else unpack(raw)

    def _sub(self, name: str) -> bytes | None:
        try:
            return encode_key(parse_key_text(name, self._entry_type))
        except ProgramError:
            return None

    @cached_property
    def _entry_type(self) -> Any:
        """The type of the names of entries, told by the first one."""
        first = self._view._first_sub()
        return str if first is None else type_of_key(decode_key(first))


class WindowTable(Table):
    """Windows by key: those merged from slices, and those that are kept one by one."""

    _view: WindowView[Any] | HeldWindowsView[Any]
    archived: ArchivedWindows | None = None
    """Windows that are closed for good, where they are archived."""

    def __init__(self, view: WindowView[Any] | HeldWindowsView[Any], layers: Layers, table: str) -> None:
        super().__init__(view, layers, table)
        self._reader = None
        if isinstance(view, WindowView):
            self._reader = SessionReader(view) if view.of_sessions else PaneReader(view)

    @property
    def _declared_key_type(self) -> Any:
        return str if self.archived is None else self.archived.key_type

    def value(self, key: bytes) -> Any:
        return self._view._find(key) if self._reader is None else self._reader.newest(key)

    def changes_us(self, key: bytes) -> int | None:
        """Windows that are kept one by one end when somebody writes it; those that are slices end with time."""
        now_us = self.now_us
        newest = self._reader.newest(key) if self._reader is not None else None
        if newest is None or now_us is None or not isinstance(self._view, WindowView):
            return None
        start, end = newest[WINDOW_START], newest[WINDOW_END]
        lasts_us = now_us - self._view.live.first + 1
        over_us = (end if self._view.of_sessions else start) + lasts_us
        # First results are said to be final, then they are gone: at once, or when they are not kept any longer.
        return next((time for time in (end - 1, end, over_us) if time > now_us), now_us + 1)

    def windows(self, key: bytes) -> dict[Window, Any]:
        """Every window of a key that is kept, in the order of their ends."""
        return self._view.windows(decode_key(key)) if self._reader is None else self._reader.windows(key)

    def range(self, key: bytes, wanted: Range, count: int) -> RangePage:
        """Windows of a key by their ends, from state and archive together. May read files: not for the loop."""
        return read_range(self.windows(key), self._archived_in(wanted), key, wanted, count)

    def reads_archive(self, wanted: Range) -> bool:
        """Whether such a question has to look into files."""
        return self._archived_in(wanted) is not None

    def _archived_in(self, wanted: Range) -> ArchivedWindows | None:
        """None where all windows that are asked for are still open."""
        now_us = self.now_us
        first, _ = wanted.ends()
        return None if now_us is not None and first > now_us + 1 else self.archived

    def fields(self, key: bytes) -> dict[str, Any] | None:
        return {window_name(window): value for window, value in self.windows(key).items()} or None

    @cached_property
    def _walk(self) -> Walk:
        if isinstance(self._view, HeldWindowsView):
            return super()._walk
        return Walk(self._view.run_views, self.now_us, self._view.live)

    def window_pieces(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        yield from self._view.pieces(prefix)


def open_table(view: StateView[Any], layers: Layers, table: str) -> Table:
    """A state of a snapshot, in the form that fits what it keeps."""
    if isinstance(view, WindowView | HeldWindowsView):
        return WindowTable(view, layers, table)
    if layers.tables.get(table, VALUE) == VALUE:
        return ValueTable(view, layers, table)
    return EntryTable(view, layers, table)


def window_name(window: Window) -> str:
    """A window as people write it: its two ends, as ISO 8601 does; two dots where it has none."""
    start, end = int(window.start), int(window.end)
    return f"{format_time(start) if start > MIN_TIME else '..'}/{format_time(end) if end < MAX_TIME else '..'}"
