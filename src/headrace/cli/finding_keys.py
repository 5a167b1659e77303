"""The key that a person meant on the command line: as the state's own keys are written, as text, or as JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.read.view import StateView


def find_key(view: StateView[Any], text: str) -> tuple[Any, Any]:
    """The key that a person meant, and its value: read as the type that the state's own keys have, else as JSON."""
    tried: list[Any] = []
    for key in readings_of(view, text):
        if key in tried:
            continue
        tried.append(key)
        value = view.get(key)
        if value is not None:
            return key, value
    return tried[0], None


def readings_of(view: StateView[Any], text: str) -> Iterator[Any]:
    from headrace.errors import ProgramError
    from headrace.model.keys import parse_key_text, possible_keys

    # Going over the keys would make the results of some, of which another one may be refused.
    with contextlib.suppress(ProgramError):
        yield parse_key_text(text, view._reader.key_type)
    yield text
    yield from possible_keys(text)
