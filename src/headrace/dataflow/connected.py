"""Two keyed streams that share state: ``orders.key_by(…).connect(payments.key_by(…)).process(Match())``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typing_extensions

from headrace.dataflow import checks
from headrace.dataflow.clocks import check_expiry, has_event_time
from headrace.dataflow.function_checks import check_instance, check_key, check_methods, check_output, check_taken
from headrace.dataflow.functions import StatefulFunction, declarations, function_types
from headrace.dataflow.graph import KeyedNode
from headrace.dataflow.site import Site, call_site
from headrace.dataflow.stream import Stream
from headrace.errors import ProgramError
from headrace.joins.spec import ConnectSpec
from headrace.model.rows import codec_of
from headrace.state.handles import Context, Timer

if TYPE_CHECKING:
    from headrace.dataflow.keyed import KeyedStream

L = TypeVar("L")
R = TypeVar("R")
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


class ConnectedStream(Stream[Out], Generic[Out, L, R]):
    """What comes out of a step with two keyed inputs."""

    @property
    def late_left(self) -> Stream[L]:
        """Left rows that came when the watermark had already passed them. Using it takes them out of the step."""
        return self._late("left", 0)

    @property
    def late_right(self) -> Stream[R]:
        """Right rows that came when the watermark had already passed them. Using it takes them out of the step."""
        return self._late("right", 1)

    def _late(self, side: str, port: int) -> Stream[Any]:
        at = call_site()
        checks.check_late(self._node, at)
        offered = getattr(getattr(self._node, "spec", None), "outlets", None)
        if offered is not None and f"late_{side}" not in offered:
            raise ProgramError(
                ".late needs windows in event time",
                where=str(at),
                expected="windows in event time",
                found=f"windows by the wall clock in {self._node.label}",
            )
        before = self._node.inputs[port]
        return self._tap(f"late_{side}", before.codec, at, updates=before.updates)


class Connected(Generic[L, R, K]):
    """Two keyed streams that are to share state; ``process`` says how."""

    def __init__(self, left: KeyedStream[L, K], right: KeyedStream[R, K], at: Site) -> None:
        self._left, self._right = left, right
        self._at = at

    def __repr__(self) -> str:
        return f"<{self._left!r} connected with {self._right!r}>"

    def process(self, fn: CoProcess[L, R, Out, K]) -> ConnectedStream[Out, L, R]:
        """Run a function over both streams. Its class names the step."""
        at = call_site()
        left, right = self._left._stream.node, self._right._stream.node
        form = "hr.CoProcess[Left, Right, Out, Key]"
        check_instance(fn, CoProcess, form, at)
        cls = type(fn)
        taken, other, out, kept = function_types(cls, CoProcess, 4)
        check_methods(cls, CoProcess, ("on_left", "on_right"), at)
        check_output(cls, out, form, at)
        check_taken(cls, taken, left.codec, at, "hr.CoProcess[Left, …]")
        check_taken(cls, other, right.codec, at, "hr.CoProcess[…, Right, …]")
        check_key(cls, kept, self._left.key, at, "hr.CoProcess[…, Key]")
        decls = declarations(cls, at)
        if not has_event_time(right):
            check_expiry(decls, left, at)
        node = self._left.app._add(
            KeyedNode, at, codec_of(out, where=str(at)), inputs=(left, right), op="connect", key=self._left.key,
            other_keys=(self._right.key,), fn=fn, decls=decls, spec=ConnectSpec(fn),
            updates=left.updates or right.updates,
        )  # fmt: skip
        return ConnectedStream(self._left.app, node)
