"""All keys of a state, page by page, in the order of their hashes: stable across epochs, and never all at once.

A page is a range of hashes, so the next one begins at a hash whatever has been published in between: a key that was
there all the time is given exactly once. Ranges are as wide as the number of stored rows suggests; a page may hold more
or fewer keys than asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.state.format import PANES, VALUE
from headrace.state.merge import drop_dead, drop_expired, merge_views
from headrace.state.pane_lookup import PaneRange, find_pieces
from headrace.state.view import TableView

END: Final = 2**64
ALIGN: Final = 4096
"""Pages end at multiples of this, so that a cursor needs not all bits of a hash."""

EXACT_ROWS: Final = 200_000
"""States with at most so many stored rows are counted; of larger ones a part is."""
_SAMPLES: Final = 16
_SAMPLED: Final = 64
"""One part in so many is counted."""
_FEW_ROWS: Final = 512
"""States this small are one page, and smaller steps through slices of windows would cost more than they save."""


class Page(NamedTuple):
    """Some keys of a walk over all of them."""

    keys: list[bytes]
    next_hash: int | None
    """Where the walk goes on; None: it is over."""


class Walk:
    """The keys of one table over all its runs."""

    def __init__(self, views: Sequence[TableView], now_us: int | None, live: PaneRange | None = None) -> None:
        """``now_us``: what expired by then is left out. ``live``: slices of windows that are not over."""
        self._views = views
        self._now_us = now_us
        self._live = live
        self._kind = views[0].table.kind if views else VALUE
        self.rows = sum(view.table.rows for view in views)

    def page(self, from_hash: int, count: int, wanted: Callable[[bytes], bool] | None = None) -> Page:
        """At least ``count`` keys are looked at, those that are wanted given."""
        found: list[bytes] = []
        seen, low = 0, from_hash
        step = self._step(count)
        while low < END:
            high = min(low + step, END)
            high -= high % ALIGN
            keys = self.keys(low, high - 1)
            seen += len(keys)
            found += keys if wanted is None else [key for key in keys if wanted(key)]
            low = high
            if seen >= count:
                break
        return Page(found, low if low < END else None)

    def estimate(self) -> int:
        """How many keys there are; exact where there are few."""
        if self.rows <= EXACT_ROWS:
            return len(self.keys(0, END - 1))
        width = END // _SAMPLED // _SAMPLES
        gap = END // _SAMPLES
        return _SAMPLED * sum(len(self.keys(at * gap, at * gap + width - 1)) for at in range(_SAMPLES))

    def keys(self, low: int, high: int) -> list[bytes]:
        """Every live key whose hash is in the range, both ends included, once."""
        if self._kind == PANES:
            return self._keys_of_slices(low, high)
        found: list[bytes] = []
        for keys in self._merged(low, high):
            column = keys.to_pylist()
            # Entries of one key may go on in the next batch.
            if self._kind != VALUE:
                column = list(dict.fromkeys(column))
            found += column[1:] if found and column and column[0] == found[-1] else column
        return found

    def _merged(self, low: int, high: int) -> Iterator[pa.BinaryArray]:
        views = [TableView(view.table, max(view.low, low), min(view.high, high)) for view in self._views]
        for batch in merge_views([view for view in views if view.low <= view.high], self._kind):
            yield drop_dead(batch if self._now_us is None else drop_expired(batch, self._now_us)).column("key")

    def _keys_of_slices(self, low: int, high: int) -> list[bytes]:
        if self._live is None:
            return []
        hashes: list[np.ndarray] = []
        keys: list[pa.BinaryArray] = []
        for piece in find_pieces(self._views, self._live):
            rows = piece.cut(low, high)
            if rows.num_rows:
                hashes.append(rows.column("hash").to_numpy())
                keys.append(rows.column("key"))
        if not keys:
            return []
        order = np.argsort(np.concatenate(hashes), kind="stable")
        together = pa.concat_arrays(keys).take(pa.array(order))
        return list(dict.fromkeys(together.to_pylist()))

    def _step(self, count: int) -> int:
        least = _FEW_ROWS if self._kind == PANES or self.rows <= _FEW_ROWS else 1
        share = END * max(count, least, 1) // max(self.rows, 1)
        return max(ALIGN, share - share % ALIGN)
