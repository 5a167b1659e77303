"""Fields of Records that say more than type and default: their former names.

`field` stands where a default would. msgspec takes from it what it knows, and keeps nothing of the rest, so the former
names are put beside it, into the namespace of the class, where `former_names` finds them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.errors import ProgramError

_PLACE: Final = "__headrace_was__"


class FormerNames:
    """The former names of the fields of one class, by the present ones; made in the body of the class."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body: Mapping[str, Any] = body
        self._said: list[tuple[Any, tuple[str, ...]]] = []
        self.by_field: dict[str, tuple[str, ...]] = {}

    def add(self, place: Any, names: tuple[str, ...]) -> None:
        self._said.append((place, names))

    def __set_name__(self, owner: type, name: str) -> None:
        """Python calls it when the body is over: only then is it known which field stands before which default."""
        for field_name, place in self._body.items():
            for said, names in self._said:
                if said is place:
                    self.by_field[field_name] = names
        self._body, self._said = {}, []


def field(
    *,
    default: Any = msgspec.NODEFAULT,
    default_factory: Callable[[], Any] | Any = msgspec.NODEFAULT,
    name: str | None = None,
    was: str | Sequence[str] = (),
) -> Any:
    """A field of a Record that says more than its default: ``city: str = hr.field(was="town")``.

    ``was``: the name, or the names, that the field had before, the newest first; values that were stored under one of
    them are read. ``default`` and ``default_factory``: what stands in where a stored value has none. ``name``: the name
    under which the field is stored and travels, where that is not its own.
    """
    names = (was,) if isinstance(was, str) else tuple(was)
    for each in names:
        if not each.isidentifier():
            raise ProgramError(
                "a field cannot have had this name",
                where="hr.field",
                expected='the name of a field, was="town"',
                found=repr(each),
                next_move="write the name that stood before the colon",
            )
    if default is not msgspec.NODEFAULT and default_factory is not msgspec.NODEFAULT:
        raise ProgramError(
            "a field has one default",
            where="hr.field",
            expected="default or default_factory",
            found="both",
            next_move="leave one out",
        )
    made: Any = msgspec.field(default=default, default_factory=default_factory, name=name)  # type: ignore[call-overload]
    if names:
        body = sys._getframe(1).f_locals
        if _PLACE not in body:
            body[_PLACE] = FormerNames(body)
        body[_PLACE].add(made, names)
    return made


def former_names(cls: Any) -> dict[str, tuple[str, ...]]:
    """Field → the names it had before, the newest first; of a Record, or of a dataclass whose ``metadata`` say so."""
    names: dict[str, tuple[str, ...]] = {}
    for base in reversed(getattr(cls, "__mro__", ())):
        said = base.__dict__.get(_PLACE)
        if isinstance(said, FormerNames):
            names |= said.by_field
        for each in base.__dict__.get("__dataclass_fields__", {}).values():
            was = each.metadata.get("was", ())
            if was:
                names[each.name] = (was,) if isinstance(was, str) else tuple(was)
    return names
