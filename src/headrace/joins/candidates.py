"""Which rows of two sides of a regular join may belong together, because an epoch has changed one of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.model.batch import Int64s
from headrace.model.pairs import NONE
from headrace.operators.changelogs.net_rows import NetSide
from headrace.operators.matching import PartnerRanges


def candidate_pairs(left: NetSide, right: NetSide) -> tuple[int, Iterator[tuple[Int64s, Int64s]]]:
    """How many pairs of one key an epoch concerns, and their positions, some at a time.

    Each pair comes once: rows of the left side that changed with all right ones, then the others with those that did.
    """
    changed, others = np.flatnonzero(left.changed), np.flatnonzero(~left.changed)
    new_right = np.flatnonzero(right.changed)
    by_changed = _partners(left.codes[changed], right.codes)
    by_others = _partners(left.codes[others], right.codes[new_right])

    def pairs() -> Iterator[tuple[Int64s, Int64s]]:
        for asks, places in by_changed.pairs():
            yield changed[asks], places
        for asks, places in by_others.pairs():
            yield others[asks], new_right[places]

    return int(by_changed.counts.sum() + by_others.counts.sum()), pairs()


def _partners(codes: Int64s, line: Int64s) -> PartnerRanges:
    return PartnerRanges(np.searchsorted(line, codes, "left"), np.searchsorted(line, codes, "right"))


def take_times(times: Int64s, at: Int64s, nobody: int) -> Int64s:
    """Times by position; that of nobody where there is no row."""
    taken: Int64s = np.where(at == NONE, nobody, np.append(times, nobody)[at])
    return taken
