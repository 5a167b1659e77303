"""A sketch of numbers for quantiles: how many fell into each of many buckets, whose widths grow with the numbers.

Every number in a bucket is within one percent of the bucket's middle, so a quantile read from the sketch is within one
percent of a number at that rank. Sketches of two sets of numbers merge by adding; a sketch takes a few hundred entries
for numbers that span many powers of ten. (The idea is that of DDSketch, Masson, Rim and Lee, 2019.)

Buckets are whole numbers: 0 holds zero (and whatever is closer to it than 1e-12), positive ones positive numbers,
negative ones negative numbers, ordered like the numbers themselves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.model.batch import Int64s
from headrace.model.sketches import LOG_GAMMA, OFFSET, SMALLEST, Sketch, quantile_of

__all__ = ["Sketch", "buckets_of", "merge_sketches", "quantile_of", "sketch_stretches"]


def sketch_stretches(numbers: npt.NDArray[np.float64], starts: Int64s) -> list[Sketch]:
    """One sketch for each stretch of numbers; not-a-number is left out."""
    buckets = buckets_of(numbers)
    ends = [*starts.tolist()[1:], len(numbers)]
    sketches: list[Sketch] = []
    for start, end in zip(starts.tolist(), ends):
        part = buckets[start:end][~np.isnan(numbers[start:end])]
        found, counts = np.unique(part, return_counts=True)
        sketches.append(dict(zip(found.tolist(), counts.tolist())))
    return sketches


def buckets_of(numbers: npt.NDArray[np.float64]) -> Int64s:
    """The bucket of each number."""
    sizes = np.clip(np.abs(np.nan_to_num(numbers)), SMALLEST, None)
    levels = np.ceil(np.log(sizes) / LOG_GAMMA).astype(np.int64) + OFFSET
    levels = np.maximum(levels, 1)
    tiny = np.abs(numbers) < SMALLEST
    signed: Int64s = np.where(tiny, 0, np.where(numbers < 0, -levels, levels))
    return signed


def merge_sketches(older: Sketch, newer: Sketch) -> Sketch:
    """The sketch of the numbers of both."""
    merged = dict(older)
    for bucket, count in newer.items():
        merged[bucket] = merged.get(bucket, 0) + count
    return merged
