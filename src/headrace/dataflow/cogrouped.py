"""Co-groups: what two keyed streams have in each window, seen by one function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typing_extensions

from headrace.dataflow.clocks import check_expiry, has_event_time
from headrace.dataflow.function_checks import check_instance, check_key, check_methods, check_output, check_taken
from headrace.dataflow.functions import StatefulFunction, declarations, function_types
from headrace.dataflow.graph import KeyedNode
from headrace.dataflow.outputs import check_callable, output_type
from headrace.dataflow.site import Site, call_site
from headrace.dataflow.window_checks import check_scoped
from headrace.joins.spec import CoGroup, MapGroups
from headrace.model.keyspec import KeySpec
from headrace.model.rows import RowCodec, codec_of
from headrace.windows.context import WindowContext
from headrace.windows.kinds import Assigner

if TYPE_CHECKING:
    from headrace.dataflow.connected import ConnectedStream
    from headrace.dataflow.stream import Stream

L = TypeVar("L")
R = TypeVar("R")
Out = TypeVar("Out")
K = typing_extensions.TypeVar("K", default=Any)

_FORM = "hr.CoWindowProcess[Left, Right, Out, Key]"


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


class CoGrouped(Generic[L, R, K]):
    """Rows of two streams put together by key and window; a verb says what becomes of them."""

    def __init__(
        self, left: Stream[L], left_key: KeySpec, right: Stream[R], right_key: KeySpec, window: Assigner
    ) -> None:
        self._left, self._right = left, right
        self._keys = (left_key, right_key)
        self._window = window

    def __repr__(self) -> str:
        return f"<CoGrouped {self._left!r} and {self._right!r}>"

    def map(
        self, fn: Callable[[list[L], list[R]], Out], /, *, output: type[Out] | None = None
    ) -> ConnectedStream[Out, L, R]:
        """One row for each key and window, made of what both sides have: ``map(lambda lefts, rights: …, output=Out)``.

        One of the lists may be empty. The step needs a name.
        """
        at = call_site()
        check_callable(fn, "map", at)
        out = output_type(fn, verb="map", given=output, many=False, at=at)
        return self._step(codec_of(out, where=str(at)), MapGroups(fn), at)

    def process(self, fn: CoWindowProcess[L, R, Out, K]) -> ConnectedStream[Out, L, R]:
        """Run a function over what both sides have; its class names the step."""
        at = call_site()
        cls = type(fn)
        check_instance(fn, CoWindowProcess, _FORM, at)
        left, right, out, kept = function_types(cls, CoWindowProcess, 4)
        check_methods(cls, CoWindowProcess, ("on_window",), at)
        check_output(cls, out, _FORM, at)
        check_taken(cls, left, self._left.node.codec, at, "hr.CoWindowProcess[Left, …]")
        check_taken(cls, right, self._right.node.codec, at, "hr.CoWindowProcess[…, Right, …]")
        check_key(cls, kept, self._keys[0], at, "hr.CoWindowProcess[…, Key]")
        decls = declarations(cls, at)
        check_scoped(cls, decls, self._window, at)
        if not has_event_time(self._right.node):
            check_expiry(decls, self._left.node, at)
        return self._step(codec_of(out, where=str(at)), fn, at, fn=fn, decls=decls)

    def _step(self, codec: RowCodec, function: Any, at: Site, **fields: Any) -> ConnectedStream[Any, L, R]:
        from headrace.dataflow.connected import ConnectedStream

        node = self._left.app._add(
            KeyedNode, at, codec, inputs=(self._left.node, self._right.node), op="window", key=self._keys[0],
            other_keys=(self._keys[1],), spec=CoGroup(self._window, function), **fields,
        )  # fmt: skip
        return ConnectedStream(self._left.app, node)
