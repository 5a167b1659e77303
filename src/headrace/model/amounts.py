"""Amounts for people: numbers with their noun, sizes and spans, short and with the right plural."""

from __future__ import annotations


def count_of(count: int, noun: str) -> str:
    """A number with its noun, which takes an s where it is not one.

    >>> count_of(1, "row"), count_of(1_200, "row"), count_of(0, "file")
    ('1 row', '1,200 rows', '0 files')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def human_count(count: int) -> str:
    """A number that is short however large it is.

    >>> human_count(950), human_count(12_345), human_count(7_200_000)
    ('950', '12,345', '7.2 million')
    """
    if count < 1_000_000:
        return f"{count:,}"
    return f"{count / 1e6:.1f} million" if count < 1_000_000_000 else f"{count / 1e9:.1f} billion"


def human_bytes(size: float) -> str:
    """A size that is short.

    >>> human_bytes(950), human_bytes(12_345), human_bytes(7_200_000_000_000)
    ('950 B', '12.3 KB', '7.2 TB')
    """
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def span_text(seconds: float) -> str:
    """A span for people, in at most two units.

    >>> span_text(0.4), span_text(59), span_text(61), span_text(7300), span_text(200_000)
    ('1 s', '59 s', '1 min 1 s', '2 h 1 min', '2 d 7 h')
    """
    whole = max(1, round(seconds))
    for large, small, names in ((86_400, 3600, ("d", "h")), (3600, 60, ("h", "min")), (60, 1, ("min", "s"))):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {names[0]}" + (f" {rest} {names[1]}" if rest else "")
    return f"{whole} s"
