"""Redis' patterns for keys and channels: ``*``, ``?``, ``[a-c]``, ``[^a]``, and a backslash before what is plain text.

A pattern comes from whoever asks, so it is matched in time that does not explode with its length: ``*`` never tries a
second way once what follows it has been found, as in Redis.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_CHARS: Final = 1024
"""Longer patterns match nothing: no key that a person looks for needs one."""


class Piece(NamedTuple):
    """What stands between two stars: it matches texts of one length."""

    form: re.Pattern[str]
    width: int


class Pattern:
    """A pattern over text."""

    def __init__(self, glob: str) -> None:
        self.glob = glob
        self.prefix, rest = _literal_prefix(glob)
        """Text that everything that matches begins with."""
        self.literal = rest == len(glob)
        """Whether only the prefix itself matches."""
        self.prefix_only = glob[rest:] == "*"
        """Whether everything that begins with the prefix matches."""
        self._pieces = None if self.literal or self.prefix_only else _pieces_of(glob)

    def matches(self, text: str) -> bool:
        if self.literal:
            return text == self.prefix
        if not text.startswith(self.prefix):
            return False
        return self.prefix_only or (self._pieces is not None and _match(self._pieces, text))


def _literal_prefix(glob: str) -> tuple[str, int]:
    out: list[str] = []
    at = 0
    while at < len(glob):
        char = glob[at]
        if char in "*?[":
            break
        if char == "\\" and at + 1 < len(glob):
            at += 1
            char = glob[at]
        out.append(char)
        at += 1
    return "".join(out), at


def _pieces_of(glob: str) -> list[Piece] | None:
    """What stands between the stars; None where nothing can match."""
    if len(glob) > MAX_CHARS:
        return None
    pieces: list[list[str]] = [[]]
    at = 0
    while at < len(glob):
        char = glob[at]
        if char == "*":
            pieces.append([])
        elif char == "?":
            pieces[-1].append(".")
        elif char == "\\" and at + 1 < len(glob):
            at += 1
            pieces[-1].append(re.escape(glob[at]))
        elif char == "[":
            piece, at = _set_of(glob, at)
            pieces[-1].append(piece)
        else:
            pieces[-1].append(re.escape(char))
        at += 1
    return [Piece(re.compile("".join(piece), re.DOTALL), len(piece)) for piece in pieces]


def _set_of(glob: str, at: int) -> tuple[str, int]:
    """A set of characters as a regular expression, and where it ends: at the end of all where no bracket closes it."""
    end = at + 1
    negated = glob[end : end + 1] == "^"
    if negated:
        end += 1
    parts: list[str] = []
    while end < len(glob) and glob[end] != "]":
        if glob[end] == "\\" and end + 1 < len(glob):
            end += 1
            parts.append(re.escape(glob[end]))
        elif glob[end + 1 : end + 2] == "-" and end + 2 < len(glob) and glob[end + 2] != "]":
            first, last = sorted((glob[end], glob[end + 2]))
            parts.append(f"{re.escape(first)}-{re.escape(last)}")
            end += 2
        else:
            parts.append(re.escape(glob[end]))
        end += 1
    if not parts:
        return "." if negated else "(?!)", end
    return f"[{'^' if negated else ''}{''.join(parts)}]", end


def _match(pieces: list[Piece], text: str) -> bool:
    first = pieces[0].form.match(text)
    if first is None:
        return False
    at = first.end()
    if len(pieces) == 1:
        return at == len(text)
    for piece in pieces[1:-1]:
        found = piece.form.search(text, at)
        if found is None:
            return False
        at = found.end()
    # The last piece stands at the end, and as every piece matches texts of one length there is one place for it.
    last, width = pieces[-1]
    return len(text) - width >= at and last.fullmatch(text, len(text) - width) is not None
