"""What a person asks for who wants a job to go back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace.state.moments import Moment, parse_address, parse_moment

ALL: Final = "all"
"""In place of the name of an output: each that can."""


@dataclass(frozen=True)
class OutputChoices:
    """What to do with rows that went out of the epochs that are abandoned."""

    repeat: frozenset[str] = frozenset()
    """Outputs, or `ALL`, that take back what went out, and give it out anew."""
    hold: frozenset[str] = frozenset()
    """Outputs, or `ALL`, of which nothing goes out until the old end is passed."""


@dataclass(frozen=True)
class RewindRequest:
    """Where to, and how."""

    moment: Moment
    choices: OutputChoices = field(default_factory=OutputChoices)
    again: bool = False
    """Whether to go back once more where the job went back to this very epoch before."""


def parse_start(
    text: str, store: str, *, repeat: str | Iterable[str] = (), hold: str | Iterable[str] = (), again: bool = False
) -> RewindRequest | None:
    """What flags and settings ask for. ``text``: ``before-v2``, ``41``, a time, or the store's address with one."""
    choices = OutputChoices(_names(repeat), _names(hold))
    if not text:
        return None
    address = parse_address(text)
    if address.moment is None:
        return RewindRequest(parse_moment(text), choices, again)
    return RewindRequest(address.moment, choices, again)


def _names(outputs: str | Iterable[str]) -> frozenset[str]:
    return frozenset((outputs,) if isinstance(outputs, str) else outputs)
