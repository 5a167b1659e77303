"""Editing from Python: edits are collected, checked together, and become true in one epoch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.edit.edits import Edit, check_edit
from headrace.edit.offline import EditedEpoch
from headrace.errors import ProgramError
from headrace.model.keys import key_text
from headrace.model.type_json import plain_json

if TYPE_CHECKING:
    from typing import Self

Apply = Callable[[Sequence[Edit], str], EditedEpoch]
"""Makes edits true, for the reason that is given."""


class Editor:
    """Changes the state of a job by hand: to mend what went wrong. All changes become true in one epoch, or none.

    >>> with hr.Editor("./state", why="ticket 4711: a refund was counted twice") as edit:    # doctest: +SKIP
    ...     edit.set("fraud.total", "c1", 5)
    ...     edit.patch("totals", "shop-7", {"n": 100})
    ...     edit.delete("fraud.shops", "c1", entry="shop-2")
    >>> edit.epoch                                                                           # doctest: +SKIP
    42

    Values are checked against the types that the program declares. Who (as the operating system names the user), when
    and why stands in the manifest of the epoch. Outputs are not told: rows come out when a key changes next. A rewind
    to the epoch before undoes it.
    """

    def __init__(self, store: str | os.PathLike[str] | Apply, *, why: str) -> None:
        """``store``: folder or URL; the job may be stopped or running. ``why``: what people will read later."""
        if not why.strip():
            raise ProgramError("an edit needs a reason", where="Editor(why=…)", expected='text, such as "ticket 4711"',
                               found=repr(why), next_move="say why: it is kept in the manifest")  # fmt: skip
        self._apply = store if callable(store) else _apply_to(os.fspath(store))
        self._why = why
        self._edits: list[Edit] = []
        self._done: EditedEpoch | None = None

    def set(self, state: str, key: Any, value: Any, *, entry: Any = msgspec.UNSET, expires: str = "") -> None:
        """The value of a key, or of an entry of a map, an element of a list; a list or map as a whole; a timer."""
        self._add(state, key, entry, expires, set=plain_json(value))

    def patch(self, state: str, key: Any, fields: Mapping[str, Any], *, entry: Any = msgspec.UNSET) -> None:
        """Some fields of a Record, some entries of a map, some results of a rolling aggregate; the others stay."""
        self._add(state, key, entry, "", patch=plain_json(dict(fields)))

    def append(self, state: str, key: Any, element: Any, *, expires: str = "") -> None:
        """An element at the end of a list, or one more of several timers."""
        self._add(state, key, msgspec.UNSET, expires, append=plain_json(element))

    def delete(self, state: str, key: Any, *, entry: Any = msgspec.UNSET) -> None:
        """A key, with all that the state has for it, or an entry of it."""
        self._add(state, key, entry, "", delete=True)

    def _add(self, state: str, key: Any, entry: Any, expires: str, **what: Any) -> None:
        named = msgspec.UNSET if entry is msgspec.UNSET else key_text(entry)
        edit = Edit(state=state, key=key_text(key), entry=named, expires=expires, **what)
        self._edits.append(check_edit(edit, "Editor"))

    @property
    def epoch(self) -> int:
        """The epoch in which the edits are true, once they are."""
        if self._done is None:
            raise ProgramError(
                "the edits are not made yet", where="Editor.epoch", next_move="ask behind the with block"
            )
        return self._done.epoch

    def commit(self) -> None:
        """Makes the edits true; leaving the with block does."""
        if self._edits:
            self._done = self._apply(self._edits, self._why)
            self._edits = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()


def _apply_to(url: str) -> Apply:
    def apply(edits: Sequence[Edit], why: str) -> EditedEpoch:
        from headrace.edit.making import make_edits
        from headrace.read.store import open_for_reading

        return make_edits(open_for_reading(url), edits, why=why)

    return apply
