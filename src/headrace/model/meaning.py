"""What an aggregate says of itself to later programs: what its stored partial results are of.

Two aggregates of one name go on from each other only where they mean the same: `headrace.upgrade` compares them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from hashlib import blake2s
from typing import Final

import msgspec

KEPT_TABLE: Final = "!kept"
"""The table of rows that aggregates over a horizon look back at: a column for each expression of theirs."""


class AggregateMeaning(msgspec.Struct, frozen=True, omit_defaults=True):
    """One aggregate of a step, as the program declares it."""

    kind: str
    """``count``, ``sum``, …; ``own`` of an aggregator of the user's."""
    column: str | None = None
    """SQL text of the value."""
    where: str | None = None
    by: str | None = None
    n: int = 0
    q: float = 0.0
    over_us: int | None = None
    type: str = ""
    """The type of the value, in words."""
    name: str = ""
    """Of an own aggregator: its class."""
    required: bool = False
    """Whether its result must not be null, and is where nothing was counted."""

    formers: tuple[str, ...] = ()
    """The names that it had before itself, the newest first."""
    was: dict[str, tuple[str, ...]] = {}
    """Column of its rows that was renamed → its former names; only where either stands in its expressions."""

    def kept_columns(self) -> Iterator[tuple[str, str]]:
        """The columns of `KEPT_TABLE` that it looks at, in the order of its expressions, each with what it is for."""
        if self.over_us is not None:
            for part, kind in (("column", "value"), ("by", "value"), ("where", "where")):
                if (text := getattr(self, part)) is not None:
                    yield part, kept_column(kind, text)

    @property
    def words(self) -> str:
        """As the user wrote it: ``sum('n', where='n > 0')``."""
        if self.kind == "own":
            return f"{self.name}()"
        given = [] if self.column is None else [repr(self.column)]
        given += [str(each) for each in (self.n, self.q) if each]
        given += [f"{word}={text!r}" for word, text in (("by", self.by), ("where", self.where)) if text is not None]
        return f"{self.kind}({', '.join(given)})"


def kept_column(kind: str, text: str) -> str:
    """The column of an expression among kept rows, the same in every program that says the same in the same words.

    >>> kept_column("value", "n"), kept_column("where", "n > 0")
    ('value_n', 'where_52b654bae095bfe8')
    """
    plain = text.removeprefix("`").removesuffix("`")
    return f"{kind}_{plain if plain.isidentifier() else blake2s(text.encode(), digest_size=8).hexdigest()}"


def former_name(name: str, meaning: AggregateMeaning, before: Collection[str], now: Collection[str]) -> str | None:
    """The name that an aggregate had among those ``before``; None: it is new."""
    if name in before:
        return name
    return next((was for was in meaning.formers if was in before and was not in now), None)
