"""What rows are keyed by, as the user said it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KeySpec:
    """What rows are keyed by: columns, or a function of the row. Equal specs mean equal keys."""

    columns: tuple[str, ...] | None
    fn: Callable[[Any], Any] | None
    type: Any = Any
    """Python type of the key; a tuple type where there are several columns; Any where nobody said."""

    def __str__(self) -> str:
        if self.columns is not None:
            return ", ".join(self.columns)
        return getattr(self.fn, "__name__", type(self.fn).__name__)
