"""A sketch of numbers for quantiles: how many fell into each of many buckets, whose widths grow with the numbers.

Every number in a bucket is within one percent of the bucket's middle, so a quantile read from the sketch is within one
percent of a number at that rank. Sketches of two sets of numbers merge by adding; a sketch takes a few hundred entries
for numbers that span many powers of ten. (The idea is that of DDSketch, Masson, Rim and Lee, 2019.)

Buckets are whole numbers: 0 holds zero (and whatever is closer to it than 1e-12), positive ones positive numbers,
negative ones negative numbers, ordered like the numbers themselves. Not-a-number has a bucket of its own, `UNKNOWN`: it
is left out of quantiles, and the quantile of nothing else is not-a-number.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.model.batch import Int64s

ERROR: Final = 0.01
GAMMA: Final = (1 + ERROR) / (1 - ERROR)
LOG_GAMMA: Final = math.log(GAMMA)
SMALLEST: Final = 1e-12
OFFSET: Final = 1 - math.floor(math.log(SMALLEST) / LOG_GAMMA)
"""Shifts the bucket of the smallest number that is not zero to 1."""

UNKNOWN: Final = 1 << 17
"""The bucket of not-a-number, above those of all floats."""

Sketch = dict[int, int]


def quantile_of(sketch: Sketch, q: float) -> Any:
    """The number at rank q · (n − 1), to within one percent; None for a sketch of nothing."""
    if UNKNOWN in sketch and len(sketch) > 1:
        sketch = {bucket: count for bucket, count in sketch.items() if bucket != UNKNOWN}
    if not sketch:
        return None
    rank = q * (sum(sketch.values()) - 1)
    below = 0
    bucket = 0
    for bucket in sorted(sketch):
        below += sketch[bucket]
        if below > rank:
            break
    return middle_of(bucket)


def quantiles_of(buckets: Int64s, counts: Int64s, sizes: Int64s, q: float) -> npt.NDArray[np.float64]:
    """The quantile of each sketch: the first has the first ``sizes[0]`` buckets, in order; none is empty."""
    starts = np.cumsum(sizes) - sizes
    unknown = buckets == UNKNOWN
    if unknown.any():
        some = np.add.reduceat(np.where(unknown, 0, counts), starts) > 0
        counts = np.where(unknown & np.repeat(some, sizes), 0, counts)
    upto = np.cumsum(counts)
    before = (upto - counts)[starts]
    ranks = q * (np.add.reduceat(counts, starts) - 1)
    beyond = upto - np.repeat(before, sizes) > np.repeat(ranks, sizes)
    chosen = buckets[np.minimum.reduceat(np.where(beyond, np.arange(len(buckets)), len(buckets) - 1), starts)]
    # There are a few hundred buckets, however many sketches.
    different, places = np.unique(chosen, return_inverse=True)
    middles: npt.NDArray[np.float64] = np.array([middle_of(bucket) for bucket in different.tolist()])[places]
    return middles


def middle_of(bucket: int) -> float:
    """The number that stands for all of a bucket."""
    if bucket in (0, UNKNOWN):
        return 0.0 if bucket == 0 else math.nan
    try:
        middle = 2 * GAMMA ** (abs(bucket) - OFFSET) / (GAMMA + 1)
    except OverflowError:
        # The last bucket holds infinity, too, and its middle is beyond what a float can say.
        middle = math.inf
    return float(middle if bucket > 0 else -middle)


def buckets_of(numbers: npt.NDArray[np.float64]) -> Int64s:
    """The bucket of each number."""
    sizes = np.clip(np.abs(np.nan_to_num(numbers)), SMALLEST, None)
    levels = np.ceil(np.log(sizes) / LOG_GAMMA).astype(np.int64) + OFFSET
    levels = np.maximum(levels, 1)
    tiny = np.abs(numbers) < SMALLEST
    signed: Int64s = np.where(tiny, 0, np.where(numbers < 0, -levels, levels))
    return np.where(np.isnan(numbers), UNKNOWN, signed)
