"""How far a job is behind its input: what is there and not read yet, source by source.

A source *keeps up* while what is left has come in since the epoch before. Everything else is catching up; it begins
with the run, or when more is left than has just come, and what was read since then is counted.
"""

from __future__ import annotations

import msgspec

from headrace.model.amounts import human_count


class Behind(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is left of one source at the end of an epoch, as far as it can tell."""

    left: int
    unit: str = "rows"
    done: int | None = None
    """What was read since the source fell behind, or since the run began; None: it keeps up."""
    left_bytes: int | None = None
    """Of files: their sizes, which tell better than their number how long they will take."""
    done_bytes: int | None = None
    counting: bool = False
    """Whether it is being counted still: ``left`` is what was found so far."""

    @property
    def percent(self) -> int | None:
        """How much of what was there, and has come meanwhile, is read; None where the source keeps up or is counted.

        >>> Behind(30, done=10).percent, Behind(1, done=1_000_000).percent, Behind(5).percent
        (25, 99, None)
        """
        if self.done is None or self.counting:
            return None
        done, left = self.done, self.left
        if self.done_bytes is not None and self.left_bytes:
            done, left = self.done_bytes, self.left_bytes
        return 100 * done // (done + left) if done + left else 100


class Pursuit:
    """Follows one source through a run, epoch by epoch."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._done = 0
        self._done_bytes = 0

    def tell(
        self, read: int, left: int, unit: str = "rows", *, read_bytes: int = 0, left_bytes: int | None = None
    ) -> Behind:
        """``read``: since this was called last, or since the run began. ``left``: what is there and not read yet."""
        came = 0 if self._left is None else max(0, read + left - self._left)
        self._left = left
        if left <= came:
            self._done = self._done_bytes = 0
            return Behind(left, unit, left_bytes=left_bytes)
        self._done += read
        self._done_bytes += read_bytes
        done_bytes = None if left_bytes is None else self._done_bytes
        return Behind(left, unit, done=self._done, left_bytes=left_bytes, done_bytes=done_bytes)


def counting_text(found: int) -> str:
    """While a folder is listed.

    >>> counting_text(120_000)
    'listing its files, 120,000 so far'
    """
    return f"listing its files, {human_count(found)} so far"
