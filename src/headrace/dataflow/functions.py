"""Process functions: what users write to keep state and timers per key, and how their declarations are read.

A declaration is an annotation on the class whose type is a handle (``seen: hr.MapState[str, int]``). When the class is
made, each becomes a `StateDecl` on it, so that ``Fraud.odd`` can be passed around; types that are not known yet
(forward references) are filled in when the class is used in a step. Anything else on the class is the user's own
business.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from types import FrameType
from typing import Any, ForwardRef, Generic, TypeVar, get_args, get_origin

import typing_extensions

from headrace.dataflow.keying import check_key_type
from headrace.dataflow.naming import check_name
from headrace.dataflow.site import Site, call_site
from headrace.errors import ProgramError
from headrace.model.hints import evaluate, local_names, own_annotations
from headrace.model.rows import codec_of
from headrace.model.user_line import user_frame
from headrace.model.values import check_storable, type_name
from headrace.state.handles import HANDLE_KINDS, Context, StateDecl, Timer

In = TypeVar("In")
Out = TypeVar("Out")
K = typing_extensions.TypeVar("K", default=Any)

_PENDING = "__headrace_pending__"
_ARGUMENTS = {"value": 1, "list": 1, "map": 2, "reducing": 1, "aggregating": 2, "side": 1, "broadcast": 2}
_STORED = ("value", "list", "map", "reducing", "aggregating")
_TIMERS = ("timer", "wall_timer", "timers")


def _kind_of(annotation: Any) -> Any:
    origin = get_origin(annotation) or annotation
    return HANDLE_KINDS.get(origin) if isinstance(origin, type) else None


def _check_nothing_inside(cls: type, name: str, annotation: Any) -> None:
    """A state inside of something else would never be bound."""
    for part in get_args(annotation):
        if _kind_of(part) is not None:
            raise _misplaced(cls, name, f"{name}: {type_name(annotation)}", f"{name}: {type_name(part)}")
        _check_nothing_inside(cls, name, part)


def _declare(cls: type, frame: FrameType) -> None:
    """Turn the annotations of a new class into declarations."""
    annotations = own_annotations(cls)
    names = local_names(cls.__module__, frame) if "<locals>" in cls.__qualname__ else {}
    pending: dict[str, str] = {}
    for name, annotation in annotations.items():
        resolved = annotation
        if isinstance(annotation, str):
            try:
                resolved = evaluate(annotation, cls, names)
            except (NameError, AttributeError, TypeError, SyntaxError):
                pending[name] = annotation
                resolved = _head_of(annotation, cls, names)
        kind = _kind_of(resolved)
        if kind is not None:
            setattr(cls, name, _declaration(cls, name, kind, resolved, unknown=name in pending))
        elif isinstance(cls.__dict__.get(name), StateDecl):
            raise _not_a_handle(cls, name, resolved)
        elif name not in pending:
            _check_nothing_inside(cls, name, resolved)
    for name, value in list(cls.__dict__.items()):
        if isinstance(value, StateDecl) and name not in annotations:
            raise _not_a_handle(cls, name, None)
        if _kind_of(value) is not None:
            raise _misplaced(cls, name, f"{name} = {type_name(value)}", f"{name}: {type_name(value)}")
    setattr(cls, _PENDING, pending)


class StatefulFunction:
    """What all functions with declarations share; users derive from `Process` and its kin.

    An instance is made in the user's program and shipped to the workers; `open` and `close` run once per worker.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _declare(cls, sys._getframe(1))

    def open(self) -> None:
        """Once per worker before the first row: the place for connections and models. Not once per epoch."""

    def close(self) -> None:
        """Once per worker when it ends in an orderly way."""


class Process(StatefulFunction, Generic[In, Out, K]):
    """A function with state and timers per key: rows of ``In`` go in, rows of ``Out`` come out, ``K`` types the key.

    An instance is made in your program and shipped to the workers; `open` and `close` run once per worker. State,
    timers, side outputs and counters are declared by annotation and can be used in `on_event` and `on_timer`.

    >>> import headrace as hr
    >>> from collections.abc import Iterator
    >>> class Total(hr.Record):
    ...     tweet: str
    ...     n: int
    >>> class Count(hr.Process[Total, Total, str]):
    ...     total: hr.ValueState[int]
    ...     def on_event(self, event: Total, ctx: hr.Context[str]) -> Iterator[Total]:
    ...         n = self.total.get(0) + event.n
    ...         self.total.set(n)
    ...         yield Total(ctx.key, n)
    """

    def on_event(self, event: In, ctx: Context[K]) -> Iterable[Out] | None:
        """For each row, in the order of its split. Yields any number of rows."""
        raise NotImplementedError

    def on_timer(self, timer: Timer, ctx: Context[K]) -> Iterable[Out] | None:
        """When a timer of this key is due; ``timer.name`` or ``timer is self.quiet`` tells which. Yields rows."""
        raise NotImplementedError


def _head_of(annotation: str, cls: type, names: Any) -> Any:
    """``ValueState`` of ``hr.ValueState[NotKnownYet]``."""
    try:
        return evaluate(annotation.partition("[")[0], cls, names)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None


def _misplaced(cls: type, name: str, found: str, expected: str) -> ProgramError:
    return ProgramError(
        f"{cls.__name__}.{name} looks like a state, but does not declare one",
        where=str(call_site()),
        expected=expected,
        found=found,
        next_move="declare each state by an annotation of its own; MapState holds many values under names",
    )


def _declaration(cls: type, name: str, kind: Any, annotation: Any, *, unknown: bool) -> StateDecl:
    where = str(call_site())
    check_name(name, f"a state of {cls.__name__}", where)
    _check_hides_nothing(cls, name, annotation, where)
    given = cls.__dict__.get(name, StateDecl())
    if not isinstance(given, StateDecl):
        raise ProgramError(
            f"{cls.__name__}.{name} is declared as {type_name(annotation)} and given a value",
            where=where,
            expected=f"nothing, or {name}: {type_name(annotation)} = hr.state(…)",
            found=repr(given),
            next_move="leave the value out; states start empty",
        )
    args = get_args(annotation)
    if not unknown and len(args) != _ARGUMENTS.get(kind, 0):
        handle = type_name(get_origin(annotation) or annotation)
        types = ", ".join(["str", "int"][: _ARGUMENTS.get(kind, 0)])
        raise ProgramError(
            f"{cls.__name__}.{name} does not say what it holds",
            where=where,
            expected=f"{handle}[{types}] or the like",
            found=type_name(annotation),
            next_move=f"write {name}: hr.{handle}[…]",
        )
    _check_options(cls, name, kind, given, where)
    return replace(given, name=name, kind=kind, args=args)


def _check_hides_nothing(cls: type, name: str, annotation: Any, where: str) -> None:
    """A state called ``open`` would be in the place of the method that is called before the first row."""
    for base in cls.__mro__[1:]:
        if callable(base.__dict__.get(name)):
            raise ProgramError(
                f"{cls.__name__}.{name} is declared as {type_name(annotation)}, and is a method of {base.__name__}",
                where=where,
                expected="a name that no method has",
                found=f"{name}: {type_name(annotation)}",
                next_move=f"call it something else: is_{name}, {name}_state",
            )


def _check_options(cls: type, name: str, kind: str, decl: StateDecl, where: str) -> None:
    fits = {
        "ttl": (decl.ttl, kind in _STORED, "states only, and those by key"),
        "max_len": (decl.max_len, kind == "list", "a ListState only"),
        "reduce": (decl.reduce, kind == "reducing", "a ReducingState only"),
        "aggregator": (decl.aggregator, kind == "aggregating", "an AggregatingState only"),
        "was": (decl.was, kind in (*_STORED, *_TIMERS, "broadcast"), "states and timers only"),
        "scope": (None if decl.scope == "key" else decl.scope, _may_scope(cls, kind), "states of a WindowProcess only"),
    }
    for option, (value, allowed, use) in fits.items():
        if value is not None and not allowed:
            raise ProgramError(
                f"{cls.__name__}.{name} has an option that does not fit",
                where=where,
                expected=f"{option}= is for {use}",
                found=f"{option}={value!r} for a {kind}",
                next_move=f"leave {option}= out",
            )
    missing = {"reducing": ("reduce", "max"), "aggregating": ("aggregator", "Mean()")}.get(kind)
    if missing is not None and getattr(decl, missing[0]) is None:
        raise ProgramError(
            f"{cls.__name__}.{name} does not say how to combine what is added",
            where=where,
            expected=f"{missing[0]}= in its declaration",
            found="nothing",
            next_move=f"write {name}: … = hr.state({missing[0]}={missing[1]})",
        )
    if decl.was is not None:
        check_name(decl.was, f"a former state of {cls.__name__}", where)


def _may_scope(cls: type, kind: str) -> bool:
    return bool(getattr(cls, "_has_windows", False)) and kind in _STORED


def declare_class(cls: type, root: type) -> None:
    """Reads the declarations of a class that did not do so when it was made, and of those between it and ``root``."""
    for base in reversed(cls.__mro__):
        if issubclass(base, root) and base is not root and _PENDING not in base.__dict__:
            _declare(base, user_frame() or sys._getframe(1))


def _not_a_handle(cls: type, name: str, annotation: Any) -> ProgramError:
    return ProgramError(
        f"{cls.__name__}.{name} has options of a state, but is not declared as one",
        where=str(call_site()),
        expected=f"{name}: hr.ValueState[…] = hr.state(…), or another kind of state",
        found="no annotation" if annotation is None else type_name(annotation),
        next_move="annotate it with the state's type",
    )


def declares_state(cls: type) -> bool:
    """Whether objects of this class keep state per key, so that they need one."""
    if issubclass(cls, StatefulFunction):
        return True
    for base in cls.__mro__:
        for annotation in own_annotations(base).values():
            if isinstance(annotation, str):
                annotation = _head_of(annotation, base, local_names(base.__module__, user_frame()))
            if _kind_of(annotation) is not None:
                return True
    return False


def declarations(cls: type, at: Site | None = None) -> tuple[StateDecl, ...]:
    """Everything a class declares, its bases first, with all types resolved and checked."""
    where = str(at or call_site())
    _settle_pending(cls, where)
    found: dict[str, StateDecl] = {}
    for base in reversed(cls.__mro__):
        # By annotations, so that the order is the one in which the user wrote them.
        for name in own_annotations(base):
            if isinstance(base.__dict__.get(name), StateDecl):
                found[name] = base.__dict__[name]
    for decl in found.values():
        _check_types(cls, decl, where)
    _check_former_names(cls, found, where)
    return tuple(found.values())


def _settle_pending(cls: type, where: str) -> None:
    for base in cls.__mro__:
        for name, text in list(base.__dict__.get(_PENDING, {}).items()):
            try:
                resolved = evaluate(text, base, local_names(base.__module__, user_frame()))
            except (NameError, AttributeError) as error:
                if not isinstance(base.__dict__.get(name), StateDecl) and "State" not in text:
                    continue  # Somebody else's annotation, for type checkers only.
                raise ProgramError(
                    f"the type of {base.__name__}.{name} contains an unknown name",
                    where=where,
                    found=f"{text}: {error}",
                    next_move="define or import the name where the class is defined",
                ) from error
            kind = _kind_of(resolved)
            if kind is not None:
                setattr(base, name, _declaration(base, name, kind, resolved, unknown=False))
            else:
                _check_nothing_inside(base, name, resolved)
            del base.__dict__[_PENDING][name]


def _check_types(cls: type, decl: StateDecl, where: str) -> None:
    what = f"{cls.__name__}.{decl.name}"
    if decl.kind == "side":
        codec_of(decl.args[0], where=where)
    elif decl.kind in (*_STORED, "broadcast"):
        check_storable(decl.value_type, what=what, where=where)
        if decl.kind in ("map", "broadcast"):
            check_storable(decl.args[0], what=f"a key of {what}", where=where)
            named = f"{type_name(decl.args[0])} in {what}"
            check_key_type(decl.args[0], named, where, "name entries by text, a number or a tuple of these")


def _check_former_names(cls: type, found: dict[str, StateDecl], where: str) -> None:
    taken: dict[str, str] = {}
    for name, decl in found.items():
        if decl.was is None:
            continue
        other = taken.setdefault(decl.was, name)
        if decl.was in found or other != name:
            raise ProgramError(
                f"{cls.__name__}.{name} cannot continue {decl.was!r}",
                where=where,
                expected="a former name that no other state has or continues",
                found=f"{decl.was!r} is {'a state of its own' if decl.was in found else f'continued by {other} too'}",
                next_move="rename one of them, or leave was= out",
            )


def function_types(cls: type, root: type, count: int) -> tuple[Any, ...]:
    """What a class fills in for the type variables of the kind of function it is; Any where it does not say."""
    arguments = _arguments(cls, root, {}) or ()
    return tuple(_resolve(each, cls) for each in (*arguments, *[Any] * count)[:count])


def _arguments(cls: type, root: type, bound: dict[Any, Any]) -> tuple[Any, ...] | None:
    """The arguments with which a class, directly or through generic bases, fills in its kind of function."""
    for base in getattr(cls, "__orig_bases__", cls.__bases__):
        origin = get_origin(base) or base
        if not isinstance(origin, type) or not issubclass(origin, root):
            continue
        args = tuple(bound.get(each, each) for each in get_args(base))
        if origin is root:
            return args
        found = _arguments(origin, root, dict(zip(getattr(origin, "__parameters__", ()), args)))
        if found is not None:
            return found
    return None


def _resolve(annotation: Any, cls: type) -> Any:
    if isinstance(annotation, TypeVar | typing_extensions.TypeVar):
        return Any
    if isinstance(annotation, ForwardRef):
        return evaluate(annotation.__forward_arg__, cls, local_names(cls.__module__, user_frame()))
    return annotation
