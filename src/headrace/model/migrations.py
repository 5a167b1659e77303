"""Functions of a program's that lead from an old type to a new one, where the rules do not.

`migrate` registers a function; a program that is compiled takes what is registered along, to its workers. A function is
found by the shapes of its types, wherever values of the old type are met: as a whole value, or inside of one. Several
follow each other where no single one leads from what is stored to what the program has.

What this module deliberately does not do: say what needs a function (`headrace.model.type_change`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from traceback import extract_tb
from typing import Any, Final, NamedTuple, TypeVar, overload

import msgspec

from headrace.errors import ProgramError, StoreError
from headrace.model.time import encode_span
from headrace.model.type_shape import TypeShape, describe_type, nameless
from headrace.model.user_line import short_path
from headrace.model.values import check_storable, type_name

Old = TypeVar("Old")
New = TypeVar("New")

_MOST_STEPS: Final = 16
"""Functions that may follow each other."""


@dataclass(frozen=True)
class Migration:
    """A function from values of one type to values of another."""

    old: TypeShape
    new: TypeShape
    old_type: Any
    new_type: Any
    function: Callable[[Any], Any]

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def apply(self, value: Any) -> Any:
        """From a plain value of the old type to a plain value of the new one. Raises FunctionRaised."""
        old = msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=self.old_type)
        try:
            new = self.function(old)
            made = msgspec.msgpack.encode(new, enc_hook=encode_span)
            # What the function gave must be of the type that it says.
            msgspec.msgpack.decode(made, type=self.new_type)
        except Exception as error:
            raise FunctionRaised(self.function, old, error) from error
        return msgspec.msgpack.decode(made)


class FunctionRaised(Exception):
    """A function of the program's raised for a stored value, or gave what is not of its type."""

    def __init__(self, function: Callable[[Any], Any], value: Any, error: Exception) -> None:
        super().__init__(str(error))
        self.function = function
        self.value = value
        self.error = error

    @property
    def place(self) -> str:
        """The line of the function that was at work; of one that came to its end, where it begins."""
        code = getattr(self.function, "__code__", None)
        if code is None:
            return ""
        lines = [frame.lineno for frame in extract_tb(self.error.__traceback__) if frame.filename == code.co_filename]
        return f"{short_path(code.co_filename)}:{lines[-1] if lines else code.co_firstlineno}"

    def store_error(self, where: str, of: str = "") -> StoreError:
        """The error for people; ``of``: whose value it is."""
        name = str(getattr(self.function, "__qualname__", type(self.function).__qualname__)).split("<locals>.")[-1]
        return StoreError(
            f"{name} raised {type(self.error).__name__}: {self.error}",
            where=where,
            expected="a function that makes a new value of every stored one",
            found="; ".join(part for part in (self.place, of, f"{self.value!r:.300}") if part),
            next_move="mend the function given to hr.migrate and start again: what is stored is as it was",
        )


class Chain(NamedTuple):
    """Functions that lead from one type to another, one after the other."""

    functions: tuple[str, ...]
    """Their names."""
    adapt: Callable[[Any], Any]


_registered: dict[tuple[TypeShape, TypeShape], Migration] = {}


@overload
def migrate(old: type[Old], new: type[New]) -> Callable[[Callable[[Old], New]], Callable[[Old], New]]: ...


@overload
def migrate(old: type[Old], new: type[New], function: Callable[[Old], New]) -> Callable[[Old], New]: ...


def migrate(old: Any, new: Any, function: Callable[[Any], Any] | None = None) -> Any:
    """Says how a stored value of the type ``old`` becomes one of the type ``new``.

    As a decorator, or with the function as third argument. The function is called wherever such a value is read, any
    number of times, on any machine: it must give the same for the same, and look at nothing else. It stays in the
    program until ``headrace plan`` says that no stored value needs it any more.
    """
    if function is None:
        return lambda fn: migrate(old, new, fn)
    for each in (old, new):
        check_storable(each, what="a value to migrate", where="hr.migrate")
    shapes = describe_type(old), describe_type(new)
    if nameless(shapes[0]) == nameless(shapes[1]):
        raise ProgramError(
            f"{type_name(old)} and {type_name(new)} look alike where they are stored",
            where="hr.migrate",
            expected="two types that differ in their fields: values do not say which of two equal types they are of",
            found=f"{type_name(old)} and {type_name(new)} with the same fields",
            next_move="give a field whose meaning changed another name, cents for euros",
        )
    _registered[shapes] = Migration(*shapes, old, new, function)
    return function


def registered_migrations() -> tuple[Migration, ...]:
    """All functions that were registered, in that order."""
    return tuple(_registered.values())


def find_chain(
    old: TypeShape,
    new: TypeShape,
    migrations: Sequence[Migration],
    adapt_by_rules: Callable[[TypeShape, TypeShape], Callable[[Any], Any] | None] | None,
) -> Chain | None:
    """The shortest way from one type to another over at least one function; None: there is none.

    ``adapt_by_rules``: leads between types that need no function; without it each function must begin with the very
    type that the one before ends with.
    """

    def step(one: TypeShape, other: TypeShape) -> Callable[[Any], Any] | None:
        if nameless(one) == nameless(other):
            return lambda value: value
        return None if adapt_by_rules is None else adapt_by_rules(one, other)

    ways: list[tuple[TypeShape, tuple[Migration, ...], tuple[Callable[[Any], Any], ...]]] = [(old, (), ())]
    for _ in range(min(len(migrations), _MOST_STEPS)):
        longer = []
        for at, taken, adapts in ways:
            for migration in migrations:
                first = None if migration in taken else step(at, migration.old)
                if first is None:
                    continue
                there = (*adapts, first, migration.apply)
                last = step(migration.new, new)
                if last is not None:
                    names = tuple(each.name for each in (*taken, migration))
                    return Chain(names, _one_after_the_other((*there, last)))
                longer.append((migration.new, (*taken, migration), there))
        ways = longer
    return None


def _one_after_the_other(adapts: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def adapt(value: Any) -> Any:
        for each in adapts:
            value = each(value)
        return value

    return adapt
