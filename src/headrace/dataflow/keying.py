"""What rows are keyed by: from what a user gives to ``key_by`` to a `KeySpec`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import MemberDescriptorType
from typing import Any

from headrace.dataflow.outputs import check_callable
from headrace.dataflow.projection import known_column
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.model.hints import function_hints
from headrace.model.keyspec import WHOLE_STREAM, KeySpec
from headrace.model.rows import RowCodec
from headrace.model.shapes import split_optional, strip, union_members
from headrace.model.user_line import user_frame
from headrace.model.values import type_name
from headrace.sql.expr import Expr


def key_spec(codec: RowCodec, keys: Sequence[Any], at: Site) -> KeySpec:
    """The key that a user asked for, its columns checked against the rows."""
    if not keys:
        raise ProgramError(
            "key_by without a key",
            where=str(at),
            expected="a field, a column's name, several of them, or a function",
            found="nothing",
            next_move=f"for instance key_by({codec.names[0]!r})",
        )
    functions = [key for key in keys if callable(key) and not isinstance(key, MemberDescriptorType | Expr)]
    if functions:
        return _function_spec(keys, at)
    columns = tuple(known_column(codec, key, str(at)) for key in keys)
    if len(set(columns)) != len(columns):
        raise ProgramError(
            "key_by names a column twice",
            where=str(at),
            expected="each column once",
            found=", ".join(columns),
            next_move="leave one of them out",
        )
    for name in columns:
        check_key_type(codec.annotations[name], f"{type_name(codec.type)}.{name}", at)
    return key_of_columns(codec, columns)


def key_of_columns(codec: RowCodec, columns: tuple[str, ...]) -> KeySpec:
    """The key that these columns of a row make."""
    if not columns:
        return WHOLE_STREAM
    types = [codec.annotations[name] for name in columns]
    key_type = types[0] if len(types) == 1 else tuple[tuple(types)]  # type: ignore[misc]
    return KeySpec(columns, None, key_type)


def _function_spec(keys: Sequence[Any], at: Site) -> KeySpec:
    if len(keys) > 1:
        raise ProgramError(
            "key_by takes one function or any number of columns",
            where=str(at),
            expected="one function, or any number of columns",
            found=f"{len(keys)} arguments",
            next_move="return a tuple from the function: key_by(lambda row: (row.a, row.b))",
        )
    fn = keys[0]
    check_callable(fn, "key_by", at)
    try:
        returned = function_hints(fn, user_frame()).get("return", Any)
    except (NameError, AttributeError):
        returned = Any
    check_key_type(returned, f"the key of {getattr(fn, '__name__', 'the function')}", at)
    return KeySpec(None, fn, returned)


def check_key_type(annotation: Any, what: str, at: Site | str, next_move: str = "") -> None:
    """Refuse types whose values are no keys."""
    bare, _ = split_optional(strip(annotation))
    if bare is Any or not _is_container(bare):
        return
    raise ProgramError(
        f"{what} cannot be a key",
        where=str(at),
        expected="text, numbers, bytes, booleans, dates, timestamps, UUIDs, enums, None, or several of these",
        found=type_name(annotation),
        next_move=next_move or "key by its parts: key_by('a', 'b'), or by a function that returns a tuple",
    )


def _is_container(bare: Any) -> bool:
    from typing import get_args, get_origin

    from headrace.model.shapes import is_record_class

    if union_members(bare):
        return any(_is_container(strip(member)) for member in union_members(bare))
    origin = get_origin(bare) or bare
    if origin is tuple:
        return any(_is_container(strip(part)) for part in get_args(bare) if part is not ...)
    collection = isinstance(origin, type) and issubclass(origin, Collection) and not issubclass(origin, (str, bytes))
    return is_record_class(bare) or collection
