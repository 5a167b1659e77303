"""The shape of a type: what of an annotation decides whether its stored values can be read, as plain data.

`describe_type` takes it off an annotation when a program is compiled; manifests keep it, so that a later program can be
compared with what is stored (`headrace.model.type_change`). A shape is canonical:
two annotations whose values are stored and read alike have equal shapes, except for the names of classes.

What this module deliberately does not do: read or change stored values (`headrace.state.adapters`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect as described

from headrace.model.fields import former_names
from headrace.model.hints import settle_type


class TypeField(msgspec.Struct, frozen=True, omit_defaults=True):
    """One field of a Record, or of what is stored like one."""

    name: str
    type: TypeShape
    stored: str = ""
    """The name it is stored under, where that is another."""
    default: str | None = None
    """What stands in where a value has none: as JSON, or in words. None: it is required."""
    was: tuple[str, ...] = ()
    """Its former names, the newest first."""

    @property
    def stored_name(self) -> str:
        return self.stored or self.name


class TypeShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """What values of a type look like where they are stored."""

    kind: str
    """``int float bool str bytes none datetime date time timedelta decimal uuid``; ``record`` of named fields; ``list
    set map tuple``; ``union``; ``choice`` of some values; ``any``; or ``up``."""
    name: str = ""
    """Of a class, for people."""
    fields: tuple[TypeField, ...] = ()
    positional: bool = False
    """Of a record: its fields are stored by place, not by name …"""
    closed: bool = False
    """… and fields that are not its own are refused …"""
    omits: bool = False
    """… and fields that have their default are not stored."""
    open: bool = False
    """Of a record: what stands beside its fields, under names with a mark, belongs to somebody else and stays."""
    tag: tuple[str, str | int] | None = None
    """Of a record: the field that says which of a union it is, and what stands there."""
    items: TypeShape | None = None
    """Of a list or set every element, of a map every value."""
    keys: TypeShape | None = None
    """Of a map every key."""
    places: tuple[TypeShape, ...] = ()
    """Of a tuple, by place."""
    members: tuple[TypeShape, ...] = ()
    """Of a union."""
    values: tuple[str | int | None, ...] = ()
    """Of an enum or a Literal, as they are stored."""
    limits: str = ""
    """What else a value must be, in words: ``gt 0``."""
    up: int = 0
    """A record inside of itself: the record so many levels above it."""

    @property
    def optional(self) -> bool:
        """Whether None is one of its values."""
        return self.kind in ("none", "any") or any(member.kind == "none" for member in self.members)


_PLAIN: Final[dict[type, str]] = {
    described.AnyType: "any",
    described.NoneType: "none",
    described.BoolType: "bool",
    described.IntType: "int",
    described.FloatType: "float",
    described.StrType: "str",
    described.BytesType: "bytes",
    described.ByteArrayType: "bytes",
    described.MemoryViewType: "bytes",
    described.DateTimeType: "datetime",
    described.TimeType: "time",
    described.DateType: "date",
    described.TimeDeltaType: "timedelta",
    described.DecimalType: "decimal",
    described.UUIDType: "uuid",
}
_LIMITS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_RECORDS: Final = (described.StructType, described.DataclassType, described.TypedDictType, described.NamedTupleType)
_SEQUENCES: Final = (described.ListType, described.VarTupleType)
_SETS: Final = (described.SetType, described.FrozenSetType)
_EMPTY: Final[dict[Any, str]] = {list: "[]", tuple: "[]", set: "[]", frozenset: "[]", dict: "{}"}


def describe_type(annotation: Any) -> TypeShape:
    """The shape of an annotation whose values can be stored.

    >>> type_text(describe_type(list[int]))
    'list[int]'
    """
    settle_type(annotation)
    return _shape_of(described.type_info(annotation), ())


def accumulators_shape(types: Mapping[str, Any], was: Mapping[str, Sequence[str]] | None = None) -> TypeShape:
    """The shape of a record of accumulators by the names of their aggregates; those that saw nothing are not stored.

    ``was``: aggregate → the names it had before.
    """
    formers = was or {}
    fields = [
        TypeField(name, describe_type(kind | None), default="null", was=tuple(formers.get(name, ())))
        for name, kind in types.items()
    ]
    return TypeShape("record", fields=tuple(fields), omits=True, open=True)


def _shape_of(node: Any, above: tuple[Any, ...]) -> TypeShape:
    """``above``: the classes of the records that the type stands in, the outermost first."""
    limits = _limits_of(node)
    if plain := _PLAIN.get(type(node)):
        return TypeShape(plain, limits=limits)
    match node:
        case described.UnionType():
            return _union_of(node, above)
        case described.EnumType():
            return TypeShape("choice", node.cls.__name__, values=tuple(sorted(m.value for m in node.cls)))
        case described.LiteralType():
            return TypeShape("choice", values=tuple(sorted(node.values, key=lambda value: (str(type(value)), value))))
        case described.DictType():
            keys, items = _shape_of(node.key_type, above), _shape_of(node.value_type, above)
            return TypeShape("map", keys=keys, items=items, limits=limits)
        case described.TupleType():
            return TypeShape("tuple", places=tuple(_shape_of(each, above) for each in node.item_types))
    if isinstance(node, _SEQUENCES):
        return TypeShape("list", items=_shape_of(node.item_type, above), limits=limits)
    if isinstance(node, _SETS):
        return TypeShape("set", items=_shape_of(node.item_type, above), limits=limits)
    if isinstance(node, _RECORDS):
        return _record_of(node, above)
    # `check_storable` has refused everything else, or will.
    return TypeShape("unknown", getattr(getattr(node, "cls", None), "__name__", type(node).__name__))


def _limits_of(node: Any) -> str:
    said = [(name, getattr(node, name, None)) for name in _LIMITS]
    return ", ".join(f"{name} {value}" for name, value in said if value is not None)


def _union_of(node: described.UnionType, above: tuple[Any, ...]) -> TypeShape:
    members = [_shape_of(each, above) for each in node.types]
    if len(members) == 1:
        return members[0]
    return TypeShape("union", members=tuple(sorted(members, key=msgspec.json.encode)))


def _record_of(node: Any, above: tuple[Any, ...]) -> TypeShape:
    cls = node.cls
    if cls in above:
        return TypeShape("up", up=len(above) - above.index(cls))
    inside = (*above, cls)
    was = former_names(getattr(cls, "__origin__", cls))
    config = getattr(getattr(cls, "__origin__", cls), "__struct_config__", None)
    tag = getattr(node, "tag", None)
    return TypeShape(
        "record",
        getattr(cls, "__name__", str(cls)),
        fields=tuple(_field_of(each, was.get(each.name, ()), inside) for each in node.fields),
        positional=isinstance(node, described.NamedTupleType) or getattr(node, "array_like", False),
        closed=getattr(node, "forbid_unknown_fields", False) or isinstance(node, described.NamedTupleType),
        omits=config is not None and config.omit_defaults,
        tag=None if tag is None else (str(node.tag_field), tag),
    )


def _field_of(field: described.Field, was: Sequence[str], above: tuple[Any, ...]) -> TypeField:
    stored = "" if field.encode_name == field.name else field.encode_name
    default = None if field.required else _default_text(field)
    return TypeField(field.name, _shape_of(field.type, above), stored, default, tuple(was))


def _default_text(field: described.Field) -> str:
    """A default as text that is the same whenever the same program is compiled."""
    if field.default_factory is not msgspec.NODEFAULT:
        factory = field.default_factory
        return _EMPTY.get(factory) or f"{getattr(factory, '__name__', type(factory).__name__)}()"
    if field.default is msgspec.NODEFAULT:
        return "absent"  # Of a TypedDict, where a key may be missing.
    try:
        return msgspec.json.encode(field.default, order="sorted").decode()
    except (TypeError, ValueError, msgspec.MsgspecError):
        return type(field.default).__name__


def type_text(shape: TypeShape, *, fields: bool = False) -> str:
    """A shape as people write the type. ``fields``: with those of a Record, by which it is told from another."""
    match shape.kind:
        case "record" if fields:
            return f"{shape.name}({', '.join(f'{each.name}: {type_text(each.type)}' for each in shape.fields)})"
        case "record" | "unknown":
            return shape.name
        case "list" | "set":
            return f"{shape.kind}[{'' if shape.items is None else type_text(shape.items, fields=fields)}]"
        case "map" if shape.keys is not None and shape.items is not None:
            return f"dict[{type_text(shape.keys)}, {type_text(shape.items, fields=fields)}]"
        case "tuple":
            return f"tuple[{', '.join(map(type_text, shape.places))}]"
        case "union":
            members = sorted(shape.members, key=lambda member: member.kind == "none")
            return " | ".join(map(type_text, members))
        case "choice":
            return shape.name or f"Literal[{', '.join(map(repr, shape.values))}]"
        case "none":
            return "None"
        case "any":
            return "Any"
        case "up":
            return "itself"
    return {"decimal": "Decimal", "uuid": "UUID"}.get(shape.kind, shape.kind)


def nameless(shape: TypeShape) -> TypeShape:
    """A shape without what stored values do not show: names of classes, former names."""
    return msgspec.structs.replace(
        shape,
        name="",
        fields=tuple(TypeField(each.name, nameless(each.type), each.stored, each.default) for each in shape.fields),
        items=None if shape.items is None else nameless(shape.items),
        keys=None if shape.keys is None else nameless(shape.keys),
        places=tuple(map(nameless, shape.places)),
        members=tuple(map(nameless, shape.members)),
    )


def with_former_names(shape: TypeShape, before: TypeShape) -> TypeShape:
    """A shape whose fields also have the former names that those of an earlier one had, which is else the same."""

    def both(one: TypeShape | None, other: TypeShape | None) -> TypeShape | None:
        return one if one is None or other is None else with_former_names(one, other)

    fields = tuple(
        msgspec.structs.replace(
            each, type=with_former_names(each.type, old.type), was=tuple(dict.fromkeys((*each.was, *old.was)))
        )
        for each, old in zip(shape.fields, before.fields)
    )
    return msgspec.structs.replace(
        shape,
        fields=fields,
        items=both(shape.items, before.items),
        keys=both(shape.keys, before.keys),
        places=tuple(map(with_former_names, shape.places, before.places)),
        members=tuple(map(with_former_names, shape.members, before.members)),
    )
