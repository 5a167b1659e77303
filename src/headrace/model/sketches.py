"""Reading a sketch of numbers: which buckets there are, and the number at a rank.

A bucket is a whole number: 0 holds zero (and whatever is closer to it than 1e-12), positive ones positive numbers,
negative ones negative numbers, ordered like the numbers themselves. Every number in a bucket is within one percent of
the bucket's middle. (The idea is that of DDSketch, Masson, Rim and Lee, 2019.) How numbers get into a sketch is the
business of `headrace.operators.sketch`.
"""

from __future__ import annotations

import math
from typing import Any, Final

ERROR: Final = 0.01
GAMMA: Final = (1 + ERROR) / (1 - ERROR)
LOG_GAMMA: Final = math.log(GAMMA)
SMALLEST: Final = 1e-12
OFFSET: Final = 1 - math.floor(math.log(SMALLEST) / LOG_GAMMA)
"""Shifts the bucket of the smallest number that is not zero to 1."""

Sketch = dict[int, int]


def quantile_of(sketch: Sketch, q: float) -> Any:
    """The number at rank q · (n − 1), to within one percent; None for a sketch of nothing."""
    if not sketch:
        return None
    rank = q * (sum(sketch.values()) - 1)
    seen = 0
    bucket = 0
    for bucket in sorted(sketch):
        seen += sketch[bucket]
        if seen > rank:
            break
    return middle_of(bucket)


def middle_of(bucket: int) -> float:
    """The number that stands for all of a bucket."""
    if bucket == 0:
        return 0.0
    try:
        middle = 2 * GAMMA ** (abs(bucket) - OFFSET) / (GAMMA + 1)
    except OverflowError:
        # The last bucket holds infinity, too, and its middle is beyond what a float can say.
        middle = math.inf
    return float(middle if bucket > 0 else -middle)
