"""The whole error family.

Every error a user can meet has four parts: where it happened, what was expected, what was found, and the next move.
Whether something may be tried again is decided by type, never by text.
"""

from __future__ import annotations

from typing import Any


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose.

    ``str(error)`` is the whole message, made of the parts that are given.
    """

    def __init__(self, what: str, *, where: str = "", expected: str = "", found: str = "", next_move: str = "") -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.next_move = next_move
        super().__init__(what)

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        if self.found:
            lines.append(f"  found:    {self.found}")
        if self.next_move:
            lines.append(f"  next:     {self.next_move}")
        return "\n".join(lines)


class ProgramError(HeadraceError):
    """A mistake in the program, found while it is being built."""


class ExpressionError(ProgramError):
    """SQL text that does not parse, names an unknown column, or cannot be evaluated here."""


class SettingsError(HeadraceError):
    """A setting, variable or secret that is missing or has the wrong form."""


class EnvironmentMissing(HeadraceError):
    """Something the machine must have (Java, a package, a service) is not there."""


class StoreError(HeadraceError):
    """The checkpoint store cannot be used as it is."""


class CorruptFile(StoreError):
    """A file of the store does not hold what its checksum or its format says."""


class MissingFile(StoreError):
    """A file that a manifest names is not there."""


class NoSuchMoment(StoreError):
    """The store does not hold what was asked for: an epoch that is swept or to come, a savepoint, an early time."""


class MissingStore(StoreError):
    """There is no store where one was asked for."""


class AlreadyExists(StoreError):
    """Create-if-absent met an existing name: somebody else was first."""


class Fenced(StoreError):
    """A newer driver has taken over this store; this one must stop."""


class StoreInUse(StoreError):
    """Another driver is running on this store, and it was not asked to give way."""


class Refused(StoreError):
    """Recovery looked at the facts and found no safe way to go on."""


class UpgradeRefused(Refused):
    """The program has changed so that it does not fit what is stored."""

    plan: Any = None
    """The whole `headrace.upgrade.lines.Upgrade`, where this error stands for all of it."""


class FunctionFailed(HeadraceError):
    """A user's function raised. The store stays as it was and can be resumed after the fix."""

    failure: Any = None
    """The `headrace.model.report.Failure` a task reports, where one is known."""
    stretch: int | None = None
    """Of an aggregate: which of the keys in question it is about, where that is known."""


class BadRow(HeadraceError):
    """An input row could not be decoded, and nobody reads the ``errors`` of its stream."""


class InputLost(HeadraceError):
    """A source no longer has what the job has still to read."""


class EpochFailed(HeadraceError):
    """An epoch could not be completed; replaying it may succeed."""


class JvmDied(EpochFailed):
    """Spark's JVM ended while a run needed it. A run that started it starts another."""


class EndlessLoop(HeadraceError):
    """Rows go round in a loop, in a run that is to end when it is empty."""


class SinkFailed(HeadraceError):
    """A sink refused its rows; they stay staged in the store and are released at the next start."""


class SinkUnavailable(SinkFailed):
    """What a sink writes to cannot be reached just now. The release is tried again, for as long as is set."""


class Unreachable(HeadraceError):
    """No server of published state answered in time; trying again may help."""


class Forbidden(HeadraceError):
    """A server of published state does not let this client read what it asked for."""


class StatementFailed(HeadraceError):
    """A statement over state that cannot be answered."""

    def __init__(self, what: str, *, code: str, place: int | None = None, **parts: str) -> None:
        """``code``: a SQLSTATE; ``place``: of the character in the statement that it is about, from 0."""
        super().__init__(what, **parts)
        self.code = code
        self.place = place
