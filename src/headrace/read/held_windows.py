"""The reader of windows that are kept one by one, because they cannot be merged from parts: triggers, own functions.

They lie as entries of a map, window → accumulators. A key's value is the result of the window that ends last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.window import Window
from headrace.read.entries import EntryReader
from headrace.read.finishing import PANE, WINDOW_END, WINDOW_START, Finisher
from headrace.read.reader import ReaderOptions
from headrace.read.windows import WindowReader

if TYPE_CHECKING:
    import polars as pl

    from headrace.model.job import DeclaredState
    from headrace.state.lookup import Layers

PIECE_ROWS: Final = 16_384
ROWS: Final = "rows"
"""How many rows a window holds, where they are kept themselves and only the program knows what they come to."""

_Stored = dict[tuple[int, int], dict[str, Any]]
"""Start and end of a window → what is stored of it."""


class HeldWindowsReader(WindowReader):
    """Windows that are kept one by one."""

    def __init__(self, layers: Layers, table: str, options: ReaderOptions, declared: DeclaredState) -> None:
        super().__init__(layers, table, options)
        self._entries = EntryReader(layers, table, options._replace(value_type=None))
        self._finisher = Finisher(declared.results, declared.key)
        self.shows_pane = declared.pane or self.tells_pane
        """Whether results say if they come before, at or after the end of their window."""

    # --- by key

    def value(self, key: bytes) -> Any:
        return self._newest(key, self._entries.value(key) or {})

    def values(self, keys: Sequence[bytes]) -> list[Any]:
        return [self._newest(key, stored or {}) for key, stored in zip(keys, self._entries.values(keys))]

    def windows(self, key: bytes) -> dict[Window, Any]:
        return dict(self._results(key, self._entries.value(key) or {}))

    def changes_us(self, key: bytes) -> int | None:
        """They end when somebody writes it."""
        return None

    # --- all of it

    def items(self, prefix: str = "") -> Iterator[tuple[bytes, Any]]:
        for key, stored in self._entries.items(prefix):
            result = self._newest(key, stored)
            if result is not None:
                yield key, result

    def frame(self) -> pl.DataFrame:
        """A row per key and window."""
        import polars as pl

        rows = [msgspec.to_builtins(row) for row in self._all_results()]
        return pl.DataFrame(rows, strict=False, infer_schema_length=None)

    def window_pieces(self, prefix: str = "") -> Iterator[dict[str, list[Any]]]:
        rows = self._all_results(prefix)
        while piece := [msgspec.to_builtins(row) for row in islice(rows, PIECE_ROWS)]:
            names = dict.fromkeys(name for row in piece for name in row)
            yield {name: [row.get(name) for row in piece] for name in names}

    def _all_results(self, prefix: str = "") -> Iterator[Any]:
        for key, stored in self._entries.items(prefix):
            yield from (result for _, result in self._results(key, stored))

    # --- from what is stored to results

    def _newest(self, key: bytes, stored: _Stored) -> Any:
        """The result of the window that ends last; None where all are empty."""
        return next((result for _, result in reversed(list(self._results(key, stored)))), None)

    def _results(self, key: bytes, stored: _Stored) -> Iterator[tuple[Window, Any]]:
        for (start, end), window in sorted(stored.items(), key=lambda entry: (entry[0][1], entry[0][0])):
            # An empty window remembers only what its trigger needs.
            if window.get("!size"):
                yield Window(start, end), self.typed(key, self._row(key, start, end, window))  # type: ignore[arg-type]

    def _row(self, key: bytes, start: int, end: int, window: dict[str, Any]) -> dict[str, Any]:
        row = self._finisher.key_columns(key, self.key_annotation)
        if start > MIN_TIME and end < MAX_TIME:
            row |= {WINDOW_START: start, WINDOW_END: end}
        row |= self._finisher.finish(key, window, self.key_annotation)
        if self.shows_pane and PANE not in row:
            early = self.now_us is None or end - 1 > self.now_us
            row[PANE] = "early" if early else "late" if window.get("!late") else "on_time"
        return row if self._finisher.tells else {**row, ROWS: window["!size"]}
