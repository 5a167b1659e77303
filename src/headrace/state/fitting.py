"""Whether values fit the annotation of their state: decided by type where possible, else by reading the value back.

A function may set a value that its annotation does not allow. Stored, it would make the state unreadable for good. So a
value is read back before it leaves memory, and an epoch with a misfit is not published. Numbers, text and their like
fit if their Python type does.

Values that can be changed in place must not be shared: a list that a function got, changed, set and put into a row
would go on changing in the row. Such states keep bytes from the moment a value is set (`Copies`) and hand out copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, get_origin

import msgspec
from msgspec import inspect as described

from headrace.errors import FunctionFailed, HeadraceError, StoreError
from headrace.model.keys import decode_key, key_text
from headrace.model.report import Failure
from headrace.model.values import MisfitPart, ValueCodec, value_codec


def _same(value: Any) -> Any:
    return value


RAW: Final = ValueCodec(_same, _same)
"""The codec of a column that holds bytes already."""

NOT_ENCODABLE: Final = (msgspec.MsgspecError, HeadraceError, TypeError, ValueError, OverflowError, RecursionError)
"""What encoding a value that does not fit may raise, and reading it back."""

_NOTHING: Final[Any] = object()
_OBJECT_BYTES: Final = 64
_OBJECT_FACTOR: Final = 3
"""A small object takes about three times the bytes of its encoded form, and a header."""


class Misfit(TypeError):
    """A function set a value that the annotation of its state does not allow; found when its call was over."""

    position = -1
    """Which of the values that were to be encoded it is …"""
    key = b""
    """… and the encoded key it was set for."""
    way_out = "set what the annotation of the state says, or change the annotation"

    def note_key(self, names: Sequence[bytes], slots: Sequence[int]) -> None:
        """Says whose value it is: ``slots`` of the values that were to be encoded, ``names`` of all slots."""
        if self.position >= 0:
            self.key = names[slots[self.position]]


class Copies:
    """Values of one state as bytes: setting encodes and checks, getting makes a copy that is nobody else's."""

    __slots__ = ("_decode", "_encode", "_spare", "_spare_raw", "_table")

    def __init__(self, table: str, codec: ValueCodec) -> None:
        self._table = table
        self._encode, self._decode = codec.encode, codec.decode
        self._spare: Any = None
        """A copy that checking has made and nobody has got …"""
        self._spare_raw: bytes | None = None
        """… and its bytes: who sets a value and gets it again pays for one copy, not two."""

    def encode(self, value: Any) -> bytes:
        try:
            raw = self._encode(value)
            self._spare = self._decode(raw)
        except NOT_ENCODABLE as error:
            raise TypeError(_misfit(self._table, value, error)) from error
        self._spare_raw = raw
        return raw

    def decode(self, raw: bytes) -> Any:
        if raw is self._spare_raw:
            value, self._spare, self._spare_raw = self._spare, None, None
            return value
        try:
            return self._decode(raw)
        except msgspec.MsgspecError as error:
            raise unreadable(self._table, error) from error


def check_fits(table: str, value: Any, encode: Callable[[Any], bytes], codec: ValueCodec) -> tuple[bytes, Any]:
    """A value as bytes, and a copy read back from them; raises TypeError if there is none, in the call that gave it."""
    try:
        raw = encode(value)
        return raw, codec.decode(raw)
    except NOT_ENCODABLE as error:
        raise TypeError(_misfit(table, value, error)) from error


def encode_fitting(table: str, values: Sequence[Any], codec: ValueCodec, absent: Any) -> list[bytes | None]:
    """The values as bytes, None for those that are ``absent``; raises Misfit if one could not be read back.

    Where the Python type tells (``codec.each`` is False), one of each is read back, otherwise all.
    """
    if codec is RAW:
        return [None if value is absent else value for value in values]
    encode, decode = codec.encode, codec.decode
    try:
        encoded = [None if value is absent else encode(value) for value in values]
        if codec.each:
            # Into nowhere, without a loop of Python's.
            deque(map(decode, filter(None, encoded)), maxlen=0)
        else:
            _check_kinds(values, codec, absent)
    except NOT_ENCODABLE as error:
        raise _find_misfit(
            table, values, lambda value: decode(encode(value)), absent, error, find_part=codec.find_misfit
        ) from error
    return encoded


def encode_names(table: str, names: Sequence[Any], codec: Any) -> list[bytes]:
    """The names of entries as bytes; raises Misfit if one could not be."""
    given = names if codec.given is None else list(map(codec.given, names))
    try:
        if codec.fits is not None:
            encode_fitting(table, given, codec.fits, _NOTHING)
        encoded = list(map(codec.encode, names))
        _check_kinds(names, codec, _NOTHING, given)
    except NOT_ENCODABLE as error:
        if isinstance(error, Misfit):
            raise
        raise _find_misfit(table, names, lambda name: codec.decode(codec.encode(name)), _NOTHING, error) from error
    return encoded


def _check_kinds(values: Sequence[Any], codec: Any, absent: Any, given: Sequence[Any] | None = None) -> None:
    """Reads back one value of each type. ``given``: the parts of them whose types count."""
    parts = values if given is None else given
    kinds = set(map(type, parts))
    kinds.discard(type(absent))
    for kind in kinds:
        codec.decode(codec.encode(next(value for value, part in zip(values, parts) if type(part) is kind)))


def _find_misfit(
    table: str, values: Sequence[Any], check: Callable[[Any], Any], absent: Any, error: Exception,
    *, find_part: Callable[[Any], MisfitPart | None] | None = None,
) -> Misfit:  # fmt: skip
    for position, value in enumerate(values):
        if value is not absent:
            try:
                check(value)
            except NOT_ENCODABLE as its_error:
                part = None if find_part is None else find_part(value)
                if part is None:
                    misfit = Misfit(_misfit(table, value, its_error))
                else:
                    misfit = Misfit(_sentence(part.lead, part.value, part.error))
                    misfit.way_out = part.way_out
                misfit.position = position
                return misfit
    return Misfit(_misfit(table, list(values[:3]), error))


def _misfit(table: str, value: Any, error: Exception) -> str:
    return _sentence(f"the state {table!r} was given", value, error)


def _sentence(lead: str, value: Any, error: Exception) -> str:
    try:
        given = f"{value!r:.200}"
    except Exception:
        given = f"an object of {type(value).__name__}"
    reason = error.expected or error.what if isinstance(error, HeadraceError) else error
    return f"{lead} {given}, which its type cannot hold: {reason}"


def refusal(step: str, error: Misfit) -> FunctionFailed:
    """The error that stops a task in which a function set something that does not fit."""
    key = key_text(decode_key(error.key)) if error.key else ""
    failed = FunctionFailed(
        str(error),
        where=f"step {step}",
        found=f"key {key}" if key else "",
        next_move=f"nothing was published: {error.way_out}",
    )
    failed.failure = Failure(kind="function", step=step, error=str(error), key=key, way_out=error.way_out)
    return failed


def unreadable(table: str, error: Exception) -> StoreError:
    return StoreError(
        "a stored value does not fit the type its state is declared with",
        where=f"state {table!r}",
        found=str(error),
        next_move="give new fields a default and keep the types of old ones, or declare the state under a new name",
    )


def weigh_values(values: Sequence[Any], codec: ValueCodec) -> int:
    """Estimated bytes of memory that these values take."""
    if codec is RAW:
        return sum(_OBJECT_BYTES + len(value) for value in values)
    total = 0
    for value in values:
        try:
            total += _OBJECT_BYTES + _OBJECT_FACTOR * len(codec.encode(value))
        except NOT_ENCODABLE:
            # Told when it is to be stored, with its key.
            total += _OBJECT_BYTES
    return total


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
        kind: Any = get_origin(node.cls) or node.cls
        return bool(kind.__struct_config__.frozen)
    # Of a dataclass; classes of attrs have no such note and count as not frozen.
    return bool(getattr(getattr(node.cls, "__dataclass_params__", None), "frozen", False))


def _is_told_by_type(node: Any) -> bool:
    """Whether the Python type of a value says if it fits."""
    if isinstance(node, described.UnionType):
        return all(_is_told_by_type(each) for each in node.types)
    return isinstance(node, _SCALARS) and all(getattr(node, name, None) is None for name in _CONSTRAINTS)
