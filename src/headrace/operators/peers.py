"""Peers: rows of one key and time that are equal in some columns, and have one result, as SQL's RANGE means it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.aggregates.numbers import ranks_of
from headrace.model.batch import Int64s

if TYPE_CHECKING:
    from headrace.model.batch import Keys, Rows
    from headrace.operators.keyed import KeyedBatch


def followed_by_peers(batch: KeyedBatch, columns: Sequence[int]) -> Int64s:
    """The rows behind which a peer of theirs comes, the last ones first. ``columns``: by their places."""
    slots, times = batch.slots, batch.rows.times
    if times is None or len(slots) < 2:
        return np.zeros(0, np.int64)
    same = (slots[1:] == slots[:-1]) & (times[1:] == times[:-1])
    for place in columns:
        ranks = ranks_of(batch.rows.columns[place])
        same &= ranks[1:] == ranks[:-1]
    return np.flatnonzero(same)[::-1]


def end_of_peers(rows: Rows, keys: Keys, end: int) -> int:
    """Where rows of the key and time of the one before ``end`` end, which come side by side."""
    times = rows.times
    if times is None:
        return end
    while end < len(rows) and times[end] == times[end - 1] and keys.hashes[end] == keys.hashes[end - 1]:
        end += 1
    return end
