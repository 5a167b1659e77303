"""Windows and sessions of a single key, merged from slices or fragments without Arrow, for somebody who asks for one.

The same answers as `headrace.read.windows` gives for many keys at once; what is done there in columns is done here
cell by cell, which for one key is a hundred times faster. Where each slice begins in a batch is found once per batch
and kept for as long as its run is open.

How cells merge and become results say `headrace.aggregates.rules` and `headrace.aggregates.results`.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.aggregates.list_rules import LIST_RULES, list_cell, plain_values
from headrace.aggregates.results import RowFinish
from headrace.aggregates.rules import RowMerge, rule_of
from headrace.model.batch import Int64s
from headrace.model.keys import hash_key
from headrace.model.window import PANE, WINDOW_END, WINDOW_START, Window
from headrace.read.finding import once_per_table
from headrace.read.finishing import key_columns
from headrace.state.block import Block
from headrace.state.panes.fragments import START, WAS_LATE
from headrace.state.panes.table import SEEN, sort_hashes
from headrace.state.run import RunTable
from headrace.state.view import TableView

if TYPE_CHECKING:
    from headrace.read.windows import SlicedReader

_CODES: Final[dict[pa.DataType, Any]] = {pa.int64(): "q", pa.float64(): "d"}

Cell = Callable[[int], Any]
"""The value of a row, as plain Python; times are microseconds."""
_RunRow = tuple[int, list[Any]]
"""Number of a run, and cells of one of its rows."""


class SliceIndex:
    """Where the slices of one table lie; batches are opened as they are needed."""

    def __init__(self, table: RunTable) -> None:
        # Held by whoever looks into it; held here, too, it would never go.
        self._table = weakref.ref(table)
        self._firsts = table.firsts
        self._entries = table.entries
        self._bounds: list[dict[int, tuple[int, int]] | None] = [None] * len(table)
        """Of each batch: start of a slice → its rows."""
        self._cells: dict[tuple[int, str], Cell] = {}
        """By the number of a batch: two threads may open it at once, and one of its blocks goes again."""

    def panes(self, first: int) -> Iterator[int]:
        """The slices that start there or later."""
        for number, entry in enumerate(self._entries):
            if entry.first == entry.last:
                yield from (entry.first,) if entry.first >= first else ()
            elif entry.last is None or entry.last >= first:
                yield from (pane for pane in self._bounds_of(number) if pane >= first)

    def find(self, pane: int, hash_: int, key: bytes) -> list[tuple[int, Block, int]]:
        """The rows of a slice and key, older first: their batch by number, and their place there. Mostly one."""
        found: list[tuple[int, Block, int]] = []
        firsts = self._firsts
        # A slice may begin at the end of the batch before the first that starts with it.
        for number in range(max(0, bisect_left(firsts, pane) - 1), bisect_right(firsts, pane)):
            last = self._entries[number].last
            if last is not None and last < pane:
                continue
            start, end = self._bounds_of(number).get(pane, (0, 0))
            block = self._block(number)
            hashes = block.hashes
            row = bisect_left(hashes, hash_, start, end)
            while row < end and hashes[row] == hash_:
                if block.keys.equals(row, key):
                    found.append((number, block, row))
                row += 1
            if found and row < block.rows:
                break
        return found

    def _block(self, number: int) -> Block:
        table = self._table()
        assert table is not None
        return table.block(number)

    def _bounds_of(self, number: int) -> dict[int, tuple[int, int]]:
        found = self._bounds[number]
        if found is None:
            block = self._block(number)
            panes = block.sort
            starts = np.append(0, np.flatnonzero(panes[1:] != panes[:-1]) + 1)
            ends = np.append(starts[1:], block.rows)
            found = dict(zip(panes[starts].tolist(), zip(starts.tolist(), ends.tolist())))
            self._bounds[number] = found
        return found

    def cell(self, number: int, block: Block, name: str) -> Cell:
        """How a column of a batch is read."""
        found = self._cells.get((number, name))
        if found is None:
            column, rule = block.batch.column(name), rule_of(block.batch.schema.field(name))
            found = self._cells[number, name] = list_cell(column) if rule in LIST_RULES else _cell_of(column)
        return found


_slices_of: Final = once_per_table(SliceIndex)
"""The slices of a table."""


class PaneReader:
    """The windows of a state, key by key."""

    def __init__(self, reader: SlicedReader) -> None:
        self._about = reader.about
        self._pane_of = reader.pane_of if reader.tells_pane else None
        self._first = reader.live.first
        self._key_type = reader.key_annotation
        self._views = [(each, _slices_of(each.table)) for each in reversed(reader.views)]
        """Oldest first."""
        self._fields = list(reader.schema)[3:]
        self._names = [field.name for field in self._fields]
        self._row_merge = RowMerge(self._fields)
        self._row_finish = RowFinish(reader.about.results, self._fields)

    @cached_property
    def _panes(self) -> list[int]:
        """The slices that are not over, newest first."""
        return sorted({pane for _, index in self._views for pane in index.panes(self._first)}, reverse=True)

    def newest(self, key: bytes) -> dict[str, Any] | None:
        """The result of the window that ends last; None where the key has none."""
        hash_ = hash_key(key)
        for pane in self._panes:
            rows = self._rows(pane, hash_, key)
            if not rows:
                continue
            ends = [window for window in self._about.windows_of(pane) if window[0] >= self._first]
            if not ends:
                continue
            start, end = max(ends, key=lambda window: window[1])
            # Slices of this window before this one; behind it the key has nothing.
            earlier = [each for each in reversed(self._panes) if start <= each < pane]
            before = [row for each in earlier for row in self._rows(each, hash_, key)]
            return self._result(key, start, end, self._merge(_oldest_first([*before, *rows])))
        return None

    def windows(self, key: bytes) -> dict[Window, dict[str, Any]]:
        """Every window that is kept, in the order of their ends."""
        hash_ = hash_key(key)
        found: dict[tuple[int, int], list[_RunRow]] = {}
        for pane in reversed(self._panes):
            rows = self._rows(pane, hash_, key)
            if rows:
                for window in self._about.windows_of(pane):
                    if window[0] >= self._first:
                        found.setdefault(window, []).extend(rows)
        ordered = sorted(found.items(), key=lambda entry: (entry[0][1], entry[0][0]))
        return {
            Window(start, end): self._result(key, start, end, self._merge(_oldest_first(rows)))  # type: ignore[arg-type]
            for (start, end), rows in ordered
        }

    def _rows(self, pane: int, hash_: int, key: bytes) -> list[_RunRow]:
        """The cells of a slice in each run that has it, oldest first."""
        rows: list[_RunRow] = []
        for run, (view, index) in enumerate(self._views):
            if view.low <= hash_ <= view.high:
                for number, block, row in index.find(pane, hash_, key):
                    rows.append((run, self._cells(index, number, block, row)))
        return rows

    def _cells(self, index: SliceIndex, number: int, block: Block, row: int) -> list[Any]:
        """What stands in a row; an aggregate that its run does not know has seen nothing."""
        names = block.batch.schema.names
        return [
            index.cell(number, block, field.name)(row) if field.name in names else None if field.nullable else 0
            for field in self._fields
        ]

    def _merge(self, rows: list[list[Any]]) -> dict[str, Any]:
        return dict(zip(self._names, self._row_merge.merge(rows)))

    def _result(self, key: bytes, start: int, end: int, merged: dict[str, Any]) -> dict[str, Any]:
        made = key_columns(self._about.key or ["key"], key, self._key_type)
        made[WINDOW_START], made[WINDOW_END] = start, end
        made.update(self._row_finish.finish(merged))
        if self._pane_of is not None:
            made[PANE] = self._pane_of(end, merged.get(SEEN))
        return made


class SessionReader(PaneReader):
    """The sessions of a state, key by key."""

    def newest(self, key: bytes) -> dict[str, Any] | None:
        """The result of the session that ends last; None where the key has none."""
        found = None
        for start, end, rows in self._sessions(key):
            found = start, end, rows
        return None if found is None else self._session(key, *found)

    def windows(self, key: bytes) -> dict[Window, dict[str, Any]]:
        """Every session that is kept, in the order of their ends."""
        return {
            Window(start, end): self._session(key, start, end, rows)  # type: ignore[arg-type]
            for start, end, rows in self._sessions(key)
        }

    def _session(self, key: bytes, start: int, end: int, rows: list[list[Any]]) -> dict[str, Any]:
        merged = self._merge(rows)
        if merged.get(WAS_LATE):
            merged[SEEN] = end
        return self._result(key, start, end, merged)

    def _sessions(self, key: bytes) -> Iterator[tuple[int, int, list[list[Any]]]]:
        """Start, end and the cells of all fragments; sessions of one key do not overlap, so starts say their order."""
        place = next(i for i, field in enumerate(self._fields) if field.name == START)
        hash_ = hash_key(key)
        fragments = [
            (cells[place], end, cells)
            for view, index in self._views
            for number, block, row in rows_of_key(view, hash_, key)
            if (end := int(block.sort[row])) >= self._first and (cells := self._cells(index, number, block, row))
        ]
        fragments.sort(key=itemgetter(0, 1))
        while fragments:
            start, end, _ = fragments[0]
            count = 0
            while count < len(fragments) and fragments[count][0] <= end:
                end = max(end, fragments[count][1])
                count += 1
            yield start, end, [cells for _, _, cells in fragments[:count]]
            fragments = fragments[count:]


def _oldest_first(rows: list[_RunRow]) -> list[list[Any]]:
    """Of rows that are equal, the one that came first counts: older runs before newer ones, whatever their slices."""
    return [cells for _, cells in sorted(rows, key=itemgetter(0))]


def _cell_of(column: pa.Array) -> Cell:
    """Numbers and times are read from memory; everything else goes through Arrow."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    if pa.types.is_decimal(column.type) or pa.types.is_nested(column.type):
        return lambda row: plain_values(column.slice(row, 1))[0]
    code = _CODES.get(column.type)
    if code is None or column.offset:
        return lambda row: column[row].as_py()
    valid, data = column.buffers()
    numbers: Any = memoryview(data).cast("B").cast(code)
    if not column.null_count:
        read: Cell = numbers.__getitem__
        return read
    bits = memoryview(valid).cast("B")
    return lambda row: numbers[row] if bits[row >> 3] >> (row & 7) & 1 else None


# --- where the rows of a key lie in a table that is sorted by something else: found once per run, kept while it is open
# A panes table lies by slice. Of sessions nearly every row is a slice of its own, so looking for a key slice by
# slice, or over all rows, would take too long for somebody who asks for one key.


class HashOrder:
    """The rows of one table by the hashes of their keys."""

    def __init__(self, table: RunTable) -> None:
        hashes = [table.block(number).hash for number in range(len(table))]
        together = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
        self._rows: Int64s = sort_hashes(together) if len(together) else np.zeros(0, np.int64)
        self._hashes = memoryview(together[self._rows].data)
        self._firsts: list[int] = np.cumsum([0, *(len(each) for each in hashes)]).tolist()

    def find(self, hash_: int) -> Iterator[tuple[int, int]]:
        """Batch and row of each row with this hash."""
        place = bisect_left(self._hashes, hash_)
        while place < len(self._rows) and self._hashes[place] == hash_:
            row = int(self._rows[place])
            number = bisect_left(self._firsts, row + 1) - 1
            yield number, row - self._firsts[number]
            place += 1


_order_of: Final = once_per_table(HashOrder)


def rows_of_key(view: TableView, hash_: int, key: bytes) -> Iterator[tuple[int, Block, int]]:
    """Every row of a key in a panes table: its batch by number, and its place there."""
    if not view.low <= hash_ <= view.high:
        return
    for number, row in _order_of(view.table).find(hash_):
        block = view.table.block(number)
        if block.keys.equals(row, key):
            yield number, block, row
