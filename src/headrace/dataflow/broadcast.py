"""Broadcast: a stream of rules that every shard gets whole, beside a stream that meets them.

``shapes.key_by(Shape.color).connect(rules.broadcast()).process(Match())``. Without ``key_by`` rows are spread over the
shards, and the function keeps nothing by key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typing_extensions

from headrace.dataflow import checks
from headrace.dataflow.clocks import check_expiry
from headrace.dataflow.function_checks import check_instance, check_key, check_methods, check_output, check_taken
from headrace.dataflow.functions import StatefulFunction, declarations, function_types
from headrace.dataflow.graph import KeyedNode
from headrace.dataflow.site import Site, call_site
from headrace.errors import ProgramError
from headrace.model.keyspec import ANYWHERE, KeySpec
from headrace.model.rows import codec_of
from headrace.model.values import type_name
from headrace.operators.broadcast import BroadcastSpec
from headrace.state.handles import BroadcastContext, Context, StateDecl, Timer

if TYPE_CHECKING:
    from headrace.dataflow.keyed import StepStream
    from headrace.dataflow.stream import Stream

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")
In = TypeVar("In")
Rule = TypeVar("Rule")
Out = TypeVar("Out")
K = typing_extensions.TypeVar("K", default=Any)

_NEED_NO_KEY = ("broadcast", "side", "counter")


class BroadcastProcess(StatefulFunction, Generic[In, Rule, Out, K]):
    """A function of two streams: rows of ``In``, and rows of ``Rule`` that every shard gets.

    ``BroadcastState`` holds what the rules say; `on_broadcast` writes it, everything else reads it. State by key,
    timers, side outputs and counters are declared as in a `Process`. The rules of an epoch come before its other rows.

    >>> import headrace as hr
    >>> from collections.abc import Iterator
    >>> class Tx(hr.Record):
    ...     card: str
    ...     cents: int
    >>> class Limit(hr.Record):
    ...     cents: int
    >>> class OverLimit(hr.BroadcastProcess[Tx, Limit, Tx, str]):
    ...     limits: hr.BroadcastState[str, int]
    ...     def on_broadcast(self, event: Limit, ctx: hr.BroadcastContext[str]) -> None:
    ...         self.limits["all"] = event.cents
    ...     def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Tx]:
    ...         if event.cents > self.limits.get("all", 0):
    ...             yield event
    >>> app = hr.App("shop")
    >>> tx = app.read("tx", hr.source.items([]), Tx)
    >>> limits = app.read("limits", hr.source.items([]), Limit)
    >>> over = tx.key_by(Tx.card).connect(limits.broadcast()).process(OverLimit())
    >>> with hr.testing.Harness(app) as h:
    ...     h.push(tx, Tx("a", 90), Tx("b", 10))
    ...     h.push(limits, Limit(50))
    ...     h.epoch()
    ...     h.take(over)
    [Tx(card='a', cents=90)]
    """

    def on_event(self, event: In, ctx: Context[K]) -> Iterable[Out] | None:
        """For each row of the other stream. Broadcast states can be read. Yields any number of rows."""
        raise NotImplementedError

    def on_broadcast(self, event: Rule, ctx: BroadcastContext[K]) -> Iterable[Out] | None:
        """For each broadcast row, on every shard, in one order.

        It has to do the same on all of them, so it may use its row, ``ctx`` and broadcast states only. What it yields
        comes out once, not once per shard. ``ctx.for_each_key`` goes over a state of all keys.
        """
        raise NotImplementedError

    def on_timer(self, timer: Timer, ctx: Context[K]) -> Iterable[Out] | None:
        """When a timer of this key is due. Broadcast states can be read. Yields rows."""
        raise NotImplementedError


class BroadcastStream(Generic[T]):
    """Rows that go to every shard; made by ``stream.broadcast()``, and good for ``connect`` only."""

    def __init__(self, stream: Stream[T]) -> None:
        self._stream = stream

    def __repr__(self) -> str:
        return f"<BroadcastStream: {self._stream!r}>"


class BroadcastConnected(Generic[T, U, K]):
    """A stream and the rules it is to meet; ``process`` says how."""

    def __init__(self, stream: Stream[T], key: KeySpec | None, rules: Any, at: Site) -> None:
        if not isinstance(rules, BroadcastStream):
            raise _not_broadcast(rules, keyed=key is not None, at=at)
        checks.check_same_app(stream, [rules._stream], at)
        self._stream = stream
        self._key = key
        self._rules: Stream[U] = rules._stream

    def __repr__(self) -> str:
        return f"<{self._stream!r} connected with broadcast {self._rules!r}>"

    def process(self, fn: BroadcastProcess[T, U, R, K]) -> StepStream[R, T]:
        """Run a function over both streams. Its class names the step."""
        from headrace.dataflow.keyed import StepStream

        at = call_site()
        self._check(fn, at)
        decls = declarations(type(fn), at)
        self._check_decls(type(fn), decls, at)
        out = function_types(type(fn), BroadcastProcess, 4)[2]
        node = self._stream.app._add(
            KeyedNode, at, codec_of(out, where=str(at)), inputs=(self._stream.node, self._rules.node), op="broadcast",
            key=self._key or ANYWHERE, other_keys=(None,), fn=fn, decls=decls,
            spec=BroadcastSpec(fn, keyed=self._key is not None),
            updates=self._stream.node.updates or self._rules.node.updates,
        )  # fmt: skip
        return StepStream(self._stream.app, node)

    def _check(self, fn: Any, at: Site) -> None:
        form = "hr.BroadcastProcess[In, Rule, Out, Key]"
        check_instance(fn, BroadcastProcess, form, at)
        cls = type(fn)
        taken, rule, out, kept = function_types(cls, BroadcastProcess, 4)
        check_methods(cls, BroadcastProcess, ("on_event", "on_broadcast"), at)
        check_output(cls, out, form, at)
        check_taken(cls, taken, self._stream.node.codec, at, "hr.BroadcastProcess[In, …]")
        check_taken(cls, rule, self._rules.node.codec, at, "hr.BroadcastProcess[…, Rule, …]")
        if self._key is not None:
            check_key(cls, kept, self._key, at, "hr.BroadcastProcess[…, Key]")

    def _check_decls(self, cls: type, decls: tuple[StateDecl, ...], at: Site) -> None:
        check_expiry(decls, self._stream.node, at)
        by_key = [decl.name for decl in decls if decl.kind not in _NEED_NO_KEY]
        if self._key is None and by_key:
            raise ProgramError(
                f"{cls.__name__} keeps state by key, and this stream has none",
                where=str(at),
                expected="broadcast states, side outputs and counters, or a keyed stream",
                found=f"{', '.join(by_key)} after connect without key_by",
                next_move="say which rows belong together: stream.key_by(…).connect(rules.broadcast())",
            )


def _not_broadcast(given: Any, *, keyed: bool, at: Site) -> ProgramError:
    expected = "rules.broadcast(), or another keyed stream" if keyed else "rules.broadcast()"
    return ProgramError(
        "connect takes a stream that is broadcast" + (", or keyed" if keyed else ""),
        where=str(at),
        expected=expected,
        found=repr(given) if not isinstance(given, type) else type_name(given),
        next_move="write .connect(rules.broadcast()); or union, for rows of one type",
    )
