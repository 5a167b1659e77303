"""What a person asks for who wants a job to go back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headrace.errors import SettingsError
from headrace.state.moments import Address, Moment, parse_address, parse_moment

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


@dataclass(frozen=True)
class ForkRequest:
    """Begin with an epoch of another store."""

    url: str
    moment: Moment | None = None
    """None: its newest epoch."""
    hold: frozenset[str] = frozenset()
    """Outputs, or `ALL`, of which nothing goes out until all that the original had read is read."""

    def __str__(self) -> str:
        return str(Address(self.url, self.moment))


@dataclass(frozen=True)
class ContinueRequest:
    """Go on in a copy as the job itself: its original is lost."""


StartRequest = RewindRequest | ForkRequest | ContinueRequest


def parse_start(
    text: str, store: str, *, repeat: str | Iterable[str] = (), hold: str | Iterable[str] = (), again: bool = False,
    original_lost: bool = False,
) -> StartRequest | None:  # fmt: skip
    """What flags and settings ask for.

    ``text``: ``before-v2``, ``41`` or a time, in the store itself; or the address of another store, with or without.
    """
    choices = OutputChoices(_names(repeat), _names(hold))
    if not text:
        return ContinueRequest() if original_lost else None
    address = parse_address(text)
    if address.moment is None and not _is_path(address.url):
        return RewindRequest(parse_moment(text), choices, again)
    url = _whole(address.url)
    if url != _whole(store):
        if choices.repeat:
            raise SettingsError(
                "a fork takes nothing back: what went out is the original's",
                expected=f"--from {text}, with or without --hold",
                found=f"--repeat {' --repeat '.join(sorted(choices.repeat))}",
                next_move="leave --repeat out; --hold gives nothing out until all is read that the original had read",
            )
        return ForkRequest(url, address.moment, choices.hold)
    if address.moment is None:
        raise SettingsError(
            "nothing says which epoch to go back to",
            expected=f"{text}@MOMENT, or the moment alone: a savepoint, an epoch or a time",
            found=f"--from {text}, which is the store itself",
            next_move="`headrace savepoints STORE` and `headrace epochs STORE` list them",
        )
    return RewindRequest(address.moment, choices, again)


def _is_path(text: str) -> bool:
    """Whether it is written as the place of a store; a bare word is a savepoint."""
    return "/" in text or os.sep in text or text in (os.curdir, os.pardir)


def _whole(url: str) -> str:
    """The address of a store as the store itself tells it."""
    parts = urlsplit(url)
    if "://" in url and parts.scheme != "file":
        return url.rstrip("/")
    return os.path.abspath(unquote(parts.path) if parts.scheme == "file" else url)


def _names(outputs: str | Iterable[str]) -> frozenset[str]:
    return frozenset((outputs,) if isinstance(outputs, str) else outputs)


@dataclass(frozen=True)
class ForgetContext:
    """What a sink is given that has to take back what an abandoned timeline made visible (a `Forget`)."""

    timeline: str
    epoch: int
    last: int
    next_timeline: str
    output: str
    job: str
    spark: Callable[[], Any]
