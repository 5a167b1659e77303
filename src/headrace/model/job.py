"""What the store's side knows of a program: names and numbers, no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.model.watermarks import TimedSource


class DeclaredState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state as the program declares it; kept in manifests, so that a store can be read without the program."""

    kind: str
    clock: str = ""
    """``wall`` or ``event`` where entries expire."""
    was: str = ""
    """The name it had before."""


@dataclass(frozen=True)
class JobFacts:
    """One compiled program, as coordinator, recovery and maintenance see it."""

    app: str
    program: str
    """Fingerprint."""
    parallelism: int
    key_groups: int
    levels: int
    timed: tuple[TimedSource, ...]
    step_sources: Mapping[str, tuple[str, ...]]
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Step → state → its former name."""
    ttl: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Step → state that expires → its clock, ``wall`` or ``event``."""
    states: Mapping[str, Mapping[str, DeclaredState]] = field(default_factory=dict)
    """Step → state → what the program declares."""
    sources: tuple[str, ...] = ()
    """All sources, by name."""
    was: Mapping[str, str] = field(default_factory=dict)
    """Step → its former name."""
