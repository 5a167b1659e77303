"""Running a program on Spark: from an app and its settings to a query that drives epochs, and back to a clean end."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Literal

from py4j.protocol import Py4JNetworkError

from headrace.checkpoint.commands import Stop
from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.decide import AlreadyFinal
from headrace.checkpoint.facts import read_facts
from headrace.checkpoint.fence import Fence
from headrace.checkpoint.maintenance import Maintainer
from headrace.checkpoint.patience import Patience
from headrace.checkpoint.recover import open_for_driving, recover
from headrace.checkpoint.recovered import RecoveredJob
from headrace.checkpoint.release import Releaser
from headrace.connectors.source_contract import LeftToSpark
from headrace.edit.running import LiveEdits
from headrace.errors import EpochFailed, HeadraceError, JvmDied
from headrace.model.behind import counting_text
from headrace.model.order import EpochLimits
from headrace.model.sink_waits import SinkWait
from headrace.model.time import span_us
from headrace.plan.compile import compile_app
from headrace.plan.rules.decoding import plan_decoding
from headrace.plan.ship import dump_program
from headrace.plan.sides import Side, has_seam, histories, one_side
from headrace.spark import executor
from headrace.spark.activity import Activity
from headrace.spark.backlog import Backlog
from headrace.spark.beginnings import choose_beginning, start_maintainer, take_store
from headrace.spark.driver import EpochDriver, StopRequested
from headrace.spark.ending import Ending
from headrace.spark.failures import kafka_error, spark_error
from headrace.spark.jvm import jvm_death
from headrace.spark.own_session import OwnSession
from headrace.spark.pacing import QueryPace
from headrace.spark.query import build_plan, decodes_alike
from headrace.spark.seam import NEVER_READ, decide_side
from headrace.spark.warming import warm_workers
from headrace.state import layout
from headrace.state.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.connectors.source_contract import SplitReader
    from headrace.dataflow.app import App
    from headrace.dataflow.settings import Settings
    from headrace.plan.physical import Program

Until = Literal["stopped", "caught_up", "drained"]
Watch = Callable[[Manifest], None]

log = logging.getLogger("headrace.runner")

_POLL_S = 0.2
_RETRY_WAIT_S = 1.0


class Job:
    """A run of a program: everything that lives from start to end."""

    def __init__(
        self, app: App, settings: Settings, until: Until, session: SparkSession | None, watch: Watch | None,
        say: Callable[[str], None] = log.warning,
    ) -> None:  # fmt: skip
        self._say, self.settings = say, settings
        self.until, self.watch = until, watch
        self._nodes = app.nodes
        self.program: Program = compile_app(app, parallelism=settings.parallelism, key_groups=settings.key_groups)
        self._side: Side | None = None
        """Which side of its backfills the program reads; None: it has none."""
        self._left_to_spark: set[str] = set()
        """Sources with files that the workers do not decode."""
        self._current = self.program
        """The program as it is run at this moment: with one side of each backfill in its place."""
        self.store = open_for_driving(settings.store)
        sinks = {output.name: output.sink for output in self.program.outputs}
        self._pace = QueryPace(settings.epoch, self.store)
        self._edits = LiveEdits(self.store)
        self._ending = Ending(self.store, self._edits)
        self._stop = self._ending.event
        self._patience = Patience(span_us(settings.sink_patience), stop=self._stop, store=self.store)
        self._session = OwnSession(self.program, settings, session)
        self._releaser = Releaser(self.store, sinks, self._session.open, self._patience)
        self._fence: Fence | None = None
        self._driver: EpochDriver | None = None
        self._backlog: Backlog | None = None
        self._maintainer: Maintainer | None = None
        self._ship: executor.Ship | None = None
        self._coordinator: Coordinator | None = None
        self._attempts = 0
        self._activity = Activity()
        self._endless = False
        """Whether the query at hand has no end of its own."""
        self.started = threading.Event()

    def run(self) -> None:
        """From start to end, on the calling thread. Returns when the run has ended cleanly, raises otherwise."""
        try:
            self._run()
            self._ending.settle(self.place, final=self._is_final)
        except BaseException as error:
            self._ending.give_up(self.published, error)
            raise
        finally:
            self._end()

    def _run(self) -> None:
        recovered = self._begin()
        if isinstance(recovered.decision, AlreadyFinal):
            return
        if self._side == "history":
            self._drive(recovered.run, final=False)
            if self._stop.is_set() or self._is_final:
                return
            recovered = self._cross_seam()
        self._drive(recovered.run, final=False)
        if self._is_cut and not self._stop.is_set():
            # A drain was asked for in the middle: what is left of the input of now is read to its end.
            self._drop_backlog()
            self._drive(self._recover().run, final=False)
        if self.until == "drained" and not self._stop.is_set() and not self._is_final:
            self._drive(self._recover().run, final=True)
            self._check_drained()

    def stop(self, order: Stop = Stop()) -> None:  # noqa: B008
        """Asks the run to end after the current epoch. Without a savepoint safe from any thread and a signal handler.

        Raises StoreError where the savepoint could not be taken: then the run goes on.
        """
        self._ending.ask(order, self.published)
        self._obey()

    def _obey(self) -> None:
        """Has the query end that goes on although it should not."""
        if self._ending.drains:
            self.until = "drained"
        if self._driver is not None and (self._stop.is_set() or self._is_cut):
            self._driver.request_stop()

    @property
    def _is_cut(self) -> bool:
        """Whether the query at hand would go on for ever, and the run is to be drained."""
        return self._endless and self.until == "drained"

    @property
    def asked_by(self) -> str:
        """Who asked from another process that the run ends; empty: nobody."""
        return self._ending.asked_by

    @property
    def place(self) -> layout.ManifestName | None:
        """Timeline and epoch of the newest published epoch; None before the first."""
        state = None if self._coordinator is None else self._coordinator.state
        return None if state is None else layout.ManifestName(state.manifest.timeline, state.epoch)

    @property
    def published(self) -> int:
        """The newest published epoch; −1 before the first."""
        state = None if self._coordinator is None else self._coordinator.state
        return -1 if state is None else state.epoch

    @property
    def waits(self) -> tuple[SinkWait, ...]:
        """The sinks that the run waits for at this moment."""
        return self._patience.waits

    @property
    def pace_note(self) -> str:
        """Why rows wait longer than adaptive epochs promise; empty where they do not."""
        return self._pace.note

    @property
    def beginning(self) -> list[str]:
        """What takes long before a first epoch, a line each: a table is copied, a folder is listed."""
        counting = {} if self._backlog is None else self._backlog.counting()
        return [*self._activity.beginning, *(f"{name}: {counting_text(found)}" for name, found in counting.items())]

    def activity(self) -> str:
        """What the run is doing at this moment, for a person who waits; empty where it waits for input itself."""
        return self._activity.tell(self._driver, self.published)

    # -- the way in ---------------------------------------------------------------------------------------------

    def _begin(self) -> RecoveredJob:
        self._fence = take_store(self.store, self.settings, self.program, self._say)
        self._ending.listen(self._fence.number)
        self._patience.check = self._fence.glance
        self._releaser.start()
        choose_beginning(self.store, self.settings, self.program, self._fence, self._releaser, self._say)
        if has_seam(self.program):
            state = read_facts(self.store).state
            self._choose_side(decide_side(self.program, None if state is None else state.manifest))
        job = self._current.facts
        recovered = recover(self.store, job, self._fence, self._releaser, drop=self.settings.drop, say=self._say)
        self._maintainer = start_maintainer(self.store, self.settings, self.program, job, self._fence, self._releaser)
        self._coordinator = Coordinator(
            self.store, job, self._fence, self._releaser, self._maintainer, None, retired=recovered.retired,
            edits=self._edits,
        )  # fmt: skip
        self._coordinator.resume(recovered)
        return recovered

    def _recover(self) -> RecoveredJob:
        """Begins anew from what is published, in a new folder: Spark could not carry on, or its input has ended."""
        assert self._fence is not None and self._coordinator is not None
        self._attempts += 1
        job, drop = self._coordinator.job, self.settings.drop
        recovered = recover(self.store, job, self._fence, self._releaser, attempt=self._attempts, drop=drop)
        self._coordinator.resume(recovered)
        return recovered

    def _choose_side(self, side: Side) -> None:
        self._side = side
        self._current = plan_decoding(one_side(self.program, side), self._left_to_spark)
        # What the workers have, and what was counted, is the other side.
        self._ship = None
        self._drop_backlog()

    def _leave_to_spark(self, sources: set[str]) -> None:
        """Has Spark decode these sources."""
        self._left_to_spark |= sources
        self._current = plan_decoding(self._current, self._left_to_spark)
        self._ship = None

    def _cross_seam(self) -> RecoveredJob:
        """All history is read: goes on with the live sources, from what is published."""
        assert self._coordinator is not None
        self._choose_side("live")
        self._coordinator.job = self._current.facts
        recovered = self._recover()
        # Noted also where a history was empty: that it was looked for is what says that the seam is behind us.
        self._coordinator.retired = {**dict.fromkeys(histories(self.program).values(), NEVER_READ), **recovered.retired}
        log.info("all history is read; going on with the live sources")
        return recovered

    @property
    def _bounded(self) -> bool:
        """Whether the query ends when it has read what is there."""
        return self.until != "stopped" or self._side == "history"

    @property
    def _is_final(self) -> bool:
        """Whether the last epoch is published; the first query gets there where only loops had to become empty."""
        state = None if self._coordinator is None else self._coordinator.state
        return state is not None and state.manifest.final

    def _check_drained(self) -> None:
        if not self._stop.is_set() and not self._is_final:
            raise EpochFailed(
                "the input was read to its end, but the last epoch did not run",
                where=self.store.url,
                next_move="start again: everything up to the last published epoch is kept",
            )

    def _load(self, session: SparkSession) -> executor.Ship:
        """The compiled program on its way to the workers, once per run."""
        return executor.Ship(
            id=uuid.uuid4().hex,
            program=session.sparkContext.broadcast(dump_program(self._current)),
            store=self.store.url,
            limits=EpochLimits(),
        )

    # -- epochs -------------------------------------------------------------------------------------------------

    def _drive(self, run: str, *, final: bool) -> None:
        """Runs a query to its end; one that Spark could not carry on is started again from the last published epoch."""
        for source in self._current.sources:
            source.source.check_there()
        left = self.settings.restarts
        coordinator = self._coordinator
        assert coordinator is not None
        while True:
            self._endless = not self._bounded
            self._activity.enter("starting Spark")
            session = self._session.open()
            self._activity.enter("building the query")
            if not decodes_alike(session):
                self._leave_to_spark({source.name for source in self._current.sources})
            self._ship = self._ship or self._load(session)
            warm_workers(session, self._ship, self.program.parallelism)
            backlog = self._open_backlog(session, coordinator)
            driver = EpochDriver(
                session, self.store, self._current, coordinator, run, self.watch,
                backlog=backlog, pacer=self._pace.pacer(endless=self._endless), bounded=not self._endless,
            )  # fmt: skip
            self._driver = driver
            self._obey()
            driver.prepare(final=final)
            try:
                self._run_query(session, driver, self._ship, run, backlog)
                return
            except LeftToSpark as file:
                log.info("%s: Spark decodes its files from here on; of %s, %s", file.source, file.where, file.what)
                self._leave_to_spark({file.source})
                run = self._recover().run
            except EpochFailed as failed:
                left = self.settings.restarts if driver.epochs else left - 1
                if left < 0 or self._stop.is_set():
                    raise
                if isinstance(failed, JvmDied):
                    self._drop_session(failed)
                log.warning("starting again from the last published epoch: %s", failed)
                time.sleep(_RETRY_WAIT_S)
                run = self._recover().run

    def _open_backlog(self, session: SparkSession, coordinator: Coordinator) -> Backlog:
        if self._backlog is None:
            published = None if coordinator.state is None else coordinator.state.manifest
            self._backlog = Backlog(session, self._current, self.store, published, bounded=self._bounded)
        return self._backlog

    def _drop_session(self, died: JvmDied) -> None:
        """Lets go of a JVM that died, and of what lived in it."""
        self._session.drop(died)
        self._ship = None
        self._drop_backlog()

    def _drop_backlog(self) -> None:
        if self._backlog is not None:
            self._backlog.close()
            self._backlog = None

    def _run_query(
        self, session: SparkSession, driver: EpochDriver, ship: executor.Ship, run: str, backlog: Backlog
    ) -> None:
        try:
            readers: dict[str, SplitReader] = {}
            tables = [source.log_name for source in self._current.sources if source.source.kind == "table"]
            self._activity.beginning = [f"{name}: copying the table" for name in tables]
            frame = build_plan(session, self._current, ship, driver.ticker, readers)
            self._activity.beginning = []
            backlog.watch_readers(readers)
            query = self._start_query(session, frame, driver, run)
            self._activity.enter("")
        except HeadraceError:
            raise
        except Exception as error:
            raise self._translate(session, error) from error
        driver.query = query
        self.started.set()
        self._watch_query(session, query, driver)
        with suppress(HeadraceError, OSError, ConnectionError, Py4JNetworkError):
            driver.nudge()
        if driver.failure is not None and not isinstance(driver.failure, StopRequested):
            if isinstance(driver.failure, HeadraceError) or not isinstance(driver.failure, Exception):
                raise driver.failure
            raise self._translate(session, driver.failure) from driver.failure
        reason = query.exception()
        if reason is not None and driver.failure is None and not (self._stop.is_set() or self._is_cut):
            raise self._translate(session, reason) from reason

    def _translate(self, session: SparkSession, error: BaseException) -> HeadraceError:
        return jvm_death(session, error) or kafka_error(error, self._current) or spark_error(error, self._nodes)

    def _start_query(self, session: SparkSession, frame: DataFrame, driver: EpochDriver, run: str) -> Any:
        folder = str(self.store.scratch().local_path(layout.spark(run)))
        if self.store.local_path(layout.SPARK) is None:
            # The folder is the driver's alone; without a scheme a cluster would look for it in its own file system.
            folder = f"file://{folder}"
        writer = frame.writeStream.foreachBatch(driver.on_batch).option("checkpointLocation", folder)
        return self._pace.start(session, writer, endless=self._endless)

    def _watch_query(self, session: SparkSession, query: Any, driver: EpochDriver) -> None:
        """Waits for the query to end; ends it when a stop was asked for or a newer driver took over."""
        fence = self._fence
        assert fence is not None
        while not self._has_ended(session, query):
            # Commands are met in the middle of an epoch, too.
            self._ending.glance(self.published)
            self._obey()
            if not driver.idle.is_set():
                continue
            try:
                fence.glance()
                driver.nudge()
            except HeadraceError as fenced:
                driver.failure = fenced
            if self._stop.is_set() or self._is_cut or driver.failure is not None:
                # Between two epochs nothing is in flight, so Spark may be stopped the hard way.
                driver.request_stop()
                query.stop()

    def _has_ended(self, session: SparkSession, query: Any) -> bool:
        """Waits a moment for the query's end. Why it ended is asked elsewhere; that the JVM died is said here."""
        try:
            return bool(query.awaitTermination(_POLL_S))
        except (ConnectionError, Py4JNetworkError) as error:
            raise self._translate(session, error) from error
        except Exception:  # the reason is kept in driver.failure or query.exception()
            return True

    # -- the way out --------------------------------------------------------------------------------------------

    def _end(self) -> None:
        with ExitStack() as last:
            # In the reverse order of this list, and each of them whatever the others do.
            last.callback(self.started.set)
            last.callback(self._session.leave)
            if self._fence is not None:
                last.callback(self._fence.drop)
            last.callback(self._releaser.close)
            for output in self.program.outputs:
                last.callback(output.sink.close)
            if self._maintainer is not None:
                last.callback(self._maintainer.close)
            if self._backlog is not None:
                last.callback(self._backlog.close)
