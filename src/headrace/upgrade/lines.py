"""What a changed program does to a store, line by line: the nouns of this room.

A line is about one thing that the store or the program has: a step, one of its states, a source, an output, a loop, or
the job as a whole. Its fate says what becomes of it; a line that is refused says so in the four parts of an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.errors import UpgradeRefused
from headrace.model.amounts import count_of
from headrace.model.order import Dropped

Part = Literal["job", "step", "state", "source", "output", "loop"]
Fate = Literal["kept", "renamed", "migrated", "new", "dropped", "gone", "refused"]


@dataclass(frozen=True)
class Objection:
    """Why something cannot be: the parts of an error, but for the place."""

    what: str
    expected: str
    found: str
    next_move: str


@dataclass(frozen=True)
class UpgradeLine:
    """What becomes of one thing."""

    part: Part
    name: str
    """As the program says it; of what the program lacks, as the store does."""
    fate: Fate
    notes: tuple[str, ...] = ()
    """What is to be said of it, a phrase each."""
    was: str = ""
    """Its former name, where it is renamed."""
    rows: int | None = None
    """Stored rows that it is about, before merging; None: not counted, because nothing happens to them.

    Of what is migrated those of an older type: what folds have rewritten is done."""
    by_key: bool = False
    """Whether each of them is a key, which may come more than once."""
    cost_s: float | None = None
    """About how many seconds of work it is to adapt them all, once, measured on some; None: they are not adapted."""
    objection: Objection | None = None

    @property
    def changes(self) -> bool:
        """Whether anything is to be said of it."""
        return self.fate != "kept" or bool(self.notes)


@dataclass(frozen=True)
class Upgrade:
    """What a program does to a store. Made by `headrace.upgrade.derive`; printed by ``str``."""

    epoch: int | None
    """The epoch that the program would go on from; None: the store is new."""
    lines: tuple[UpgradeLine, ...]
    given_up: Dropped | None = None
    """What has to be taken out of the store's state before its next epoch."""
    store: str = ""
    """Where the state lies that the program would go on with."""

    @property
    def refused(self) -> tuple[UpgradeLine, ...]:
        """Whatever the program cannot be started with."""
        return tuple(line for line in self.lines if line.fate == "refused")

    @property
    def changes(self) -> tuple[UpgradeLine, ...]:
        """The lines that say something; none where the program is what it was."""
        return tuple(line for line in self.lines if line.changes)

    def __str__(self) -> str:
        from headrace.upgrade.text import plan_text

        return plan_text(self)

    def errors(self) -> list[UpgradeRefused]:
        """What is refused, an error each."""
        objections = [line.objection for line in self.refused if line.objection is not None]
        return [
            UpgradeRefused(one.what, where=self.store, expected=one.expected, found=one.found, next_move=one.next_move)
            for one in objections
        ]

    def check(self) -> None:
        """Raises UpgradeRefused where anything is refused: one error, whatever the number of refusals."""
        errors = self.errors()
        if not errors:
            return
        error = errors[0]
        if len(errors) > 1:
            error = UpgradeRefused(
                f"{count_of(len(errors), 'change')} of the program do not fit what is stored",
                where=self.store,
                expected="\n".join(dict.fromkeys(each.expected for each in errors)),
                found="\n".join(f"{each.what}: {each.found}" for each in errors),
                next_move="\n".join(dict.fromkeys(each.next_move for each in errors)),
            )
        error.plan = self
        raise error
