"""When rows that wait become a file: by size, by time, by number of epochs, whichever comes first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headrace.connectors.files.roll_plan import Bucket
from headrace.errors import ProgramError
from headrace.model.amounts import count_of
from headrace.model.time import Span, format_span, span_us

_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?\s*")
_POWERS: Final = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(size: str | int, where: str = "") -> int:
    """Bytes, from text or a number.

    >>> parse_size("128MB"), parse_size("1.5GiB"), parse_size(4096)
    (128000000, 1610612736, 4096)
    """
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is not None:
        bytes_ = int(float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2]])
    else:
        bytes_ = size if isinstance(size, int) and not isinstance(size, bool) else 0
    if bytes_ <= 0:
        raise ProgramError(
            "invalid size of a file", where=where, expected='text like "128MB" or "1GiB", or bytes', found=repr(size)
        )
    return bytes_


@dataclass(frozen=True)
class RollPolicy:
    size_bytes: int | None = None
    every_s: float | None = None
    epochs: int | None = None
    parts: int | None = None
    """So many small files are put together whatever their size; for folders that are read part by part."""

    def is_due(self, bucket: Bucket, newest: int, now_s: float) -> bool:
        """Whether what waits in a bucket should appear, now that this epoch is released."""
        if not bucket.waiting:
            return False
        return (
            (self.size_bytes is not None and bucket.size_bytes >= self.size_bytes)
            or (self.every_s is not None and now_s - bucket.since_s >= self.every_s)
            or (self.epochs is not None and newest - bucket.first + 1 >= self.epochs)
            or (self.parts is not None and len(bucket.waiting) >= self.parts)
        )

    def due_s(self, bucket: Bucket) -> float | None:
        """When a bucket is due by time alone."""
        return bucket.since_s + self.every_s if self.every_s is not None and bucket.waiting else None

    def __str__(self) -> str:
        told = []
        if self.size_bytes is not None:
            told.append(_size_text(self.size_bytes))
        if self.every_s is not None:
            told.append(format_span(round(self.every_s * 1_000_000)))
        if self.epochs is not None:
            told.append(count_of(self.epochs, "epoch"))
        return " or ".join(told)


def roll_policy(size: str | int | None, every: Span | None, epochs: int | None, where: str) -> RollPolicy | None:
    """What the user said; None where files need not be put together."""
    if size is None and every is None and epochs is None:
        return None
    if epochs is not None and (not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1):
        raise ProgramError("roll_epochs counts epochs", where=where, expected="1 or more", found=repr(epochs))
    every_us = None if every is None else span_us(every, what="roll_every", where=where)
    if every_us is not None and every_us <= 0:
        raise ProgramError("roll_every is a span of time", where=where, expected='a span like "15m"', found=repr(every))
    return RollPolicy(
        None if size is None else parse_size(size, where), None if every_us is None else every_us / 1_000_000, epochs
    )


def _size_text(size_bytes: int) -> str:
    for unit, power in (("GB", 3), ("MB", 2), ("kB", 1)):
        if size_bytes >= 1000**power and size_bytes % 1000**power == 0:
            return f"{size_bytes // 1000**power}{unit}"
    return f"{size_bytes}B"
