"""Streams: what flows between the steps of a program, and the verbs that need no key.

Text is SQL, a callable is Python, a field is a column. A verb adds a node to the app's graph and returns the stream
that comes out; nothing runs. Every mistake that can be seen from a verb's arguments is raised by the verb, at the
user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, LiteralString, Self, TypeVar, overload
from uuid import UUID

from headrace.connectors.sink_contract import Sink
from headrace.dataflow import checks
from headrace.dataflow.awaiting import AwaitVerbs
from headrace.dataflow.graph import (
    AsyncNode,
    BatchForm,
    BatchNode,
    CallNode,
    ChangesNode,
    ExprNode,
    KeyedNode,
    LookupNode,
    Node,
    ReadNode,
    RetimeNode,
    TapNode,
    UnionNode,
    WriteNode,
)
from headrace.dataflow.keying import key_spec
from headrace.dataflow.loops import feed
from headrace.dataflow.naming import check_name
from headrace.dataflow.outputs import check_callable, output_type
from headrace.dataflow.projection import Projection, columns_sql, into_row, into_type, with_kind, with_more
from headrace.dataflow.retiming import retime_node_fields
from headrace.dataflow.site import Site, call_site
from headrace.dataflow.verbs import unknown_verb
from headrace.dataflow.writing import check_updates
from headrace.errors import ProgramError
from headrace.model.keyspec import WHOLE_STREAM
from headrace.model.record import Failed, Row
from headrace.model.rows import RowCodec, codec_of
from headrace.model.time import Duration, Span, Timestamp
from headrace.sql.expr import Expr
from headrace.sql.expr import check as check_expression
from headrace.state.handles import Side, StateDecl

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
    from headrace.dataflow.connected import BroadcastConnected, BroadcastStream
    from headrace.dataflow.keyed import KeyedStream
    from headrace.dataflow.windowed import Panes, Windowed
    from headrace.windows.evictors import Evictor
    from headrace.windows.kinds import Assigner
    from headrace.windows.triggers import Trigger

T = TypeVar("T")
R = TypeVar("R")
Q = TypeVar("Q")
Scalar = TypeVar("Scalar", str, int, bytes, float, Timestamp, Duration, UUID, Decimal, date)
Member = TypeVar("Member", bound=Enum)
Column = str | Expr
Field = str | int | float | bytes | bool | Timestamp | Duration | datetime | date | timedelta | Decimal | UUID | None
"""What a field such as ``Tx.at`` looks like to a type checker."""


class Stream(AwaitVerbs[T], Generic[T]):
    """Rows of type ``T``, flowing. Made by ``app.read`` and by the verbs of other streams.

    >>> import headrace as hr
    >>> class Tx(hr.Record):
    ...     card: str
    ...     cents: int = 0
    >>> tx = hr.App("shop").read("tx", hr.source.items([]), Tx)
    >>> tx.where("cents > 0").select("card", euros="cents / 100")
    <Stream of Row: select at <doctest headrace.dataflow.stream.Stream[3]>:1>
    >>> tx.map(lambda t: t.card.upper(), output=str).node.codec.spark_ddl
    '`value` STRING'
    """

    def __init__(self, app: AppGraph, node: Node) -> None:
        self._app = app
        self._node = node

    @property
    def app(self) -> AppGraph:
        """The program this stream belongs to."""
        return self._app

    @property
    def node(self) -> Node:
        """The step of the graph whose rows these are; for tools and the test kit."""
        return self._node

    @property
    def _codec(self) -> RowCodec:
        return self._node.codec

    def __repr__(self) -> str:
        from headrace.model.values import type_name

        return f"<{type(self).__name__} of {type_name(self._codec.type)}: {self._node.label}>"

    def _repr_html_(self) -> str:
        """The steps that lead to this stream, as a notebook shows them."""
        from headrace.dataflow.graph import upstream
        from headrace.dataflow.picture import draw_graph
        from headrace.model.values import type_name

        before = upstream([self._node])
        title = f"{type(self).__name__} of {type_name(self._codec.type)}"
        return draw_graph(title, [node for node in self._app.nodes if node in before], mark=self._node)

    # -- names and readers -----------------------------------------------------------------------------------

    def named(self, name: str, *, was: str | None = None) -> Self:
        """The same stream, its step named. The name is the step's identity in the store and in queries.

        After renaming, ``was`` says the name under which older state is kept.
        """
        at = call_site()
        self._app._name(self._node, check_name(name, "a step", str(at)), was, at)
        return self

    def queryable(self) -> Self:
        """The same stream; the state of its step may be read from outside, which counts as a reader."""
        if not self._node.stateful:
            raise ProgramError(
                f"{self._node.label} has no state to query",
                where=str(call_site()),
                expected="a keyed step: process, reduce, aggregate or latest",
                found=self._node.verb,
                next_move='keep the newest row per key: stream.key_by(…).latest().named("…").queryable()',
            )
        self._node.queryable = True
        return self

    def write(self, sink: Sink, *, name: str | None = None) -> None:
        """Send the rows to a sink. The name of the output is made from the step's and the sink's if it is not given.

        Rows that replace earlier ones cannot go to a sink that appends: see `changes`.
        """
        at = call_site()
        checks.check_sink(sink, at)
        check_updates(self._node, sink, at)
        if name is not None:
            check_name(name, "an output", str(at))
        output, stem = self._app._output_name(self._node, sink, name, at)
        try:
            bound = sink.bind(self._codec, output)
        except ProgramError as error:
            error.where = error.where or str(at)
            raise
        self._add(WriteNode, at, self._codec, sink=bound, name=output, stem=stem)

    def show(self, rows: int = 20) -> None:
        """Print the newest rows while the program runs; the same as writing to ``hr.sink.console``."""
        self.write(self._app._console(rows))

    # -- expressions -----------------------------------------------------------------------------------------

    def where(self, condition: Column) -> Stream[T]:
        """The rows for which a SQL condition holds: ``where("n > 0")``, ``where(hr.col("n") > 0)``."""
        at = call_site()
        text = columns_sql({"": condition}, str(at))[""]
        check_expression(text, self._codec.schema, str(at))
        checks.check_condition(text, self._codec, at)
        return Stream(self._app, self._expr("where", at, Projection(self._codec, (("", text),)), self._node.placed_by))

    @overload
    def select(self, into: type[R], /, *, timed_by: Column | None = None, **columns: Column) -> Stream[R]: ...
    @overload
    def select(self, /, *names: Field, timed_by: Column | None = None, **columns: Column) -> Stream[Row]: ...
    def select(self, /, *names: Any, timed_by: Any = None, **columns: Any) -> Stream[Any]:
        """These columns only: ``select("tweet", total="n + 1")``, or typed: ``select(Total, total="n + 1")``.

        With a type, its other fields are taken from columns of the same name, or their default. ``timed_by`` gives rows
        another event time, not before the one they have: ``timed_by="at + interval 1 hour"``.
        """
        at = call_site()
        if len(names) == 1 and _is_row_type(names[0]):
            made = into_type(self._codec, names[0], columns, str(at), "select")
        else:
            made = into_row(self._codec, names, columns, str(at))
        return self._timed(self._expr("select", at, made, made.keeps(self._node.placed_by)), timed_by, at)

    @overload
    def with_columns(self, into: type[R], /, *, timed_by: Column | None = None, **columns: Column) -> Stream[R]: ...
    @overload
    def with_columns(self, /, *, timed_by: Column | None = None, **columns: Column) -> Stream[Row]: ...
    def with_columns(self, into: Any = None, /, *, timed_by: Any = None, **columns: Any) -> Stream[Any]:
        """All columns, some added or replaced: ``with_columns(total="n + 1")``; ``timed_by`` as in `select`."""
        at = call_site()
        if into is None and not columns and timed_by is not None:
            return self._timed(self._node, timed_by, at)
        if into is not None:
            made = into_type(self._codec, into, columns, str(at), "with_columns")
        else:
            made = with_more(self._codec, columns, str(at))
        return self._timed(self._expr("with_columns", at, made, made.keeps(self._node.placed_by)), timed_by, at)

    # -- Python ----------------------------------------------------------------------------------------------

    @overload
    def map(self, fn: Callable[[T], R], /, *, output: type[R] | None = None) -> Stream[R]: ...
    @overload
    def map(self, fn: Callable[[T], Any], /, *, output: UnionType) -> Stream[Any]: ...
    def map(self, fn: Callable[[T], Any], /, *, output: Any = None) -> Stream[Any]:
        """One row out for each row in. The type comes from the function's annotation, or from ``output``."""
        at = call_site()
        check_callable(fn, "map", at)
        row_type = output_type(fn, verb="map", given=output, many=False, at=at)
        return self._call("map", fn, codec_of(row_type, where=str(at)), at)

    @overload
    def flat_map(self, fn: Callable[[T], Iterable[R]], /, *, output: type[R] | None = None) -> Stream[R]: ...
    @overload
    def flat_map(self, fn: Callable[[T], Iterable[Any]], /, *, output: UnionType) -> Stream[Any]: ...
    def flat_map(self, fn: Callable[[T], Iterable[Any]], /, *, output: Any = None) -> Stream[Any]:
        """Any number of rows out for each row in. The type comes from the annotation, or from ``output``."""
        at = call_site()
        check_callable(fn, "flat_map", at)
        row_type = output_type(fn, verb="flat_map", given=output, many=True, at=at)
        return self._call("flat_map", fn, codec_of(row_type, where=str(at)), at)

    def filter(self, fn: Callable[[T], bool], /) -> Stream[T]:
        """The rows for which a Python function is true; ``where`` does it with SQL, without making objects."""
        at = call_site()
        check_callable(fn, "filter", at)
        return self._call("filter", fn, self._codec, at, placed_by=self._node.placed_by)

    @overload
    def only(self, type: type[R], /) -> Stream[R]: ...
    # mypy takes ``A | B`` for a UnionType or the class A, so both have to fit here.
    @overload
    def only(self, type: UnionType | type[Any], /) -> Stream[Any]: ...
    def only(self, type: Any, /) -> Stream[Any]:
        """The rows of one member of a union: ``events.only(Click)``."""
        at = call_site()
        checks.check_member(self._codec, type, at)
        kept = codec_of(type, where=str(at))
        return self._call("only", type, kept, at, placed_by=self._node.placed_by)

    @overload
    def map_batches(
        self, fn: Callable[[Any], Any], /, output: type[R], *, form: BatchForm | None = None
    ) -> Stream[R]: ...
    @overload
    def map_batches(
        self, fn: Callable[[Any], Any], /, output: UnionType, *, form: BatchForm | None = None
    ) -> Stream[Any]: ...
    def map_batches(self, fn: Callable[[Any], Any], /, output: Any, *, form: BatchForm | None = None) -> Stream[Any]:
        """A function over whole batches: Arrow RecordBatches, polars or pandas DataFrames, as its annotation says.

        ``output`` is the type of the rows that come out; the batch's columns must be its fields.
        """
        at = call_site()
        check_callable(fn, "map_batches", at)
        codec = codec_of(output, where=str(at))
        form = form or checks.batch_form(fn)
        return Stream(self._app, self._add(BatchNode, at, codec, fn=fn, form=form))

    # -- keys, unions, other ways out ------------------------------------------------------------------------

    @overload
    def key_by(self, key: Callable[[T], Q], /) -> KeyedStream[T, Q]: ...
    @overload
    def key_by(self, key: LiteralString | Expr, /) -> KeyedStream[T, Any]: ...
    @overload
    def key_by(self, key: Scalar, /) -> KeyedStream[T, Scalar]: ...
    @overload
    def key_by(self, key: Member, /) -> KeyedStream[T, Member]: ...
    @overload
    def key_by(self, key: Scalar | None, /) -> KeyedStream[T, Scalar | None]: ...
    @overload
    def key_by(self, first: object, second: object, /, *more: object) -> KeyedStream[T, Any]: ...
    def key_by(self, *keys: Any) -> KeyedStream[T, Any]:
        """Bring rows of one key together: by a field (``Tx.card``), a column's name, several of them, or a function.

        Steps that hang on the same key of the same stream share one exchange, and a stream that already lies by this
        key needs none.
        """
        from headrace.dataflow.keyed import KeyedStream

        return KeyedStream(self, key_spec(self._codec, keys, call_site()))

    def window(
        self,
        w: Assigner,
        /,
        *,
        fire: Trigger | None = None,
        panes: Panes = "accumulate",
        allow_late: Span = "0s",
        evict: Evictor | None = None,
    ) -> Windowed[T, None]:
        """Windows over all rows together, as `KeyedStream.window` has them by key: one shard does all of it."""
        from headrace.dataflow.windowed import Windowed

        at = call_site()
        return Windowed(self, WHOLE_STREAM, w, fire=fire, panes=panes, allow_late=allow_late, evict=evict, at=at)

    def union(self, *others: Stream[T]) -> Stream[T]:
        """The rows of all these streams, which have one type."""
        at = call_site()
        for other in others:
            if not isinstance(other, Stream):
                raise ProgramError("union takes streams", where=str(at), expected="a stream", found=repr(other))
        checks.check_union(self, others, at)
        inputs = (self._node, *(other._node for other in others))
        return Stream(self._app, self._add(UnionNode, at, self._codec, inputs=inputs))

    @overload
    def changes(self) -> Stream[T]: ...
    @overload
    def changes(self, *, kind: str) -> Stream[Row]: ...
    def changes(self, *, kind: str | None = None) -> Stream[Any]:
        """Every version as a row of its own: the same rows, for sinks that append, and for aggregates and windows.

        Rolling steps give the row of a key anew whenever it changes. Sinks that append, windows, ``process``, lookups
        and others refuse such rows, also behind ``map``: they would take all versions for facts. This says that all
        versions are meant; how many there are depends on where epochs end.

        With ``kind="op"`` rows have one more field, ``op``, and those that are taken back are there, too: ``+I`` came
        in, ``-U`` was replaced by the ``+U`` behind it, ``-D`` is gone.

        >>> import headrace as hr
        >>> class Tx(hr.Record):
        ...     card: str
        >>> tx = hr.App("shop").read("tx", hr.source.items([]), Tx)
        >>> totals = tx.key_by(Tx.card).aggregate(n=hr.count()).named("totals")
        >>> totals.changes().write(hr.sink.files("totals/"))
        """
        if kind is None and not self._node.kind.corrects:
            return Stream(self._app, self._node)
        at = call_site()
        codec = self._codec if kind is None else with_kind(self._codec, kind, at)
        node = self._add(ChangesNode, at, codec, column=kind or "", placed_by=self._node.placed_by)
        return Stream(self._app, node)

    def broadcast(self) -> BroadcastStream[T]:
        """The same rows for every shard, for streams to be connected with: ``tx.connect(rules.broadcast())``."""
        from headrace.dataflow.connected import BroadcastStream

        return BroadcastStream(self)

    def connect(self, rules: BroadcastStream[Q]) -> BroadcastConnected[T, Q, Any]:
        """This stream and rules that every shard has: ``tx.connect(rules.broadcast()).process(Match())``.

        Rows are spread over the shards. For state by key: ``tx.key_by(…).connect(…)``.
        """
        from headrace.dataflow.connected import BroadcastConnected

        return BroadcastConnected(self, None, rules, call_site())

    def feed(self, loop: Stream[T]) -> None:
        """Send the rows back into a loop (``app.loop``): they come out in the next epoch, with their event times."""
        feed(self, loop, call_site())

    def side(self, tag: Side[R]) -> Stream[R]:
        """What a process function emitted to one of its side outputs: ``alerts.side(Fraud.odd)``."""
        at = call_site()
        decl = checks.check_side(self._node, tag, at)
        return self._tap(f"side:{decl.name}", codec_of(decl.args[0], where=str(at)), at)

    @property
    def errors(self) -> Stream[Failed]:
        """Rows that could not be decoded here, or whose function raised. Unread, such a row stops the job."""
        at = call_site()
        node = self._node
        if not isinstance(node, ReadNode | CallNode | AsyncNode | LookupNode | BatchNode | KeyedNode):
            raise ProgramError(
                f"{node.label} has no errors of its own",
                where=str(at),
                expected="a stream made by read, map, flat_map, filter, map_async, lookup, map_batches or a keyed step",
                found=node.verb,
                next_move="take the errors of the stream before it",
            )
        return self._tap("errors", codec_of(Failed), at)

    # -- how nodes are made ----------------------------------------------------------------------------------

    def _add(self, kind: Any, at: Site, codec: RowCodec, **fields: Any) -> Node:
        fields.setdefault("inputs", (self._node,))
        return self._app._add(kind, at, codec, **fields)

    def _expr(self, op: Any, at: Site, made: Projection, placed_by: tuple[str, ...] | None) -> Node:
        return self._add(ExprNode, at, made.codec, op=op, exprs=made.exprs, placed_by=placed_by)

    def _timed(self, node: Node, timed_by: Any, at: Site) -> Stream[Any]:
        if timed_by is not None:
            node = self._app._add(RetimeNode, at, **retime_node_fields(node, timed_by, at))
        return Stream(self._app, node)

    def _call(self, op: Any, fn: Any, codec: RowCodec, at: Site, **kept: Any) -> Stream[Any]:
        return Stream(self._app, self._add(CallNode, at, codec, op=op, fn=fn, **kept))

    def _tap(self, tag: str, codec: RowCodec, at: Site) -> Stream[Any]:
        for node in self._app.nodes:
            if isinstance(node, TapNode) and node.tag == tag and node.inputs == (self._node,):
                return Stream(self._app, node)
        return Stream(self._app, self._add(TapNode, at, codec, tag=tag))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_verb(self._node.label, name)


def _is_row_type(given: Any) -> bool:
    return isinstance(given, type | UnionType) or (hasattr(given, "__origin__") and not isinstance(given, StateDecl))
