"""All keys of a state, page by page, in the order of their hashes: stable across epochs, and never all at once.

A page is a range of hashes, so the next one begins at a hash whatever has been published in between: a key that was
there all the time is given exactly once. Ranges are as wide as the number of stored rows suggests, and wider where
those turn out to be dead (deleted, expired, replaced by newer ones). A page may hold more or fewer keys than asked for,
and none at all: it costs no more than so many rows, however few of them are keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.model.keys import hash_key
from headrace.state.format import PANES, VALUE
from headrace.state.merge import drop_dead, drop_expired, merge_views
from headrace.state.panes.lookup import PaneRange, find_pieces
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
MOST_ROWS: Final = 16_384
"""So many stored rows are looked at for one page of few keys, and …"""
_ROWS_PER_KEY: Final = 4
"""… so many times the number of keys for one of many."""
_STEP_ROWS: Final = 4096
"""Steps do not grow beyond this many rows: wider ones would cost as much per row, and find more than was asked for."""
_VALUES_AT_ONCE: Final = 256
"""So few values are looked up one by one, whatever the state keeps."""


class Page(NamedTuple):
    """Some keys of a walk over all of them."""

    keys: list[bytes]
    next_hash: int | None
    """Where the walk goes on; None: it is over."""
    looked_at: int = 0
    """About how many stored rows it took."""


def with_values(
    page: Page, values: Callable[[Sequence[bytes]], Iterable[bytes | None]], limit_bytes: int
) -> tuple[list[tuple[bytes, bytes]], int | None]:
    """The keys of a page with their values until they are larger than a page may be, and where the next one begins.

    ``values`` gives them little by little, so what does not fit any more is at most one value that was made in vain.
    There is one value at least, however large, or a walk would never come past it.
    """
    found: list[tuple[bytes, bytes]] = []
    size = 0
    for start in range(0, len(page.keys), _VALUES_AT_ONCE):
        part = page.keys[start : start + _VALUES_AT_ONCE]
        for key, value in zip(part, values(part)):
            if value is None:
                continue
            size += len(key) + len(value)
            # Keys of one hash stand on one page, because the next one begins at a hash.
            if size > limit_bytes and found and hash_key(key) != hash_key(found[-1][0]):
                return found, hash_key(key)
            found.append((key, value))
    return found, page.next_hash


class Walk:
    """The keys of one table over all its runs."""

    def __init__(self, views: Sequence[TableView], now_us: int | None, live: PaneRange | None = None) -> None:
        """``now_us``: what expired by then is left out. ``live``: slices of windows that are not over."""
        self._views = views
        self._now_us = now_us
        self._live = live
        self._kind = views[0].table.kind if views else VALUE
        self.rows = sum(view.rows for view in views)

    def page(self, from_hash: int, count: int, wanted: Callable[[bytes], bool] | None = None) -> Page:
        """At least ``count`` keys are looked at, or as many rows as a page may cost; keys that are wanted are given."""
        found: list[bytes] = []
        seen, low = 0, from_hash
        step = self._step(count)
        widest = max(step, self._width(_STEP_ROWS))
        last = min(END, from_hash + max(step, self._width(max(MOST_ROWS, count * _ROWS_PER_KEY))))
        while low < last and seen < count:
            high = min(low + step, END)
            high -= high % ALIGN
            keys = self.keys(low, high - 1)
            if low > from_hash:
                # A step that has grown may find many at once, where rows are not dead any more.
                keys, high = _cut(keys, count - seen, high)
            seen += len(keys)
            found += keys if wanted is None else [key for key in keys if wanted(key)]
            low = high
            step = min(2 * step, widest)
        return Page(found, low if low < END else None, self.rows * (low - from_hash) // END)

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
        return self._width(max(count, least))

    def _width(self, rows: int) -> int:
        """The range of hashes in which there are about so many rows."""
        share = END * max(rows, 1) // max(self.rows, 1)
        return max(ALIGN, share - share % ALIGN)


def _cut(keys: list[bytes], count: int, high: int) -> tuple[list[bytes], int]:
    """So many keys, or a few more, of those found below a hash; and the hash up to which these are all."""
    for place in range(count, len(keys)):
        edge = hash_key(keys[place])
        edge -= edge % ALIGN
        if edge > hash_key(keys[place - 1]):
            return keys[:place], edge
    return keys, high
