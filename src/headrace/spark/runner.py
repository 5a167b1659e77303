"""Running a program on Spark: from an app and its settings to a query that drives epochs, and back to a clean end."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.decide import AlreadyFinal
from headrace.checkpoint.fence import Fence, take_fence
from headrace.checkpoint.maintenance import Maintainer
from headrace.checkpoint.recover import Recovered, recover
from headrace.checkpoint.release import Releaser
from headrace.errors import EpochFailed, HeadraceError, StoreError
from headrace.model.order import Limits
from headrace.model.time import span_us
from headrace.plan.compile import compile_app
from headrace.plan.ship import dump_program
from headrace.query.store import Store as StoreView
from headrace.query.view import StateView
from headrace.spark import executor
from headrace.spark.driver import EpochDriver, StopRequested
from headrace.spark.failures import spark_error
from headrace.spark.frames import build_plan
from headrace.spark.session import check_session, make_session
from headrace.state import layout
from headrace.state.manifest import Manifest
from headrace.state.store import Store as FileStore
from headrace.state.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.dataflow.app import App
    from headrace.dataflow.settings import Settings
    from headrace.plan.physical import Program

Until = Literal["stopped", "caught_up", "drained"]
Watch = Callable[[Manifest], None]

_POLL_S = 0.2
_RETRY_WAIT_S = 1.0


class Job:
    """A run of a program: everything that lives from start to end."""

    def __init__(self, app: App, settings: Settings, until: Until, session: SparkSession | None, watch: Watch | None):
        self.settings = settings
        self.until = until
        self.watch = watch
        self.program: Program = compile_app(app, parallelism=settings.parallelism, key_groups=settings.key_groups)
        self.store = _open(settings)
        self._given = session
        self._session: SparkSession | None = session
        self._fence: Fence | None = None
        self._driver: EpochDriver | None = None
        self._maintainer: Maintainer | None = None
        self._ship: executor.Ship | None = None
        self._coordinator: Coordinator | None = None
        self.recovered: Recovered | None = None
        self._stop = threading.Event()
        self.started = threading.Event()

    def run(self) -> None:
        """From start to end, on the calling thread. Returns when the run has ended cleanly, raises otherwise."""
        try:
            self._begin()
            if self.recovered is not None and isinstance(self.recovered.decision, AlreadyFinal):
                return
            self._drive(final=False)
            if self.until == "drained" and not self._stop.is_set():
                self._drive(final=True)
        finally:
            self._end()

    def stop(self) -> None:
        """Asks the run to end after the current epoch. Safe from any thread and from a signal handler."""
        self._stop.set()
        if self._driver is not None:
            self._driver.request_stop()

    @property
    def published(self) -> int:
        """The newest published epoch; −1 before the first."""
        state = None if self._coordinator is None else self._coordinator.state
        return -1 if state is None else state.epoch

    # -- the way in ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._fence = take_fence(self.store, takeover=self.settings.takeover)
        if self.settings.fresh:
            self._start_over()
        sinks = {output.name: output.sink for output in self.program.outputs}
        for sink in sinks.values():
            sink.start()
        releaser = Releaser(self.store, sinks, lambda: self._session)
        job = self.program.facts()
        self.recovered = recover(self.store, job, releaser)
        self._maintainer = Maintainer(self.store, job, self._fence.number, retain=self.settings.retain)
        self._coordinator = Coordinator(
            self.store, job, self._fence, releaser, self._maintainer, self.recovered.state,
            timeline=self.recovered.timeline, adopted=self.recovered.adopted,
        )  # fmt: skip

    def _start_over(self) -> None:
        for folder in (layout.MANIFESTS, layout.RUNS, layout.STAGED, layout.SPARK):
            path = self.store.local_path(folder)
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)
            else:
                for name in self.store.list(folder):
                    self.store.delete(name)
        for name in (layout.STORE_RECORD, layout.TICK):
            self.store.delete(name)

    def _open_session(self) -> SparkSession:
        if self._session is None:
            self._session = make_session(self.program.app, self.settings.master, self.settings.spark)
        else:
            check_session(self._session)
        return self._session

    def _load(self, session: SparkSession) -> executor.Ship:
        """The compiled program on its way to the workers, once per run."""
        return executor.Ship(
            id=uuid.uuid4().hex,
            program=session.sparkContext.broadcast(dump_program(self.program)),
            store=self.store.url,
            limits=Limits(),
        )

    # -- epochs -------------------------------------------------------------------------------------------------

    def _drive(self, *, final: bool) -> None:
        """Runs a query to its end; one that Spark could not carry on is started again from the last published epoch."""
        session = self._open_session()
        ship = self._ship = self._ship or self._load(session)
        left = self.settings.restarts
        coordinator = self._coordinator
        assert coordinator is not None
        while True:
            driver = EpochDriver(session, self.store, self.program, coordinator, self.watch)
            self._driver = driver
            if self._stop.is_set():
                driver.request_stop()
            state = coordinator.state
            driver.write_tick(None if state is None else state.manifest, final=final)
            try:
                self._run_query(session, driver, ship)
                return
            except EpochFailed:
                left = self.settings.restarts if driver.epochs else left - 1
                if left < 0 or self._stop.is_set():
                    raise
                time.sleep(_RETRY_WAIT_S)
                recover(self.store, coordinator.job, coordinator.releaser)

    def _run_query(self, session: SparkSession, driver: EpochDriver, ship: executor.Ship) -> None:
        try:
            frame = build_plan(session, self.program, ship, self._local(layout.TICK))
            query = self._start_query(frame, driver)
        except HeadraceError:
            raise
        except Exception as error:
            raise spark_error(error) from error
        driver.query = query
        self.started.set()
        self._watch_query(query, driver)
        if driver.failure is not None and not isinstance(driver.failure, StopRequested):
            if isinstance(driver.failure, HeadraceError) or not isinstance(driver.failure, Exception):
                raise driver.failure
            raise spark_error(driver.failure) from driver.failure
        reason = query.exception()
        if reason is not None and driver.failure is None and not self._stop.is_set():
            raise spark_error(reason) from reason

    def _start_query(self, frame: DataFrame, driver: EpochDriver) -> Any:
        writer = frame.writeStream.foreachBatch(driver.on_batch).option("checkpointLocation", self._local(layout.SPARK))
        if self.until == "stopped":
            every_ms = span_us(self.settings.epoch) // 1000
            return writer.trigger(processingTime=f"{every_ms} milliseconds").start()
        return writer.trigger(availableNow=True).start()

    def _watch_query(self, query: Any, driver: EpochDriver) -> None:
        """Waits for the query to end; ends it when a stop was asked for or a newer driver took over."""
        fence = self._fence
        assert fence is not None
        while query.isActive:
            try:
                query.awaitTermination(_POLL_S)
            except Exception:  # the reason is kept in driver.failure or query.exception()
                break
            if self._stop.is_set() and driver.idle.is_set():
                # Between two epochs nothing is in flight, so Spark may be stopped the hard way.
                query.stop()
            elif driver.idle.is_set():
                try:
                    fence.check()
                except HeadraceError as fenced:
                    driver.failure = fenced
                    query.stop()

    def _local(self, path: str) -> str:
        local = self.store.local_path(path)
        return str(local) if local is not None else f"{self.store.url.rstrip('/')}/{path}"

    # -- the way out --------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._maintainer is not None:
            self._maintainer.close()
        for output in self.program.outputs:
            output.sink.close()
        if self._fence is not None:
            self._fence.drop()
        if self._given is None and self._session is not None:
            self._session.stop()
            self._session = None
        self.started.set()


def _open(settings: Settings) -> FileStore:
    try:
        return open_store(settings.store)
    except OSError as error:
        raise StoreError(
            "the store cannot be opened",
            where=str(settings.store),
            found=f"{type(error).__name__}: {error}",
            next_move="give a folder that can be written to (store=… or --store)",
        ) from error


class Run:
    """A program that runs beside you: in a notebook, a test, or a service of your own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=f"headrace-{job.program.app}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._job.run()
        except BaseException as error:
            self._error = error
            self._job.started.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the run has ended (True) or the time is up (False); raises what ended it, if it was not you."""
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ends the run after the current epoch, and waits for that."""
        self._job.stop()
        self.wait()

    @property
    def epoch(self) -> int:
        """The newest published epoch; −1 before the first."""
        return self._job.published

    @property
    def store(self) -> StoreView:
        """The store as a reader sees it: the newest published epoch."""
        return StoreView(self._job.store.url)

    def state(self, name: str, value: Any = None) -> StateView[Any]:
        """A state of the newest published epoch, by its address: ``step`` or ``step.state``."""
        return self.store.state(name, value)


def start(app: App, settings: Settings, until: Until, session: Any = None, watch: Watch | None = None) -> Run:
    """Runs a program beside the caller."""
    return Run(Job(app, settings, until, session, watch))


def run(app: App, settings: Settings, until: Until, session: Any = None, watch: Watch | None = None) -> Job:
    """Runs a program to its end on the calling thread."""
    job = Job(app, settings, until, session, watch)
    job.run()
    return job
