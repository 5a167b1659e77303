"""The names that somebody may have meant by a name that nothing has: one measure for every ``did you mean …?``.

Case is not looked at, and every name is offered once. A name that is not near is not offered at all: a wrong suggestion
costs the reader more than none.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_CUTOFF: Final = 0.75
"""The likeness of two words, from 0 to 1: one letter of four may be wrong, or two of eight stand in the wrong order."""


def nearest(name: str, known: Iterable[str], *, most: int = 2) -> list[str]:
    """The known names that are spelled almost like this one, the nearest first.

    >>> nearest("veiws", ["page", "views", "views"]), nearest("print", ["write"])
    (['views'], [])
    """
    spellings: dict[str, dict[str, None]] = {}
    for each in known:
        spellings.setdefault(each.casefold(), {})[each] = None
    close = get_close_matches(name.casefold(), spellings, n=most, cutoff=_CUTOFF)
    return [each for folded in close for each in spellings[folded]]


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A next move that offers the nearest names; `otherwise` where none is near.

    >>> did_you_mean("Filtr", ["filter", "map"]), did_you_mean("print", ["write"], "remove it")
    ('did you mean filter?', 'remove it')
    """
    near = nearest(name, known)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
