"""Handles of states with many entries per key: ListState and MapState.

Import them from `headrace.state.handles`, which says what handles are. A TTL counts for each entry; refreshing on read
touches exactly the entries that were given out.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, MutableMapping, ValuesView
from typing import Any, Generic, overload

from typing_extensions import TypeVar

from headrace.state.cells import ABSENT, EntriesColumn
from headrace.state.subs import first_place

T = TypeVar("T")
D = TypeVar("D")
MK = TypeVar("MK")
V = TypeVar("V")


class _Entries:
    """What lists and maps share."""

    __slots__ = ("_column", "_slot")

    def __init__(self, column: EntriesColumn) -> None:
        self._slot = -1
        self._column = column

    def _put(self, name: Any, value: Any) -> None:
        column, slot = self._column, self._slot
        expiry = column.expiry
        if expiry is None:
            column.put(slot, name, value)
            return
        expires = expiry.deadline()
        if expiry.on_create and column.find(slot, name) is not ABSENT:
            stored = column.expiry_of(slot, name)
            if stored is not None and not expiry.is_over(stored):
                expires = stored
        column.put(slot, name, value, expires)

    def _touch(self, name: Any, value: Any) -> None:
        """An entry was given out: reading may begin its time anew, unless that is over already."""
        column, slot = self._column, self._slot
        expiry = column.expiry
        if expiry is not None and expiry.on_read and not expiry.is_over(column.expiry_of(slot, name)):
            column.put(slot, name, value, expiry.deadline())

    def _walk(self) -> Iterator[tuple[Any, Any]]:
        entries = self._column.entries(self._slot)
        if self._column.expiry is None or not self._column.expiry.on_read:
            return entries
        return self._walk_touching(entries)

    def _walk_touching(self, entries: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        for name, value in entries:
            self._touch(name, value)
            yield name, value


class ListState(_Entries, Generic[T]):
    """A list per key. Appending does not read what is there.

    >>> class Last3(hr.Process[Sale, Sale, str]):              # doctest: +SKIP
    ...     recent: hr.ListState[Sale] = hr.state(max_len=3)
    ...     def on_event(self, event, ctx):
    ...         self.recent.append(event)
    """

    __slots__ = ("_max_len", "_next")

    def __init__(self, column: EntriesColumn, max_len: int | None, epoch: int) -> None:
        super().__init__(column)
        self._max_len = max_len
        self._next = first_place(epoch)

    def __iter__(self) -> Iterator[T]:
        return (value for _, value in self._walk())

    def __len__(self) -> int:
        return self._column.count(self._slot)

    def append(self, x: T) -> None:
        """Adds an element at the end; with ``max_len``, the oldest beyond it go."""
        place = self._next
        self._next = place + 1
        self._put(place, x)
        if self._max_len is not None:
            self._trim(self._max_len)

    def extend(self, xs: Iterable[T]) -> None:
        """Appends each of these."""
        for x in xs:
            self.append(x)

    def replace(self, xs: Iterable[T]) -> None:
        """Makes these the whole list."""
        elements = list(xs)
        self.clear()
        self.extend(elements)

    def clear(self) -> None:
        """Removes all elements."""
        self._column.clear_key(self._slot)

    def _trim(self, max_len: int) -> None:
        column, slot = self._column, self._slot
        items = column.hold_all(slot).items
        while len(items) > max_len:
            column.remove(slot, next(iter(items)))


class MapState(_Entries, MutableMapping[MK, V]):
    """A dictionary per key. Going over it has a fixed order; single entries of large maps are looked up alone.

    >>> class Shops(hr.Process[Sale, Alert, str]):             # doctest: +SKIP
    ...     shops: hr.MapState[str, int] = hr.state(ttl="7d")
    ...     def on_event(self, event, ctx):
    ...         self.shops[event.shop] = self.shops.get(event.shop, 0) + 1
    """

    __slots__ = ()

    def __getitem__(self, key: MK) -> V:
        value = self._column.find(self._slot, key)
        if value is ABSENT:
            raise KeyError(key)
        if self._column.expiry is not None:
            self._touch(key, value)
        return value  # type: ignore[no-any-return]

    @overload
    def get(self, key: MK) -> V | None: ...
    @overload
    def get(self, key: MK, default: V) -> V: ...
    @overload
    def get(self, key: MK, default: D) -> V | D: ...
    def get(self, key: MK, default: Any = None) -> Any:
        """The value of a key, or the default where there is none."""
        value = self._column.find(self._slot, key)
        if value is ABSENT:
            return default
        if self._column.expiry is not None:
            self._touch(key, value)
        return value

    def __contains__(self, key: object) -> bool:
        return self._column.find(self._slot, key) is not ABSENT

    def __setitem__(self, key: MK, value: V) -> None:
        self._put(key, value)

    def __delitem__(self, key: MK) -> None:
        if self._column.find(self._slot, key) is ABSENT:
            raise KeyError(key)
        self._column.remove(self._slot, key)

    def __iter__(self) -> Iterator[MK]:
        return (name for name, _ in self._column.entries(self._slot))

    def __len__(self) -> int:
        return self._column.count(self._slot)

    def items(self) -> ItemsView[MK, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def clear(self) -> None:
        """Removes all entries."""
        self._column.clear_key(self._slot)


class _Items(ItemsView[MK, V]):
    """Entries in one pass instead of a lookup for each."""

    _mapping: MapState[MK, V]

    def __iter__(self) -> Iterator[tuple[MK, V]]:
        return self._mapping._walk()


class _Values(ValuesView[V]):
    _mapping: MapState[Any, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping._walk())
