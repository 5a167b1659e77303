"""What to fold, and what a list of runs looks like afterwards. Pure: decides on references, touches nothing.

The runs of a range, newest first, form levels: deltas are level 0; four runs of one level become one of the next. The
oldest layer, the base, is left alone until everything newer has a quarter of its rows, and of its bytes where rows are
heavy: one may hold a million values. So what is written is rewritten a few times in its life, and a lookup meets a few
runs per level.

Invariant: a fold takes neighbours. Runs that overlap never change their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Final

from msgspec.structs import replace

from headrace.model.report import RunRef

FAN_IN: Final = 4
"""How many runs of one level make one of the next."""

BASE_SHARE: Final = 4
"""The base takes part once the others have 1/4 of its rows …"""

HEAVY_ROW_BYTES: Final = 1024
"""… and 1/4 of its bytes, where a row has more than this. (A reference to a part of a file tells the bytes of all.)"""


@dataclass(frozen=True)
class Fold:
    """Replace the inputs (newest first, each cut to [lo, hi)) by one run."""

    lo: int
    hi: int
    inputs: tuple[RunRef, ...]
    level: int
    oldest: bool
    """Nothing older covers the range: tombstones may go."""


def plan_folds(refs: Sequence[RunRef], cuts: Sequence[int] | None = None) -> list[Fold]:
    """What is worth folding in the runs of one step, newest first: at most one fold per range.

    ``cuts``: first key groups of the shards; without them every bound of a reference is a cut. Folds of one plan have
    disjoint ranges, so they can be done and applied in any order.
    """
    if not refs:
        return []
    if cuts is None:
        bounds = sorted({bound for ref in refs for bound in (ref.lo, ref.hi)})
    else:
        bounds = sorted({*cuts, max(ref.hi for ref in refs)})
    planned = (_plan_range(refs, lo, hi) for lo, hi in pairwise(bounds))
    return [fold for fold in planned if fold is not None]


def apply_fold(refs: Sequence[RunRef], fold: Fold, result: RunRef | None) -> tuple[RunRef, ...] | None:
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


def _plan_range(refs: Sequence[RunRef], lo: int, hi: int) -> Fold | None:
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
    return Fold(lo, hi, tuple(inputs), level, oldest=len(inputs) == len(mine))


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
