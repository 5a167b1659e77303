"""Folding: several runs of one step and key-group range become one, with the same content.

What to fold is decided first, without I/O (`plan_folds`). The runs of a range, newest first, form levels: deltas are
level 0; four runs of one level become one of the next. The oldest run, the base, is left alone until everything newer
has a quarter of its rows, or of its bytes where rows are heavy. So a row is rewritten a few times in its life, and a
lookup meets a few runs per level. A fold takes neighbours: runs that overlap never change their order.

A fold never changes what a reader sees. It takes effect when the next manifest lists the new run in place of its
inputs. It leaves out:
- tombstones and clear markers, only when the oldest run of the range is among the inputs: else they hide something;
- expired rows, by the clock of each table; where older runs remain a tombstone takes their place;
- rows of a timer index that a watermark has passed;
- slices of partial aggregates that no window needs any more, and rows that no join needs;
- tables that were dropped.

Values of an older version of the step become those of the newest on the way, whatever is folded. Where a type changed,
runs that would be left alone are folded for that alone, a range at a time (`plan_rewrite`), so that there is an end to
old values, and with it to functions that read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from math import ceil
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from headrace.model import crash
from headrace.model.job import DeclaredState
from headrace.model.report import RunRef
from headrace.state.adapters import Adapters
from headrace.state.encode import BATCH_BYTES, BATCH_ROWS, Piece, RunEncoder
from headrace.state.format import DUE, PANES, ROWS
from headrace.state.lookup import Layers
from headrace.state.merge import drop_dead, drop_expired, merge_views, merged_schema
from headrace.state.panes.table import drop_over
from headrace.state.rows.format import drop_unwanted
from headrace.state.run import StateRun, open_ref
from headrace.state.shard import EVENT_DUE, WALL_DUE
from headrace.state.store import StoreFiles

FAN_IN: Final = 4
"""How many runs of one level make one of the next."""

BASE_SHARE: Final = 4
"""The base takes part once the others have 1/4 of its rows …"""

HEAVY_ROW_BYTES: Final = 1024
"""… and 1/4 of its bytes, where a row has more than this. (A reference to a part of a file tells the bytes of all.)"""

REWRITE_ROWS: Final = 1_000_000
"""How many rows are rewritten at a time because their types have changed, which takes a few seconds …"""
REWRITE_BYTES: Final = 256 * 2**20
"""… and how many bytes, where rows are heavy."""


@dataclass(frozen=True)
class RunFold:
    """Replace the inputs (newest first, each cut to [lo, hi)) by one run."""

    lo: int
    hi: int
    inputs: tuple[RunRef, ...]
    level: int
    oldest: bool
    """Nothing older covers the range: tombstones may go."""


def plan_folds(refs: Sequence[RunRef], cuts: Sequence[int] | None = None) -> list[RunFold]:
    """What is worth folding in the runs of one step, newest first: at most one fold per range.

    ``cuts``: first key groups of the shards; without them every bound of a reference is a cut. Folds of one plan have
    disjoint ranges, so they can be done and applied in any order.
    """
    planned = (_plan_range(refs, lo, hi) for lo, hi in _ranges(refs, cuts))
    return [fold for fold in planned if fold is not None]


def _ranges(refs: Sequence[RunRef], cuts: Sequence[int] | None) -> list[tuple[int, int]]:
    if not refs:
        return []
    if cuts is None:
        return list(pairwise(sorted({bound for ref in refs for bound in (ref.lo, ref.hi)})))
    return list(pairwise(sorted({*cuts, max(ref.hi for ref in refs)})))


def plan_rewrite(refs: Sequence[RunRef], cuts: Sequence[int] | None, version: int) -> RunFold | None:
    """The fold that takes runs of older versions out of a part of one range; None where there are none.

    One part at a time, of about `REWRITE_ROWS` or `REWRITE_BYTES` at most, so that epochs do not notice. Old runs stand
    at the oldest end of a list, so nothing newer has to be rewritten with them.
    """
    behind = [(lo, hi, _old_runs(refs, lo, hi, version)) for lo, hi in _ranges(refs, cuts)]
    if not any(old for _, _, old in behind):
        return None
    lo, hi, old = max(behind, key=lambda each: len(each[2]))
    start = max(lo, min(ref.lo for ref in old if ref.version < version))
    end = min(hi, start + max(1, int((hi - start) / max(1.0, _parts(old, start, hi)))))
    inputs = tuple(ref for ref in old if _overlap(ref, start, end))
    # Never a delta: readers take those for changes and nothing else.
    return RunFold(start, end, inputs, max(1, *(ref.level for ref in inputs)), oldest=True)


def count_rewrites(refs: Sequence[RunRef], cuts: Sequence[int] | None, version: int) -> int:
    """About how many folds `plan_rewrite` is good for."""
    count = 0
    for lo, hi in _ranges(refs, cuts):
        old = [ref for ref in refs if ref.version < version and _overlap(ref, lo, hi)]
        count += min(hi - lo, max(1, ceil(_parts(old, lo, hi)))) if old else 0
    return count


def _parts(refs: Sequence[RunRef], lo: int, hi: int) -> float:
    """How often what is rewritten at a time goes into the runs of a range."""
    rows, size = _weigh(refs, lo, hi)
    return max(rows / REWRITE_ROWS, size / REWRITE_BYTES)


def _old_runs(refs: Sequence[RunRef], lo: int, hi: int, version: int) -> list[RunRef]:
    """The runs of a range from the first on that is of an older version, and whatever is older."""
    mine = [ref for ref in refs if _overlap(ref, lo, hi)]
    first = next((i for i, ref in enumerate(mine) if ref.version < version), len(mine))
    return mine[first:]


def apply_fold(refs: Sequence[RunRef], fold: RunFold, result: RunRef | None) -> tuple[RunRef, ...] | None:
    """The list with the result in the inputs' place; ``None`` when the list no longer holds all of them.

    The list may have grown at its newest end since the plan was made. An input that reaches beyond the fold's range
    stays in the list for the rest of its range.
    """
    missing = sum(_overlap(ref, fold.lo, fold.hi) for ref in fold.inputs)
    changed: list[RunRef] = []
    placed = False
    for ref in refs:
        taken = _overlap(ref, fold.lo, fold.hi)
        if not taken or not any(_is_part(ref, whole) for whole in fold.inputs):
            changed.append(ref)
            continue
        missing -= taken
        if result is not None and not placed:
            changed.append(result)
            placed = True
        changed.extend(_outside(ref, fold.lo, fold.hi))
    return None if missing else tuple(changed)


def _plan_range(refs: Sequence[RunRef], lo: int, hi: int) -> RunFold | None:
    mine = [ref for ref in refs if _overlap(ref, lo, hi)]
    base = _base_length(mine, lo, hi)
    newer = mine[: len(mine) - base]
    # A fold that would complete the next level takes that level with it, so that no row is written twice in a row.
    count = level = 0
    while (same := _length_upto(level, newer[count:])) + (1 if count else 0) >= FAN_IN:
        count += same
        level += 1
    if count == 0:
        return None
    inputs = newer[:count]
    (rows, size), (base_rows, base_size) = _weigh(newer, lo, hi), _weigh(mine[len(newer) :], lo, hi)
    heavy = base_size > HEAVY_ROW_BYTES * base_rows
    if rows * BASE_SHARE >= base_rows and (not heavy or size * BASE_SHARE >= base_size):
        inputs = mine
        level = max(level, *(ref.level for ref in mine))
    return RunFold(lo, hi, tuple(inputs), level, oldest=len(inputs) == len(mine))


def _length_upto(level: int, refs: Sequence[RunRef]) -> int:
    """How many runs at the newest end have at most this level."""
    return sum(1 for _ in takewhile(lambda ref: ref.level <= level, refs))


def _base_length(refs: Sequence[RunRef], lo: int, hi: int) -> int:
    """How many runs at the oldest end lie side by side, none above another: together they are the base."""
    covered: list[tuple[int, int]] = []
    for ref in reversed(refs):
        begin, end = max(lo, ref.lo), min(hi, ref.hi)
        if ref.level == 0 or any(begin < other_end and other_begin < end for other_begin, other_end in covered):
            break
        covered.append((begin, end))
    return len(covered)


def _weigh(refs: Sequence[RunRef], lo: int, hi: int) -> tuple[float, float]:
    """About how many rows and bytes the references have in the range: hashes are even, so key groups are too."""
    shares = [_overlap(ref, lo, hi) / (ref.hi - ref.lo) for ref in refs]
    rows = sum(ref.rows * share for ref, share in zip(refs, shares))
    return rows, sum(ref.size_bytes * share for ref, share in zip(refs, shares))


def _overlap(ref: RunRef, lo: int, hi: int) -> int:
    return max(0, min(hi, ref.hi) - max(lo, ref.lo))


def _outside(ref: RunRef, lo: int, hi: int) -> list[RunRef]:
    parts = [(ref.lo, min(lo, ref.hi)), (max(hi, ref.lo), ref.hi)]
    share = ref.rows / (ref.hi - ref.lo)
    return [replace(ref, lo=begin, hi=end, rows=round(share * (end - begin))) for begin, end in parts if begin < end]


def _is_part(ref: RunRef, whole: RunRef) -> bool:
    """Whether a reference sees the same run as another, through the same or a narrower range."""
    if not whole.lo <= ref.lo < ref.hi <= whole.hi or ref.file != whole.file:
        return False
    return bool(ref.file) or (ref.epoch, ref.crc, ref.size_bytes) == (whole.epoch, whole.crc, whole.size_bytes)


__all__ = [
    "FoldedRun", "RunFold", "apply_fold", "count_rewrites", "fold_runs", "plan_folds", "plan_rewrite", "write_fold",
]  # fmt: skip


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
    runs: Sequence[tuple[RunRef, StateRun]],
    *,
    lo: int,
    hi: int,
    groups: int,
    drop_tombstones: bool,
    clocks: Mapping[str, int] | None = None,
    fired: Mapping[str, int] | None = None,
    states: Mapping[str, DeclaredState] | None = None,
    adapters: Adapters | None = None,
    hidden: Mapping[str, int] | None = None,
) -> FoldedRun:
    """One run of the key groups [lo, hi) of several, newest first given.

    ``clocks``: table → time at or before which its rows have expired; tables without an entry keep all rows.
    ``fired``: timer index → watermark up to which its timers have fired; slices end by the same two clocks.
    ``states``: what the step declares. ``adapters``: rewrites values of older versions. ``hidden``: table that was
    dropped → the epoch before which runs that hold it do not count.
    """
    layers = Layers(runs, lo=lo, hi=hi, groups=groups, states=states, hidden=hidden, adapters=adapters)
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
            yield from encoder.table(name, kind, rebatch(batches), expires=expires, schema=schema)
        yield from encoder.finish()

    return FoldedRun(encoder, pieces())


def write_fold(
    store: StoreFiles,
    fold: RunFold,
    path: str,
    *,
    groups: int,
    clocks: Mapping[str, int] | None = None,
    fired: Mapping[str, int] | None = None,
    states: Mapping[str, DeclaredState] | None = None,
    adapters: Adapters | None = None,
    hidden: Mapping[str, int] | None = None,
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
        states=states,
        adapters=adapters,
        hidden=hidden,
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
        version=max(ref.version for ref in fold.inputs) if adapters is None else adapters.version,
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


def rebatch(
    batches: Iterable[pa.RecordBatch], most_rows: int = BATCH_ROWS, most_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """Batches of about so many rows or bytes from smaller ones, holding no more than one of them."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= most_rows or size >= most_bytes:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.concat_batches(waiting)
