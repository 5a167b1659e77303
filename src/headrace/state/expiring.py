"""Entries whose time to live is judged at each row's time, for functions that see rows in the order of their time.

An entry may expire while it is at hand: between two rows of an epoch. So whoever finds or walks entries asks the clock
again, and what has expired is taken out; at the flush it is gone as if it had been removed. Single values are judged by
their handles (`headrace.state.value_handles`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.state.cells import ABSENT, Cell, EntriesColumn
from headrace.state.copied import CopiedEntries
from headrace.state.ttl import RowExpiry


class EntriesByRow(EntriesColumn):
    """Entries of which those that expired before the row at hand are not there."""

    __slots__ = ()

    def find(self, slot: int, name: Any) -> Any:
        value = super().find(slot, name)
        cell = self.cells[slot]
        if value is ABSENT or cell is None or not self._is_gone(cell.expires.get(name)):
            return value
        self._let_go(cell, name)
        return ABSENT

    def _complete(self, cell: Cell) -> bool:
        if not super()._complete(cell):
            return False
        for name in [name for name, expires in cell.expires.items() if self._is_gone(expires)]:
            if name in cell.items:
                self._let_go(cell, name)
        return True

    def _walk(self, slot: int, cell: Cell) -> Iterator[tuple[Any, Any, int | None]]:
        return (entry for entry in super()._walk(slot, cell) if not self._is_gone(entry[2]))

    def _let_go(self, cell: Cell, name: Any) -> None:
        if cell.whole:
            del cell.items[name]
        else:
            cell.items[name] = ABSENT
        cell.expires.pop(name, None)
        cell.order = None

    def _is_gone(self, expires_us: int | None) -> bool:
        expiry = self.expiry
        assert isinstance(expiry, RowExpiry)
        return expiry.is_gone(expires_us)


class CopiedEntriesByRow(EntriesByRow, CopiedEntries):
    """Both: time is looked after first, then copies are made."""

    __slots__ = ()
