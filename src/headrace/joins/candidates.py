"""Which rows of two sides of a regular join may belong together, because an epoch has changed one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from headrace.model.batch import Int64s
from headrace.model.pairs import NONE
from headrace.operators.changelogs.net_rows import NetSide
from headrace.operators.matching import PartnerRanges

HELD_PAIRS: Final = 1 << 21
"""About how many pairs are looked at together, where their keys allow it: those of one key always are."""


def key_slices(left: NetSide, right: NetSide) -> Iterator[tuple[NetSide, NetSide]]:
    """Both sides, some keys at a time."""
    codes = np.union1d(left.codes, right.codes)
    if not len(codes):
        return
    pairs = _changed(left, codes) * _rows(right, codes)
    pairs += (_rows(left, codes) - _changed(left, codes)) * _changed(right, codes)
    groups = np.cumsum(pairs) // HELD_PAIRS
    starts = np.append(0, np.flatnonzero(groups[1:] != groups[:-1]) + 1)
    lows, highs = codes[starts].tolist(), codes[np.append(starts[1:], len(codes)) - 1].tolist()
    for low, high in zip(lows, highs, strict=True):
        yield left.between(low, high), right.between(low, high)


def _rows(side: NetSide, codes: Int64s) -> Int64s:
    return np.searchsorted(side.codes, codes, "right") - np.searchsorted(side.codes, codes, "left")


def _changed(side: NetSide, codes: Int64s) -> Int64s:
    some = side.codes[side.changed]
    return np.searchsorted(some, codes, "right") - np.searchsorted(some, codes, "left")


def candidate_pairs(left: NetSide, right: NetSide) -> Iterator[tuple[Int64s, Int64s]]:
    """The pairs of one key that an epoch concerns, by the positions of their rows, some at a time.

    Each pair comes once: rows of the left side that changed with all right ones, then the others with those that did.
    """
    changed, others = np.flatnonzero(left.changed), np.flatnonzero(~left.changed)
    new_right = np.flatnonzero(right.changed)
    for asks, places in _partners(left.codes[changed], right.codes).pairs():
        yield changed[asks], places
    for asks, places in _partners(left.codes[others], right.codes[new_right]).pairs():
        yield others[asks], new_right[places]


def _partners(codes: Int64s, line: Int64s) -> PartnerRanges:
    return PartnerRanges(np.searchsorted(line, codes, "left"), np.searchsorted(line, codes, "right"))


def take_times(times: Int64s, at: Int64s, nobody: int) -> Int64s:
    """Times by position; that of nobody where there is no row."""
    taken: Int64s = np.where(at == NONE, nobody, np.append(times, nobody)[at])
    return taken
