"""The state of a windowed step whose partial aggregates lie in slices or are fragments: merged as they are asked for.

A key's value is the result of its newest window, whether it has fired or not; `windows` gives all that are still kept.
Slices that are over are hidden, judged by the clock of the epoch, so an answer does not depend on when folds ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from typing_extensions import TypeVar

from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.keys import decode_key, encode_key, hash_key
from headrace.model.record import Record
from headrace.model.rows import RowCodec, codec_of
from headrace.model.window import Window
from headrace.query.ranges import EVERYTHING, Moment, between, moment_us, read_range
from headrace.query.results import fit_result, misfit
from headrace.query.shape import Kind
from headrace.query.view import StateView
from headrace.state.fragments import START, WAS_LATE, join_fragments
from headrace.state.hash_order import rows_of_key
from headrace.state.pane_cells import plain_values
from headrace.state.pane_lookup import PaneRange, distinct_panes, find_pieces, find_row
from headrace.state.pane_results import SESSION, parse_about, read_results, spans_of
from headrace.state.panes import clock_of, concat_rows, first_live_pane, merge_rows, pane_schema, read_about

if TYPE_CHECKING:
    import polars as pl

    from headrace.query.archive import ArchivedWindows
    from headrace.state.lookup import Layers
    from headrace.state.pane_results import About
    from headrace.state.view import TableView

V = TypeVar("V", default=Any)

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
PANE: Final = "pane"
SEEN: Final = "!seen.max"
"""How far time had come when the newest row came: what a windowed step notes where rows may be late."""
_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 1 << 26
"""Of slices that are merged at once; cells may be lists of any length."""
_NO_SCHEMA: Final = pane_schema([], lasts_us=0, about='{"windows": "tumbling", "size_us": 1}')


class WindowView(StateView[V]):
    """Results per key and window, as they were when the epoch was published. Made by ``hr.Store(path).state(…)``.

    >>> hourly = hr.Store("./state").state("hourly")               # doctest: +SKIP
    >>> hourly["tweet-42"]["impressions"]                          # doctest: +SKIP
    17
    >>> [window.start for window in hourly.windows("tweet-42")]    # doctest: +SKIP
    [1704110400000000, 1704114000000000]
    """

    archived: ArchivedWindows | None = None
    """Windows that are closed for good, where they are archived."""

    def __init__(
        self,
        layers: Layers,
        table: str,
        *,
        address: str,
        epoch: int,
        clocks: Mapping[str, int],
        value: Any = None,
        key: Any = None,
    ) -> None:
        """``clocks``: ``event`` and ``wall`` → their time at the end of the epoch. ``value``, ``key``: annotations."""
        self.address = address
        self.epoch = epoch
        self._key_type = key
        self._value_type = value
        self._codec: RowCodec | None = (
            codec_of(value) if isinstance(value, type) and issubclass(value, Record) else None
        )
        views = layers.views(table)
        self._schema = views[0].table.schema if views else _NO_SCHEMA
        self._views = [view for view in views if spans_of(view.table.schema) == spans_of(self._schema)]
        self._about = parse_about(read_about(self._schema))
        self._tells_pane = self._about.pane or (self._codec is not None and PANE in self._codec.columns)
        self._now_us = clocks[clock_of(self._schema)]
        self._first = first_live_pane(self._schema, self._now_us)
        self._live = PaneRange(self._first, MAX_TIME)

    @property
    def kind(self) -> Kind:
        """``windows``."""
        return "windows"

    @property
    def about(self) -> About:
        """How windows lie in time and what columns are for; for readers of single keys."""
        return self._about

    @property
    def of_sessions(self) -> bool:
        """Whether windows are sessions, put together from fragments."""
        return self._about.windows == SESSION

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def live(self) -> PaneRange:
        """The slices that are not over."""
        return self._live

    @property
    def run_views(self) -> Sequence[TableView]:
        """What the runs hold, newest first."""
        return self._views

    def windows(self, key: Any) -> dict[Window, V]:
        """Every window of a key that is kept, in the order of their ends, with its result."""
        encoded = encode_key(key)
        found = self._results(self._merged(self._rows_of(encoded)))
        return {window: value for _, window, value in found}

    def between(self, key: Any, start: Moment | None = None, end: Moment | None = None) -> dict[Window, V]:
        """The windows of a key that lie between two times, in the order of their ends: open, kept and archived ones.

        Raises where the archive cannot be read, rather than leaving some out.
        """
        wanted = between(moment_us(start), moment_us(end))
        encoded = encode_key(key)
        page = read_range(self.windows(key), self.archived, encoded, wanted, EVERYTHING, self._typed)
        return dict(page.windows)

    def _typed(self, row: dict[str, Any]) -> Any:
        return row if self._codec is None else fit_result(row, self._value_type, self.address)

    # --- by key

    def _find(self, key: bytes) -> Any:
        return self._newest(self._merged(self._rows_of(key))).get(key)

    def _find_many(self, keys: list[bytes]) -> list[Any]:
        wanted = np.unique(np.array([hash_key(key) for key in keys], np.uint64))
        pieces = find_pieces(self._views, self._live)
        found = self._newest(self._merged([piece.only(wanted) for piece in pieces]))
        return [found.get(key) for key in keys]

    def _rows_of(self, key: bytes) -> list[pa.RecordBatch]:
        """The rows of one key, oldest run first."""
        hash_ = hash_key(key)
        rows = []
        if self.of_sessions:
            mine = [each for view in reversed(self._views) for each in rows_of_key(view, hash_, key)]
            return [block.batch.slice(row, 1) for _, block, row in mine if block.sort[row] >= self._first]
        for view in reversed(self._views):
            for pane in distinct_panes([view], self._live).tolist():
                found = find_row(view, pane, hash_, key)
                if found is not None:
                    rows.append(found[0].batch.slice(found[1], 1))
        return rows

    # --- all of it

    def __len__(self) -> int:
        return sum(1 for _ in self._encoded_keys())

    def to_polars(self) -> pl.DataFrame:
        """The whole state as a DataFrame, with a row per key and window: the key, the window, the results."""
        import polars as pl

        merged = [self._columns(batch) for batch in self._batches()]
        if not merged:
            return pl.DataFrame()
        frame = pl.from_arrow(pa.Table.from_batches(merged))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def pieces(self, prefix: str = "") -> Iterator[dict[str, pa.Array]]:
        """The whole state, or keys whose text starts so, in pieces of bounded size: columns by name."""
        for batch in self._batches():
            if prefix:
                wanted = [self._matches(key, prefix) for key in batch.column("key").to_pylist()]
                batch = batch.filter(pa.array(wanted))
            if batch.num_rows:
                columns = self._columns(batch)
                yield dict(zip(columns.schema.names, columns.columns))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Windows by the hashes of their keys, a few keys at a time."""
        pieces = find_pieces(self._views, self._live)
        rows, size = sum(len(piece.hashes) for piece in pieces), sum(piece.rows.nbytes for piece in pieces)
        count = max(1, -(-rows // _BATCH_ROWS), min(rows, -(-size // _BATCH_BYTES)))
        width = -(-(2**64) // count)
        for low in range(0, 2**64, width):
            merged = self._merged([piece.cut(low, min(low + width, 2**64) - 1) for piece in pieces])
            if merged.num_rows:
                yield merged

    def _encoded_keys(self) -> Iterator[bytes]:
        for batch in self._batches():
            yield from dict.fromkeys(batch.column("key").to_pylist())

    def _pairs(self, prefix: str) -> Iterator[tuple[bytes, Any]]:
        for batch in self._batches():
            for key, value in self._newest(batch).items():
                if self._matches(key, prefix):
                    yield key, value

    # --- from slices to results

    def _merged(self, rows: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        """Windows instead of slices: one row per window and key, with its end in the place of the slice."""
        if self.of_sessions:
            return join_fragments(concat_rows([batch for batch in rows if batch.num_rows], self._schema))
        parts = [part for batch in rows for part in self._windows_of(batch)]
        return merge_rows(concat_rows(parts, self._schema))

    def _windows_of(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not rows.num_rows:
            return
        panes = rows.column("pane").to_numpy()
        starts = np.append(0, np.flatnonzero(np.diff(panes)) + 1)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(panes)]):
            part = rows.slice(start, end - start)
            for begins, ends in self._about.windows_of(int(panes[start])):
                # A window whose first slice is over would be told in part: it is over too.
                if begins >= self._first:
                    column = pa.array(np.full(part.num_rows, ends))
                    yield pa.RecordBatch.from_arrays([column, *part.columns[1:]], schema=part.schema)

    def _columns(self, merged: pa.RecordBatch) -> pa.RecordBatch:
        """Key, window and results as columns; times as times."""
        keys = [decode_key(key, self._key_type) for key in merged.column("key").to_pylist()]
        names = self._about.key or ["key"]
        parts = [keys] if len(names) == 1 else [list(part) for part in zip(*keys)] if keys else [[] for _ in names]
        starts, ends = self._bounds(merged)
        made: dict[str, pa.Array] = {name: pa.array(part) for name, part in zip(names, parts)}
        made |= {WINDOW_START: _times(starts), WINDOW_END: _times(ends)}
        made |= read_results(merged, self._about.results)
        if self._tells_pane and PANE not in made:
            made[PANE] = self._panes(merged)
        return pa.RecordBatch.from_pydict(made)

    def _bounds(self, merged: pa.RecordBatch) -> tuple[list[int], list[int]]:
        ends = merged.column("pane").to_pylist()
        if self.of_sessions:
            return merged.column(START).to_pylist(), ends
        return [self._about.start_of(end) for end in ends], ends

    def _results(self, merged: pa.RecordBatch) -> Iterator[tuple[bytes, Window, Any]]:
        """(key, window, result), windows that end earlier first."""
        columns = self._columns(merged)
        starts, ends = self._bounds(merged)
        windows = [Window(start, end) for start, end in zip(starts, ends)]  # type: ignore[arg-type]
        yield from zip(merged.column("key").to_pylist(), windows, self._values(columns))

    def _panes(self, merged: pa.RecordBatch) -> pa.Array:
        """Whether a result is one before, at or after the end of its window, as results themselves say it."""
        ends = merged.column("pane").to_numpy() - 1
        late = np.zeros(len(ends), bool)
        if SEEN in merged.schema.names:
            late = merged.column(SEEN).fill_null(MIN_TIME).to_numpy(zero_copy_only=False) >= ends
        elif WAS_LATE in merged.schema.names:
            late = merged.column(WAS_LATE).fill_null(0).to_numpy(zero_copy_only=False) == 1
        told = np.where(ends > self._now_us, "early", np.where(late, "late", "on_time")).tolist()
        return pa.array(told, pa.string())

    def pane_of(self, end_us: int, seen_us: int | None) -> str:
        """The same of one window. ``seen_us``: how far time had come when its newest row came, if that is noted."""
        if self._now_us is None or end_us - 1 > self._now_us:
            return "early"
        return "on_time" if seen_us is None or seen_us < end_us - 1 else "late"

    def _values(self, columns: pa.RecordBatch) -> list[Any]:
        codec = self._codec
        if codec is None:
            plain = [plain_values(column) for column in columns.columns]
            return [dict(zip(columns.schema.names, row)) for row in zip(*plain)]
        missing = [name for name in codec.required if name not in columns.schema.names]
        if missing and columns.num_rows:
            raise misfit(self._value_type, self.address, f"no {' and no '.join(missing)}")
        arrays = []
        for name, column in codec.columns.items():
            if name in columns.schema.names:
                arrays.append(columns.column(name).cast(column.arrow))
            else:
                arrays.append(column.encode([codec.defaults.get(name)] * columns.num_rows))
        return codec.to_objects(arrays)

    def _newest(self, merged: pa.RecordBatch) -> dict[bytes, Any]:
        """Of each key the window that ends last."""
        return {key: value for key, _, value in self._results(merged)}


def _times(values: list[int]) -> pa.Array:
    return pa.array(values, pa.int64()).cast(pa.timestamp("us", "UTC"))
