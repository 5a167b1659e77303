"""Readers of windows by key: what they all can be asked, and those merged from slices or fragments.

A key's value is the result of its newest window, whether it has fired or not; `windows` gives all that are still kept,
`range` those in state and archive together. Slices that are over are hidden, judged by the clock of the epoch, so an
answer does not depend on when folds ran.

Single keys are merged cell by cell (`headrace.read.pane_reading`), whole states in columns; the rules are the same ones
(`headrace.aggregates`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.aggregates.list_rules import plain_values
from headrace.aggregates.results import read_results
from headrace.errors import FunctionFailed
from headrace.model.column_numbers import Convert, spans_and_datetimes_of
from headrace.model.fields import former_names
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.key_text import key_phrase
from headrace.model.keys import hash_key
from headrace.model.shapes import field_shapes, is_record_class
from headrace.model.time import format_time
from headrace.model.time_shape import TIME, TimeShape
from headrace.model.window import PANE, WINDOW_END, WINDOW_START, Window
from headrace.read.columns import Piece, times_of
from headrace.read.finishing import column_key
from headrace.read.forms import PACKED
from headrace.read.paging import Walk
from headrace.read.pane_reading import PaneReader, SessionReader
from headrace.read.ranges import EVERYTHING, Moment, Range, RangePage, between, moment_us, read_range
from headrace.read.reader import Reader, ReaderOptions
from headrace.state.panes.about import CUMULATING, SESSION, SLIDING, parse_about, spans_of
from headrace.state.panes.fragments import START, WAS_LATE, join_fragments
from headrace.state.panes.lookup import PaneRange, find_pieces
from headrace.state.panes.table import SEEN, clock_of, concat_rows, first_live_pane, merge_rows, pane_schema, read_about

if TYPE_CHECKING:
    from headrace.read.archive import ArchivedWindows
    from headrace.state.lookup import Layers

_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 1 << 26
"""Of slices that are merged at once; cells may be lists of any length."""
_NO_SCHEMA: Final = pane_schema([], lasts_us=0, about='{"windows": "tumbling", "size_us": 1}')


class WindowReader(Reader):
    """Results per key and window."""

    kind = "windows"
    archived: ArchivedWindows | None = None
    """Windows that are closed for good, where they are archived."""

    @property
    def _declared_key_type(self) -> Any:
        return str if self.archived is None else self.archived.key_type

    def windows(self, key: bytes) -> dict[Window, Any]:
        """Every window of a key that is kept, in the order of their ends."""
        raise NotImplementedError

    def whole(self, key: bytes) -> dict[Window, Any] | None:
        return self.windows(key) or None

    def wholes(self, keys: Sequence[bytes]) -> list[dict[Window, Any] | None]:
        return [self.whole(key) for key in keys]

    def shown_whole(self, whole: Any) -> Any:
        return None if whole is None else {window_name(window): self.shown(row) for window, row in whole.items()}

    def range(self, key: bytes, wanted: Range, count: int) -> RangePage:
        """Windows of a key by their ends, from state and archive together. May read files: not for the loop."""
        return read_range(
            self.windows(key), self._archived_in(wanted), key, wanted, count, lambda row: self.typed(key, row)
        )

    def between(self, key: bytes, start: Moment | None, end: Moment | None) -> dict[Window, Any]:
        """The windows of a key that lie between two times, in the order of their ends: open, kept and archived ones.

        Raises where the archive cannot be read, rather than leaving some out.
        """
        return dict(self.range(key, between(moment_us(start), moment_us(end)), EVERYTHING).windows)

    def reads_archive(self, wanted: Range) -> bool:
        """Whether such a question has to look into files."""
        return self._archived_in(wanted) is not None

    def _archived_in(self, wanted: Range) -> ArchivedWindows | None:
        """None where all windows that are asked for are still open."""
        first, _ = wanted.ends()
        return None if self.now_us is not None and first > self.now_us + 1 else self.archived

    @cached_property
    def value_times(self) -> TimeShape:
        """The ends of a window are times, whatever the store tells of the results beside them."""
        shape = self._times or TimeShape()
        return msgspec.structs.replace(shape, fields={**shape.fields, WINDOW_START: TIME, WINDOW_END: TIME})

    @property
    def column_times(self) -> dict[str, TimeShape | None]:
        return {"key": self.key_times, **self.value_times.fields}

    def fields(self, key: bytes, form: str = PACKED) -> dict[str, Any] | None:
        windows = self.windows(key).items()
        return {window_name(window): self.shown(value, form) for window, value in windows} or None

    def typed(self, key: bytes, row: dict[str, Any]) -> Any:
        """A row of results as the type that was asked for."""
        into = self.value_type
        if into is None or into is Any:
            return row
        for name, was in self._typed_names.items():
            # An archived window has the names of the program that closed it.
            if name not in row and (former := next((each for each in was if each in row), None)) is not None:
                row = {**row, name: row[former]}
        timed = {name: convert(row[name]) for name, convert in self._typed_times.items() if name in row}
        return self.fit(key, lambda: msgspec.convert({**row, **timed}, into))

    @cached_property
    def _typed_names(self) -> dict[str, tuple[str, ...]]:
        """Fields of the type asked for → the names they had before."""
        return former_names(self.value_type)

    @cached_property
    def _typed_times(self) -> dict[str, Convert]:
        """Fields of the type asked for that are datetimes or spans, or hold such: they are numbers in results."""
        fields = field_shapes(self.value_type) if is_record_class(self.value_type) else ()
        converts = {field.encode_name: spans_and_datetimes_of(field.type) for field in fields}
        return {name: convert for name, convert in converts.items() if convert is not None}

    @property
    def tells_pane(self) -> bool:
        """Whether somebody who asks wants to know if results come before, at or after the end of their window."""
        return PANE in getattr(self.value_type, "__struct_fields__", ())


class SlicedReader(WindowReader):
    """Windows whose partial aggregates lie in slices, and sessions that are fragments: merged as they are asked for."""

    def __init__(self, layers: Layers, table: str, options: ReaderOptions, clocks: Mapping[str, int]) -> None:
        """``clocks``: ``event`` and ``wall`` → their time at the end of the epoch."""
        super().__init__(layers, table, options)
        self.schema = self.views[0].table.schema if self.views else _NO_SCHEMA
        spans = spans_of(self.schema)
        self.views = tuple(view for view in self.views if spans_of(view.table.schema) == spans)
        self.about = parse_about(read_about(self.schema))
        """How windows lie in time and what columns are for."""
        self.now_us = now_us = clocks[clock_of(self.schema)]
        self.live = PaneRange(first_live_pane(self.schema, now_us), MAX_TIME)
        """The slices that are not over."""

    @property
    def of_sessions(self) -> bool:
        """Whether windows are sessions, put together from fragments."""
        return self.about.windows == SESSION

    @property
    def tells_pane(self) -> bool:
        return self.about.pane or super().tells_pane

    def reads_like(self, other: Reader) -> bool:
        return isinstance(other, SlicedReader) and self.schema.equals(other.schema, check_metadata=True)

    # --- by key

    @cached_property
    def _by_key(self) -> PaneReader:
        return (SessionReader if self.of_sessions else PaneReader)(self)

    def value(self, key: bytes) -> Any:
        row = self._newest_row(key)
        return None if row is None else self.typed(key, row)

    def _newest_row(self, key: bytes) -> dict[str, Any] | None:
        try:
            return self._by_key.newest(key)
        except FunctionFailed as error:
            raise self._placed(error, key) from error

    def _placed(self, error: FunctionFailed, key: bytes | None = None) -> FunctionFailed:
        """A result that cannot be given, as a sum beyond 64 bits: says of which state, and of which key."""
        error.where = f"state {self.address}"
        if key is not None:
            error.found = key_phrase(self.decoded(key))
        return error

    def values(self, keys: Sequence[bytes]) -> list[Any]:
        newest = self._newest(self._merged_of(keys))
        return [newest.get(key) for key in keys]

    def wholes(self, keys: Sequence[bytes]) -> list[dict[Window, Any] | None]:
        windows: dict[bytes, dict[Window, Any]] = {}
        for key, row in self._rows(self._merged_of(keys)):
            windows.setdefault(key, {})[Window(row[WINDOW_START], row[WINDOW_END])] = self.typed(key, row)
        return [windows.get(key) for key in keys]

    def _merged_of(self, keys: Sequence[bytes]) -> pa.RecordBatch:
        hashes = np.unique(np.array([hash_key(key) for key in keys], np.uint64))
        return self._merged([piece.only(hashes) for piece in find_pieces(self.views, self.live)])

    def windows(self, key: bytes) -> dict[Window, Any]:
        try:
            rows = self._by_key.windows(key)
        except FunctionFailed as error:
            raise self._placed(error, key) from error
        return {window: self.typed(key, row) for window, row in rows.items()}

    def changes_us(self, key: bytes) -> int | None:
        """Windows that are slices end with time."""
        now_us = self.now_us
        newest = self._newest_row(key)
        if newest is None or now_us is None:
            return None
        start, end = newest[WINDOW_START], newest[WINDOW_END]
        lasts_us = now_us - self.live.first + 1
        over_us = (end if self.of_sessions else start) + lasts_us
        # First results are said to be final, then they are gone: at once, or when they are not kept any longer.
        return next((time for time in (end - 1, end, over_us) if time > now_us), now_us + 1)

    # --- all of it

    @cached_property
    def _walk(self) -> Walk:
        # A slice that is not over may be of windows only that are: those have no key to give.
        step_us = {CUMULATING: self.about.size_us, SLIDING: self.about.every_us}.get(self.about.windows, 1)
        first = self.live.first + (self.about.offset_us - self.live.first) % step_us
        return Walk(self.views, self.now_us, PaneRange(min(first, MAX_TIME), MAX_TIME))

    def keys(self) -> Iterator[bytes]:
        for batch in self._batches():
            yield from dict.fromkeys(batch.column("key").to_pylist())

    def items(self, prefix: str = "") -> Iterator[tuple[bytes, Any]]:
        for batch in self._batches():
            for key, value in self._newest(batch).items():
                if self.matches(key, prefix):
                    yield key, value

    def pieces(self, prefix: str = "", *, expires: bool = False) -> Iterator[Piece]:
        for batch in self._batches():
            batch = self._matching(batch, prefix)
            if batch.num_rows:
                columns = self._columns(batch)
                yield dict(zip(columns.schema.names, columns.columns))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Windows by the hashes of their keys, a few keys at a time."""
        pieces = find_pieces(self.views, self.live)
        rows, size = sum(len(piece.hashes) for piece in pieces), sum(piece.rows.nbytes for piece in pieces)
        count = max(1, -(-rows // _BATCH_ROWS), min(rows, -(-size // _BATCH_BYTES)))
        width = -(-(2**64) // count)
        for low in range(0, 2**64, width):
            merged = self._merged([piece.cut(low, min(low + width, 2**64) - 1) for piece in pieces])
            if merged.num_rows:
                yield merged

    # --- from slices to results

    def _merged(self, rows: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        """Windows instead of slices: one row per window and key, with its end in the place of the slice."""
        try:
            if self.of_sessions:
                return join_fragments(concat_rows([batch for batch in rows if batch.num_rows], self.schema))
            parts = [part for batch in rows for part in self._windows_of(batch)]
            return merge_rows(concat_rows(parts, self.schema))
        except FunctionFailed as error:
            raise self._placed(error) from error

    def _windows_of(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not rows.num_rows:
            return
        panes = rows.column("pane").to_numpy()
        starts = np.append(0, np.flatnonzero(np.diff(panes)) + 1)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(panes)]):
            part = rows.slice(start, end - start)
            for begins, ends in self.about.windows_of(int(panes[start])):
                # A window whose first slice is over would be told in part: it is over too.
                if begins >= self.live.first:
                    column = pa.array(np.full(part.num_rows, ends))
                    yield pa.RecordBatch.from_arrays([column, *part.columns[1:]], schema=part.schema)

    def _columns(self, merged: pa.RecordBatch) -> pa.RecordBatch:
        """Key, window and results as columns; times as times."""
        keys = [column_key(key, self.key_annotation) for key in merged.column("key").to_pylist()]
        names = self.about.key or ["key"]
        parts = [keys] if len(names) == 1 else [list(part) for part in zip(*keys)] if keys else [[] for _ in names]
        made: dict[str, pa.Array] = {name: pa.array(part) for name, part in zip(names, parts)}
        return pa.RecordBatch.from_pydict(made | self.window_columns(merged))

    def merged_rows(self, keys: Sequence[bytes] | None = None) -> Iterator[pa.RecordBatch]:
        """Windows with the bytes of their keys, for `window_columns` to finish: of all keys, or of some."""
        return self._batches() if keys is None else iter((self._merged_of(keys),))

    def window_columns(
        self, merged: pa.RecordBatch | None, names: Collection[str] | None = None
    ) -> dict[str, pa.Array]:
        """Window and results as columns; times as times. ``names``: only these; no rows: what types they have."""
        if merged is None:
            merged = self._merged([])
        wanted = self.about.results if names is None else {
            name: told for name, told in self.about.results.items() if name in names
        }  # fmt: skip
        made: dict[str, pa.Array] = {}
        if names is None or WINDOW_START in names or WINDOW_END in names:
            starts, ends = self._bounds(merged)
            made = {WINDOW_START: times_of(starts), WINDOW_END: times_of(ends)}
        made |= read_results(merged, wanted)
        if self.tells_pane and PANE not in self.about.results and (names is None or PANE in names):
            made[PANE] = self._panes(merged)
        return made

    def _bounds(self, merged: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        ends = merged.column("pane")
        if self.of_sessions:
            return merged.column(START), ends
        # Windows of many keys have few ends.
        distinct, places = np.unique(ends.to_numpy(), return_inverse=True)
        starts = np.array([self.about.start_of(end) for end in distinct.tolist()], np.int64)
        return pa.array(starts[places]), ends

    def _panes(self, merged: pa.RecordBatch) -> pa.Array:
        """Whether a result is one before, at or after the end of its window, as results themselves say it."""
        ends = merged.column("pane").to_numpy() - 1
        late = np.zeros(len(ends), bool)
        if SEEN in merged.schema.names:
            late = merged.column(SEEN).fill_null(MIN_TIME).to_numpy(zero_copy_only=False) >= ends
        elif WAS_LATE in merged.schema.names:
            late = merged.column(WAS_LATE).fill_null(0).to_numpy(zero_copy_only=False) == 1
        told = np.where(ends > self.now_us, "early", np.where(late, "late", "on_time")).tolist()
        return pa.array(told, pa.string())

    def pane_of(self, end_us: int, seen_us: int | None) -> str:
        """The same of one window. ``seen_us``: how far time had come when its newest row came, if that is noted."""
        if self.now_us is None or end_us - 1 > self.now_us:
            return "early"
        return "on_time" if seen_us is None or seen_us < end_us - 1 else "late"

    def _newest(self, merged: pa.RecordBatch) -> dict[bytes, Any]:
        """Of each key the window that ends last: windows that end earlier come first."""
        rows = dict(self._rows(merged))
        return {key: self.typed(key, row) for key, row in rows.items()}

    def _rows(self, merged: pa.RecordBatch) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Keys, and what each of their windows comes to as plain Python; those that end earlier come first."""
        columns = self._columns(merged)
        names, plain = columns.schema.names, [plain_values(column) for column in columns.columns]
        return zip(merged.column("key").to_pylist(), (dict(zip(names, row)) for row in zip(*plain)))


def window_name(window: Window) -> str:
    """A window as people write it: its two ends, as ISO 8601 does; two dots where it has none."""
    start, end = int(window.start), int(window.end)
    return f"{format_time(start) if start > MIN_TIME else '..'}/{format_time(end) if end < MAX_TIME else '..'}"
