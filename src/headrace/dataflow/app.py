"""The app: one program, its graph, and the doors to running and explaining it.

An app knows nothing of Spark: `run` and `start` open that door only when they are called. Settings do not live here
either; the same app runs on a laptop and on a cluster.

In a notebook a cell that is run again replaces what it said before: a step, source or output takes the place of the one
with the same name from an earlier cell, and what hung on the old one goes with it. Reading a source again by an equal
definition gives the stream that is already there, so the cells below stay valid. In a program that runs from a file,
using a name twice is an error.
"""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from headrace.connectors.source_contract import Source
from headrace.dataflow import checks, site
from headrace.dataflow.app_graph import AppGraph
from headrace.dataflow.checks import reachable
from headrace.dataflow.graph import LoopNode, ReadNode, WriteNode
from headrace.dataflow.naming import check_name
from headrace.dataflow.projection import columns_sql
from headrace.dataflow.settings import Settings, load_settings
from headrace.dataflow.site import Site, call_site
from headrace.dataflow.stream import Field, Stream
from headrace.dataflow.variables import check_variables, find_missing, missing_secret
from headrace.dataflow.watermarking import Watermark, plan_alignment, plan_marking
from headrace.errors import HeadraceError, ProgramError
from headrace.model.generators import WatermarkGenerator
from headrace.model.record import Row
from headrace.model.rows import RowCodec, codec_of
from headrace.model.time import Span, span_us
from headrace.sql.expr import Expr
from headrace.sql.expr import check as check_expression

if TYPE_CHECKING:
    from headrace.spark.runner import Run
    from headrace.upgrade.lines import Upgrade

T = TypeVar("T")
Until = Literal["stopped", "caught_up", "drained"]


class Loop(Stream[T]):
    """Rows that come back; made by ``app.loop``, and closed by ``stream.feed``.

    >>> import headrace as hr
    >>> class Job(hr.Record):
    ...     name: str
    ...     left: int
    >>> app = hr.App("jobs")
    >>> jobs = app.read("jobs", hr.source.items([]), Job)
    >>> again = app.loop("again", Job)
    >>> tried = jobs.union(again).map(lambda job: job.replace(left=job.left - 1), output=Job)
    >>> tried.where("left > 0").feed(again)
    >>> done = tried.where("left <= 0")
    >>> with hr.testing.Harness(app) as h:
    ...     h.push(jobs, Job("short", 1), Job("long", 3))
    ...     h.epoch()
    ...     first = h.take(done)
    ...     h.drain()
    ...     first, h.take(done)
    ([Job(name='short', left=0)], [Job(name='long', left=0)])
    """


class App(AppGraph):
    """A program: sources, steps and outputs under one name.

    >>> import headrace as hr
    >>> class Impression(hr.Record):
    ...     tweet: str
    ...     n: int = 1
    >>> app = hr.App("tweets")
    >>> views = app.read("views", hr.source.items([Impression("a"), Impression("a", 2)]), Impression)
    >>> totals = views.key_by(Impression.tweet).aggregate(total=hr.sum("n")).named("totals")
    >>> totals.write(hr.sink.console())
    """

    def __repr__(self) -> str:
        return f"App({self.name!r})"

    def _repr_html_(self) -> str:
        """The graph of steps, as a notebook shows it."""
        from headrace.dataflow.picture import draw_graph

        return draw_graph(f"app {self.name}", self._nodes)

    # -- reading ---------------------------------------------------------------------------------------------

    @overload
    def read(
        self,
        name: str,
        source: Source,
        type: type[T],
        /,
        *,
        time: Field | Expr = None,
        out_of_order: Span | None = None,
        watermark: Watermark | WatermarkGenerator[T] | None = None,
        idle: Span | None = None,
        align: str | None = None,
        max_drift: Span | None = None,
    ) -> Stream[T]: ...
    @overload
    def read(
        self,
        name: str,
        source: Source,
        type: UnionType | type[Any],
        /,
        *,
        time: Field | Expr = None,
        out_of_order: Span | None = None,
        watermark: Watermark | WatermarkGenerator[Any] | None = None,
        idle: Span | None = None,
        align: str | None = None,
        max_drift: Span | None = None,
    ) -> Stream[Any]: ...
    def read(
        self,
        name: str,
        source: Source,
        type: Any,
        /,
        *,
        time: Any = None,
        out_of_order: Span | None = None,
        watermark: Watermark | WatermarkGenerator[Any] | None = None,
        idle: Span | None = None,
        align: str | None = None,
        max_drift: Span | None = None,
    ) -> Stream[Any]:
        """Rows of a source, as objects of a type.

        ``time`` is the event time: a field (``Tx.at``), a column's name or SQL. ``out_of_order`` says how long the
        watermark waits for rows that come late, or ``watermark`` in another way how far time has come
        (``hr.watermarks``); ``idle`` when a silent part of the source no longer holds it. Sources with the same
        ``align`` wait for each other, once they are ``max_drift`` ahead.
        """
        at = call_site()
        check_name(name, "a source", str(at))
        checks.check_source(source, at)
        codec = codec_of(type, where=str(at))
        text = None if time is None else columns_sql({"": time}, str(at))[""]
        idles = None if idle is None else span_us(idle, what="idle", where=str(at))
        self._check_times(codec, text, out_of_order, idles, at)
        self._check_needs_time(source, codec, text, at)
        marking = plan_marking(watermark, out_of_order, text, codec, at)
        alignment = plan_alignment(align, max_drift, text, source.python, at)
        definition = (_definition(source), codec, text, watermark, marking.out_of_order_us, idles, alignment)
        known = self._known_read(name, definition)
        if known is not None:
            return Stream(self, known)
        node = self._add(
            ReadNode, at, codec, inputs=(), source=_bind(source, codec, at), time=text, marking=marking, idle_us=idles,
            alignment=alignment, definition=definition,
        )  # fmt: skip
        self._name(node, name, None, at)
        return Stream(self, node)

    def _check_times(
        self, codec: RowCodec, time: str | None, out_of_order: Span | None, idles: int | None, at: Site
    ) -> None:
        if time is not None:
            check_expression(time, codec.schema, str(at))
            checks.check_time(time, codec, at)
        elif out_of_order is not None or idles is not None:
            raise ProgramError(
                "out_of_order and idle are about event time, and this source has none",
                where=str(at),
                expected="time= beside them",
                found="no time=",
                next_move=f"say which column tells the time: time={codec.names[0]!r}",
            )

    def _check_needs_time(self, source: Source, codec: RowCodec, time: str | None, at: Site) -> None:
        if source.needs_time and time is None:
            raise ProgramError(
                f"{source.describe()} is cut by event time, and this stream has none",
                where=str(at),
                expected="time= beside it",
                found="no time=",
                next_move=f"say which column tells the time: time={codec.names[0]!r}",
            )

    def _known_read(self, name: str, definition: Any) -> ReadNode | None:
        """In a notebook, the node of an earlier cell that read the same thing under the same name."""
        cell = site.current_cell()
        for node in self._nodes:
            if isinstance(node, ReadNode) and node.name == name and cell is not None and node.cell != cell:
                return node if _same(node.definition, definition) else None
        return None

    def loop(self, name: str, type: type[T], /, *, was: str | None = None) -> Loop[T]:
        """A stream of rows that a later step feeds back: ``again = app.loop("again", Tx)``, ``failed.feed(again)``.

        Rows fed in one epoch come in the next one, and are part of the checkpoint in between. They keep their event
        times and never hold the watermark. A run over bounded input ends when its loops are empty. `was` is the name
        that the loop had in an earlier version of the program: rows that wait in it go on.
        """
        at = call_site()
        check_name(name, "a loop", str(at))
        node = self._add(LoopNode, at, codec_of(type, where=str(at)), inputs=())
        self._name(node, name, was, at)
        return Loop(self, node)

    # -- SQL -------------------------------------------------------------------------------------------------

    @overload
    def sql(self, query: str, /, *, name: str | None = None, **tables: Stream[Any]) -> Stream[Row]: ...
    @overload
    def sql(self, into: type[T], query: str, /, *, name: str | None = None, **tables: Stream[Any]) -> Stream[T]: ...
    def sql(self, first: Any, second: Any = None, /, *, name: str | None = None, **tables: Any) -> Stream[Any]:
        """A query over streams, as a stream: ``app.sql("SELECT card, SUM(cents) AS total FROM tx GROUP BY card")``.

        Every named source and step is a table; others are given by name: ``app.sql("… FROM orders", orders=orders)``.
        With a type before the query its rows are of that type. A query that keeps state needs a name, as every step
        does: ``name="totals"``, or ``.named("totals")``.

        >>> import headrace as hr
        >>> class Tx(hr.Record):
        ...     card: str
        ...     cents: int
        >>> app = hr.App("shop")
        >>> tx = app.read("tx", hr.source.items([]), Tx)
        >>> large = app.sql("SELECT card, cents / 100 AS euros FROM tx WHERE cents >= 5000")
        >>> with hr.testing.Harness(app) as h:
        ...     h.push(tx, Tx("ann", 4200), Tx("bob", 9900))
        ...     h.epoch()
        ...     h.take(large)
        [Row(card='bob', euros=99.0)]
        """
        from headrace.tables.program import run_text

        return run_text(self, first, second, name, tables, call_site())

    def table(self, name: str, /) -> Stream[Any]:
        """The rows of a table or view of SQL: one that ``app.sql("CREATE TABLE …")`` made, or any named source or step.

        >>> import headrace as hr
        >>> app = hr.App("shop")
        >>> app.sql("CREATE TABLE tx (card STRING, cents BIGINT) WITH ('connector' = 'datagen')")
        >>> app.table("tx").where("cents > 50")
        <Stream of Tx: where at <doctest headrace.dataflow.app.App.table[3]>:1>
        """
        from headrace.tables.program import table_stream

        return table_stream(self, name, call_site())

    # -- running ---------------------------------------------------------------------------------------------

    def run(self, *, until: Until = "stopped", profile: str | None = None, spark: Any = None, **config: Any) -> None:
        """Run the program, and come back when it has ended. Ctrl-C ends it after the current epoch.

        ``until``: ``"stopped"`` runs until somebody stops it, ``"caught_up"`` until the input that is there has been
        read (and can be resumed), ``"drained"`` until the end of all input, after which everything has fired. Settings
        are given by name: ``app.run(store="./state", parallelism=2)``. ``spark`` is a session to run in, or, as a dict,
        what the one that is made has: ``app.run(spark={"driver.memory": "8g"})``.
        """
        session, config = _session_given(spark, config)
        settings = self.settings(profile=profile, **config)
        self._check_runnable(until)
        from headrace.foreground import run_visibly

        try:
            return run_visibly(self, settings, until, session)
        except HeadraceError as error:
            failed = site.without_our_frames(error)
        raise failed

    def start(self, *, until: Until = "stopped", profile: str | None = None, spark: Any = None, **config: Any) -> Run:
        """Run the program in the background, for notebooks and tests; gives a `Run` to wait for or to stop."""
        session, config = _session_given(spark, config)
        settings = self.settings(profile=profile, **config)
        self._check_runnable(until)
        from headrace.spark.runner import start

        return start(self, settings, until, session)

    def settings(self, *, profile: str | None = None, **config: Any) -> Settings:
        """The settings a run would have, from these arguments, the environment and ``headrace.toml``."""
        settings = load_settings(self.name, config, profile=profile, program=self.own_settings)
        check_variables(settings.vars)
        return settings

    def _check_runnable(self, until: str) -> None:
        if until not in ("stopped", "caught_up", "drained"):
            raise ProgramError(
                "until= must be stopped, caught_up or drained",
                where=str(call_site()),
                expected='until="stopped", "caught_up" or "drained"',
                found=repr(until),
            )
        for node in reachable(self):
            holder = node.source if isinstance(node, ReadNode) else node.sink if isinstance(node, WriteNode) else None
            for name in find_missing(holder):
                error = missing_secret(name)
                error.where = node.site
                raise error

    def plan(self, store: str | None = None, *, profile: str | None = None, **config: Any) -> Upgrade:
        """What becomes of everything in a store when this program goes on with it; nothing is started or written.

        ``store`` and further settings as in ``run``: ``app.plan("./state", drop=["totals.seen"])``. The answer prints
        as a list; its ``refused`` lines say what the program could not be started with, and why.
        """
        settings = self.settings(profile=profile, store=store, **config)
        from headrace.starting import plan_start

        return plan_start(self, settings)

    def explain(self, format: Literal["text", "mermaid"] = "text") -> str:
        """The program as text or as a Mermaid graph: steps, state, exchanges, where expressions run, guarantees."""
        from headrace.plan.explain import explain_text
        from headrace.plan.mermaid import explain_mermaid

        return explain_mermaid(self) if format == "mermaid" else explain_text(self)


def _definition(source: Source) -> Any:
    """What makes two sources equal: their kind and everything they were given."""
    return type(source), {name: value for name, value in vars(source).items() if not name.startswith("__")}


def _same(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except (TypeError, ValueError):  # arrays and their like do not say whether they are equal
        return False


def _bind(source: Source, codec: RowCodec, at: Site) -> Source:
    try:
        return source.bind(codec)
    except ProgramError as error:
        error.where = error.where or str(at)
        raise


def _session_given(spark: Any, config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A session, or none, and the settings: a dict is the table ``spark`` of these."""
    return (None, {**config, "spark": spark}) if isinstance(spark, dict) else (spark, config)
