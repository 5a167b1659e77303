"""Secrets among options: plain for the library that takes them, hidden wherever somebody could read them.

A secret is a text of a class of its own (`hr.secret`), whose repr hides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plain_text(value: Any) -> Any:
    """A secret as plain text; everything else as it is."""
    return str.__str__(value) if isinstance(value, str) else value


def hide_secrets(text: str, options: Mapping[str, Any]) -> str:
    """Text without the values of secrets."""
    for value in options.values():
        if isinstance(value, str) and type(value) is not str and len(value):
            text = text.replace(plain_text(value), repr(value))
    return text
