"""What rows are keyed by, as the user said it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KeySpec:
    """What rows are keyed by: columns, or a function of the row. Equal specs mean equal keys."""

    columns: tuple[str, ...] | None
    """In key order; empty: all rows have one key, None."""
    fn: Callable[[Any], Any] | None
    type: Any = Any
    """Python type of the key; a tuple type where there are several columns; Any where nobody said."""

    def __str__(self) -> str:
        if self.columns is not None:
            return ", ".join(self.columns) or "nothing: one key for all rows"
        if self.fn is None:
            return "nothing: spread over the shards"
        return getattr(self.fn, "__name__", type(self.fn).__name__)


WHOLE_STREAM = KeySpec((), None, type(None))
"""One key for all rows: how a step over the whole stream is keyed."""

ANYWHERE = KeySpec(None, None, type(None))
"""No key: rows are spread evenly, for a step that keeps nothing by key."""
