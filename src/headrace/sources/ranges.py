"""Offsets of sources that are one numbered sequence: ``{"i": n}`` means that rows 0 … n − 1 have been read.

The sequence may be cut into slices so that several cores read it. All slices bear the same split id: they are one
sequence, every epoch reads all of them to the end, so its largest event time is the largest over all slices.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from headrace.errors import ProgramError
from headrace.sources.contract import Offset, Split

BATCH_ROWS: Final = 50_000
"""Rows of one Arrow batch on its way to Spark."""


def position(offset: Offset) -> int:
    return int(offset["i"])


def slice_range(start: int, stop: int, partitions: int) -> list[Split]:
    """Up to `partitions` slices of nearly equal length that follow each other; none of them is empty.

    >>> [(s.start["i"], s.end["i"]) for s in slice_range(10, 15, 2)]
    [(10, 12), (12, 15)]
    >>> slice_range(3, 3, 2)
    []
    """
    count = max(0, stop - start)
    slices = min(partitions, count)
    edges = [start + count * n // slices for n in range(slices + 1)] if slices else []
    return [Split("", {"i": a}, {"i": b}) for a, b in pairwise(edges)]


def check_positive(name: str, value: int | None, where: str) -> int | None:
    """The value, if it is a whole number of at least 1 or None."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ProgramError(
        f"{name} cannot be {value!r}",
        where=where,
        expected="a whole number of at least 1",
        found=repr(value),
        next_move=f"leave {name} out for the default",
    )
