"""Keyed streams: the verbs that need a key, so that completion teaches which those are.

Each verb is a stateful step. Its name is its identity: a process function's is its class's, the others need ``.named``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

import typing_extensions

from headrace.aggregates.declare import Agg
from headrace.dataflow import checks
from headrace.dataflow.aggregation import aggregate_codec, check_asked, refuse_row_columns, row_columns
from headrace.dataflow.clocks import check_expiry, check_horizons, has_event_time, time_order
from headrace.dataflow.connected import BroadcastConnected, BroadcastStream, CoGrouped, Connected
from headrace.dataflow.function_checks import check_function
from headrace.dataflow.functions import Process, declarations
from headrace.dataflow.graph import Fire, KeyedNode, Node
from headrace.dataflow.incoming import check_replacing
from headrace.dataflow.join_specs import Bounds, JoinInputs, Within, as_of_spec, check_keys, check_windows, join_spec
from headrace.dataflow.joined import Joined
from headrace.dataflow.matched import PatternMatches, RuleMatches, match_rows
from headrace.dataflow.matching import Clock, Overflow
from headrace.dataflow.outputs import check_callable
from headrace.dataflow.projection import columns_sql
from headrace.dataflow.site import Site, call_site
from headrace.dataflow.stream import Column, Stream
from headrace.dataflow.top_rows import top_spec
from headrace.dataflow.update_kinds import check_newest, check_retracting, refuse_updates
from headrace.dataflow.verbs import unknown_keyed_verb
from headrace.errors import ProgramError
from headrace.joins.spec import AnyHow, Keep
from headrace.model.keyspec import KeySpec
from headrace.model.pairs import PairCodec
from headrace.model.record import Row
from headrace.model.rows import RowCodec, codec_of
from headrace.model.time import Span
from headrace.operators.changelogs.spec import RetractLatestSpec, RetractReduceSpec, RetractSpec, UpsertSpec
from headrace.operators.changelogs.top_spec import Ties
from headrace.operators.horizons.spec import HorizonSpec
from headrace.operators.order_spec import OrderedSpec
from headrace.operators.spec import StepSpec
from headrace.patterns.declare import EventPattern
from headrace.patterns.rules.rule import PatternRule
from headrace.sql.expr import check as check_expression
from headrace.state.handles import TTL
from headrace.windows.evictors import Evictor
from headrace.windows.kinds import Assigner
from headrace.windows.triggers import PerEpoch, PerRow, Trigger

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
    from headrace.dataflow.windowed import Panes, Windowed

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")
K = typing_extensions.TypeVar("K", default=Any)


class StepStream(Stream[R], Generic[R, T]):
    """What comes out of a keyed step whose rows in are of type ``T``."""

    @property
    def late(self) -> Stream[T]:
        """Rows that came when the watermark had already passed them. Using it takes them out of the step."""
        at = call_site()
        checks.check_late(self._node, at)
        before = self._node.inputs[0]
        return self._tap("late", before.codec, at)


class KeyedStream(Generic[T, K]):
    """Rows brought together by key; its verbs keep state per key.

    >>> import headrace as hr
    >>> class Tx(hr.Record):
    ...     card: str
    ...     cents: int = 0
    >>> tx = hr.App("shop").read("tx", hr.source.items([]), Tx)
    >>> totals = tx.key_by(Tx.card).aggregate(total=hr.sum(Tx.cents), n=hr.count()).named("totals")
    >>> totals.node.codec.names
    ['card', 'total', 'n']
    """

    def __init__(self, stream: Stream[T], key: KeySpec) -> None:
        self._stream = stream
        self._key = key

    @property
    def app(self) -> AppGraph:
        """The program this stream belongs to."""
        return self._stream.app

    @property
    def key(self) -> KeySpec:
        """What the rows are keyed by; for tools."""
        return self._key

    def __repr__(self) -> str:
        return f"<KeyedStream by {self._key}: {self._stream!r}>"

    def process(self, fn: Process[T, R, K], *, order: str | tuple[str, ...] = "arrival") -> StepStream[R, T]:
        """Run a process function: state, timers and side outputs, declared on its class. Its class names the step.

        Rows of a key come in the order of their split, and in none across splits. With ``order="time"`` they wait for
        the watermark and come in the order of event time, timers firing between them, so that results do not depend on
        where epochs end. ``order=("time", "id")`` says what decides between rows of one time.
        """
        at = call_site()
        taken, form = self._stream.node.codec, "hr.Process[In, Out, Key]"
        out = check_function(fn, Process, form, ("on_event",), (taken,), self._key, at)
        by = time_order(order, [self._stream.node], at)
        decls = declarations(type(fn), at)
        check_expiry(decls, self._stream.node, at)
        spec = None if by is None else OrderedSpec(fn, by)
        return self._step("process", codec_of(out, where=str(at)), at, fn=fn, decls=decls, spec=spec)

    def reduce(
        self, fn: Callable[[T, T], T], *, inverse: Callable[[T, T], T] | None = None, fire: Trigger | None = None
    ) -> StepStream[T, T]:
        """One row per key, made of all so far: ``reduce(lambda a, b: a.replace(n=a.n + b.n))``.

        Every row gives a new result, or with ``fire=hr.per_epoch()`` each key that changed gives one per epoch. The
        function must leave the key's columns as they are, which is checked.

        Over rows that replace each other ``inverse`` takes a row, or what several came to, out again:
        ``inverse=lambda a, b: a.replace(n=a.n - b.n)``. Then each key gives one result per epoch.
        """
        at = call_site()
        check_callable(fn, "reduce", at)
        node, columns = self._stream.node, self._key.columns
        refuse_row_columns(fire, "reduce", at)
        if inverse is None or not node.kind.corrects:
            refuse_updates(node, "reduce", at, way_out="say how a row is taken out: reduce(…, inverse=…)")
            fires = _fire(fire, "per_row", at)
            return self._step("reduce", node.codec, at, fn=fn, placed_by=columns, fire=fires)
        check_callable(inverse, "inverse= of reduce", at)
        check_retracting(node, _fire(fire, "per_epoch", at), at, verb="reduce")
        spec = RetractReduceSpec(fn, inverse, columns)
        return self._step("reduce", node.codec, at, fn=fn, placed_by=columns, fire="per_epoch", spec=spec)

    def latest(self) -> StepStream[T, T]:
        """The newest row of each key, by event time where there is one; each key that changed once per epoch.

        Over a changelog the newest of the rows that hold, by event time.
        """
        at = call_site()
        spec = None
        if self._stream.node.kind.rows == "changelog":
            spec = RetractLatestSpec()
            check_newest(self._stream.node, at)
        return self._step("latest", self._stream.node.codec, at, placed_by=self._key.columns, spec=spec)

    def upserts(self, *, deleted: Column | None = None) -> StepStream[T, T]:
        """Rows that replace the earlier one of their key, as a changelog: ``upserts(deleted="op = 'd'")``.

        So does a compacted topic tell of a table. Where ``deleted`` holds for a row, its key goes. Rows of a key have
        to come in their order: from one split of their source.
        """
        at = call_site()
        refuse_updates(self._stream.node, "upserts", at)
        check_replacing(self._key, at)
        codec, text = self._stream.node.codec, None
        if deleted is not None:
            text = columns_sql({"deleted": deleted}, str(at))["deleted"]
            check_expression(text, codec.schema, str(at))
            checks.check_condition(text, codec, at)
        return self._step("normalise", codec, at, spec=UpsertSpec("", text), placed_by=self._key.columns)

    @overload
    def top(self, n: int, /, *, by: Column | Sequence[Column], ties: Ties = "broken") -> StepStream[T, T]: ...
    @overload
    def top(
        self, n: int, /, *, by: Column | Sequence[Column], rank: str, ties: Ties = "broken"
    ) -> StepStream[Row, T]: ...
    def top(self, n: int, /, *, by: Any, rank: str | None = None, ties: Ties = "broken") -> StepStream[Any, T]:
        """The first ``n`` rows of each key: ``top(3, by=["-cents", "at"])``, the newest one: ``top(1, by="-at")``.

        ``by``: columns, ``"-cents"`` or ``"cents desc nulls last"`` for the other way round; rows of one place stand in
        the order of their unique key, then of their columns. ``rank`` names a column with the place, from 1. Rows leave
        the first ones when others come, so the result is a changelog; over rows that may go, all of a key are kept.

        ``ties="shared"``: rows that are equal by ``by`` have one place, so there may be more than ``n`` of them, and
        the next place is behind all of them, as SQL's RANK; ``ties="dense"``: it is the next number, as DENSE_RANK.
        """
        at = call_site()
        spec, codec = top_spec(self._stream.node, n, by, rank, ties, at)
        return self._step("top", codec, at, spec=spec, placed_by=self._key.columns)

    @overload
    def aggregate(self, into: type[R], /, *, fire: Trigger | None = None, **aggs: Agg[Any]) -> StepStream[R, T]: ...
    @overload
    def aggregate(self, /, *, fire: Trigger | None = None, **aggs: Agg[Any]) -> StepStream[Row, T]: ...
    def aggregate(self, into: Any = None, /, *, fire: Any = None, **aggs: Agg[Any]) -> StepStream[Any, T]:
        """Running aggregates per key: ``aggregate(total=hr.sum("cents"), n=hr.count())``.

        Rows hold the key's columns and the aggregates. Each key that changed is emitted once per epoch, or with
        ``fire=hr.per_row()`` for every row; ``hr.per_row("id")`` puts columns of the row itself beside the results.
        With ``over``, as in ``hr.sum("cents", over="1h")``, an aggregate is of the rows of such a span of event time up
        to the time of the result: the row's, or that of the key's newest row.

        Over rows that replace each other each counts as long as it holds: what is replaced or goes is taken out again.
        """
        at = call_site()
        taken = self._stream.node.codec
        carried = row_columns(fire, taken, self._key, at)
        codec = aggregate_codec(taken, self._key, into, aggs, at, before=carried, by_name=carried)
        check_asked(codec, carried, at)
        columns = self._key.columns
        placed_by = columns if columns is not None and set(columns) <= set(codec.names) else None
        fires = _fire(fire, "per_epoch", at)
        spec: StepSpec | None = None
        if check_horizons(aggs, self._stream.node, at):
            refuse_updates(self._stream.node, "aggregate with over=", at)
            spec = HorizonSpec(dict(aggs), fires == "per_row", tuple(carried))
        elif self._stream.node.kind.corrects:
            spec = RetractSpec(dict(aggs))
            check_retracting(self._stream.node, fires, at)
            spec.check(self._stream.node.codec, str(at), timed=has_event_time(self._stream.node))
        return self._step(
            "aggregate", codec, at, aggs=dict(aggs), placed_by=placed_by, fire=fires, spec=spec, carried=tuple(carried),
            peers=fire.peers if isinstance(fire, PerRow) else None,
        )  # fmt: skip

    @overload
    def match(
        self, pattern: EventPattern, /, *, clock: Clock = "event", order: str | tuple[str, ...] = "time",
        max_partial: int = 10_000, on_overflow: Overflow = "error",
    ) -> PatternMatches[T]: ...  # fmt: skip
    @overload
    def match(
        self, rules: BroadcastStream[PatternRule], /, *, clock: Clock = "event", order: str | tuple[str, ...] = "time",
        max_partial: int = 10_000, on_overflow: Overflow = "error",
    ) -> RuleMatches[T]: ...  # fmt: skip
    def match(
        self, pattern: Any, /, *, clock: Clock = "event", order: str | tuple[str, ...] = "time",
        max_partial: int = 10_000, on_overflow: Overflow = "error",
    ) -> Any:  # fmt: skip
        """Sequences of rows of a key: ``match(hr.pattern("small", "cents < 100").then("large", "cents > 50000"))``.

        Rows are followed in the order of event time, behind the watermark; ``order=("time", "id")`` says what decides
        between rows of one time. With ``clock="wall"`` they are followed as they come, and times are those of the wall
        clock. A key has at most ``max_partial`` partial matches: more are an error, or the oldest go and are counted.
        The step needs a name.

        With ``match(rules.broadcast())`` patterns are rows of the type `hr.PatternRule`, which come, change and go
        while the program runs.
        """
        at = call_site()
        return match_rows(self._stream, self._key, pattern, (clock, order, max_partial, on_overflow), at)

    @overload
    def connect(self, other: BroadcastStream[U]) -> BroadcastConnected[T, U, K]: ...
    @overload
    def connect(self, other: KeyedStream[U, K]) -> Connected[T, U, K]: ...
    def connect(self, other: Any) -> Any:
        """This stream and another that shares its state, or rules that every shard has; ``process`` says how they meet.

        ``orders.key_by(Order.id).connect(payments.key_by(Payment.order)).process(Match())`` takes an `CoProcess`,
        ``tx.key_by(Tx.card).connect(rules.broadcast()).process(Match())`` a `BroadcastProcess`.
        """
        at = call_site()
        if isinstance(other, KeyedStream):
            self._check(other, "connect", at)
            return Connected(self, other, at)
        return BroadcastConnected(self._stream, self._key, other, at)

    @overload
    def join(
        self, other: KeyedStream[U, K], *, within: Within | None, how: Literal["inner"] = "inner",
        bounds: Bounds = "[]", keep: Keep | None = None, ttl: Span | TTL | None = None, on: Column | None = None,
    ) -> Joined[T, U]: ...  # fmt: skip
    @overload
    def join(
        self, other: KeyedStream[U, K], *, within: Within | None, how: Literal["left"],
        bounds: Bounds = "[]", keep: Keep | None = None, ttl: Span | TTL | None = None, on: Column | None = None,
    ) -> Joined[T, U | None]: ...  # fmt: skip
    @overload
    def join(
        self, other: KeyedStream[U, K], *, within: Within | None, how: Literal["right"],
        bounds: Bounds = "[]", keep: Keep | None = None, ttl: Span | TTL | None = None, on: Column | None = None,
    ) -> Joined[T | None, U]: ...  # fmt: skip
    @overload
    def join(
        self, other: KeyedStream[U, K], *, within: Within | None, how: Literal["full"],
        bounds: Bounds = "[]", keep: Keep | None = None, ttl: Span | TTL | None = None, on: Column | None = None,
    ) -> Joined[T | None, U | None]: ...  # fmt: skip
    @overload
    def join(
        self, other: KeyedStream[U, K], *, within: None, how: Literal["semi", "anti"],
        ttl: Span | TTL | None = None, on: Column | None = None,
    ) -> Stream[T]: ...  # fmt: skip
    def join(
        self, other: Any, *, within: Any, how: AnyHow = "inner", bounds: Bounds = "[]", keep: Keep | None = None,
        ttl: Span | TTL | None = None, on: Column | None = None,
    ) -> Any:  # fmt: skip
        """Rows of two streams that have the same key and belong together in time.

        ``within=("0s", "1h")``: the right row comes at most an hour after the left one, by event time; negative spans
        look back, ``bounds="[)"`` leaves out the upper bound. ``within=hr.tumbling("1h")``: both lie in the same
        window, of any kind that has an end. ``how``: ``inner``, ``left``, ``right`` or ``full``, whose rows without a
        partner come out too. Null keys have no partners.

        ``within=None``: no limit; both sides are kept for ever, or for ``ttl``. Rows may replace each other and go: the
        result is what all rows that hold come to, a changelog unless nothing can go. ``on="left.a < right.b"`` is a
        further condition. ``how="semi"`` gives left rows that have a partner, ``"anti"`` those that have none.
        ``keep="latest"`` joins only the newest row of each key on either side.
        """
        at = call_site()
        nodes = self._check(other, "join", at)
        spec = join_spec(JoinInputs(nodes, (self._key, other._key)), within, how, bounds, keep, ttl, on, at)
        if how not in ("semi", "anti"):
            return self._joined(other, spec, at)
        node = self.app._add(
            KeyedNode, at, nodes[0].codec, inputs=nodes, op="join", key=self._key, other_keys=(other._key,), spec=spec,
            placed_by=self._key.columns,
        )  # fmt: skip
        return Stream(self.app, node)

    def join_asof(self, other: KeyedStream[U, K], *, tolerance: Span | None = None) -> Joined[T, U | None]:
        """Each row beside the row of the other stream that held at its time: the newest that is not after it.

        ``tolerance``: how old that may be at most. A row waits until the watermark has come to its time; then the
        answer is exact.
        """
        at = call_site()
        nodes = self._check(other, "join_asof", at)
        # Each left row gives one pair, so pairs replace earlier ones where left rows do.
        return self._joined(other, as_of_spec(nodes, tolerance, at), at)

    def co_group(self, other: KeyedStream[U, K], window: Assigner, /) -> CoGrouped[T, U, K]:
        """The rows that both streams have for a key in each window, together; ``map`` or ``process`` takes them.

        ``orders.key_by(Order.id).co_group(payments.key_by(Payment.order), hr.tumbling("1h")).map(settle)``
        """
        at = call_site()
        nodes = self._check(other, "co_group", at)
        check_windows("co_group", window, nodes, at)
        return CoGrouped(self._stream, self._key, other._stream, other._key, window)

    def window(
        self,
        w: Assigner,
        /,
        *,
        fire: Trigger | None = None,
        panes: Panes = "accumulate",
        allow_late: Span = "0s",
        evict: Evictor | None = None,
    ) -> Windowed[T, K]:
        """Put rows of a key together in windows: ``window(hr.tumbling("1h")).aggregate(total=hr.sum("cents"))``.

        A window gives its result when the watermark passes its end, or when ``fire`` says; ``panes="discard"`` empties
        it then. ``allow_late`` keeps it for rows that come late: each epoch in which some do gives a further result.
        ``evict`` throws rows away when a window fires.
        """
        from headrace.dataflow.windowed import Windowed

        at = call_site()
        return Windowed(self._stream, self._key, w, fire=fire, panes=panes, allow_late=allow_late, evict=evict, at=at)

    def _check(self, other: Any, verb: str, at: Site) -> tuple[Node, Node]:
        if not isinstance(other, KeyedStream):
            raise ProgramError(
                f"{verb} takes a keyed stream",
                where=str(at),
                expected=f"stream.key_by(…).{verb}(other.key_by(…))",
                found=repr(other),
                next_move="key the other stream by what both have in common",
            )
        checks.check_same_app(self._stream, [other._stream], at)
        left, right = self._stream.node, other._stream.node
        check_keys(left.codec, self._key, right.codec, other._key, at)
        return left, right

    def _joined(self, other: KeyedStream[Any, Any], spec: StepSpec, at: Site) -> Joined[Any, Any]:
        left, right = self._stream.node, other._stream.node
        node = self._stream.app._add(
            KeyedNode, at, PairCodec(left.codec, right.codec), inputs=(left, right), op="join", key=self._key,
            other_keys=(other._key,), spec=spec,
        )  # fmt: skip
        return Joined(self._stream.app, node)

    def _step(self, op: Any, codec: RowCodec, at: Site, **fields: Any) -> StepStream[Any, Any]:
        inputs = (self._stream.node,)
        node = self.app._add(KeyedNode, at, codec, inputs=inputs, op=op, key=self._key, **fields)
        return StepStream(self.app, node)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_keyed_verb(str(self._key), name)


def _fire(fire: Any, default: Fire, at: Site) -> Fire:
    if fire is None:
        return default
    if not isinstance(fire, PerRow | PerEpoch):
        raise ProgramError(
            "fire= takes a trigger",
            where=str(at),
            expected="hr.per_epoch() or hr.per_row()",
            found=repr(fire),
            next_move="for other triggers: .window(hr.unbounded(), fire=…)" if isinstance(fire, Trigger) else "",
        )
    return "per_row" if isinstance(fire, PerRow) else "per_epoch"
