"""Annotations of users' classes, resolved to types.

With ``from __future__ import annotations`` an annotation is text, and the names in it may live where only the defining
function can see them (a test, a notebook helper, a factory). Names are looked for in the locals of the functions of the
class's own module that are running when the class is made or asked for, then in the class's module, then among the
builtins. What can be resolved when the class is made is resolved then; forward references wait until they are needed.

Resolved types are written back into the class's annotations, because msgspec reads them there and knows modules only.
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections import ChainMap
from collections.abc import Mapping
from types import FrameType
from typing import Any, ForwardRef, get_args, get_type_hints


def own_annotations(cls: type) -> dict[str, Any]:
    """The annotations that stand in a class itself, as they are: text or types."""
    own = cls.__dict__.get("__annotations__")
    return own if isinstance(own, dict) else {}


def local_names(module: str, frame: FrameType | None) -> Mapping[str, Any]:
    """Locals of the running functions of this module, the innermost first."""
    maps: list[dict[str, Any]] = []
    while frame is not None:
        if frame.f_globals.get("__name__") == module and frame.f_code.co_flags & inspect.CO_NEWLOCALS:
            maps.append(dict(frame.f_locals))
        frame = frame.f_back
    return ChainMap(*maps) if maps else {}


def settle_annotations(cls: type, frame: FrameType | None, *, everywhere: bool = False) -> None:
    """Replace the text annotations of a class made inside a function by what they name, where that is known already.

    With `everywhere` also those of other classes, which have to be understood where their module is not.
    """
    texts = {name: _text(value) for name, value in own_annotations(cls).items() if isinstance(value, str | ForwardRef)}
    if not texts or not (everywhere or "<locals>" in cls.__qualname__):
        return
    own = cls.__dict__["__annotations__"]
    names = local_names(cls.__module__, frame)
    for name, text in texts.items():
        try:
            own[name] = evaluate(text, cls, names)
        except (NameError, AttributeError, TypeError, SyntaxError):
            continue  # A forward reference: `settle_type` tries again when the class is used.


def _text(annotation: str | ForwardRef) -> str:
    """NamedTuples keep their annotations wrapped."""
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation


def settle_type(annotation: Any, _seen: set[int] | None = None) -> None:
    """Settle every class made inside a function that can be reached from this annotation."""
    seen = set() if _seen is None else _seen
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    for part in get_args(annotation):
        settle_type(part, seen)
    if isinstance(annotation, type) and "<locals>" in annotation.__qualname__:
        for base in annotation.__mro__:
            settle_annotations(base, sys._getframe(1))
            for part in own_annotations(base).values():
                settle_type(part, seen)


def evaluate(text: str, owner: Any, names: Mapping[str, Any]) -> Any:
    """What the text of an annotation of a class or function means, given the names visible where it stands."""
    module = sys.modules.get(owner.__module__)
    space = dict(vars(module)) if module is not None else dict(vars(builtins))
    space.setdefault(owner.__name__, owner)
    space.update(names)
    return get_type_hints(_Holder(text), globalns=space, localns={}, include_extras=True)["it"]


class _Holder:
    """Lets `typing.get_type_hints` resolve one piece of text, nested forward references included."""

    def __init__(self, text: str) -> None:
        self.__annotations__ = {"it": ForwardRef(text, is_argument=False, is_class=True)}


def class_hints(cls: type, frame: FrameType | None = None) -> dict[str, Any]:
    """The annotations of a class and its bases, resolved; raises NameError for a name that nobody knows."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        hints.update(_resolve(base, own_annotations(base), frame or sys._getframe(1)))
    return hints


def function_hints(fn: Any, frame: FrameType | None = None) -> dict[str, Any]:
    """The annotations of a function, resolved; raises NameError for a name that nobody knows."""
    fn = inspect.unwrap(getattr(fn, "__func__", fn))
    return _resolve(fn, getattr(fn, "__annotations__", {}), frame or sys._getframe(1))


def _resolve(owner: Any, annotations: Mapping[str, Any], frame: FrameType) -> dict[str, Any]:
    if not any(isinstance(value, str) for value in annotations.values()):
        return dict(annotations)
    names = local_names(owner.__module__, frame)
    return {
        name: evaluate(value, owner, names) if isinstance(value, str) else value for name, value in annotations.items()
    }
