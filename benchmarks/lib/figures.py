"""Numbers as people read them, and the small statistics the benchmarks share. No engine, no files."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which a share `q` of the values lies (nearest rank); 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def rate_text(per_second: float | None) -> str:
    if per_second is None:
        return "–"
    if per_second >= 10_000:
        return f"{per_second / 1000:,.0f}k"
    return f"{per_second / 1000:,.1f}k" if per_second >= 1_000 else f"{per_second:,.0f}"


def count_text(number: int) -> str:
    """`500k`, `10M`: exact multiples shortly, everything else in full."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size and number % size == 0:
            return f"{number // size}{letter}"
    return f"{number:,}"


def ratio_text(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.1f}×"


def mib_text(size_bytes: float | None) -> str:
    return "–" if size_bytes is None else f"{size_bytes / 2**20:,.0f}"
