"""Two streams that meet in one function: by key, in windows, or one of them as rules that every shard gets whole.

``orders.key_by(…).connect(payments.key_by(…)).process(Match())``, ``.co_group(…, hr.tumbling("1h")).map(settle)``, and
``shapes.key_by(Shape.color).connect(rules.broadcast()).process(Match())``. Without ``key_by`` rows that meet rules are
spread over the shards, and the function keeps nothing by key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typing_extensions

from headrace.dataflow import checks
from headrace.dataflow.clocks import check_expiry, has_event_time, time_order
from headrace.dataflow.function_checks import check_function
from headrace.dataflow.functions import declarations
from headrace.dataflow.graph import KeyedNode
from headrace.dataflow.joint_functions import BroadcastProcess, CoProcess, CoWindowProcess
from headrace.dataflow.outputs import check_callable, output_type
from headrace.dataflow.site import Site, call_site
from headrace.dataflow.stream import Stream
from headrace.dataflow.window_checks import check_scoped
from headrace.errors import ProgramError
from headrace.joins.spec import CoGroup, ConnectSpec, MapGroups
from headrace.model.keyspec import ANYWHERE, KeySpec
from headrace.model.rows import RowCodec, codec_of
from headrace.model.values import type_name
from headrace.operators.broadcast_spec import BroadcastSpec
from headrace.operators.order_spec import OrderedSpec
from headrace.state.handles import StateDecl
from headrace.windows.kinds import Assigner

if TYPE_CHECKING:
    from headrace.dataflow.keyed import KeyedStream, StepStream
    from headrace.operators.order_spec import TimeOrder

T = TypeVar("T")
U = TypeVar("U")
L = TypeVar("L")
R = TypeVar("R")
Out = TypeVar("Out")
K = typing_extensions.TypeVar("K", default=Any)

_CO_WINDOW = "hr.CoWindowProcess[Left, Right, Out, Key]"
_NEED_NO_KEY = ("broadcast", "side", "counter")


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
        return self._tap(f"late_{side}", before.codec, at)


class Connected(Generic[L, R, K]):
    """Two keyed streams that are to share state; ``process`` says how."""

    def __init__(self, left: KeyedStream[L, K], right: KeyedStream[R, K], at: Site) -> None:
        self._left, self._right = left, right
        self._at = at

    def __repr__(self) -> str:
        return f"<{self._left!r} connected with {self._right!r}>"

    def process(
        self, fn: CoProcess[L, R, Out, K], *, order: str | tuple[str, ...] = "arrival"
    ) -> ConnectedStream[Out, L, R]:
        """Run a function over both streams. Its class names the step.

        With ``order="time"`` rows of both are handled in the order of event time, of one time left ones first:
        `KeyedStream.process` says more.
        """
        at = call_site()
        left, right = self._left._stream.node, self._right._stream.node
        form = "hr.CoProcess[Left, Right, Out, Key]"
        key = self._left.key
        out = check_function(fn, CoProcess, form, ("on_left", "on_right"), (left.codec, right.codec), key, at)
        decls = declarations(type(fn), at)
        by = time_order(order, [left, right], at)
        if not has_event_time(right):
            check_expiry(decls, left, at)
        node = self._left.app._add(
            KeyedNode, at, codec_of(out, where=str(at)), inputs=(left, right), op="connect", key=key,
            other_keys=(self._right.key,), fn=fn, decls=decls,
            spec=ConnectSpec(fn) if by is None else OrderedSpec(fn, by),
        )  # fmt: skip
        return ConnectedStream(self._left.app, node)


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
        codecs = (self._left.node.codec, self._right.node.codec)
        out = check_function(fn, CoWindowProcess, _CO_WINDOW, ("on_window",), codecs, self._keys[0], at)
        cls = type(fn)
        decls = declarations(cls, at)
        check_scoped(cls, decls, self._window, at)
        if not has_event_time(self._right.node):
            check_expiry(decls, self._left.node, at)
        return self._step(codec_of(out, where=str(at)), fn, at, fn=fn, decls=decls)

    def _step(self, codec: RowCodec, function: Any, at: Site, **fields: Any) -> ConnectedStream[Any, L, R]:
        node = self._left.app._add(
            KeyedNode, at, codec, inputs=(self._left.node, self._right.node), op="window", key=self._keys[0],
            other_keys=(self._keys[1],), spec=CoGroup(self._window, function), **fields,
        )  # fmt: skip
        return ConnectedStream(self._left.app, node)


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

    def process(
        self, fn: BroadcastProcess[T, U, R, K], *, order: str | tuple[str, ...] = "arrival"
    ) -> StepStream[R, T]:
        """Run a function over both streams. Its class names the step.

        Rules of an epoch come before its rows. With ``order="time"`` rows are handled in the order of event time, and
        a rule that has a time takes effect at its time: `KeyedStream.process` says more.
        """
        from headrace.dataflow.keyed import StepStream

        at = call_site()
        form, codecs = "hr.BroadcastProcess[In, Rule, Out, Key]", (self._stream.node.codec, self._rules.node.codec)
        out = check_function(fn, BroadcastProcess, form, ("on_event", "on_broadcast"), codecs, self._key, at)
        decls = declarations(type(fn), at)
        self._check_decls(type(fn), decls, at)
        node = self._stream.app._add(
            KeyedNode, at, codec_of(out, where=str(at)), inputs=(self._stream.node, self._rules.node), op="broadcast",
            key=self._key or ANYWHERE, other_keys=(None,), fn=fn, decls=decls,
            spec=BroadcastSpec(fn, keyed=self._key is not None, order=self._order(order, at)),
        )  # fmt: skip
        return StepStream(self._stream.app, node)

    def _order(self, order: Any, at: Site) -> TimeOrder | None:
        by = time_order(order, [self._stream.node], at, beside=[self._rules.node])
        if by is not None and self._key is None:
            raise ProgramError(
                "order by time needs a key",
                where=str(at),
                expected="a keyed stream: the rows of each key are put in order",
                found="a stream without key_by",
                next_move="say which rows belong together: stream.key_by(…).connect(rules.broadcast())",
            )
        return by

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
