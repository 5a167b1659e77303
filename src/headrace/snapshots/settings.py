"""Statements that are about the session and not about state: which epoch it reads, and its transactions.

===============================================  =================================================================
``SET at = '41'``, ``SET epoch = 41``            statements are of a past epoch: its number, a savepoint or a time
``SET at = 'newest'``, ``RESET at``              … and of the newest again
``SHOW at``, ``SHOW epoch``                      the moment that was set; the epoch that is read
``SHOW TABLES``                                  every table there is
``BEGIN``, ``COMMIT``, ``ROLLBACK``              in between, all statements are of one epoch
===============================================  =================================================================
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

NEWEST: Final = "newest"
_SET: Final = re.compile(
    r"SET\s+(?:SESSION\s+|LOCAL\s+)?(?:headrace\.)?(at|epoch)\s*(?:=|\bTO\b)\s*(?:'([^']*)'|\"([^\"]*)\"|([^\s';]+))",
    re.IGNORECASE,
)
_RESET: Final = re.compile(r"RESET\s+(?:headrace\.)?(at|epoch)", re.IGNORECASE)
_SHOW: Final = re.compile(r"SHOW\s+(?:headrace\.)?(at|epoch|tables)", re.IGNORECASE)
_BEGIN: Final = re.compile(r"(?:BEGIN|START\s+TRANSACTION)\b[^;']*", re.IGNORECASE)
_COMMIT: Final = re.compile(r"(?:COMMIT|END)(?:\s+(?:WORK|TRANSACTION))?", re.IGNORECASE)
_ROLLBACK: Final = re.compile(r"(?:ROLLBACK|ABORT)(?:\s+(?:WORK|TRANSACTION))?", re.IGNORECASE)
_COMMENT: Final = re.compile(r"\s*(?:--[^\n]*(?:\n|$)|/\*.*?\*/)", re.DOTALL)
_LONGEST: Final = 400
"""No statement of these has more characters."""


class SessionCommand(NamedTuple):
    """A statement about the session."""

    verb: str
    """``SET``, ``RESET``, ``SHOW``, ``BEGIN``, ``COMMIT`` or ``ROLLBACK``."""
    name: str = ""
    value: str = ""
    """Of ``SET``; empty: the newest epoch."""


def bare(statement: str) -> str:
    """A statement without comments in front, and without the semicolon behind it.

    >>> bare("-- which one?\\n SHOW epoch; ")
    'SHOW epoch'
    """
    while found := _COMMENT.match(statement):
        statement = statement[found.end() :]
    return statement.strip().rstrip(";").rstrip()


def parse_command(statement: str) -> SessionCommand | None:
    """The command that a statement is; None where it is none of these.

    >>> parse_command("SET at TO 'before-v2';")
    SessionCommand(verb='SET', name='at', value='before-v2')
    """
    if len(statement) > _LONGEST:
        return None
    text = bare(statement)
    if found := _SET.fullmatch(text):
        value = next((each for each in found.groups()[1:] if each is not None), "")
        plain = value.lower() in (NEWEST, "default", "latest", "")
        return SessionCommand("SET", found[1].lower(), "" if plain else value)
    if found := _RESET.fullmatch(text):
        return SessionCommand("RESET", found[1].lower())
    if found := _SHOW.fullmatch(text):
        return SessionCommand("SHOW", found[1].lower())
    for verb, pattern in (("BEGIN", _BEGIN), ("COMMIT", _COMMIT), ("ROLLBACK", _ROLLBACK)):
        if pattern.fullmatch(text):
            return SessionCommand(verb)
    return None
