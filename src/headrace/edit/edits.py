"""What a person wants changed, as it is said on the command line, in a file of edits or in Python.

An edit names a state, a key and one thing to do. Values are JSON, as every door shows them; keys are as people write
them (`headrace.model.key_text`), or JSON. What an edit comes to depends on the state (`headrace.edit.targets`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from headrace.errors import ProgramError

EXAMPLE = '{"state": "fraud.total", "key": "c1", "set": 5}'


class Edit(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One change of one key: exactly one of ``set``, ``patch``, ``append`` and ``delete``."""

    state: str
    """``step.state``, or ``step`` alone where a step keeps one state."""
    key: Any
    """Text as people write the key, or JSON."""
    set: Any = msgspec.UNSET
    """The new value of the key, or of an entry."""
    patch: Any = msgspec.UNSET
    """Fields of a Record, entries of a map or results of an aggregate that are replaced; the others stay."""
    append: Any = msgspec.UNSET
    """An element that goes to the end of a list, or a time among several timers."""
    delete: bool = False
    """The key is taken away, or the entry."""
    entry: Any = msgspec.UNSET
    """The key of a map's entry, the number of a list's element from 0 (−1: the last), or the time of a timer."""
    expires: str = ""
    """Of a state with a TTL: when the value ends, as a time or a span from now; ``never``. Empty: as the TTL says."""

    @property
    def key_text(self) -> str:
        """The key as people write it."""
        return self.key if isinstance(self.key, str) else json.dumps(self.key)

    @property
    def entry_text(self) -> str | None:
        """The name of the entry as people write it; None where the edit is of the whole key."""
        if self.entry is msgspec.UNSET:
            return None
        return self.entry if isinstance(self.entry, str) else json.dumps(self.entry)

    @property
    def verb(self) -> str:
        """What is done: ``set``, ``patch``, ``append`` or ``delete``."""
        return next((name for name in ("set", "patch", "append") if getattr(self, name) is not msgspec.UNSET), "delete")

    def describe(self) -> str:
        """Which key it is about, for messages."""
        entry = "" if self.entry_text is None else f", entry {self.entry_text}"
        return f"state {self.state}, key {self.key_text}{entry}"


def check_edit(edit: Edit, where: str) -> Edit:
    """The edit, if it says one thing to do. Raises ProgramError."""
    said = [name for name in ("set", "patch", "append") if getattr(edit, name) is not msgspec.UNSET]
    said += ["delete"] * edit.delete
    if len(said) == 1:
        return edit
    raise ProgramError(
        "an edit does one thing to a key",
        where=f"{where}, {edit.describe()}",
        expected="one of set, patch, append and delete",
        found=" and ".join(said) or "none of them",
        next_move="make two edits of it" if said else f"say what becomes of the key: {EXAMPLE}",
    )


def read_edits(lines: Iterable[str], name: str) -> Iterator[Edit]:
    """The edits of a file of JSON lines; empty lines are passed over. ``name``: of the file, for messages."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{name}, line {number}"
            try:
                edit = msgspec.json.decode(line, type=Edit)
            except msgspec.DecodeError as error:
                raise ProgramError(
                    "this line is no edit",
                    where=where,
                    expected=EXAMPLE,
                    found=str(error),
                    next_move="write a JSON object on each line: state, key, and one of set, patch, append and delete",
                ) from error
            yield check_edit(edit, where)
