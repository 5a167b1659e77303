"""Folding: several runs of one step and key-group range become one, with the same content.

A fold never changes what a reader sees, so anyone may do it at any time; it takes effect when the next manifest lists
the new run in place of its inputs. What may be left out on the way:
- tombstones and clear markers, only when the oldest run of the range is among the inputs: else they hide something;
- expired rows, by each table's own clock; where older runs remain a tombstone takes their place;
- rows of a timer index that a watermark has fired already;
- slices of partial aggregates that no window needs any more, and rows that no join does, as their tables say.

What this module deliberately does not do: decide what to fold (see `headrace.state.folding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model import crash
from headrace.model.report import RunRef
from headrace.state.encode import BATCH_BYTES, BATCH_ROWS, Piece, RunEncoder
from headrace.state.folding import Fold, apply_fold, plan_folds
from headrace.state.format import DUE, PANES, ROWS
from headrace.state.lookup import Layers
from headrace.state.merge import drop_dead, drop_expired, merge_views, merged_schema
from headrace.state.panes import drop_over
from headrace.state.rows_format import drop_unwanted
from headrace.state.run import Run, open_ref
from headrace.state.shard import EVENT_DUE, WALL_DUE
from headrace.state.store import Store

__all__ = ["Fold", "FoldedRun", "apply_fold", "fold_runs", "plan_folds", "write_fold"]


_CLOCKS: Final = {"event": EVENT_DUE, "wall": WALL_DUE}


class FoldedRun:
    """A run being folded: iterating it, once, gives the pieces of the file; after that its figures hold."""

    def __init__(self, encoder: RunEncoder, pieces: Iterator[Piece]) -> None:
        self._encoder = encoder
        self._pieces = pieces

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def to_buffer(self) -> pa.Buffer:
        """The whole file in memory; for small ones."""
        return pa.py_buffer(b"".join(self._pieces))

    @property
    def rows(self) -> int:
        return self._encoder.rows

    @property
    def size_bytes(self) -> int:
        return self._encoder.size_bytes

    @property
    def crc(self) -> int:
        return self._encoder.crc


def fold_runs(
    runs: Sequence[tuple[RunRef, Run]],
    *,
    lo: int,
    hi: int,
    groups: int,
    drop_tombstones: bool,
    clocks: Mapping[str, int] | None = None,
    fired: Mapping[str, int] | None = None,
    renamed: Mapping[str, Sequence[str]] | None = None,
) -> FoldedRun:
    """One run of the key groups [lo, hi) of several, newest first given.

    ``clocks``: table → time at or before which its rows have expired; tables without an entry keep all rows.
    ``fired``: timer index → watermark up to which its timers have fired; slices end by the same two clocks.
    ``renamed``: table → its former names.
    """
    layers = Layers(runs, lo=lo, hi=hi, groups=groups, renamed=renamed)
    encoder = RunEncoder(lo, hi, groups)

    def pieces() -> Iterator[Piece]:
        for name, kind in sorted(layers.tables.items()):
            views = layers.views(name)
            schema = merged_schema(views, kind)
            batches = merge_views(views, kind)
            if kind == DUE:
                batches = _drop_fired(batches, (fired or {}).get(name))
            elif kind == PANES:
                batches = _drop_over(batches, fired or {})
            elif kind == ROWS:
                batches = drop_unwanted(batches, schema, fired or {})
            else:
                batches = _drop_rows(batches, (clocks or {}).get(name), drop_tombstones)
            expires = any(view.table.has_expires for view in views)
            yield from encoder.table(name, kind, _rebatch(batches), expires=expires, schema=schema)
        yield from encoder.finish()

    return FoldedRun(encoder, pieces())


def write_fold(
    store: Store,
    fold: Fold,
    path: str,
    *,
    groups: int,
    clocks: Mapping[str, int] | None = None,
    fired: Mapping[str, int] | None = None,
    renamed: Mapping[str, Sequence[str]] | None = None,
    inline_bytes: int = 0,
) -> RunRef | None:
    """Does a planned fold and makes its run durable under ``path``; ``None`` when no row is left.

    A result of at most ``inline_bytes`` becomes an inline run instead. No sweep may run until a manifest names the
    file, unless it is told to spare it.
    """
    folded = fold_runs(
        [(ref, open_ref(store, ref)) for ref in fold.inputs],
        lo=fold.lo,
        hi=fold.hi,
        groups=groups,
        drop_tombstones=fold.oldest,
        clocks=clocks,
        fired=fired,
        renamed=renamed,
    )
    inline = b""
    if sum(ref.size_bytes for ref in fold.inputs) <= 4 * inline_bytes:
        data = folded.to_buffer()
        if folded.size_bytes <= inline_bytes:
            inline = bytes(data)
        else:
            store.write(path, data)
    else:
        store.write(path, folded)
    epoch = max(ref.epoch for ref in fold.inputs)
    crash.reach("base_written", epoch)
    if folded.rows == 0:
        if not inline:
            store.delete(path)
        return None
    return RunRef(
        epoch=epoch,
        lo=fold.lo,
        hi=fold.hi,
        rows=folded.rows,
        size_bytes=folded.size_bytes,
        crc=folded.crc,
        file="" if inline else path,
        inline=inline,
        level=fold.level,
    )


def _drop_rows(batches: Iterable[pa.RecordBatch], now_us: int | None, dead: bool) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if now_us is not None:
            batch = drop_expired(batch, now_us)
        yield drop_dead(batch) if dead else batch


def _drop_fired(batches: Iterable[pa.RecordBatch], watermark_us: int | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch if watermark_us is None else batch.filter(pc.greater(batch.column("time"), watermark_us))


def _drop_over(batches: Iterable[pa.RecordBatch], fired: Mapping[str, int]) -> Iterator[pa.RecordBatch]:
    clocks = {clock: fired[table] for clock, table in _CLOCKS.items() if table in fired}
    for batch in batches:
        batch = drop_over(batch, clocks)
        if batch.num_rows:
            yield batch


def _rebatch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of about the usual size from smaller ones, holding no more than one of them."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.concat_batches(waiting)
