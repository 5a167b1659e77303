"""Columns as users name them in arguments of sources and sinks: by name, or by the field of a Record."""

from __future__ import annotations

from collections.abc import Iterable
from types import MemberDescriptorType
from typing import Any

from headrace.errors import ProgramError


def field_names(fields: Any, what: str, where: str) -> tuple[str, ...]:
    """Several columns, one, or none.

    >>> field_names("day", "partition_by", "sink.files"), field_names(("shop", "day"), "partition_by", "sink.files")
    (('day',), ('shop', 'day'))
    """
    if fields is None:
        return ()
    single = isinstance(fields, str | MemberDescriptorType) or not isinstance(fields, Iterable)
    return tuple(field_name(each, what, where) for each in ((fields,) if single else fields))


def field_name(field: Any, what: str, where: str) -> str:
    """A column by its name, or by the field of a Record: ``"id"`` or ``Sale.id``.

    >>> field_name("day", "partition_by", "sink.files")
    'day'
    """
    if isinstance(field, MemberDescriptorType):
        return field.__name__
    if isinstance(field, str):
        return field
    raise ProgramError(
        f"{what} takes columns",
        where=where,
        expected=f'names or fields, as in {what}="id" or {what}=(Sale.shop, Sale.day)',
        found=repr(field),
        next_move="name a column; what has to be computed first is made by with_columns",
    )
