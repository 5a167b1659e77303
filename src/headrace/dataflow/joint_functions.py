"""Functions of two streams: what users write to let rows of both meet by key, by window, or by rules for all shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import typing_extensions

from headrace.dataflow.functions import StatefulFunction
from headrace.state.handles import BroadcastContext, Context, Timer
from headrace.windows.context import WindowContext

L = TypeVar("L")
R = TypeVar("R")
In = TypeVar("In")
Rule = TypeVar("Rule")
Out = TypeVar("Out")
K = typing_extensions.TypeVar("K", default=Any)


class CoProcess(StatefulFunction, Generic[L, R, Out, K]):
    """A function of two keyed streams that share state: rows of ``L`` and of ``R`` go in, rows of ``Out`` come out.

    State, timers, side outputs and counters are declared as in a `Process`; both sides see those of their key. Rows of
    one side come in the order of their split; which side comes first is not said, so the function must bear both.

    >>> import headrace as hr
    >>> from collections.abc import Iterator
    >>> class Order(hr.Record):
    ...     id: str
    >>> class Payment(hr.Record):
    ...     order: str
    >>> class Paid(hr.CoProcess[Order, Payment, Order, str]):
    ...     order: hr.ValueState[Order]
    ...     paid: hr.ValueState[bool]
    ...     def on_left(self, event: Order, ctx: hr.Context[str]) -> Iterator[Order]:
    ...         self.order.set(event)
    ...         if self.paid.get():
    ...             yield event
    ...     def on_right(self, event: Payment, ctx: hr.Context[str]) -> Iterator[Order]:
    ...         self.paid.set(True)
    ...         if order := self.order.get():
    ...             yield order
    >>> app = hr.App("shop")
    >>> orders = app.read("orders", hr.source.items([]), Order)
    >>> payments = app.read("payments", hr.source.items([]), Payment)
    >>> paid = orders.key_by(Order.id).connect(payments.key_by(Payment.order)).process(Paid())
    >>> with hr.testing.Harness(app) as h:
    ...     h.push(orders, Order("a"), Order("b"))
    ...     h.epoch()
    ...     h.push(payments, Payment("b"))
    ...     h.epoch()
    ...     h.take(paid)
    [Order(id='b')]
    """

    def on_left(self, event: L, ctx: Context[K]) -> Iterable[Out] | None:
        """For each row of the stream that ``connect`` was called on. Yields any number of rows."""
        raise NotImplementedError

    def on_right(self, event: R, ctx: Context[K]) -> Iterable[Out] | None:
        """For each row of the other stream. Yields any number of rows."""
        raise NotImplementedError

    def on_timer(self, timer: Timer, ctx: Context[K]) -> Iterable[Out] | None:
        """When a timer of this key is due; ``timer is self.quiet`` tells which. Yields rows."""
        raise NotImplementedError


class CoWindowProcess(StatefulFunction, Generic[L, R, Out, K]):
    """A function of what two streams have in a window: rows of ``L`` and of ``R`` go in, rows of ``Out`` come out.

    States are declared as in a `WindowProcess`: of the key, or with ``hr.state(scope="window")`` of the window.

    >>> import headrace as hr
    >>> from collections.abc import Iterator, Sequence
    >>> class Ask(hr.Record):
    ...     item: str
    ...     at: hr.Timestamp
    >>> class Bid(hr.Record):
    ...     item: str
    ...     at: hr.Timestamp
    >>> class Balance(hr.CoWindowProcess[Ask, Bid, str, str]):
    ...     windows: hr.ValueState[int]
    ...     def on_window(
    ...         self, lefts: Sequence[Ask], rights: Sequence[Bid], ctx: hr.WindowContext[str]
    ...     ) -> Iterator[str]:
    ...         self.windows.set(self.windows.get(0) + 1)
    ...         yield f"{ctx.key} {self.windows.get()}: {len(lefts)} asks, {len(rights)} bids"
    >>> app = hr.App("market")
    >>> asks = app.read("asks", hr.source.items([]), Ask, time=Ask.at)
    >>> bids = app.read("bids", hr.source.items([]), Bid, time=Bid.at)
    >>> balance = asks.key_by(Ask.item).co_group(bids.key_by(Bid.item), hr.tumbling("1h")).process(Balance())
    >>> with hr.testing.Harness(app, start="2024-01-01") as h:
    ...     h.push(asks, Ask("a", h.at("12:10")), Ask("a", h.at("12:20")), Ask("a", h.at("13:10")))
    ...     h.push(bids, Bid("a", h.at("12:30")))
    ...     h.epoch(watermark="14:00")
    ...     h.take(balance)
    ['a 1: 2 asks, 1 bids', 'a 2: 1 asks, 0 bids']
    """

    _has_windows = True

    def on_window(self, lefts: Sequence[L], rights: Sequence[R], ctx: WindowContext[K]) -> Iterable[Out] | None:
        """For each window of a key that either side has rows in, when it ends. Yields any number of rows."""
        raise NotImplementedError


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
