"""Tables that are wider than the screen: shown in bands, one below the other. A number that is cut is a wrong number.

Each band begins with the columns that say what a row is of. Words may be folded or shortened; numbers, which stand on
the right of their column, are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions

FOLDED_WIDTH: Final = 24
"""Words may be folded or shortened to this width, which is that of a time."""
LONGEST_CELL: Final = 240
_BETWEEN, _AROUND = 3, 4
"""Columns of the screen between two of a table, and around all of them."""


class BandedTable:
    """A table that fits whatever width it is drawn in.

    ``names``: so many of its first columns say what a row is of. ``most_lines``: where there are several bands, so many
    of the last rows are shown in all of them together; None: every row in each.
    """

    def __init__(self, table: Table, *, names: int = 1, most_lines: int | None = None) -> None:
        self._table = table
        self._names = names
        self._most_lines = most_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        bands = self._bands(console, options.max_width)
        if len(bands) == 1:
            yield self._table
            return
        rows = self._table.row_count
        first = 0 if self._most_lines is None else max(0, rows - max(1, self._most_lines // len(bands)))
        for number, band in enumerate(bands):
            yield self._part([*range(self._names), *band], first, title=number == 0)

    def _bands(self, console: Console, width: int) -> list[list[int]]:
        """The places of the further columns, as many together as there is room for."""
        needs = [_needs(console, column) for column in self._table.columns]
        room = width - _AROUND - sum(each + _BETWEEN for each in needs[: self._names])
        bands: list[list[int]] = [[]]
        left = room
        for place in range(self._names, len(needs)):
            if bands[-1] and needs[place] > left:
                bands.append([])
                left = room
            bands[-1].append(place)
            left -= needs[place] + _BETWEEN
        return bands

    def _part(self, places: list[int], first: int, *, title: bool) -> Table:
        """Some columns of the last rows."""
        whole = self._table
        part = Table(
            title=whole.title if title else None, title_justify=whole.title_justify, box=whole.box,
            pad_edge=whole.pad_edge,
        )  # fmt: skip
        chosen = [whole.columns[place] for place in places]
        for column in chosen:
            part.add_column(column.header, justify=column.justify, overflow=column.overflow, no_wrap=column.no_wrap)
        for cells in list(zip(*(column.cells for column in chosen), strict=True))[first:]:
            part.add_row(*cells)
        return part


def _needs(console: Console, column: Column) -> int:
    """How wide a column has to be: as its widest cell, or for words as narrow as they may be made."""
    options = console.options.update(width=LONGEST_CELL)
    widest = max(console.measure(cell, options=options).maximum for cell in (column.header, *column.cells))
    return widest if column.justify == "right" else min(widest, FOLDED_WIDTH)
