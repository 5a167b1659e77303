"""Mistakes in the class of a function, found by the verb that takes an instance of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.dataflow.functions import function_types
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.model.keyspec import KeySpec
from headrace.model.rows import RowCodec
from headrace.model.shapes import union_members
from headrace.model.values import type_name
from headrace.state.handles import StateDecl


def check_function(
    fn: Any, root: type, form: str, methods: Sequence[str], taken: Sequence[RowCodec], key: KeySpec | None, at: Site
) -> Any:
    """The type of the rows that an instance of a class of functions gives; refuses what does not fit its streams.

    ``form``: what a user derives from, as it is written: ``hr.Process[In, Out, Key]``; the rows ``taken`` stand first.
    """
    check_instance(fn, root, form, at)
    cls = type(fn)
    *wanted, out, key_type = function_types(cls, root, len(taken) + 2)
    check_methods(cls, root, methods, at)
    if "on_broadcast" not in methods:
        _check_no_broadcast(cls, at)
    _check_output(cls, out, form, at)
    for place, (each, codec) in enumerate(zip(wanted, taken, strict=True)):
        _check_taken(cls, each, codec, at, _argument(form, place))
    if key is not None:
        _check_key(cls, key_type, key, at, _argument(form, -1))
    return out


def _argument(form: str, place: int) -> str:
    """One of the arguments of a class, as it is written: ``hr.Process[In, …]``."""
    kind, _, arguments = form[:-1].partition("[")
    names = arguments.split(", ")
    before, after = "…, " if place else "", "" if place == -1 else ", …"
    return f"{kind}[{before}{names[place]}{after}]"


def check_instance(fn: Any, root: type, form: str, at: Site) -> None:
    """``form``: what a user derives from, as it is written: ``hr.Process[In, Out, Key]``."""
    if isinstance(fn, type) and issubclass(fn, root):
        raise ProgramError(
            f"process takes an instance of {fn.__name__}",
            where=str(at),
            expected=f"process({fn.__name__}(…))",
            found=f"the class {fn.__name__}",
            next_move="add the parentheses",
        )
    if not isinstance(fn, root):
        raise ProgramError(
            "process takes a process function",
            where=str(at),
            expected=f"an instance of a class derived from {form}",
            found=repr(fn),
            next_move="for plain functions there are map, flat_map and filter",
        )


def check_methods(cls: Any, root: Any, wanted: Sequence[str], at: Site) -> None:
    """The methods that the engine will call; one that sets timers has ``on_timer`` too."""
    for name in wanted:
        if getattr(cls, name) is getattr(root, name):
            raise ProgramError(
                f"{cls.__name__} has no {name}",
                where=str(at),
                expected=f"def {name}(self, event, ctx)",
                found="a class without it",
            )
    timers = [
        value.name
        for base in cls.__mro__
        for value in base.__dict__.values()
        if isinstance(value, StateDecl) and value.kind in ("timer", "wall_timer", "timers")
    ]
    if timers and cls.on_timer is root.on_timer:
        raise ProgramError(
            f"{cls.__name__} sets timers and has no on_timer",
            where=str(at),
            expected="def on_timer(self, timer, ctx)",
            found=f"timers {', '.join(timers)}",
            next_move=f"say in on_timer what happens when {timers[0]} is due, or leave it out",
        )


def _check_no_broadcast(cls: type, at: Site) -> None:
    """Only a function that gets broadcast rows has broadcast states."""
    for base in cls.__mro__:
        for value in base.__dict__.values():
            if isinstance(value, StateDecl) and value.kind == "broadcast":
                raise ProgramError(
                    f"{cls.__name__}.{value.name} is a broadcast state, and {cls.__name__} gets no broadcast rows",
                    where=str(at),
                    expected="a state by key, or a function derived from hr.BroadcastProcess[In, Rule, Out, Key]",
                    found=f"{value.name}: hr.BroadcastState[…]",
                    next_move="stream.key_by(…).connect(rules.broadcast()).process(…), or hr.MapState",
                )


def _check_output(cls: type, given: Any, form: str, at: Site) -> None:
    """The type of the rows that come out has to be known: nobody says it elsewhere."""
    if given is Any:
        kind, _, arguments = form.partition("[")
        place = ("first", "second", "third", "fourth")[arguments.rstrip("]").split(", ").index("Out")]
        raise ProgramError(
            f"the type of the rows that {cls.__name__} gives is not known",
            where=str(at),
            expected=f"class {cls.__name__}({form})",
            found=f"class {cls.__name__} without it",
            next_move=f"name the row type as the {place} argument of {kind}[…]",
        )


def _check_taken(cls: type, taken: Any, codec: RowCodec, at: Site, said: str) -> None:
    """``said``: where the class says what it takes: ``hr.Process[In, …]``."""
    if not _accepts(taken, codec.type):
        raise ProgramError(
            f"{cls.__name__} takes rows of another type than this stream has",
            where=str(at),
            expected=type_name(taken),
            found=type_name(codec.type),
            next_move=f"map the stream to that type first, or change {said}",
        )


def _check_key(cls: type, kept: Any, key: KeySpec, at: Site, said: str) -> None:
    """``said``: where the class says the type of its key: ``hr.Process[…, …, Key]``."""
    # Any is a class, too, and what a function gives as a key is Any unless it says more.
    told = isinstance(kept, type) and isinstance(key.type, type) and Any not in (kept, key.type)
    if told and not issubclass(key.type, kept):
        raise ProgramError(
            f"{cls.__name__} has another type of key than this stream",
            where=str(at),
            expected=type_name(kept),
            found=f"key_by({key}), which is {type_name(key.type)}",
            next_move=f"key by another column, or change {said}",
        )


def _accepts(taken: Any, given: Any) -> bool:
    """Whether rows of one type may go where the other is asked for; doubtful cases are left to the type checker."""
    wanted = union_members(taken) or (taken,)
    for each in union_members(given) or (given,):
        classes = [want for want in wanted if isinstance(want, type)]
        if len(classes) == len(wanted) and isinstance(each, type) and not issubclass(each, tuple(classes)):
            return False
    return True
