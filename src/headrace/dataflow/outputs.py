"""The row type that a user's function gives: from ``output=``, or from its annotations.

A wrong guess here would be found only when rows flow, so nothing is guessed: without either, the program is refused
with the line that fixes it.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar, get_args, get_origin

from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.model.hints import function_hints
from headrace.model.shapes import union_members
from headrace.model.user_line import user_frame
from headrace.model.values import type_name

_MANY = (Iterable, Iterator, Generator, Sequence, Collection, AbstractSet, list, tuple, set, frozenset)


def describe_function(fn: Any) -> str:
    """A function as a user would point at it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name: str = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return name.rpartition("<locals>.")[2]


def check_callable(fn: Any, verb: str, at: Site) -> None:
    """Refuse what is no function, and what keeps state where there is no key."""
    if _declares_state(fn):
        raise ProgramError(
            f"{verb} has no key, so {type(fn).__name__} cannot keep state there",
            where=str(at),
            expected=f"a plain function for {verb}",
            found=f"an object of {type(fn).__name__}, which declares state, timers or side outputs",
            next_move=f"key the stream first: stream.key_by(…).process({type(fn).__name__}(…))",
        )
    if not callable(fn):
        raise ProgramError(
            f"{verb} needs a function",
            where=str(at),
            expected=f"{verb}(lambda row: …) or the name of a function",
            found=repr(fn),
            next_move='text is SQL: use where("…") or select(…) for expressions' if isinstance(fn, str) else "",
        )
    if inspect.iscoroutinefunction(fn):
        raise ProgramError(
            f"{verb} cannot await",
            where=str(at),
            expected="a plain function",
            found=f"async def {describe_function(fn)}",
            next_move=f"use map_async({describe_function(fn)}), which awaits many rows at a time",
        )


def _declares_state(fn: Any) -> bool:
    from headrace.dataflow.functions import declares_state

    return declares_state(fn if isinstance(fn, type) else type(fn))


def output_type(fn: Callable[..., Any], *, verb: str, given: Any, many: bool, at: Site, optional: bool = False) -> Any:
    """The type of the rows that come out of a function: one per call, or with `many` any number of them.

    With `optional` a call may also give None.
    """
    if given is not None:
        return given
    if isinstance(fn, type) and not many:
        return fn
    returned = _return_annotation(fn, at)
    if returned is None or returned is Any or isinstance(returned, TypeVar):
        raise _missing(fn, verb, many, at)
    found = _item_of(returned) if many else returned
    if found is None or found is Any or isinstance(found, TypeVar):
        raise _missing(fn, verb, many, at)
    if found is types.NoneType or (types.NoneType in union_members(found) and not optional):
        raise ProgramError(
            f"{verb} has to give a row, not None",
            where=str(at),
            expected="a row for every call",
            found=f"{describe_function(fn)} returns {type_name(returned)}",
            next_move="use flat_map and yield only the rows you want, or filter before",
        )
    return found


def _return_annotation(fn: Callable[..., Any], at: Site) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    target: Any = fn
    if not inspect.isroutine(fn) and not isinstance(fn, type):
        target = type(fn).__call__
    try:
        hints = function_hints(target, user_frame())
    except NameError as error:
        raise ProgramError(
            f"an annotation of {describe_function(fn)} contains an unknown name",
            where=str(at),
            found=str(error),
            next_move="define or import the name, or give output=",
        ) from error
    returned = hints.get("return")
    return types.NoneType if "return" in hints and returned is None else returned


def _item_of(returned: Any) -> Any:
    """``B`` of ``Iterator[B]``, ``list[B]``, ``Generator[B, None, None]`` and their like."""
    parts, origin = get_args(returned), get_origin(returned)
    if origin is AsyncIterator or not parts:
        return None
    if origin in _MANY:
        return parts[0]
    members = [member for member in union_members(returned) if member is not types.NoneType]
    return _item_of(members[0]) if len(members) == 1 else None


def _missing(fn: Callable[..., Any], verb: str, many: bool, at: Site) -> ProgramError:
    name = describe_function(fn)
    if name == "<lambda>":
        move = f"say it: {verb}(lambda row: …, output=Out)"
    else:
        move = f"annotate it: def {name}(row: In) -> {'Iterator[Out]' if many else 'Out'}, or give output=Out"
    return ProgramError(
        f"the type of the rows that {verb} gives is not known",
        where=str(at),
        expected="a return annotation or output=",
        found=f"{name} without one",
        next_move=move,
    )
