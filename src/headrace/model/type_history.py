"""What becomes of stored values that are several changes of their type behind.

Values go through every type that their state had since, one after the other, as if they had been rewritten by every
program in between. So what is read does not depend on whether they were: a field that was removed is gone, also where
a later type has one of its name, and a field that was added has the default that it was added with. Only where
that way is not open are types passed by: a function that led through them has left the program, or nothing that was
written in them is left, as where a program was taken back.

What this module deliberately does not do: read a store (`headrace.state.adapters`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from headrace.model.job import DeclaredState
from headrace.model.migrations import Migration
from headrace.model.type_adapt import Adapt, same_value
from headrace.model.type_change import SAME, ChangeKind, TypeChange, compare_keys, compare_types
from headrace.model.type_shape import TypeShape, nameless


def derive_reading(
    state: DeclaredState, version: int, migrations: Sequence[Migration] = (), *, fill: bool = False
) -> TypeChange:
    """What becomes of the values of a state that lie in runs of a version of its step.

    Of a list the values are its elements, of a map those of its entries, whose names may not change. ``fill``: as of
    `compare_types`, for those who write what they read.
    """
    types = state.types_since(version)
    if len(types) == 1:
        return SAME
    return derive_change(state.kind, types, migrations, fill=fill)


def derive_change(
    kind: str, types: Sequence[TypeShape | None], migrations: Sequence[Migration] = (), *, fill: bool = False
) -> TypeChange:
    """What becomes of values of a kind of state that had these types, the oldest first."""
    names = _compare_names(kind, types[0], types[-1])
    if names.kind == "refused":
        return names
    parts = [value_part(kind, each) for each in types]
    if any(part is None for part in parts):
        return SAME
    known = [part for part in parts if part is not None]
    last = len(known) - 2
    links = [compare_types(old, new, migrations, fill=fill or i < last) for i, (old, new) in enumerate(pairwise(known))]
    if len(links) > 1 and any(link.kind == "refused" for link in links):
        links = _links_past(known, links, migrations, fill=fill)
    return links[0] if len(links) == 1 else _together(links)


def _links_past(
    types: Sequence[TypeShape], links: Sequence[TypeChange], migrations: Sequence[Migration], *, fill: bool
) -> list[TypeChange]:
    """The way to the newest type from the first one that the oldest leads to, and that all later ones follow.

    ``links``: from each type to the next. Where there is no such way, why the newest is not reached at once.
    """
    first = next((at for at in range(len(links), 0, -1) if links[at - 1].kind == "refused"), 0)
    for at in range(max(first, 1), len(types)):
        link = compare_types(types[0], types[at], migrations, fill=fill or at < len(types) - 1)
        if link.kind != "refused" or at == len(types) - 1:
            return [link, *links[at:]]
    raise AssertionError("the newest type is compared at the end")


def value_part(kind: str, shape: TypeShape | None) -> TypeShape | None:
    """Of the type of a state that of one stored value."""
    return shape.items if shape is not None and shape.kind == kind and kind in ("list", "map") else shape


def _compare_names(kind: str, old: TypeShape | None, new: TypeShape | None) -> TypeChange:
    if old is None or new is None or kind != "map":
        return SAME
    if old.keys is not None and new.keys is not None and nameless(old.keys) == nameless(new.keys):
        return SAME
    return compare_keys(old.keys, new.keys)


def _together(links: Sequence[TypeChange]) -> TypeChange:
    words = tuple(dict.fromkeys(word for link in links for word in link.words))
    kinds = {link.kind for link in links}
    kind: ChangeKind = "migrates" if "migrates" in kinds else "reads" if "reads" in kinds else "same"
    # What a type in between dropped must not come back.
    direct = all(link.direct for link in links) and not any(link.drops for link in links[:-1])
    adapts = [link.adapt or same_value for link in links]
    functions = tuple(dict.fromkeys(name for link in links for name in link.functions))
    drops = any(link.drops for link in links)
    return TypeChange(kind, words, direct, drops, functions, _one_after_the_other(adapts))


def _one_after_the_other(adapts: Sequence[Adapt]) -> Adapt:
    def adapt(value: object) -> object:
        for each in adapts:
            value = each(value)
        return value

    return adapt
