"""Records: the rows a user declares, and the rows that Headrace declares for a user.

A record is a frozen msgspec Struct. Its fields are columns wherever it travels, so a record never holds anything that
is not a value. `Row` is the base of record types made on the fly, as by ``select("tweet", total="n + 1")``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast, get_args

import msgspec
from msgspec import structs
from typing_extensions import dataclass_transform

from headrace.errors import ProgramError
from headrace.model.hints import settle_annotations

if TYPE_CHECKING:
    from headrace.model.fields import field as described_field

    # To type checkers the Struct underneath is not frozen, and nothing frozen may derive from it: they must not see it.
    @dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field, described_field))
    class _RecordMeta(type): ...

    class _Base(metaclass=_RecordMeta):
        __struct_fields__: ClassVar[tuple[str, ...]]
        __struct_config__: ClassVar[structs.StructConfig]

        def __init_subclass__(
            cls,
            *,
            tag: bool | str | None = None,
            tag_field: str | None = None,
            rename: str | Mapping[str, str] | None = None,
            kw_only: bool = False,
            order: bool = False,
            omit_defaults: bool = False,
            forbid_unknown_fields: bool = False,
            cache_hash: bool = False,
        ) -> None: ...
else:
    # Records are frozen and hold values, so they cannot take part in reference cycles; telling Python's collector so
    # makes each one a third cheaper to build and keeps full collections away from millions of rows.
    class _Base(msgspec.Struct, frozen=True, gc=False):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            settle_annotations(cls, sys._getframe(1))


class Record(_Base):
    """One row: a frozen class whose annotated fields are columns.

    Fields without a default are required; a field added later needs a default, so that older data can still be read.

    >>> class Impression(Record):
    ...     tweet: str
    ...     n: int = 1
    >>> Impression("a").replace(n=3)
    Impression(tweet='a', n=3)
    """

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        made: Any = structs.replace(cast(Any, self), **changes)
        return made  # type: ignore[no-any-return]


class Row(Record):
    """Base of the record types that Headrace makes, for instance for ``select`` without a type."""

    if TYPE_CHECKING:

        def __init__(self, *values: Any, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...


class Failed(Record):
    """A row that could not be decoded, or whose function raised; what ``stream.errors`` gives."""

    step: str
    """Name of the source or step where it happened."""
    error: str
    """Type and text of the exception, or what was wrong with the row."""
    row: bytes
    """The row as JSON, or the undecodable bytes as they came; empty for a timer."""
    trace: str = ""
    """Where in the user's code it happened; empty for undecodable rows."""
    key: str = ""
    """The key as people write it, text as it is and anything else as JSON; empty for a step without one."""
    timer: str = ""
    """Name of the timer, where ``on_timer`` raised."""


class RowShape(NamedTuple):
    """All that a row type is made from."""

    name: str
    fields: tuple[tuple[str, Any], ...]
    nullable: bool
    optional: bool


_row_types: dict[RowShape, type[Row]] = {}
_row_shapes: dict[type, RowShape] = {}


def row_type(name: str, fields: Mapping[str, Any], *, nullable: bool = False, optional: bool = False) -> type[Row]:
    """The `Row` subclass of this name and shape; the same shape gives the same class.

    ``nullable``: every field is None where it is not given. ``optional``: those are whose annotation has None in it,
    and all fields are given by name.

    >>> Total = row_type("Total", {"tweet": str, "total": int})
    >>> Total("a", 3)
    Total(tweet='a', total=3)
    >>> row_type("Total", {"tweet": str, "total": int}) is Total
    True
    >>> row_type("Sale", {"cents": int | None, "shop": str}, optional=True)(shop="a")
    Sale(cents=None, shop='a')
    """
    shape = RowShape(name, tuple(fields.items()), nullable, optional)
    known = _row_types.get(shape)
    if known is None:
        _check_field_names(name, fields)
        # The module is ours on purpose: a row type is made again from its name and fields wherever it is needed.
        members: list[Any] = [
            (*field, None) if nullable or (optional and NoneType in get_args(field[1])) else field
            for field in fields.items()
        ]
        made: Any = msgspec.defstruct(
            name, members, bases=(Row,), module=__name__, frozen=True, gc=False, kw_only=optional
        )
        known = _row_types[shape] = made
        _row_shapes[made] = shape
    return known


def row_shape(cls: type[Row]) -> RowShape:
    """What a row type was made from."""
    return _row_shapes[cls]


def _check_field_names(name: str, fields: Mapping[str, Any]) -> None:
    for field in fields:
        if not field.isidentifier() or field.startswith("__"):
            raise ProgramError(
                f"{name} cannot have a column named {field!r}",
                expected="a name made of letters, digits and underscores",
                found=repr(field),
                next_move='name the column: select(total="n + 1")',
            )
