"""The partial aggregates of one step in one task: what this epoch added, over what the runs hold.

Rows are added batch by batch and merged now and then, so that memory follows the number of slices and keys, not that of
rows; adding never reads a run. When the task's state is spilled, what was added becomes a run and is read from there.

Invariants
- What `added` answers is of this epoch only, whether it was spilled or not: the newest ``_spilled`` runs are ours.
- Rows are handed on older first, which rules such as ``latest`` depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s
from headrace.model.ids import MAX_TIME
from headrace.state.format import PANES, TableData
from headrace.state.panes.about import spans_of
from headrace.state.panes.lookup import (
    PaneRange,
    PaneRows,
    cut_piece,
    distinct_panes,
    find_pieces,
    first_pane,
    piece_of,
)
from headrace.state.panes.table import compact_rows, concat_rows

if TYPE_CHECKING:
    from headrace.state.lookup import Layers
    from headrace.state.view import TableView

_WAITING_ROWS: Final = 1 << 17
"""Rows that are merged together when so many have been added …"""
_MAX_WAITING_ROWS: Final = 1 << 20
"""… and more, up to so many, where merging leaves most of them."""
_MERGED_ROWS: Final = 1 << 21
"""Merged parts are merged with each other when they have so many rows, and again when that has doubled."""
_MAX_PARTS: Final = 8
"""Readers are given no more parts than this."""


class PaneColumn:
    """What a step adds to its partial aggregates in one task, and reads back."""

    def __init__(self, layers: Callable[[], Layers], table: str, schema: pa.Schema) -> None:
        self.table = table
        self.schema = schema
        self._layers = layers
        self._spans = spans_of(schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._merge_waiting_at = _WAITING_ROWS
        self._parts: list[pa.RecordBatch] = []
        """Each merged in itself and sorted; older first."""
        self._part_rows = 0
        self._merge_at = _MERGED_ROWS
        self._spilled = 0

    # --- adding

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows in any order, several of one slice and key too; those of one batch are older from top to bottom."""
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= self._merge_waiting_at:
            self._merge_waiting()
            if self._part_rows >= self._merge_at:
                self._merge_parts()
                self._merge_at = max(_MERGED_ROWS, 2 * self._part_rows)

    def weigh(self) -> int:
        """Bytes of memory that the added rows take."""
        return sum(batch.nbytes for batch in (*self._waiting, *self._parts))

    def changes(self) -> TableData | None:
        """What was added since the last spill, merged."""
        self._merge_waiting()
        self._merge_parts()
        if not self._parts:
            return None
        self._spilled += 1
        return TableData(self.table, PANES, self._parts[0])

    def forget_before(self, first_pane: int) -> None:
        """Forgets what was added to slices that start before this: they are over and need not be written."""
        self._merge_waiting()
        starts = [int(np.searchsorted(part.column("pane").to_numpy(), first_pane, "left")) for part in self._parts]
        self._parts = [part.slice(start) for part, start in zip(self._parts, starts) if start < part.num_rows]
        self._part_rows = sum(part.num_rows for part in self._parts)

    def clear(self) -> None:
        """Forgets what was added: it has been written."""
        self._waiting, self._waiting_rows = [], 0
        self._parts, self._part_rows = [], 0
        self._merge_at = _MERGED_ROWS

    # --- reading

    def added(self, panes: PaneRange) -> list[PaneRows]:
        """What this epoch added to these slices, older pieces first; of one slice and key there may be several."""
        return self._pieces(self._views()[: self._spilled], panes, fresh=True)

    def inherited(self, panes: PaneRange) -> list[PaneRows]:
        """What epochs before this one left in these slices."""
        return self._pieces(self._views()[self._spilled :], panes, fresh=False)

    def all(self, panes: PaneRange) -> list[PaneRows]:
        """Everything in these slices."""
        return self._pieces(self._views(), panes, fresh=True)

    def panes(self, panes: PaneRange, *, added: bool = False) -> Int64s:
        """The slices in this range that have rows, in order; with ``added`` only those that this epoch added to."""
        views = self._views()[: self._spilled] if added else self._views()
        fresh = [np.unique(piece.panes) for piece in self._fresh(panes)]
        return np.unique(np.concatenate([distinct_panes(views, panes), *fresh]))

    def first_pane(self, first: int) -> int | None:
        """The earliest slice from ``first`` on that has rows."""
        fresh = [int(piece.panes[0]) for piece in self._fresh(PaneRange(first, MAX_TIME))]
        stored = first_pane(self._views(), first)
        return min(fresh if stored is None else [*fresh, stored], default=None)

    def _views(self) -> Sequence[TableView]:
        """Runs of the same windows: what was cut otherwise is over, and would be taken for slices of these."""
        return [view for view in self._layers().views(self.table) if spans_of(view.table.schema) == self._spans]

    def _pieces(self, views: Sequence[TableView], panes: PaneRange, *, fresh: bool) -> list[PaneRows]:
        return [*find_pieces(views, panes), *(self._fresh(panes) if fresh else ())]

    def _fresh(self, panes: PaneRange) -> list[PaneRows]:
        """What was added to these slices since the last spill."""
        self._merge_waiting()
        if len(self._parts) > _MAX_PARTS:
            self._merge_parts()
        pieces = [cut_piece(piece_of(part), panes) for part in self._parts]
        return [piece for piece in pieces if len(piece.panes)]

    def _merge_waiting(self) -> None:
        if not self._waiting:
            return
        part = compact_rows(concat_rows(self._waiting, self.schema))
        if 2 * part.num_rows > self._waiting_rows:
            # Sorting more at once saves merging the parts later.
            self._merge_waiting_at = min(2 * self._merge_waiting_at, _MAX_WAITING_ROWS)
        self._waiting, self._waiting_rows = [], 0
        self._parts.append(part)
        self._part_rows += part.num_rows

    def _merge_parts(self) -> None:
        if len(self._parts) > 1:
            self._parts = [compact_rows(concat_rows(self._parts, self.schema))]
            self._part_rows = self._parts[0].num_rows
