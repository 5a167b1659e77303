"""Which parts of an old type and a new one belong together: fields, members of unions, records inside of themselves.

What this module deliberately does not do: say whether the parts fit (`headrace.model.type_change`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.model.type_shape import TypeField, TypeShape


class Pairing(NamedTuple):
    """Which part of an old record a field of the new one is read from."""

    field: TypeField
    source: TypeField | None
    """None: it is new."""


class NestedShape(NamedTuple):
    """A shape and the records it stands in, the outermost first."""

    shape: TypeShape
    above: tuple[TypeShape, ...] = ()

    def part(self, shape: TypeShape) -> NestedShape:
        """A part of it; a record inside of itself is that record."""
        above = (*self.above, self.shape) if self.shape.kind == "record" else self.above
        if shape.kind == "up":
            place = len(above) - shape.up
            return NestedShape(above[place], above[:place])
        return NestedShape(shape, above)


def pair_fields(old: TypeShape, new: TypeShape) -> list[Pairing]:
    """Which field of an old record each of the new ones is read from."""
    if old.positional:
        places: list[TypeField | None] = [*old.fields, *[None] * len(new.fields)]
        return [Pairing(field, place) for field, place in zip(new.fields, places)]
    stored = {field.stored_name: field for field in old.fields}
    names = {field.name: field for field in old.fields}
    pairs = []
    for each in new.fields:
        source = stored.get(each.stored_name) or names.get(each.name)
        for was in each.was:
            source = source or names.get(was) or stored.get(was)
        pairs.append(Pairing(each, source))
    return pairs


def pair_member(member: TypeShape, new: TypeShape) -> TypeShape | None:
    """The member of a new type that values of a member of the old one are read as."""
    members = members_of(new)
    if member.kind == "record":
        return _pair_record(member, [each for each in members if each.kind == "record"])
    alike = [each for each in members if each.kind == member.kind]
    if alike:
        return alike[0]
    for each in members:
        if widens(member, each):
            return each
    return None


def _pair_record(member: TypeShape, records: list[TypeShape]) -> TypeShape | None:
    if len(records) == 1 and (member.tag is None or records[0].tag is None):
        return records[0]
    alike = [each for each in records if each.tag is not None and each.tag == member.tag]
    by_name = [each for each in records if each.name == member.name]
    return next(iter([*alike, *by_name]), None)


def members_of(shape: TypeShape) -> tuple[TypeShape, ...]:
    return shape.members if shape.kind == "union" else (shape,)


_OF_LITERALS: Final[Mapping[str, type]] = {"str": str, "int": int}


def widens(old: TypeShape, new: TypeShape) -> bool:
    """Whether a plain value of the one kind is also one of the other."""
    if old.kind == "int" and new.kind == "float":
        return True
    kind = _OF_LITERALS.get(new.kind)
    if old.kind == "choice" and kind is not None and not new.limits:
        return all(type(value) is kind for value in old.values)
    return new.kind == "any" and _is_plain(old)


def _is_plain(shape: TypeShape) -> bool:
    """Whether somebody who does not know the type decodes an equal value."""
    inside = [*shape.members, *(each for each in (shape.items, shape.keys) if each is not None)]
    return shape.kind in ("none", "bool", "int", "float", "str", "bytes", "list", "map", "union", "any") and all(
        map(_is_plain, inside)
    )


def member_of(of: NestedShape, member: TypeShape) -> NestedShape:
    return of.part(member) if of.shape.kind == "union" else of
