"""Readers of tables with entries under each key: maps, lists and timers, and windows that are kept one by one.

Windows that cannot be merged from parts (own triggers, own functions) lie as entries of a map, window → accumulators.
A key's value is the result of the window that ends last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ProgramError
from headrace.model.batch import UInt64s
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.key_text import key_text, parse_key_text
from headrace.model.keys import decode_key, encode_key, hash_key
from headrace.model.time_shape import TIME, Replace, TimeShape, key_type_with_times, time_writer
from headrace.model.window import PANE, WINDOW_END, WINDOW_START, Window
from headrace.read.columns import PIECE_ROWS, Piece, expiry_of, names_of, no_rows, piece_of, row_pieces
from headrace.read.finishing import Finisher
from headrace.read.forms import PACKED, WRITE_TIME, unpack, unpack_all
from headrace.read.reader import Reader, ReaderOptions, type_of_key
from headrace.read.shape import Entry, Kind, derive_shape
from headrace.read.windows import WindowReader
from headrace.state.subs import TIME_SUB

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.state.lookup import Layers


_WHOLE_ENTRIES: Final = 1024
"""Maps up to this size are fetched together; larger ones are walked."""


class EntryReader(Reader):
    """A map, a list or timers: entries under each key."""

    def __init__(self, layers: Layers, table: str, options: ReaderOptions, *, empty: Kind | None = None) -> None:
        """``empty``: what the entries are, where there is none that tells."""
        super().__init__(layers, table, options)
        self._shape = derive_shape(self._first_sub, self.value_type, f"state {self.address}", empty)
        self.kind = self._shape.kind
        self.stable = not any(view.table.has_expires for view in self.views)

    def value(self, key: bytes) -> Any:
        return self._join(key, list(self._entries(key)))

    def values(self, keys: Sequence[bytes]) -> list[Any]:
        distinct = list(dict.fromkeys(keys))
        if not distinct:
            return []
        hashes = np.array([hash_key(key) for key in distinct], np.uint64)
        maps = self.layers.entries_many(self.table, hashes, pa.array(distinct, pa.binary()), _WHOLE_ENTRIES)
        values = {}
        for key, entries in zip(distinct, maps):
            if entries is None:
                values[key] = self.value(key)
            else:
                live = [(sub, raw) for sub, (raw, expires) in entries.items() if not self.is_over(expires)]
                values[key] = self._join(key, live)
        return [values[key] for key in keys]

    def _join(self, key: bytes, entries: Iterable[Entry]) -> Any:
        """The entries of a key as one object; None where there are none."""
        return self.fit(key, lambda: self._shape.join(entries)) if entries else None

    def _entries(self, key: bytes) -> Iterator[Entry]:
        for sub, raw, expires in self.layers.entries(self.table, hash_key(key), key):
            if not self.is_over(expires):
                yield sub, raw

    def has(self, key: bytes) -> bool:
        return any(True for _ in self._entries(key))

    def changes_us(self, key: bytes) -> int | None:
        rows = self.layers.entries(self.table, hash_key(key), key)
        ends = (expires for _, _, expires in rows if expires is not None and not self.is_over(expires))
        return None if self.stable or self.lasts else min(ends, default=None)

    # --- times

    @property
    def value_times(self) -> TimeShape | None:
        return TimeShape(items=TIME) if self.kind == "timers" else self._times

    @property
    def column_times(self) -> dict[str, TimeShape | None]:
        shape = self.value_times or TimeShape()
        return {"key": self.key_times, "entry": shape.names, "value": shape.items, "at": TIME}

    def _part_writer(self, form: str, *, names: bool = False) -> Replace:
        """How an element, an entry or the name of one is shown."""
        shape = self.value_times
        part = None if shape is None else shape.names if names else shape.items
        write = WRITE_TIME.get(form)
        return (None if write is None else time_writer(part, write)) or (lambda value: value)

    # --- entries one by one

    def rows_of(self, key: bytes) -> int:
        """At least as many rows as the key has entries; costs little to tell."""
        hash_ = hash_key(key)
        return sum(piece.end - piece.start for view in self.views for piece in view.pieces(hash_, key))

    def walk_fields(self, key: bytes, form: str = PACKED) -> Iterator[tuple[str, Any]]:
        """Entries of a map one after the other, however many there are."""
        show, show_name = self._part_writer(form), self._part_writer(form, names=True)
        return ((key_text(show_name(decode_key(sub))), show(unpack(raw))) for sub, raw in self._entries(key))

    def walk_elements(self, key: bytes, form: str = PACKED) -> Iterator[Any]:
        """Elements of a list, or times of timers, one after the other."""
        show = self._part_writer(form)
        for sub, raw in self._entries(key):
            yield show(TIME_SUB.decode(sub) if self.kind == "timers" else unpack(raw))

    def field(self, key: bytes, name: str, form: str = PACKED) -> Any:
        if self.kind != "map":
            return super().field(key, name, form)
        try:
            sub = encode_key(parse_key_text(name, self._entry_type))
        except ProgramError:
            return None
        raw, expires = self.layers.entry(self.table, hash_key(key), key, sub)
        return None if raw is None or self.is_over(expires) else self._part_writer(form)(unpack(raw))

    @cached_property
    def _entry_type(self) -> Any:
        """The type of the names of entries, told by the first one."""
        stored = str if self._first_sub is None else type_of_key(decode_key(self._first_sub))
        return key_type_with_times(stored, None if self._times is None else self._times.names)

    @cached_property
    def _first_sub(self) -> bytes | None:
        for batch in self.layers.scan(self.table):
            sub: bytes = batch.column("sub")[0].as_py()
            return sub
        return None

    # --- all of it

    def keys(self) -> Iterator[bytes]:
        last = None
        for batch in self.layers.scan(self.table, self.now_us):
            for key in batch.column("key").to_pylist():
                if key != last:
                    yield key
                last = key

    def items(self, prefix: str = "") -> Iterator[tuple[bytes, Any]]:
        for key, rows in groupby(self._rows(), key=itemgetter(0)):
            if self.matches(key, prefix):
                yield key, self._join(key, [(sub, raw) for _, sub, raw in rows])

    def _rows(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        for batch in self.layers.scan(self.table, self.now_us):
            yield from zip(*(batch.column(name).to_pylist() for name in ("key", "sub", "value")))

    def pieces(self, prefix: str = "", *, expires: bool = False) -> Iterator[Piece]:
        places = _Places()
        for batch in self.layers.scan(self.table, self.now_us):
            batch = self._matching(batch, prefix)
            for start in range(0, batch.num_rows, PIECE_ROWS):
                part = batch.slice(start, PIECE_ROWS)
                columns = [self.key_column(part.column("key")), *self._entry_columns(part, places)]
                piece = piece_of(self.kind, columns, self.value_type)
                yield piece | expiry_of(part) if expires and not (self.stable or self.lasts) else piece

    def row_pieces(self, keys: Sequence[bytes] | None = None) -> Iterator[tuple[pa.RecordBatch, Piece]]:
        """Rows as they are stored, beside their columns behind the key: of all keys, or of some. Piece by piece."""
        places, names = _Places(), names_of(self.kind)[1:]
        batches = self.layers.scan(self.table, self.now_us) if keys is None else map(self._stored, keys)
        for batch in batches:
            for start in range(0, batch.num_rows, PIECE_ROWS):
                part = batch.slice(start, PIECE_ROWS)
                yield part, dict(zip(names, self._entry_columns(part, places)))

    def _stored(self, key: bytes) -> pa.RecordBatch:
        """The entries of a key as rows."""
        entries = list(self._entries(key))
        rows = len(entries)
        subs, raws = ([entry[side] for entry in entries] for side in (0, 1))
        hashes = pa.array(np.full(rows, hash_key(key), np.uint64))
        columns = [hashes, *(pa.array(values, pa.binary()) for values in ([key] * rows, subs, raws))]
        return pa.RecordBatch.from_arrays(columns, names=["hash", "key", "sub", "value"])

    def _entry_columns(self, rows: pa.RecordBatch, places: _Places) -> list[Any]:
        """Names and values of entries, places and elements of lists, or the times of timers."""
        subs, sub = rows.column("sub").to_pylist(), self._shape.sub
        assert sub is not None
        if self.kind == "timers":
            return [list(map(sub.decode, subs))]
        raws = rows.column("value").to_pylist()
        if self.value_type in (None, Any):
            values = unpack_all(raws)
        else:
            decode = self._shape.decode
            values = [self.fit(key, partial(decode, raw)) for key, raw in zip(rows.column("key").to_pylist(), raws)]
        if self.kind == "list":
            return [places.of(rows.column("hash").to_numpy(), rows.column("key")), values]
        return [list(map(sub.decode, subs)), values]


class _Places:
    """The place of each element in the list of its key, over batches that follow each other."""

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._count = 0

    def of(self, hashes: UInt64s, keys: pa.BinaryArray) -> pa.Array:
        """The places of these elements; all of one key stand together."""
        rows = len(keys)
        fresh = np.ones(rows, np.bool_)
        same = pc.equal(keys.slice(1), keys.slice(0, rows - 1)).to_numpy(zero_copy_only=False)
        fresh[1:] = (hashes[1:] != hashes[:-1]) | ~same
        starts = np.flatnonzero(fresh)
        places = np.arange(rows) - np.repeat(starts, np.diff(np.append(starts, rows)))
        if keys[0].as_py() == self._last:
            places[: starts[1] if len(starts) > 1 else rows] += self._count
        self._last, self._count = keys[-1].as_py(), int(places[-1]) + 1
        return pa.array(places)


# --- windows that are kept one by one


ROWS: Final = "rows"
"""How many rows a window holds, where they are kept themselves and only the program knows what they come to."""

_Stored = dict[tuple[int, int], dict[str, Any]]
"""Start and end of a window → what is stored of it."""


class HeldWindowsReader(WindowReader):
    """Windows that are kept one by one."""

    def __init__(self, layers: Layers, table: str, options: ReaderOptions, declared: DeclaredState) -> None:
        super().__init__(layers, table, options)
        self._entries = EntryReader(layers, table, options._replace(value_type=None, times=None))
        self._results_told = declared.results, declared.key
        self._finisher = Finisher(*self._results_told)
        self.shows_pane = declared.pane or self.tells_pane
        """Whether results say if they come before, at or after the end of their window."""

    # --- by key

    def value(self, key: bytes) -> Any:
        return self._newest(key, self._entries.value(key) or {})

    def values(self, keys: Sequence[bytes]) -> list[Any]:
        return [self._newest(key, stored or {}) for key, stored in zip(keys, self._entries.values(keys))]

    def windows(self, key: bytes) -> dict[Window, Any]:
        return dict(self._results(key, self._entries.value(key) or {}))

    def reads_like(self, other: Reader) -> bool:
        return isinstance(other, HeldWindowsReader) and self._results_told == other._results_told

    def wholes(self, keys: Sequence[bytes]) -> list[dict[Window, Any] | None]:
        stored = zip(keys, self._entries.values(keys))
        return [dict(self._results(key, windows or {})) or None for key, windows in stored]

    def changes_us(self, key: bytes) -> int | None:
        """They end when somebody writes it."""
        return None

    # --- all of it

    def items(self, prefix: str = "") -> Iterator[tuple[bytes, Any]]:
        for key, stored in self._entries.items(prefix):
            result = self._newest(key, stored)
            if result is not None:
                yield key, result

    @property
    def no_rows(self) -> Piece:
        keys, all_names = self._finisher.names_of_key, self._finisher.names
        names = (*(keys or ("key",)), WINDOW_START, WINDOW_END, *all_names[len(keys) :])
        return no_rows((*names, PANE) if self.shows_pane else names)

    def pieces(self, prefix: str = "", *, expires: bool = False) -> Iterator[Piece]:
        return row_pieces(
            row for key, stored in self._entries.items(prefix) for _, row in self._plain_results(key, stored)
        )

    # --- from what is stored to results

    def _newest(self, key: bytes, stored: _Stored) -> Any:
        """The result of the window that ends last; None where all are empty."""
        return next((result for _, result in reversed(list(self._results(key, stored)))), None)

    def _results(self, key: bytes, stored: _Stored) -> Iterator[tuple[Window, Any]]:
        return ((window, self.typed(key, row)) for window, row in self._plain_results(key, stored))

    def _plain_results(self, key: bytes, stored: _Stored) -> Iterator[tuple[Window, dict[str, Any]]]:
        for (start, end), window in sorted(stored.items(), key=lambda entry: (entry[0][1], entry[0][0])):
            # An empty window remembers only what its trigger needs.
            if window.get("!size"):
                yield Window(start, end), self._row(key, start, end, window)  # type: ignore[arg-type]

    def _row(self, key: bytes, start: int, end: int, window: dict[str, Any]) -> dict[str, Any]:
        row = self._finisher.key_columns(key, self.key_annotation)
        if start > MIN_TIME and end < MAX_TIME:
            row |= {WINDOW_START: start, WINDOW_END: end}
        row |= self._finisher.finish(key, window, self.key_annotation)
        if self.shows_pane and PANE not in row:
            early = self.now_us is None or end - 1 > self.now_us
            row[PANE] = "early" if early else "late" if window.get("!late") else "on_time"
        return row if self._finisher.tells else {**row, ROWS: window["!size"]}
