"""Texts of several SQL statements: where each begins and ends, and how a place in them is shown to a person.

Statements end with a semicolon. One inside a literal, a quoted name or a comment ends nothing. What a statement says is
not looked at here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace.sql.parse import blank_quoted

_OPENED = re.compile(r"""['"`]|/\*""")
_BLANK = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_WIDEST = 100


class StatementText(NamedTuple):
    """One statement of a text, without the semicolon behind it."""

    text: str
    offset: int
    """Where it begins in the whole text."""
    ended: bool
    """Whether a semicolon ends it."""


def cut_statements(text: str) -> list[StatementText]:
    """The statements of a text; those that are empty, or comments alone, are left out.

    >>> [each.text for each in cut_statements("SELECT ';' AS a; -- one;\\nSELECT 2;;")]
    ["SELECT ';' AS a", 'SELECT 2']
    """
    plain = blank_quoted(text)
    cut, start = [], 0
    for end in [*(found.start() for found in re.finditer(";", plain)), len(text)]:
        begin = start + len(_BLANK.match(text[start:end])[0])  # type: ignore[index]
        if begin < end:
            cut.append(StatementText(text[begin:end].rstrip(), begin, end < len(text)))
        start = end + 1
    return cut


def is_whole(text: str) -> bool:
    """Whether a person who typed this may be done: a semicolon at its end, and no literal left open.

    >>> is_whole("SELECT 'a;"), is_whole("SELECT 1"), is_whole("SELECT 1; -- done")
    (False, False, True)
    """
    plain = blank_quoted(text)
    if _OPENED.search(plain):
        return False
    return not plain.strip() or plain.rstrip().endswith(";")


class TextPlace(NamedTuple):
    """A character of a text, as people count."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


def place_of(text: str, offset: int) -> TextPlace:
    """Line and column of a character, both from 1.

    >>> str(place_of("SELECT a\\nFROM b", 14))
    '2:6'
    """
    before = text[: max(0, min(offset, len(text)))]
    return TextPlace(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


def show_place(text: str, offset: int, indent: int = len("  found:    ")) -> str:
    """The line of a character, and under it a mark below that character, as an error's ``found`` shows it."""
    line, column = place_of(text, offset)
    shown = text.split("\n")[line - 1].replace("\t", " ")
    at = column - 1
    if len(shown) > _WIDEST:
        cut = max(0, min(at - _WIDEST // 2, len(shown) - _WIDEST))
        shown, at = shown[cut : cut + _WIDEST], at - cut
    return f"{shown.rstrip() or ' '}\n{' ' * (indent + at)}^"
