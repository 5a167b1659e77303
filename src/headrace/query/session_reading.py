"""Sessions of a single key, put together from fragments without Arrow: for somebody who asks for one key.

The same answers as `headrace.query.windows` gives for many keys at once, with the rules of
`headrace.query.pane_reading`.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from headrace.model.keys import hash_key
from headrace.model.window import Window
from headrace.query.pane_reading import PaneReader
from headrace.query.windows import SEEN
from headrace.state.fragments import START, WAS_LATE
from headrace.state.hash_order import rows_of_key


class SessionReader(PaneReader):
    """The sessions of a view, key by key."""

    def newest(self, key: bytes) -> dict[str, Any] | None:
        """The result of the session that ends last; None where the key has none."""
        found = None
        for start, end, rows in self._sessions(key):
            found = start, end, rows
        return None if found is None else self._told(key, *found)

    def windows(self, key: bytes) -> dict[Window, dict[str, Any]]:
        """Every session that is kept, in the order of their ends."""
        return {
            Window(start, end): self._told(key, start, end, rows)  # type: ignore[arg-type]
            for start, end, rows in self._sessions(key)
        }

    def _told(self, key: bytes, start: int, end: int, rows: list[list[Any]]) -> dict[str, Any]:
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
