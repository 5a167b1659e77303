"""A user's WindowProcess at work, and the states that belong to one key and one window.

A state of a window is a table of entries whose names begin with the window's. The handles that a function sees are the
usual ones, moved from key to key by ``_slot`` and from window to window by ``scope``; they go with the window. Where
sessions merge, the states of the later one go into the earlier: lists are joined, of two entries of a map that of the
later session counts, reduced and aggregated values are combined. Two plain values cannot be, which is refused when the
program is built.

What a function raises stops the task, or, where the step's ``errors`` are read, becomes a row there; then what the
failing call did to states and side outputs is undone, and the window has fired all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import StoreError
from headrace.model.values import ValueCodec
from headrace.operators.binding import (
    BoundState,
    bind_declarations,
    entry_names,
    make_entries_handle,
    make_value_handle,
    value_codecs,
)
from headrace.operators.contract import Outlet
from headrace.operators.failures import READ_ERRORS, function_failed
from headrace.operators.keyed import key_decoder
from headrace.operators.process import rows_of
from headrace.state.cells import ABSENT, EntriesColumn
from headrace.state.handles import StateDecl
from headrace.state.subs import SubCodec
from headrace.windows.by_row.window_state import NAME_BYTES, WINDOW_SUB, WindowName, decode_name, encode_name
from headrace.windows.context import WindowContext
from headrace.windows.kinds import Window

if TYPE_CHECKING:
    from headrace.operators.contract import TaskInfo
    from headrace.operators.spec import StepInfo
    from headrace.state.shard import ShardState
    from headrace.windows.by_row.results import WindowResult


_MANY = ("list", "map")


class ScopedValue:
    """One value per key and window; looks like a ValueState."""

    __slots__ = ("_column", "_slot", "scope")

    def __init__(self, column: EntriesColumn) -> None:
        self._column = column
        self._slot = -1
        self.scope: WindowName = (0, 0)

    def get(self, default: Any = None) -> Any:
        value = self._column.find(self._slot, self.scope)
        return default if value is ABSENT else value

    def set(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._column.put(self._slot, self.scope, value)

    def clear(self) -> None:
        self._column.remove(self._slot, self.scope)


class _Cell(NamedTuple):
    items: dict[Any, Any]


class ScopedEntries:
    """The entries of one window, as the handles of lists and maps want them from a column."""

    expiry = None

    def __init__(self, column: EntriesColumn) -> None:
        self._column = column
        self.scope: WindowName = (0, 0)
        self._all: dict[Any, Any] = {}
        """While a list is cut to its length: its elements."""

    def find(self, slot: int, name: Any) -> Any:
        return self._column.find(slot, (self.scope, name))

    def put(self, slot: int, name: Any, value: Any) -> None:
        self._column.put(slot, (self.scope, name), value)

    def remove(self, slot: int, name: Any) -> None:
        self._all.pop(name, None)
        self._column.remove(slot, (self.scope, name))

    def entries(self, slot: int) -> Iterator[tuple[Any, Any]]:
        scope = self.scope
        return iter([(name, value) for (of, name), value in self._column.entries(slot) if of == scope])

    def count(self, slot: int) -> int:
        return sum(1 for _ in self.entries(slot))

    def hold_all(self, slot: int) -> _Cell:
        self._all = dict(self.entries(slot))
        return _Cell(self._all)

    def clear_key(self, slot: int) -> None:
        for name, _ in self.entries(slot):
            self._column.remove(slot, (self.scope, name))


class ScopedStates:
    """All states of one function or trigger that belong to windows, during one task."""

    def __init__(
        self, decls: Sequence[StateDecl], codecs: Mapping[str, ValueCodec], state: ShardState, epoch: int, prefix: str
    ) -> None:
        """``prefix``: of the names of their tables."""
        self.by_name: dict[str, Any] = {}
        """What the function's instance gets under each declared name."""
        self._slots: list[Any] = []
        self._scopes: list[Any] = []
        self.stored: list[tuple[StateDecl, EntriesColumn]] = []
        for decl in decls:
            many = decl.kind in _MANY
            names = _in_windows(entry_names(decl)) if many else WINDOW_SUB
            column = state.entries(prefix + decl.name, codecs[decl.name], names)
            self.stored.append((decl, column))
            scoped: Any = ScopedEntries(column) if many else ScopedValue(column)
            handle = make_entries_handle(decl, scoped, epoch) if many else make_value_handle(decl, scoped)
            self.by_name[decl.name] = handle
            self._slots.append(handle if many else scoped)
            self._scopes.append(scoped)

    def bind(self, slot: int, scope: WindowName) -> None:
        """Moves all handles to a window of a key."""
        for handle in self._slots:
            handle._slot = slot
        for handle in self._scopes:
            handle.scope = scope

    def clear(self, slot: int, scope: WindowName) -> None:
        """The window goes."""
        for decl, column in self.stored:
            if decl.kind in _MANY:
                for name, _ in list(column.entries(slot)):
                    if name[0] == scope:
                        column.remove(slot, name)
            elif column.find(slot, scope) is not ABSENT:
                column.remove(slot, scope)

    def merge(self, slot: int, into: WindowName, scope: WindowName) -> None:
        """What one window kept goes into another one, which began before."""
        for decl, column in self.stored:
            if decl.kind in _MANY:
                for name, value in list(column.entries(slot)):
                    if name[0] == scope:
                        column.remove(slot, name)
                        column.put(slot, (into, name[1]), value)
                continue
            older, newer = column.find(slot, into), column.find(slot, scope)
            if newer is not ABSENT:
                column.remove(slot, scope)
                column.put(slot, into, newer if older is ABSENT else _combined(decl, older, newer))


def _combined(decl: StateDecl, older: Any, newer: Any) -> Any:
    if decl.kind == "reducing" and decl.reduce is not None:
        return decl.reduce(older, newer)
    if decl.kind == "aggregating":
        return decl.aggregator.merge(older, newer)  # type: ignore[union-attr]
    raise AssertionError(f"the state {decl.name} of two sessions cannot be merged")


def _in_windows(inner: SubCodec) -> SubCodec:
    """Names that begin with the window's."""
    return SubCodec(
        lambda name: encode_name(name[0]) + inner.encode(name[1]),
        lambda sub: (decode_name(sub[:NAME_BYTES]), inner.decode(sub[NAME_BYTES:])),
        inner.fits,
        itemgetter(1),
    )


KeepFailed = Callable[..., None]


class WindowFunction:
    """One WindowProcess of one step."""

    bound: BoundState
    scoped: ScopedStates
    state: ShardState

    def __init__(self, function: Any, info: StepInfo) -> None:
        # A copy: handles are put into it, and the object in the user's program must stay as it is, to be shipped again.
        self.function = copy(function)
        self._step = info.step
        self._by_key = tuple(decl for decl in info.decls if decl.scope == "key")
        self._by_window = tuple(decl for decl in info.decls if decl.scope == "window")
        self._codecs = value_codecs(info.decls, info.step)
        self.context: WindowContext[Any] = WindowContext(key_decoder(info.key_type))

    def begin(self, task: TaskInfo, state: ShardState, outlets: Mapping[str, Outlet]) -> None:
        self.state = state
        self.bound = bind_declarations(self._by_key, self._codecs, state, task, self._step, self.context)
        self.scoped = ScopedStates(self._by_window, self._codecs, state, task.epoch, "")
        self.bound.entries.extend(column for _, column in self.scoped.stored)
        self.bound.open_sides(outlets)
        vars(self.function).update(self.bound.by_name)
        vars(self.function).update(self.scoped.by_name)

    def reach(self, watermark: int) -> None:
        """The watermark of the epoch's end is known."""
        self.context.watermark = watermark  # type: ignore[assignment]

    def call(self, result: WindowResult, rows: Sequence[Any], keep_failed: KeepFailed | None) -> list[Any]:
        """The rows that the function gives for a window. ``keep_failed``: who keeps a failing call; None: it raises."""
        slot, context = result.slot, self.context
        self._bind(slot, result.name, result.home)
        context.pane = result.pane
        at_us = int(context.now) if result.at_us is None else result.at_us
        context.timestamp = at_us  # type: ignore[assignment]
        on_window = self.function.on_window
        saved = None if keep_failed is None else self.bound.save(slot)
        try:
            return list(rows_of(on_window(rows, context)))
        except StoreError:
            raise
        except Exception as error:
            if keep_failed is None or saved is None:
                raise function_failed(
                    error, step=self._step, function=on_window, key=context.key, way_out=READ_ERRORS
                ) from error
            self.bound.restore(slot, saved)
            keep_failed(error, on_window, None, at_us, key=context.key)
            return []

    def _bind(self, slot: int, name: WindowName, home: WindowName) -> None:
        for handle in self.bound.handles:
            handle._slot = slot
        self.scoped.bind(slot, home)
        self.context._move(self.state.names[slot])
        self.context.window = Window(*name)  # type: ignore[arg-type]
