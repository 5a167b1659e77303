"""Values as bytes: MessagePack, typed by the user's annotation.

What is kept in state is data, never code: nothing is pickled. Structs are maps by field name, so a value written by an
older program is read by a newer one: fields that are new need a default, fields that are gone are ignored. A type that
MessagePack cannot hold is refused when the program is built, with the path to the field that is to blame.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, NewType, Union, get_args, get_origin

import msgspec
from msgspec import inspect as described

from headrace.errors import ProgramError
from headrace.model.hints import own_annotations, settle_type
from headrace.model.time import encode_span


class MisfitPart(NamedTuple):
    """The part of a value because of which the whole cannot be stored."""

    lead: str
    """How the sentence about it begins: ``the accumulator of the aggregate 'x' is``."""
    value: Any
    error: Exception
    way_out: str


class ValueCodec(NamedTuple):
    """Both directions for one annotation; plain functions, made to be kept in local variables."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    changeable: bool = False
    """Values can be changed in place, and are somebody else's to change: who keeps them keeps bytes."""
    each: bool = False
    """Every value has to be read back before it is stored; otherwise one of each Python type tells for all."""
    find_misfit: Callable[[Any], MisfitPart | None] | None = None
    """Finds the part that does not fit, where a value is made of parts that people know by other names."""


_ENCODER = msgspec.msgpack.Encoder(enc_hook=encode_span)
_codecs: dict[Any, ValueCodec] = {}


def value_codec(annotation: Any, *, what: str = "a value", where: str = "") -> ValueCodec:
    """The codec of an annotation; raises ProgramError when its values could not be stored.

    >>> codec = value_codec(dict[str, int])
    >>> codec.decode(codec.encode({"a": 1}))
    {'a': 1}
    """
    known = _codecs.get(annotation)
    if known is None:
        check_storable(annotation, what=what, where=where)
        known = ValueCodec(_ENCODER.encode, msgspec.msgpack.Decoder(annotation).decode)
        _codecs[annotation] = known
    return known


def check_storable(annotation: Any, *, what: str = "a value", where: str = "") -> None:
    """Refuse an annotation whose values MessagePack cannot hold and give back."""
    settle_type(annotation)
    try:
        description = described.type_info(annotation)
        msgspec.msgpack.Decoder(annotation)
    except NameError as error:
        raise ProgramError(
            f"the type of {what} contains an unknown name",
            where=where,
            found=f"{type_name(annotation)}: {error}",
            next_move="define or import the name where the class is defined",
        ) from error
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise _refusal(what, where, type_name(annotation), str(error)) from error
    blame = _find_foreign(description, (), set())
    if blame is not None:
        path, foreign = blame
        inside = f"{' → '.join(path)} is {type_name(foreign)}" if path else type_name(foreign)
        raise _refusal(what, where, inside, "", foreign)


def _refusal(what: str, where: str, found: str, reason: str, foreign: Any = None) -> ProgramError:
    next_move = "keep the parts as a Record, or keep bytes and convert in your function"
    if isinstance(foreign, type) and foreign.__bases__ == (object,) and own_annotations(foreign):
        # A class of the user's with typed fields: all it lacks is its base.
        next_move = f"let it be a Record: class {foreign.__name__}(hr.Record)"
    return ProgramError(
        f"the type of {what} cannot be stored",
        where=where,
        expected="numbers, text, bytes, bool, None, datetime, Decimal, UUID, Enum, lists, sets, tuples, dicts, "
        "dataclasses, Records, and unions of these",
        found=f"{found}; {reason}" if reason else found,
        next_move=next_move,
    )


def _find_foreign(node: Any, path: tuple[str, ...], seen: set[int]) -> tuple[tuple[str, ...], Any] | None:
    """The first type in a described annotation that msgspec would need help with, and the path that leads there."""
    if id(node) in seen:
        return None
    seen.add(id(node))
    if isinstance(node, described.CustomType):
        return path, node.cls
    if isinstance(node, described.RawType | described.ExtType):
        return path, type(node).__name__.removesuffix("Type")
    for name, child in _children(node):
        found = _find_foreign(child, (*path, name) if name else path, seen)
        if found is not None:
            return found
    return None


def _children(node: Any) -> list[tuple[str, Any]]:
    owner = getattr(node, "cls", None)
    children: list[tuple[str, Any]] = []
    for name in getattr(node, "__struct_fields__", ()):
        value = getattr(node, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, described.Field):
                children.append((f"{owner.__name__}.{part.name}" if owner else part.name, part.type))
            elif isinstance(part, described.Type):
                children.append(("", part))
    return children


def type_name(annotation: Any) -> str:
    """An annotation as a user would write it.

    >>> type_name(int), type_name(dict[str, int | None])
    ('int', 'dict[str, int | None]')
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is types.NoneType:
        return "None"
    if origin in (Union, types.UnionType):
        return " | ".join(map(type_name, parts))
    if parts and origin not in (None, Literal, Annotated) and all(part is not ... for part in parts):
        return f"{type_name(origin)}[{', '.join(map(type_name, parts))}]"
    if isinstance(annotation, type | NewType) and not parts:
        return str(annotation.__name__)
    return str(annotation).replace("typing.", "")
