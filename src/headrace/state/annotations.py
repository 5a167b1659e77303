"""What the annotation of a state says about its values, decided once: may they be shared, and does their type vouch?

- A value that can be changed in place must not be shared: a list that a function got, changed, set and put into a row
  would go on changing in the row, and in what is kept to undo a call. Such states keep bytes and hand out copies.
- Numbers, text and their like fit if their Python type does. Of anything that has parts, every single value has to be
  read back before it is stored: Records check nothing, and what cannot be read back would be lost for good.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import inspect as described

from headrace.model.values import ValueCodec, value_codec

_SCALARS: Final = (
    described.NoneType, described.BoolType, described.IntType, described.FloatType, described.StrType,
    described.BytesType, described.DateTimeType, described.TimeType, described.DateType, described.TimeDeltaType,
    described.UUIDType, described.DecimalType, described.EnumType,
)  # fmt: skip
_CONSTRAINTS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")


def declared_codec(annotation: Any, *, what: str = "a value", where: str = "") -> ValueCodec:
    """The codec of a state that functions of the user's write; raises ProgramError if its type cannot be stored.

    >>> declared_codec(int).changeable, declared_codec(tuple[int, list[str]]).changeable
    (False, True)
    """
    codec = value_codec(annotation, what=what, where=where)
    node = described.type_info(annotation)
    return codec._replace(changeable=_can_change(node, set()), each=not _is_told_by_type(node))


def _can_change(node: Any, above: set[int]) -> bool:
    """Whether values of this type, or parts of them, can be changed in place; what is not known to be safe can."""
    if isinstance(node, (*_SCALARS, described.LiteralType)):
        return False
    if id(node) in above:
        # A type that contains itself: the others decide.
        return False
    above = {*above, id(node)}
    if isinstance(node, described.UnionType):
        return any(_can_change(each, above) for each in node.types)
    if isinstance(node, described.TupleType):
        return any(_can_change(each, above) for each in node.item_types)
    if isinstance(node, described.VarTupleType | described.FrozenSetType):
        return _can_change(node.item_type, above)
    if isinstance(node, described.StructType | described.DataclassType | described.NamedTupleType):
        return not _is_frozen(node) or any(_can_change(field.type, above) for field in node.fields)
    return True


def _is_frozen(node: Any) -> bool:
    if isinstance(node, described.NamedTupleType):
        return True
    if isinstance(node, described.StructType):
        return bool(node.cls.__struct_config__.frozen)
    # Of a dataclass; classes of attrs have no such note and count as not frozen.
    return bool(getattr(getattr(node.cls, "__dataclass_params__", None), "frozen", False))


def _is_told_by_type(node: Any) -> bool:
    """Whether the Python type of a value says if it fits."""
    if isinstance(node, described.UnionType):
        return all(_is_told_by_type(each) for each in node.types)
    return isinstance(node, _SCALARS) and all(getattr(node, name, None) is None for name in _CONSTRAINTS)
