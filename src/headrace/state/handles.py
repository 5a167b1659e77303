"""What a function keeps and says, declared by annotation: states, timers, side outputs, counters.

On the class a declaration is a `StateDecl`; while a function runs, the same name on its instance is one of these
handles, which at any moment speaks for one key. Handles do not move to their key by themselves: the operator sets
``_slot`` before it calls the function. They are valid inside ``on_event`` and ``on_timer`` only.

Values are replaced, never changed: a list or dict got from a state and changed in place is kept only if set again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal

from typing_extensions import TypeVar

from headrace.errors import ProgramError
from headrace.model.time import Span, Timestamp
from headrace.state.broadcast import BroadcastState
from headrace.state.entry_handles import ListState, MapState
from headrace.state.timer_handles import Timer, Timers, WallTimer
from headrace.state.ttl import TTL, as_ttl, ttl
from headrace.state.value_handles import AggregatingState, AggregatorLike, ReducingState, ValueState

__all__ = [
    "HANDLE_KINDS", "TTL", "AggregatingState", "AggregatorLike", "BroadcastContext", "BroadcastState", "Context",
    "Counter", "ListState", "MapState", "ReducingState", "Side", "StateDecl", "Timer", "Timers", "ValueState",
    "WallTimer", "as_ttl", "state", "ttl",
]  # fmt: skip

T = TypeVar("T")
S = TypeVar("S")
K = TypeVar("K", default=Any)

Scope = Literal["key", "window"]
Kind = Literal[
    "value", "list", "map", "reducing", "aggregating", "timer", "wall_timer", "timers", "broadcast", "side", "counter"
]  # fmt: skip


@dataclass(frozen=True)
class StateDecl:
    """One declaration on a function's class; ``Fraud.odd`` is this until an instance runs."""

    name: str = ""
    kind: Kind | Literal[""] = ""
    args: tuple[Any, ...] = ()
    ttl: TTL | None = None
    was: str | None = None
    max_len: int | None = None
    reduce: Callable[[Any, Any], Any] | None = None
    aggregator: AggregatorLike | None = None
    scope: Scope = "key"

    @property
    def value_type(self) -> Any:
        """The type of what is stored: of the value, of an element, of a map's value, of an accumulator."""
        if self.kind == "aggregating":
            return self._needs(self.aggregator, "aggregator", "MyAggregator()").accumulator_type()
        if self.kind == "reducing":
            self._needs(self.reduce, "reduce", "lambda a, b: …")
        if self.kind in ("map", "broadcast"):
            return self.args[1]
        return {"timer": int, "wall_timer": int, "timers": None}.get(self.kind, self.args[0] if self.args else Any)

    def _needs(self, given: Any, option: str, example: str) -> Any:
        if given is None:
            raise ProgramError(
                f"the state {self.name!r} does not say how to combine what is added",
                where=self.name,
                expected=f"{option}= in its declaration",
                next_move=f"write {self.name}: … = hr.state({option}={example})",
            )
        return given

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_"):
                state = self.name or "state"
                raise AttributeError(f"{state}.{name}: a state can be used in on_event and on_timer only")
            raise AttributeError(name)


def state(
    *,
    ttl: Span | TTL | None = None,
    reduce: Callable[[Any, Any], Any] | None = None,
    aggregator: AggregatorLike | None = None,
    max_len: int | None = None,
    scope: Scope = "key",
    was: str | None = None,
) -> Any:
    """Options of a declared state: ``seen: hr.MapState[str, int] = hr.state(ttl="7d", was="old_name")``.

    ``ttl``: how long entries live. ``reduce`` and ``aggregator``: how a ReducingState or AggregatingState combines what
    is added. ``max_len``: a ListState keeps the newest so many. ``was``: the name it had before.
    """
    if max_len is not None and max_len < 1:
        raise ProgramError("max_len must be 1 or more", where="state", expected="max_len above 0", found=repr(max_len))
    return StateDecl(ttl=as_ttl(ttl), reduce=reduce, aggregator=aggregator, max_len=max_len, scope=scope, was=was)


NO_KEY: Final[Any] = object()
"""Stands where a context has not decoded its key yet."""


class Context(Generic[K]):
    """What a function may ask about the row or timer at hand. One object, moved on: do not keep it."""

    __slots__ = ("_decode", "_encoded", "_key", "epoch", "now", "timestamp", "watermark")

    timestamp: Timestamp
    """Event time of the row, or the time the timer was set for; without event time the same as ``now``.

    Of a row whose time is null, in a stream that has event time, it is a large negative number: such a row is late.
    """
    watermark: Timestamp
    """How far event time has come: as the epoch began, or in ``on_timer`` as it ends."""
    now: Timestamp
    """Wall clock of the epoch, the same in every replay."""
    epoch: int

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self._encoded = b""
        self._key = NO_KEY

    @property
    def key(self) -> K:
        """The key that all state belongs to now."""
        key = self._key
        if key is NO_KEY:
            key = self._key = self._decode(self._encoded)
        return key  # type: ignore[no-any-return]

    def _move(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._key = NO_KEY


class BroadcastContext(Context[K]):
    """What ``on_broadcast`` may ask. It is called for no key, so ``key`` is not among it."""

    __slots__ = ("_visit",)

    def __init__(self, visit: Callable[[Any, Callable[[Any, Any], object]], None]) -> None:
        super().__init__(lambda encoded: None)
        self._visit = visit

    @property
    def key(self) -> K:
        """Not known here: on_broadcast is called once for all keys."""
        raise RuntimeError("on_broadcast has no key: it is called for all of them; ctx.for_each_key goes over them")

    def for_each_key(self, state: S, fn: Callable[[Any, S], object]) -> None:
        """Calls ``fn(key, state)`` for every key that has something in a state of this function, which it may change.

        ``ctx.for_each_key(self.seen, lambda key, seen: seen.clear())``. What ``fn`` yields (or returns as a list) are
        rows that come out of the step, with the time of the broadcast row. Each shard goes over the keys it owns.
        """
        self._visit(state, fn)


class Side(Generic[T]):
    """A second way out: ``odd: hr.Side[Tx]``, ``self.odd.emit(tx)``; read it with ``stream.side(Fraud.odd)``."""

    __slots__ = ("_context", "_rows", "_times", "name")

    def __init__(self, name: str, context: Context[Any]) -> None:
        self.name = name
        self._context = context
        self._rows: list[Any] | None = None
        self._times: list[int] = []

    def emit(self, row: T) -> None:
        """Sends a row there, with the time of the event or timer at hand."""
        if self._rows is not None:
            self._rows.append(row)
            self._times.append(self._context.timestamp)  # type: ignore[arg-type]


class Counter:
    """Counts something that people want to see: ``hits: hr.Counter``, ``self.hits.inc()``."""

    __slots__ = ("count", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0

    def inc(self, n: int = 1) -> None:
        """Counts ``n`` more."""
        self.count += n


HANDLE_KINDS: Final[dict[Any, Kind]] = {
    ValueState: "value",
    ListState: "list",
    MapState: "map",
    ReducingState: "reducing",
    AggregatingState: "aggregating",
    Timer: "timer",
    WallTimer: "wall_timer",
    Timers: "timers",
    BroadcastState: "broadcast",
    Side: "side",
    Counter: "counter",
}
"""What an annotation's class declares."""
