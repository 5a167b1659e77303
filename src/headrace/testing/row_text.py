"""Rows as text, to be compared and shown."""

from __future__ import annotations

from typing import Any, Final

import msgspec

FLOAT_DIGITS: Final = 12
"""Sums of floats depend on the order of their parts in the last digits, which no batching can promise."""


def row_text(value: Any) -> str:
    """A row as text that is equal for equal rows; floats without the digits that depend on the order of adding."""
    if isinstance(value, float):
        return f"{value:.{FLOAT_DIGITS}g}"
    if isinstance(value, msgspec.Struct):
        fields = ", ".join(f"{name}={row_text(getattr(value, name))}" for name in value.__struct_fields__)
        return f"{type(value).__name__}({fields})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(row_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{row_text(name)}: {row_text(held)}" for name, held in value.items()) + "}"
    return repr(value)
