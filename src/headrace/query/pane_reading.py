"""Windows of a single key, merged from slices without Arrow: the way to them for somebody who asks for one key.

The same answers as `headrace.query.windows` gives for many keys at once; what is done there in columns is done here
cell by cell, which for one key is a hundred times faster. Where each slice begins in a batch is found once per batch
and kept for as long as its run is open.

The rules by which cells merge are those of `headrace.state.pane_rules`.
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, localcontext
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from headrace.model.keys import decode_key, hash_key
from headrace.model.window import Window
from headrace.query.windows import PANE, SEEN, WINDOW_END, WINDOW_START
from headrace.state.block import Block
from headrace.state.pane_cells import finish_cells, list_cell, plain_values
from headrace.state.pane_lists import LIST_RULES
from headrace.state.pane_results import AVG, LISTED
from headrace.state.pane_rules import BESIDE, GREATEST, LATEST, LEAST, MAX, MIN, SINCE, SUM, of_column, rule_of, ties_of
from headrace.state.run import RunTable

if TYPE_CHECKING:
    from headrace.query.windows import WindowView

_CODES: Final[dict[pa.DataType, Any]] = {pa.int64(): "q", pa.float64(): "d"}
_DIGITS: Final = 77
"""Enough for the sum of as many decimals as there will ever be."""

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

    def find(self, pane: int, hash_: int, key: bytes) -> tuple[int, Block, int] | None:
        """The row of a slice and key: its batch by number, and its place there."""
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
                    return number, block, row
                row += 1
        return None

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


_indexes: WeakKeyDictionary[RunTable, SliceIndex] = WeakKeyDictionary()


def slices_of(table: RunTable) -> SliceIndex:
    """The slices of a table; one index per process, for as long as the run is open."""
    found = _indexes.get(table)
    if found is None:
        found = _indexes[table] = SliceIndex(table)
    return found


class PaneReader:
    """The windows of a view, key by key."""

    def __init__(self, view: WindowView[Any]) -> None:
        self._about = view.about
        self._pane_of = view.pane_of if view.about.pane else None
        self._first = view.live.first
        self._views = [(each, slices_of(each.table)) for each in reversed(view.run_views)]
        """Oldest first."""
        self._fields = list(view.schema)[3:]
        self._rules = [(field.name, rule_of(field), of_column(field)) for field in self._fields]
        self._ties = {field.name: ties_of(field) for field in self._fields if ties_of(field)}
        self._lists = {field.name: field for field in self._fields if rule_of(field) in LIST_RULES}
        self._since = next((field.name for field in self._fields if rule_of(field) == SINCE), None)

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
            if view.low <= hash_ <= view.high and (found := index.find(pane, hash_, key)) is not None:
                number, block, row = found
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
        if self._since is not None:
            place = next(i for i, field in enumerate(self._fields) if field.name == self._since)
            marks = [row[place] for row in rows]
            rows = rows[marks.index(max(marks)) :]
        columns = list(zip(*rows))
        named = {name: cells for (name, _, _), cells in zip(self._rules, columns)} if self._ties else {}
        merged: dict[str, Any] = {}
        chosen: dict[str, int] = {}
        for (name, rule, of), cells in zip(self._rules, columns):
            if rule == BESIDE:
                merged[name] = cells[chosen[of]]
            elif rule in _CHOOSE:
                chosen[name] = _CHOOSE[rule](cells)
                if name in self._ties:
                    came = named[self._ties[name]]
                    chosen[name] = _by_arrival(cells, chosen[name], came, min if rule != LATEST else max)
                merged[name] = cells[chosen[name]]
            elif name in self._lists:
                merged[name] = cells
            else:
                merged[name] = _REDUCE[rule](cells)
        return merged

    def _result(self, key: bytes, start: int, end: int, merged: dict[str, Any]) -> dict[str, Any]:
        names = self._about.key or ["key"]
        value = decode_key(key)
        made: dict[str, Any] = {names[0]: value} if len(names) == 1 else dict(zip(names, value))
        made[WINDOW_START], made[WINDOW_END] = start, end
        for name, (kind, *columns) in self._about.results.items():
            if kind in LISTED:
                held = columns[0]
                made[name] = finish_cells(kind, self._lists[held], merged[held], columns[1:])
            elif kind == AVG:
                total, rows = (merged[column] for column in columns)
                made[name] = total / rows if rows else None
            elif len(columns) == 2:
                by, held = (merged[column] for column in columns)
                made[name] = None if by is None else held
            else:
                made[name] = merged[columns[0]]
        if self._pane_of is not None:
            made[PANE] = self._pane_of(end, merged.get(SEEN))
        return made


def _oldest_first(rows: list[_RunRow]) -> list[list[Any]]:
    """Of rows that are equal, the one that came first counts: older runs before newer ones, whatever their slices."""
    return [cells for _, cells in sorted(rows, key=itemgetter(0))]


def _cell_of(column: pa.Array) -> Cell:
    """Numbers and times are read from memory; everything else goes through Arrow."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    if pa.types.is_decimal(column.type):
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


def _there(cells: Sequence[Any]) -> Iterator[Any]:
    return (cell for cell in cells if cell is not None)


def _sum(cells: Sequence[Any]) -> Any:
    total = sum(cells)
    if isinstance(total, Decimal):
        with localcontext(prec=_DIGITS):
            return sum(cells)
    return total


def _least(cells: Sequence[Any]) -> Any:
    """Not-a-number is greater than every number, so it is the least only of itself."""
    return min(_there(cells), key=_order, default=None)


def _greatest(cells: Sequence[Any]) -> Any:
    return max(_there(cells), key=_order, default=None)


def _order(cell: Any) -> tuple[bool, Any]:
    """Values in the order of their column: not-a-number last."""
    unordered = isinstance(cell, float) and math.isnan(cell)
    return (unordered, 0 if unordered else cell)


def _first_least(cells: Sequence[Any]) -> int:
    best = _least(cells)
    return next((i for i, cell in enumerate(cells) if cell is not None and _order(cell) == _order(best)), 0)


def _first_greatest(cells: Sequence[Any]) -> int:
    best = _greatest(cells)
    return next((i for i, cell in enumerate(cells) if cell is not None and _order(cell) == _order(best)), 0)


def _by_arrival(cells: Sequence[Any], chosen: int, came: Sequence[int | None], choose: Callable[..., int]) -> int:
    """Of cells that are equal to the chosen one, that of the row that came first, or last; null came before all."""
    if cells[chosen] is None:
        return chosen
    equal = [i for i, cell in enumerate(cells) if cell is not None and _order(cell) == _order(cells[chosen])]
    return choose(equal, key=lambda i: (came[i] is not None, came[i] or 0))


def _last_greatest(cells: Sequence[Any]) -> int:
    best = _greatest(cells)
    places = [i for i, cell in enumerate(cells) if cell is not None and _order(cell) == _order(best)]
    return places[-1] if places else 0


_REDUCE: dict[str, Callable[[Sequence[Any]], Any]] = {SUM: _sum, MIN: _least, MAX: _greatest, SINCE: _greatest}
_CHOOSE: dict[str, Callable[[Sequence[Any]], int]] = {
    LEAST: _first_least,
    GREATEST: _first_greatest,
    LATEST: _last_greatest,
}
