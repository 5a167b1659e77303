"""A session over streams: statements build up a program, and a SELECT runs it and gives its rows as they come.

Every query runs as a program of its own: the statements so far, said anew to a fresh App, and the query behind them.
Its store is a folder that goes with it. Spark is started with the first query and stays for the next ones; until then,
and for all statements that only declare something, no JVM is needed.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.cli.shell.printing import OP
from headrace.cli.shell.session import Changes, LiveAnswer, ShellAnswer, ShellColumn
from headrace.connectors.program.sinks import CollectSink
from headrace.connectors.sink_contract import Release
from headrace.connectors.staged import read_batches, signs_of
from headrace.dataflow.app import App
from headrace.dataflow.checks import reachable
from headrace.dataflow.graph import ReadNode
from headrace.dataflow.site import Site
from headrace.dataflow.stream import Stream
from headrace.errors import ProgramError
from headrace.model.report import StagedPart
from headrace.model.wire import ROW_KIND
from headrace.progress import rows_in, time_text, watermark_of
from headrace.sql.functions import FUNCTIONS
from headrace.tables.catalog import catalog_of
from headrace.tables.context import free_name
from headrace.tables.listing import describe, table_names, view_names
from headrace.tables.program import Listing, SqlProgram, program_of
from headrace.tables.statements import InsertInto, Statement

if TYPE_CHECKING:
    from headrace.dataflow.settings import Settings
    from headrace.spark.runner import Run
    from headrace.state.manifest import Manifest

LOOK_S: Final = 0.25
"""How often a live answer is looked at."""
_SITE: Final = Site("<shell>", 1)
_AGGREGATES: Final = ("count", "sum", "avg", "min", "max", "first", "last", "collect_list", "count_if")


class SharedSpark:
    """Keeps Spark alive between queries; it is started anew for one that needs a connector that it has not."""

    def __init__(self) -> None:
        self._session: Any = None
        self._connectors: set[str] = set()

    def enter(self, app: App, settings: Settings) -> None:
        """Starts Spark, unless it is there and has what the program needs. The program's run then shares it."""
        from headrace.plan.compile import compile_app
        from headrace.spark.connectors import needed_connectors
        from headrace.spark.session import make_session

        program = compile_app(app, parallelism=settings.parallelism, key_groups=settings.key_groups)
        needed = set(needed_connectors(program))
        if self._session is not None and not needed <= self._connectors:
            self.leave()
        if self._session is None:
            self._connectors |= needed
            self._session = make_session("headrace-sql", settings.master, settings.spark, self._connectors)

    def leave(self) -> None:
        if self._session is not None:
            from headrace.spark.session import leave_session

            session, self._session = self._session, None
            leave_session(session)


class QueryStores:
    """A folder for the store of each query. It goes when the next one begins: the last run may still tidy up in it."""

    def __init__(self) -> None:
        self._folder = ""

    def new(self) -> str:
        self.clear()
        self._folder = tempfile.mkdtemp(prefix="headrace-sql-")
        return self._folder

    def clear(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class StreamingSession:
    """Tables, views and settings that a person has said, and queries over them."""

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        self._given = settings or {}
        self._program = _empty_program()
        self._said: list[str] = []
        """The statements that a query's own program begins with."""
        self._spark = SharedSpark()
        self._stores = QueryStores()

    @property
    def title(self) -> str:
        return "headrace"

    def tables(self) -> Sequence[str]:
        return [*table_names(self._program), *view_names(self._program)]

    def columns(self, table: str) -> Sequence[ShellColumn]:
        def error(what: str, next_move: str) -> ProgramError:
            return ProgramError(what, expected=", ".join(self.tables()), found=table, next_move=next_move)

        return [ShellColumn(*row) for row in describe(self._program, table, error)]

    def functions(self) -> Sequence[str]:
        return sorted({*FUNCTIONS, *_AGGREGATES, *catalog_of(self._program.app).functions})

    def execute(self, text: str) -> ShellAnswer | LiveAnswer:
        statements = self._program.read(text)
        if not statements:
            return ShellAnswer()
        (parsed,) = statements
        if not isinstance(parsed.tree, Statement) or isinstance(parsed.tree, InsertInto):
            return self._run(text)
        outcome = self._program.execute(parsed)
        if isinstance(outcome, Listing):
            if outcome.is_text:
                return ShellAnswer(message="\n".join(row[0] for row in outcome.rows))
            columns = {
                name: pa.array([row[i] for row in outcome.rows], pa.string()) for i, name in enumerate(outcome.columns)
            }
            batch = pa.RecordBatch.from_pydict(columns)
            return ShellAnswer(batch.schema, [batch])
        self._said.append(text)
        return ShellAnswer(message=str(outcome))

    def close(self) -> None:
        self._spark.leave()
        self._stores.clear()

    def _run(self, text: str) -> LiveAnswer:
        """A query, or an INSERT, as a program of its own."""
        program = _empty_program()
        for each in self._said:
            program.execute(program.read(each)[0])
        (parsed,) = program.read(text)
        if isinstance(parsed.tree, InsertInto):
            program.execute(parsed)
            rows: Stream[Any] | None = None
        else:
            rows = program.query(parsed, "query")
        return RunningQuery(program, rows, {**self._given, "store": self._stores.new()}, self._spark)


def _empty_program() -> SqlProgram:
    return program_of(App("shell"), _SITE)


class RowsSink(CollectSink):
    """Keeps what came in the order in which it came, in columns, until it is taken."""

    driver_only = (*CollectSink.driver_only, "_batches", "_guard")

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[pa.Table] = []
        self._guard = threading.Lock()

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        batches = list(read_batches(parts, ctx))
        if batches:
            self._last.let_out(parts, ctx, lambda: self._add(pa.Table.from_batches(batches)))

    def _add(self, rows: pa.Table) -> None:
        with self._guard:
            self._batches.append(rows)

    def take(self) -> list[pa.Table]:
        """What came since the last time."""
        with self._guard:
            taken = list(self._batches)
            self._batches.clear()
        return taken


class RunningQuery:
    """A query that runs; see `headrace.cli.shell.session.LiveAnswer`."""

    def __init__(
        self, program: SqlProgram, rows: Stream[Any] | None, given: dict[str, Any], spark: SharedSpark
    ) -> None:
        self.as_changelog = program.settings.as_changelog
        self._sink = RowsSink()
        self.schema = pa.schema([]) if rows is None else rows.node.codec.schema
        kind = None if rows is None else rows.node.kind
        self.key: Sequence[str] | None = kind.key if kind is not None and kind.corrects else None
        self._sign_column = ""
        if rows is not None:
            self._with_signs(rows).write(self._sink, name="result")
        settings = {"epoch": "200ms", **program.settings.run_settings(), **given}
        self._settings = program.app.settings(**settings)
        self._app = program.app
        self._spark = spark
        self._run: Run | None = None
        self._pace = RunPace()

    def _with_signs(self, rows: Stream[Any]) -> Stream[Any]:
        """The rows with a column that says what each does, where they correct each other and that can be told."""
        if not rows.node.kind.corrects:
            return rows
        column = free_name(OP, self.schema.names)
        try:
            signed = rows.changes(kind=column)
        except ProgramError:
            # Without what was given out before, a row says no more than that it replaces another.
            return rows
        self._sign_column = column
        return signed

    def _change(self, rows: pa.Table) -> Changes:
        if self._sign_column:
            signs = rows[self._sign_column].to_pylist()
            return Changes(rows.drop_columns([self._sign_column]), signs)
        signs = signs_of(rows)
        return Changes(rows if signs is None else rows.drop_columns([ROW_KIND]), signs)

    def changes(self) -> Iterator[Changes]:
        yield Changes(self.schema.empty_table())
        self._start()
        assert self._run is not None
        ended = False
        while not ended:
            ended = self._run.wait(LOOK_S)
            came = self._sink.take()
            for rows in came:
                yield self._change(rows)
            if not came:
                yield Changes(self.schema.empty_table())

    def _start(self) -> None:
        from headrace.spark.runner import start

        self._app._check_runnable("stopped")
        reads = [node for node in reachable(self._app) if isinstance(node, ReadNode)]
        ends = all(node.source.bounded for node in reads)
        self._spark.enter(self._app, self._settings)
        self._run = start(self._app, self._settings, "drained" if ends else "stopped", watch=self._pace)

    def status(self) -> str:
        return "starting Spark" if self._run is None else self._pace.text()

    def stop(self) -> None:
        if self._run is not None and not self._run.wait(0):
            self._run.stop()


class RunPace:
    """Rows per second over the last epochs, and the watermark: what the status line says."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque(maxlen=20)
        self._watermark: int | None = None

    def __call__(self, manifest: Manifest) -> None:
        self._seen.append((self._clock(), rows_in(manifest)))
        self._watermark = watermark_of(manifest)

    def text(self) -> str:
        if not self._seen:
            return "starting Spark"
        (first, _), (last, _) = self._seen[0], self._seen[-1]
        came = sum(rows for _, rows in list(self._seen)[1:])
        rate = came / (last - first) if last > first else 0.0
        return f"{rate:,.0f} rows/s · watermark {time_text(self._watermark)}"
