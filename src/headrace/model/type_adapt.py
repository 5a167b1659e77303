"""Plain values of an old type made plain values of a new one: what a walk over both types is put together from.

A plain value is what MessagePack holds, decoded by somebody who does not know the type: dicts by stored names, lists,
numbers, text, bytes.

What this module deliberately does not do: decide what fits (`headrace.model.type_change`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.errors import StoreError
from headrace.model.type_pairs import Pairing
from headrace.model.type_shape import TypeField, TypeShape

Adapt = Callable[[Any], Any]
"""Makes of a plain value of the old type one of the new type."""

MOST_EXACT: Final = 2**53
"""Beyond, a float does not hold every integer."""


def same_value(value: Any) -> Any:
    return value


def exact_float(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > MOST_EXACT:
        raise StoreError(
            "a stored integer is none that a float can hold",
            expected="integers up to 2**53 where int became float",
            found=f"{value}",
            next_move="keep the type int, or say with hr.migrate what becomes of such values",
        )
    return float(value)


def adapt_record(
    before: TypeShape,
    after: TypeShape,
    pairs: Sequence[Pairing],
    adapts: Sequence[Adapt | None],
    added: Mapping[str, Any],
) -> Adapt:
    """Fields that are not among the new ones are left out. ``added``: what new ones get, by their stored names."""
    tag = after.tag
    if after.positional:
        first = 0 if tag is None else 1
        ordered = [adapt or same_value for (_, source), adapt in zip(pairs, adapts) if source is not None]

        def by_place(value: Any) -> Any:
            here = [adapt(each) for adapt, each in zip(ordered, value[first:])]
            # Fields that are new stand behind all others.
            return [*value[:first], *here, *(added.values() if len(here) == len(ordered) else ())]

        return by_place
    names = [
        (source.stored_name, each.stored_name, adapt or same_value)
        for (each, source), adapt in zip(pairs, adapts)
        if source is not None
    ]

    def by_name(value: Any) -> Any:
        made = {} if tag is None else {tag[0]: tag[1]}
        for was, name, adapt in names:
            if was in value:
                made[name] = adapt(value[was])
        return {**added, **made} if added else made

    if not after.open:
        return by_name
    mine = {field.stored_name for field in (*before.fields, *after.fields)}

    def with_notes(value: Any) -> Any:
        return {
            **by_name(value),
            **{name: each for name, each in value.items() if name not in mine and name[:1] == "!"},
        }

    return with_notes


NO_DEFAULT: Final[Any] = object()
"""Of a field that a value may lack."""


def read_default(field: TypeField) -> Any:
    """The default of a field as a plain value; NO_DEFAULT where there is none; raises ValueError where it is in words.

    >>> read_default(TypeField("n", TypeShape("int"), default="7"))
    7
    """
    if field.default is None or field.default == "absent":
        return NO_DEFAULT
    plain = msgspec.json.decode(field.default)
    if plain is None and not field.type.optional:
        raise ValueError("not a number in JSON")
    if not plain or not _holds_bytes(field.type):
        return b"" if plain == "" and field.type.kind == "bytes" else plain
    if field.type.kind != "bytes":
        raise ValueError("bytes inside of text")
    return base64.b64decode(plain)


def _holds_bytes(shape: TypeShape) -> bool:
    parts = (shape.items, shape.keys, *shape.places, *shape.members, *(field.type for field in shape.fields))
    return shape.kind in ("bytes", "any") or any(_holds_bytes(part) for part in parts if part is not None)


_PYTHON: Final[Mapping[str, tuple[type, ...]]] = {
    "none": (type(None),), "bool": (bool,), "int": (int,), "float": (float, int), "record": (dict, list),
    "map": (dict,), "list": (list,), "set": (list,), "tuple": (list,), "bytes": (bytes,),
}  # fmt: skip


def adapt_members(members: Sequence[TypeShape], adapts: Sequence[tuple[TypeShape, Adapt]]) -> Adapt:
    """Picks the member as the decoder would: by tag, else by what MessagePack holds."""

    def adapt_value(value: Any) -> Any:
        for member, adapt in adapts:
            if _is_value_of(value, member, members):
                return adapt(value)
        return value

    return adapt_value


def _is_value_of(value: Any, member: TypeShape, members: Sequence[TypeShape]) -> bool:
    kinds = _PYTHON.get(member.kind)
    if kinds is None:
        return not isinstance(value, (bool, int, float, dict, list, type(None)))
    if not isinstance(value, kinds) or (isinstance(value, bool) and member.kind != "bool"):
        return False
    if member.kind == "float" and isinstance(value, int):
        return all(other.kind != "int" for other in members)
    if member.kind != "record" or member.tag is None or sum(other.kind == "record" for other in members) < 2:
        return True
    if isinstance(value, dict):
        return bool(value.get(member.tag[0]) == member.tag[1])
    return isinstance(value, list) and value[:1] == [member.tag[1]]
