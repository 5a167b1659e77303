"""Handles of states with one value per key: ValueState, ReducingState, AggregatingState.

Import them from `headrace.state.handles`, which says what handles are. A value that has expired was hidden when it was
read from a run, so only writing (and reading, where that refreshes) has to think of TTL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, overload

from typing_extensions import TypeVar

from headrace.state.copied import CopiedValues
from headrace.state.overlay import UNLOADED, ValueColumn
from headrace.state.ttl import RowExpiry

T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")


class AggregatorLike(Protocol):
    """What an AggregatingState needs of an `hr.Aggregator`."""

    def zero(self) -> Any: ...
    def add(self, acc: Any, x: Any, /) -> Any: ...
    def result(self, acc: Any, /) -> Any: ...
    def accumulator_type(self) -> Any: ...


class ValueState(Generic[T]):
    """One value per key.

    >>> class Totals(hr.Process[Sale, Total, str]):            # doctest: +SKIP
    ...     total: hr.ValueState[int]
    ...     def on_event(self, event, ctx):
    ...         self.total.set(self.total.get(0) + event.cents)
    """

    __slots__ = ("_column", "_dirty", "_slot", "_values")

    def __init__(self, column: ValueColumn) -> None:
        self._slot = -1
        self._column = column
        self._values = column.values
        self._dirty = column.dirty

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: T) -> T: ...
    def get(self, default: T | None = None) -> T | None:
        """The value, or the default where there is none."""
        value = self._values[self._slot]
        if value is UNLOADED:
            value = self._column.load(self._slot)
        return default if value is None else value

    def set(self, value: T) -> None:
        """Replaces the value; None is the same as `clear`."""
        slot = self._slot
        self._values[slot] = value
        self._dirty[slot] = 1

    def clear(self) -> None:
        """Removes the value."""
        self._values[self._slot] = None
        self._dirty[self._slot] = 1


class CopiedValueState(ValueState[T]):
    """A ValueState whose values can be changed in place: its column holds bytes, and who gets a value gets a copy."""

    __slots__ = ("_copies",)

    def __init__(self, column: CopiedValues) -> None:
        super().__init__(column)
        self._copies = column.copies

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: T) -> T: ...
    def get(self, default: T | None = None) -> T | None:
        raw = self._values[self._slot]
        if raw is UNLOADED:
            raw = self._column.load(self._slot)
        return default if raw is None else self._copies.decode(raw)

    def set(self, value: T) -> None:
        slot = self._slot
        self._values[slot] = None if value is None else self._copies.encode(value)
        self._dirty[slot] = 1


class ExpiringValueState(ValueState[T]):
    """A ValueState with a TTL. Expired values are hidden when they are read from a run, so `get` need not judge."""

    __slots__ = ()

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: T) -> T: ...
    def get(self, default: T | None = None) -> T | None:
        value = super().get()
        if value is None:
            return default
        column, slot = self._column, self._slot
        expiry = column.expiry
        if expiry is not None and expiry.on_read and not expiry.is_over(column.expires[slot]):
            column.expires[slot] = expiry.deadline()
            self._dirty[slot] = 1
        return value

    def set(self, value: T) -> None:
        column, slot = self._column, self._slot
        expiry = column.expiry
        assert expiry is not None
        if expiry.on_create and super().get() is not None:
            stored = column.expires[slot]
            if stored is None or expiry.is_over(stored):
                column.expires[slot] = expiry.deadline()
        else:
            column.expires[slot] = expiry.deadline()
        super().set(value)


class ValueStateByRow(ExpiringValueState[T]):
    """A ValueState with a TTL that is judged at the time of the row at hand, when somebody asks."""

    __slots__ = ()

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: T) -> T: ...
    def get(self, default: T | None = None) -> T | None:
        value = super().get()
        if value is None:
            return default
        column, slot = self._column, self._slot
        expiry = column.expiry
        if isinstance(expiry, RowExpiry) and expiry.is_gone(column.expires[slot]):
            self.clear()
            return default
        return value


class ExpiringCopiedValueState(ExpiringValueState[T], CopiedValueState[T]):
    """Both: time is looked after first, then copies are made."""

    __slots__ = ()


class CopiedValueStateByRow(ValueStateByRow[T], CopiedValueState[T]):
    """The same of values that can be changed in place."""

    __slots__ = ()


def value_handle(column: ValueColumn) -> ValueState[Any]:
    """The handle that fits a column: with a TTL or without, judged once or at each row, its values shared or copied."""
    if column.expiry is not None and column.expiry.by_row:
        return CopiedValueStateByRow(column) if isinstance(column, CopiedValues) else ValueStateByRow(column)
    if isinstance(column, CopiedValues):
        return CopiedValueState(column) if column.expiry is None else ExpiringCopiedValueState(column)
    return ValueState(column) if column.expiry is None else ExpiringValueState(column)


class ReducingState(Generic[T]):
    """One value per key, made of everything added: ``best: hr.ReducingState[int] = hr.state(reduce=max)``."""

    __slots__ = ("_fn", "_held")

    def __init__(self, held: ValueState[T], fn: Callable[[T, T], T]) -> None:
        self._held = held
        self._fn = fn

    def add(self, x: T) -> None:
        """Reduces one more into the value; the first becomes the value."""
        held = self._held.get()
        self._held.set(x if held is None else self._fn(held, x))

    def get(self) -> T | None:
        """The reduced value, None if nothing was added."""
        return self._held.get()

    def clear(self) -> None:
        self._held.clear()


class AggregatingState(Generic[In, Out]):
    """An accumulator per key: what is added and what comes out may differ in type.

    ``mean: hr.AggregatingState[int, float] = hr.state(aggregator=Mean())``
    """

    __slots__ = ("_aggregator", "_held")

    def __init__(self, held: ValueState[Any], aggregator: AggregatorLike) -> None:
        self._held = held
        self._aggregator = aggregator

    def add(self, x: In) -> None:
        """Adds one more to the accumulator."""
        held = self._held.get()
        self._held.set(self._aggregator.add(self._aggregator.zero() if held is None else held, x))

    def get(self) -> Out | None:
        """The result of what was added so far, None if nothing was."""
        held = self._held.get()
        return None if held is None else self._aggregator.result(held)

    def clear(self) -> None:
        self._held.clear()
