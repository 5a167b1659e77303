"""Programs on their way to the workers: cloudpickle, taught what it gets wrong.

Classes and functions that a worker can import travel by name. Those of ``__main__``, of notebooks and of functions
travel by value, and cloudpickle cannot do that for msgspec Structs: their fields become slots that it tries to pass
again. Here a Struct is made anew from its fields, defaults and configuration; its annotations and methods follow once
it exists, so that classes may refer to each other and to themselves. A class keeps its identity within a payload,
across payloads of one process, and in the process it came from.

Payloads are code: they go from the driver to its workers and are never part of a store.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import pickle
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final, NewType, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import cloudpickle
import msgspec
from msgspec import structs

from headrace.errors import EnvironmentMissing, ProgramError
from headrace.model.hints import own_annotations, settle_annotations, settle_type
from headrace.model.record import Row, row_shape, row_type
from headrace.plan.physical import OpPlan

_tokens: WeakKeyDictionary[type, str] = WeakKeyDictionary()
_classes: WeakValueDictionary[str, type] = WeakValueDictionary()
_complete: set[str] = set()

_CACHE: Final = "__msgspec_cache__"
_CONFIG: Final = (
    "frozen", "eq", "order", "array_like", "gc", "repr_omit_defaults", "omit_defaults", "forbid_unknown_fields",
    "weakref", "dict", "cache_hash", "tag", "tag_field",
)  # fmt: skip
#: What msgspec and Python put into a Struct's namespace by themselves.
_MADE: Final = (
    "__annotations__", "__dict__", "__match_args__", "__module__", "__qualname__", "__slots__", "__weakref__",
    "__post_init__", "__static_attributes__", "__firstlineno__",
)  # fmt: skip
_CODE: Final = (type, FunctionType, BuiltinFunctionType, ModuleType)
_SENTINELS: Final = {
    id(value): name
    for name, value in vars(dataclasses).items()
    if name in ("MISSING", "KW_ONLY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR")
}


def dump_program(program: Any) -> bytes:
    """A program, or any part of one, as bytes for a worker.

    >>> load_program(dump_program(lambda x: x + 1))(2)
    3
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(program)
    except (TypeError, pickle.PicklingError, AttributeError, RecursionError, NameError) as error:
        raise ProgramError(
            "the program cannot be shipped to the workers",
            where=_find_step(program),
            expected="functions and objects that can be pickled",
            found=f"{type(error).__name__}: {error}",
            next_move="open connections, files and locks in open() of a Process, not in __init__ or in the module",
        ) from error
    return buffer.getvalue()


def check_shippable(program: Any, app: Any) -> None:
    """Raise what a run of the program's file would raise: the module that holds the app is shipped by value then.

    A module that was imported is shipped by name otherwise, and what its functions close over is never looked at.
    """
    modules = [sys.modules.get(name) for name in dict.fromkeys(_modules_of_functions(program))]
    holding = [
        module for module in modules if module is not None and any(each is app for each in vars(module).values())
    ]
    fresh = [module for module in holding if not _is_by_value(module.__name__)]
    for module in fresh:
        cloudpickle.register_pickle_by_value(module)
    try:
        dump_program(program)
    finally:
        for module in fresh:
            cloudpickle.unregister_pickle_by_value(module)


def _modules_of_functions(program: Any) -> Iterator[str]:
    for plan in _op_plans(program):
        for part in (*getattr(plan.build, "args", ()), *getattr(plan.build, "keywords", {}).values()):
            yield getattr(part, "__module__", None) or type(part).__module__
    for migration in getattr(program, "migrations", ()):
        yield migration.function.__module__


def _op_plans(part: Any) -> Iterator[OpPlan]:
    if isinstance(part, OpPlan):
        yield part
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        for field in dataclasses.fields(part):
            yield from _op_plans(getattr(part, field.name))
    elif isinstance(part, tuple | list | dict):
        for each in part.values() if isinstance(part, dict) else part:
            yield from _op_plans(each)


def _find_step(program: Any) -> str:
    """The first step whose code cannot be shipped; empty where it is something else."""
    for plan in _op_plans(program):
        try:
            _Pickler(io.BytesIO(), protocol=pickle.HIGHEST_PROTOCOL).dump(plan.build)
        except Exception:
            return f"step {plan.step}"
    return ""


def load_program(payload: bytes | memoryview) -> Any:
    """What `dump_program` was given."""
    try:
        return pickle.loads(payload)
    except ModuleNotFoundError as error:
        raise EnvironmentMissing(
            f"a worker cannot import the module {error.name!r}",
            expected="every module that the program imports, on every machine",
            found=f"{error}",
            next_move="install it there, or ship it by value: cloudpickle.register_pickle_by_value(module)",
        ) from error


def copy_program(program: Any) -> Any:
    """A program as if it had been shipped, for tasks that run in this very process.

    Objects become copies, as in a worker: what a function's object collects in itself stays out of the program, and is
    gone when the program is copied again. Code is shared: functions, with what they close over, classes and modules.

    >>> counts = {"a": [1]}
    >>> copied = copy_program((counts, len))
    >>> copied == (counts, len), copied[0]["a"] is counts["a"]
    (True, False)
    """
    buffer = io.BytesIO()
    copier = _Copier(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    copier.dump(program)
    buffer.seek(0)
    return _Uncopier(buffer, copier.shared).load()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol=protocol)
        # Most processes only load: these would be half of what they import.
        from headrace.dataflow.app import App
        from headrace.dataflow.stream import Stream
        from headrace.dataflow.variables import Secret

        self._builders = (App, Stream)
        self._secret = Secret

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            if _CACHE in obj.__dict__:
                # What msgspec worked out about an enum or dataclass; it cannot be pickled and is worked out again.
                delattr(obj, _CACHE)
            if _has_typed_fields(obj) and not _by_name(obj):
                settle_annotations(obj, sys._getframe(0), everywhere=True)
            if issubclass(obj, msgspec.Struct) and not _by_name(obj):
                return _reduce_row_type(obj) if _is_row_type(obj) else _reduce_struct(obj)
        elif isinstance(obj, NewType):
            if not _by_name(obj):
                return _make_new_type, (obj.__name__, obj.__supertype__, obj.__module__)
        elif isinstance(obj, self._secret):
            # Workers may live where the environment lacks it, so here alone the value itself travels.
            return self._secret, (obj.name, obj.reveal())
        elif id(obj) in _SENTINELS:
            return getattr, (dataclasses, _SENTINELS[id(obj)])
        elif isinstance(obj, self._builders):
            raise ProgramError(
                "a function uses the app or a stream, which exist in the driver only",
                expected="functions that use rows, state and plain values",
                found=repr(obj),
                next_move="pass what the function needs as a plain value, or connect the streams outside of it",
            )
        return super().reducer_override(obj)


class _Copier(_Pickler):
    """Pickles everything but code, which it keeps aside."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol=protocol)
        self.shared: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, _CODE):
            return None
        self.shared.append(obj)
        return len(self.shared) - 1


class _Uncopier(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: int) -> Any:
        return self._shared[pid]


def _by_name(obj: Any) -> bool:
    """Whether a worker that imports the object's module finds this very object there."""
    module = sys.modules.get(obj.__module__)
    if module is None or obj.__module__ == "__main__" or _is_by_value(obj.__module__):
        return False
    found: Any = module
    for part in getattr(obj, "__qualname__", obj.__name__).split("."):
        found = getattr(found, part, None)
    return found is obj


def _has_typed_fields(cls: type) -> bool:
    """Whether msgspec reads the annotations of this class: a dataclass, a NamedTuple or a TypedDict."""
    return dataclasses.is_dataclass(cls) or hasattr(cls, "_field_defaults") or hasattr(cls, "__required_keys__")


def _is_by_value(module: str) -> bool:
    registered = cloudpickle.list_registry_pickle_by_value()
    parts = module.split(".")
    return any(".".join(parts[: i + 1]) in registered for i in range(len(parts)))


# -- structs -------------------------------------------------------------------------------------------------------


def _is_row_type(cls: type) -> bool:
    return Row in cls.__bases__ and cls.__module__ == Row.__module__


def _reduce_row_type(cls: Any) -> Any:
    shape = row_shape(cls)
    return partial(row_type, nullable=shape.nullable, optional=shape.optional), (shape.name, dict(shape.fields))


def _reduce_struct(cls: Any) -> Any:
    settle_type(cls)
    own = [name for name in own_annotations(cls) if name in cls.__struct_fields__]
    fields = {field.name: field for field in structs.fields(cls)}
    parameters = inspect.signature(cls).parameters
    config = {name: getattr(cls.__struct_config__, name) for name in _CONFIG}
    config["kw_only"] = bool(own) and all(parameters[n].kind is inspect.Parameter.KEYWORD_ONLY for n in own)
    config["rename"] = {name: fields[name].encode_name for name in own if fields[name].encode_name != name} or None
    defaults = {name: (fields[name].default, fields[name].default_factory) for name in own}
    made = (
        _token(cls), type(cls), cls.__name__, cls.__qualname__, cls.__module__, cls.__bases__, defaults, config,
        cls.__dict__.get("__post_init__"),
    )  # fmt: skip
    return _make_struct, made, (_annotations(cls, fields), _attributes(cls)), None, None, _finish_struct


def _annotations(cls: Any, fields: dict[str, structs.FieldInfo]) -> dict[str, Any]:
    """Annotations with every name resolved: text would be looked up in a module that does not exist over there."""
    generic = any(isinstance(each, TypeVar) for each in getattr(cls, "__parameters__", ()))
    own = own_annotations(cls)
    return {name: value if generic else fields[name].type for name, value in own.items() if name in fields}


def _attributes(cls: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in cls.__dict__.items()
        if name not in _MADE and not name.startswith("__struct_") and not inspect.ismemberdescriptor(value)
    }


def _token(cls: type) -> str:
    token = _tokens.get(cls)
    if token is None:
        token = _tokens[cls] = uuid.uuid4().hex
        _classes[token] = cls
        _complete.add(token)
    return token


def _make_struct(
    token: str,
    meta: Callable[..., type],
    name: str,
    qualname: str,
    module: str,
    bases: tuple[type, ...],
    defaults: dict[str, tuple[Any, Any]],
    config: dict[str, Any],
    post_init: Callable[[Any], None] | None,
) -> type:
    known = _classes.get(token)
    if known is not None:
        return known
    namespace: dict[str, Any] = {"__module__": module, "__qualname__": qualname}
    namespace["__annotations__"] = dict.fromkeys(defaults, Any)
    for field, (default, factory) in defaults.items():
        if default is not msgspec.NODEFAULT or factory is not msgspec.NODEFAULT:
            namespace[field] = msgspec.field(default=default, default_factory=factory)  # type: ignore[call-overload]
    if post_init is not None:
        # msgspec looks for it when the class is made and never again.
        namespace["__post_init__"] = post_init
    cls = meta(name, bases, namespace, **config)
    _tokens[cls] = token
    _classes[token] = cls
    return cls


def _finish_struct(cls: type, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    token = _tokens[cls]
    if token in _complete:
        return
    annotations, attributes = state
    cls.__annotations__ = annotations
    for name, value in attributes.items():
        setattr(cls, name, value)
    _complete.add(token)


_new_types: dict[tuple[str, Any, str], Any] = {}


def _make_new_type(name: str, supertype: Any, module: str) -> Any:
    known = _new_types.get((name, supertype, module))
    if known is None:
        make: Any = NewType
        known = _new_types[name, supertype, module] = make(name, supertype)
        known.__module__ = module
    return known


def ship_by_value(module: ModuleType) -> None:
    """Ship everything in a module by value: for a program that workers cannot import."""
    cloudpickle.register_pickle_by_value(module)
