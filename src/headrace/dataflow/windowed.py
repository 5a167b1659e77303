"""Windowed streams: ``stream.key_by(…).window(…)``, and what comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Self, TypeVar, overload

import pyarrow as pa
import typing_extensions

from headrace.aggregates.declare import Agg
from headrace.dataflow.aggregation import aggregate_codec, key_columns
from headrace.dataflow.clocks import check_expiry, has_event_time, refuse_horizons
from headrace.dataflow.function_checks import check_function, check_instance
from headrace.dataflow.functions import StatefulFunction, declarations, declare_class, function_types
from headrace.dataflow.graph import KeyedNode
from headrace.dataflow.keyed import StepStream
from headrace.dataflow.naming import proposal
from headrace.dataflow.outputs import check_callable
from headrace.dataflow.site import Site, call_site
from headrace.dataflow.update_kinds import check_settling
from headrace.dataflow.verbs import unknown_window_verb
from headrace.dataflow.window_checks import (
    BUILT_IN,
    check_own_trigger,
    check_scoped,
    check_window,
    settle_evictor,
)
from headrace.errors import ProgramError
from headrace.model.archive import Archive, kind_of
from headrace.model.keyspec import KeySpec
from headrace.model.record import Row
from headrace.model.rows import RowCodec, codec_of
from headrace.model.time import Span, Timestamp, span_us
from headrace.model.values import type_name
from headrace.model.window import PANE, WINDOW_END, WINDOW_START
from headrace.operators.spec import StepInfo
from headrace.windows.context import WindowContext
from headrace.windows.evictors import Evictor
from headrace.windows.kinds import Assigner
from headrace.windows.settings import FINALS
from headrace.windows.spec import WindowSpec
from headrace.windows.triggers import Timeout, Trigger

if TYPE_CHECKING:
    from headrace.dataflow.stream import Stream
    from headrace.state.handles import StateDecl

T = TypeVar("T")
R = TypeVar("R")
In = TypeVar("In")
Out = TypeVar("Out")
K = typing_extensions.TypeVar("K", default=Any)

Panes = Literal["accumulate", "discard"]

_FORM = "hr.WindowProcess[In, Out, Key]"


class WindowProcess(StatefulFunction, Generic[In, Out, K]):
    """A function of whole windows: rows of ``In`` go in, rows of ``Out`` come out, ``K`` types the key.

    States are declared by annotation. They belong to the key, or with ``hr.state(scope="window")`` to one window of it,
    and then go with the window.

    >>> import headrace as hr
    >>> from collections.abc import Iterator, Sequence
    >>> class Tx(hr.Record):
    ...     card: str
    ...     at: hr.Timestamp
    >>> class Visit(hr.Record):
    ...     card: str
    ...     nth: int
    ...     rows: int
    >>> class Visits(hr.WindowProcess[Tx, Visit, str]):
    ...     seen: hr.ValueState[int]
    ...     def on_window(self, rows: Sequence[Tx], ctx: hr.WindowContext[str]) -> Iterator[Visit]:
    ...         nth = self.seen.get(0) + 1
    ...         self.seen.set(nth)
    ...         yield Visit(ctx.key, nth, len(rows))
    >>> app = hr.App("shop")
    >>> tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    >>> visits = tx.key_by(Tx.card).window(hr.session("30m")).process(Visits())
    >>> with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
    ...     h.push(tx, Tx("a", h.at("12:00")), Tx("a", h.at("12:20")), Tx("a", h.at("14:00")))
    ...     h.epoch(watermark="15:00")
    ...     h.take(visits)
    [Visit(card='a', nth=1, rows=2), Visit(card='a', nth=2, rows=1)]
    """

    _has_windows: ClassVar[bool] = True

    def on_window(self, rows: Sequence[In], ctx: WindowContext[K]) -> Iterable[Out] | None:
        """For each window that fires, with its rows in the order they came. Yields any number of rows.

        With ``process(fn, of=…)`` there is one row: what the aggregates or the reduction came to.
        """
        raise NotImplementedError


class WindowStream(StepStream[R, T]):
    """Results of windows over rows of type ``T``."""

    @property
    def late(self) -> Stream[T]:
        """Rows that came when every window they belong to was gone. Unread, they are counted."""
        at = call_site()
        spec = self._spec
        if not (spec.assigner.timed and spec.assigner.clock == "event"):
            raise ProgramError(
                ".late needs windows in event time",
                where=str(at),
                expected="windows in event time",
                found=f"{type(spec.assigner).__name__.lower()} windows of {self._node.label}",
            )
        before = self._node.inputs[0]
        return self._tap("late", before.codec, at)

    def finals(self) -> Stream[R]:
        """The last result of each window, when it is gone for good: its end has passed, and the allowed lateness too.

        Results that came early or were refined by late rows are left out, so these can be appended.
        """
        at = call_site()
        spec = self._spec
        if spec.discard:
            raise ProgramError(
                "windows that discard have no final results",
                where=str(at),
                expected='panes="accumulate"',
                found='panes="discard": each result holds only what is new',
                next_move="leave panes= out, or add the results up in a step of their own",
            )
        if not spec.assigner.timed:
            raise ProgramError(
                "windows without an end have no final results",
                where=str(at),
                expected="windows with an end: tumbling, sliding, cumulating, session",
                found=f"{self._node.label}",
                next_move="use the results themselves",
            )
        return self._tap(FINALS, self._node.codec, at)

    def queryable(self, *, keep: Span | None = None, archive: str | os.PathLike[str] | None = None) -> Self:
        """The same stream; its windows may be read from outside before they fire, and for ``keep`` after they are gone.

        ``archive``: a folder (or URL) that closed windows go to for good, as Parquet files, exactly once. A question
        for a key and a stretch of time is answered from both together: ``view.between(key, start, end)``.

        >>> import headrace as hr
        >>> class View(hr.Record):
        ...     tweet: str
        ...     at: hr.Timestamp
        >>> app = hr.App("tweets")
        >>> views = app.read("views", hr.source.items([]), View, time=View.at)
        >>> hourly = views.key_by(View.tweet).window(hr.tumbling("1h")).aggregate(views=hr.count())
        >>> _ = hourly.named("hourly").queryable(keep="24h", archive="archive/hourly")
        """
        at = call_site()
        super().queryable()
        if archive is not None:
            self._archive_at(os.fspath(archive), at)
        if keep is not None:
            node = self._node
            assert isinstance(node, KeyedNode)
            keys = tuple(key_columns(node.input.codec, node.key))
            info = StepInfo(node.label, (node.input.codec,), node.codec, node.key.type, keys)
            settled = self._spec.over_settled_rows() if node.input.kind.corrects else self._spec
            choice = settled.choose(info)
            if choice.operator != "sliced":
                raise ProgramError(
                    "keep= is not supported for these windows",
                    where=str(at),
                    expected="tumbling, sliding or cumulating windows that run on slices in columns",
                    found=f"keep={keep!r} for {node.label}, which runs {choice.operator}: {choice.why}",
                    next_move="leave keep= out, or keep the results: .finals().key_by(…).latest().queryable()",
                )
            node.spec = replace(self._spec, keep_us=span_us(keep, what="keep", where=str(at)))
        return self

    def _archive_at(self, path: str, at: Site) -> None:
        """Writes the final results to a folder that readers of the step's windows know of."""
        node = self._node
        assert isinstance(node, KeyedNode)
        keys = tuple(key_columns(node.input.codec, node.key))
        check_archived(node, self._spec, keys, at)
        finals = self.finals()
        output = archive_output(path)
        finals.write(self._app._archive(path, keys), name=output)
        kinds = tuple(kind_of(node.codec.schema.field(name).type) for name in keys)
        found = Archive(absolute_path(path), output, keys, kinds, tuple(self._spec.aggs))
        node.spec = replace(self._spec, archive=found)

    @property
    def _spec(self) -> WindowSpec:
        assert isinstance(self._node, KeyedNode) and isinstance(self._node.spec, WindowSpec)
        return self._node.spec


class Windowed(Generic[T, K]):
    """Rows put together by key and window; a verb says what becomes of them.

    >>> import headrace as hr
    >>> class Tx(hr.Record):
    ...     card: str
    ...     at: hr.Timestamp
    ...     cents: int = 0
    >>> app = hr.App("shop")
    >>> tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    >>> hourly = tx.key_by(Tx.card).window(hr.tumbling("1h")).aggregate(total=hr.sum(Tx.cents)).named("hourly")
    >>> hourly.node.codec.names
    ['card', 'window_start', 'window_end', 'total']
    """

    def __init__(
        self,
        stream: Stream[T],
        key: KeySpec,
        assigner: Assigner,
        *,
        fire: Trigger | None,
        panes: Panes,
        allow_late: Span,
        evict: Evictor | None,
        at: Site,
    ) -> None:
        late_us = span_us(allow_late, what="allow_late", where=str(at))
        check_window(assigner, fire, panes, late_us, evict, stream.node, at)
        self._stream = stream
        self._key = key
        self._spec = WindowSpec(
            assigner,
            fire=fire,
            discard=panes == "discard",
            allow_late_us=late_us,
            evict=settle_evictor(evict, stream.node, at),
            trigger_decls=_trigger_decls(fire, assigner, at),
            timed=has_event_time(stream.node),
        )
        check_settling(stream.node, self._spec, at)

    def __repr__(self) -> str:
        return f"<Windowed by {self._key}, {self._spec.tell()[0]}: {self._stream!r}>"

    @overload
    def aggregate(self, into: type[R], /, **aggs: Agg[Any]) -> WindowStream[R, T]: ...
    @overload
    def aggregate(self, /, **aggs: Agg[Any]) -> WindowStream[Row, T]: ...
    def aggregate(self, into: Any = None, /, **aggs: Agg[Any]) -> WindowStream[Any, T]:
        """Aggregates of each window: ``aggregate(total=hr.sum("cents"), n=hr.count())``.

        Rows hold the key's columns, ``window_start``, ``window_end``, the aggregates, and where a window may give more
        than one result ``pane``: early, on_time or late. With a type of one's own, those of its fields are filled by
        their names. The time of a result is the last instant of its window, so that windows can be stacked.
        """
        at = call_site()
        codec = self._aggregated(into, aggs, at)
        columns = self._key.columns
        placed_by = columns if columns is not None and set(columns) <= set(codec.names) else None
        return self._step(codec, at, {"aggs": dict(aggs)}, placed_by=placed_by)

    def reduce(self, fn: Callable[[T, T], T]) -> WindowStream[T, T]:
        """One row for each window, made of all its rows: ``reduce(lambda a, b: a.replace(n=a.n + b.n))``.

        The function must leave the key's columns as they are; nobody checks that.
        """
        at = call_site()
        check_callable(fn, "reduce", at)
        return self._step(self._stream.node.codec, at, {"reduce": fn}, placed_by=self._key.columns)

    @overload
    def process(self, fn: WindowProcess[T, R, K]) -> WindowStream[R, T]: ...
    @overload
    def process(self, fn: WindowProcess[Any, R, K], *, of: Mapping[str, Agg[Any]]) -> WindowStream[R, T]: ...
    @overload
    def process(self, fn: WindowProcess[T, R, K], *, of: Callable[[T, T], T]) -> WindowStream[R, T]: ...
    def process(self, fn: WindowProcess[Any, R, K], *, of: Any = None) -> WindowStream[R, T]:
        """Run a function over whole windows; its class names the step. All rows are kept until their window goes.

        With ``of`` they are not: ``process(Report(), of={"n": hr.count()})`` keeps aggregates, ``of=larger`` a reduced
        row, and the function is given that one row, with all it can ask about the window.
        """
        at = call_site()
        before: dict[str, Any] = {}
        taken = self._stream.node.codec
        cls = type(fn)
        check_instance(fn, WindowProcess, _FORM, at)
        wanted = function_types(cls, WindowProcess, 1)[0]
        if isinstance(of, Mapping):
            into = None if wanted in (Any, Row) else wanted
            taken = self._aggregated(into, of, at)
            before = {"aggs": dict(of), "of": taken}
        elif of is not None:
            check_callable(of, "process(…, of=…)", at)
            before = {"reduce": of, "of": taken}
        decls = declarations(cls, at)
        check_scoped(cls, decls, self._spec.assigner, at)
        out = check_function(fn, WindowProcess, _FORM, ("on_window",), (taken,), self._key, at)
        check_expiry(decls, self._stream.node, at)
        return self._step(codec_of(out, where=str(at)), at, {"function": fn, **before}, fn=fn, decls=decls)

    def _aggregated(self, into: Any, aggs: Mapping[str, Agg[Any]], at: Site) -> RowCodec:
        refuse_horizons(aggs, at)
        bounds = {WINDOW_START: Timestamp, WINDOW_END: Timestamp} if self._spec.assigner.timed else {}
        told = {PANE: str} if self._spec.repeats else {}
        return aggregate_codec(
            self._stream.node.codec, self._key, into, aggs, at, before=bounds, after=told, by_name={**bounds, PANE: str}
        )

    def _step(self, codec: RowCodec, at: Site, said: dict[str, Any], **fields: Any) -> WindowStream[Any, Any]:
        spec = replace(self._spec, **said)
        app, inputs = self._stream.app, (self._stream.node,)
        node = app._add(KeyedNode, at, codec, inputs=inputs, op="window", key=self._key, spec=spec, **fields)
        return WindowStream(app, node)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_window_verb(self.__dict__["_spec"].tell()[0] if "_spec" in self.__dict__ else "windows", name)


def _trigger_decls(fire: Trigger | None, assigner: Assigner, at: Site) -> tuple[StateDecl, ...]:
    trigger = fire.of if isinstance(fire, Timeout) else fire
    if trigger is None or isinstance(trigger, BUILT_IN):
        return ()
    declare_class(type(trigger), Trigger)
    decls = declarations(type(trigger), at)
    check_own_trigger(trigger, decls, assigner, at)
    return decls


# --- what ``queryable(archive=…)`` settles: whether closed windows can be found again, and what their output is called


_ARCHIVE: Final = "archive"


def archive_output(path: str) -> str:
    """The output that writes an archive, named by its folder: renaming the step does not change it.

    >>> archive_output("archive/hourly/"), archive_output("s3://bucket/Archive")
    ('hourly_archive', 'archive')
    """
    stem = proposal(path.rstrip("/").rpartition("/")[2])
    return stem if _ARCHIVE in stem else f"{stem}_{_ARCHIVE}".lstrip("_")


def absolute_path(path: str) -> str:
    """Where a server has to look: it runs in another folder than the job."""
    plain = path.removeprefix("file://")
    return plain if "://" in plain else os.path.abspath(plain)


def check_archived(node: KeyedNode, spec: WindowSpec, keys: tuple[str, ...], at: Site) -> None:
    """Refuses windows whose results do not say of which key and window they are."""
    if spec.archive is not None:
        raise ProgramError(
            "these windows have an archive already",
            where=str(at),
            expected="one archive= for a step",
            found=spec.archive.path,
            next_move="leave one of the two out",
        )
    if not spec.aggs or spec.function is not None:
        raise ProgramError(
            "only windows of aggregates can be archived",
            where=str(at),
            expected="window(…).aggregate(…): one result for each key and window",
            found=node.label,
            next_move="write the rows themselves: .finals().write(hr.sink.files(…))",
        )
    if not spec.assigner.timed:
        raise ProgramError(
            "windows without an end cannot be archived",
            where=str(at),
            expected="tumbling, sliding, cumulating or session windows",
            found=node.label,
            next_move="leave archive= out",
        )
    codec = node.codec
    missing = [name for name in (*keys, WINDOW_START, WINDOW_END) if name not in codec.names]
    if missing:
        raise ProgramError(
            f"archived results need the columns {', '.join((*keys, WINDOW_START, WINDOW_END))}",
            where=str(at),
            expected=f"{type_name(codec.type)} to have them",
            found=f"no {' and no '.join(missing)}",
            next_move="add them to the type (times are hr.Timestamp), or let aggregate make one: .aggregate(total=…)",
        )
    taken = node.input.codec.schema
    for name in keys:
        field = codec.schema.field(name)
        kind = field.type
        told = taken.field(name).type if node.key.columns is not None else kind
        if pa.types.is_nested(kind) or field.metadata or kind != told:
            # What no column holds is packed into bytes, which say nothing of the key's own.
            raise ProgramError(
                "this key cannot be found in an archive",
                where=str(at),
                expected="a plain key of one type"
                if field.metadata
                else f"a plain key, with the type in results that it has in rows: {told}",
                found=f"{name} of any type" if field.metadata else f"{name} as {kind}",
                next_move="key by columns: key_by(Tx.shop, Tx.card)"
                + (", or by a function that says what it gives" if node.key.columns is None else ""),
            )
