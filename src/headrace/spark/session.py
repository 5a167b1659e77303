"""The Spark session: made with the settings Headrace needs, or a given one checked for them.

Why each setting: measured, and said beside it. A user's own settings win over ours where they are a matter of taste,
and are refused where the engine would be wrong without ours.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from headrace.errors import EnvironmentMissing, SettingsError
from headrace.model.order import BY_NAME
from headrace.spark.connectors import check_connectors, with_connectors
from headrace.spark.java import find_java
from headrace.spark.jvm import deaf_to_sigterm, forget_dead_jvm, quick_start
from headrace.spark.quiet import quiet_children

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

REQUIRED: Final = {
    # Adaptive execution may turn an empty shuffle into no tasks at all, and then no timer would fire.
    "spark.sql.adaptive.enabled": "false",
    # Sources are known by name, so that programs can change; cannot be turned on later.
    BY_NAME: "true",
    # Wrong input is an error, in the JVM as in the worker's evaluator, and never a silent null.
    "spark.sql.ansi.enabled": "true",
    # Timestamps are microseconds since 1970, everywhere.
    "spark.sql.session.timeZone": "UTC",
}

DEFAULTS: Final = {
    # Loopback TCP stalls about 40 ms per Python task.
    "spark.python.unix.domain.socket.enabled": "true",
    # A limit in bytes is checked by walking over all vectors of the batch after every row, which took a third of the
    # JVM's time. A limit in rows costs nothing; programs with rows of many kilobytes can set one in bytes again.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "4",
    "spark.sql.ui.retainedExecutions": "4",
    "spark.ui.retainedJobs": "4",
    "spark.ui.retainedStages": "8",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    "spark.shuffle.compress": "false",
    "spark.sql.streaming.minBatchesToRetain": "4",
    "spark.driver.memory": "2g",
}

LOCAL: Final = {
    # The default manager forks twenty processes per epoch on a local disk. Durability is the manifest's business:
    # Spark's folder is rebuilt from it where they disagree.
    "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.python.daemon.module": "headrace.spark.daemon",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

TRACE: Final = "HEADRACE_TRACE"
"""Set in the environment: Spark's own log and stacks are shown."""


def make_session(app: str, master: str, conf: Mapping[str, str], connectors: Collection[str] = ()) -> SparkSession:
    """A session of our own; where a context runs already, a further session of it. It has these connectors."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java)
    _choose_python(master)
    _show_modules_to_workers()
    with _opening:
        if forget_dead_jvm():
            _own.context, _own.users = None, 0
        running = _running_session()
        if running is None:
            return _own.enter(_start_context(java, app, master, conf, connectors))
        # One JVM has one context. Settings of ours that belong to a session are set in a session of our own.
        session = running.newSession()
        for name, value in REQUIRED.items():
            session.conf.set(name, value)
        check_connectors(session, connectors)
        return _own.enter(session)


def leave_session(session: SparkSession) -> None:
    """Who made a session needs it no more. Ends the context where it is of ours and nobody else's runs use it."""
    with _opening:
        _own.leave(session)


def owns_context(session: SparkSession) -> bool:
    """Whether a run of this process started the context of a session, so that a run may start another."""
    return session.sparkContext in _own.started


class _OwnContext:
    """The context that a run started, and how many runs use it: the last one ends it."""

    def __init__(self) -> None:
        self.context: SparkContext | None = None
        self.users = 0
        self.started: WeakSet[SparkContext] = WeakSet()
        """All that were ever started here, the dead ones too."""

    def enter(self, session: SparkSession) -> SparkSession:
        if session.sparkContext is self.context:
            self.users += 1
        return session

    def leave(self, session: SparkSession) -> None:
        if session.sparkContext is not self.context:
            return
        self.users -= 1
        if not self.users:
            self.context = None
            session.stop()


_own: Final = _OwnContext()
_opening: Final = threading.Lock()


def _running_session() -> SparkSession | None:
    """One of this process: a notebook's, a test's, another run's. What pyspark calls active is of one thread alone."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return SparkSession.getActiveSession()
    session = SparkSession._instantiatedSession
    return session if session is not None and session._sc is context else SparkSession(context)


def _start_context(
    java: Path, app: str, master: str, conf: Mapping[str, str], connectors: Collection[str]
) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    _check_batch_rows(conf.get(_BATCH_ROWS), "settings, spark")
    conf = with_connectors(connectors, conf)
    builder: Any = SparkSession.builder.appName(app).master(_with_retries(master))
    ours = {**DEFAULTS, **(LOCAL if master.startswith("local") else {})}
    for name, value in {**ours, **dict(conf), **REQUIRED}.items():
        wanted = conf.get(name)
        if name in REQUIRED and wanted is not None and wanted.lower() != REQUIRED[name].lower():
            raise SettingsError(
                f"Headrace cannot run with {name} = {wanted}",
                where="settings, spark",
                expected=f"{name} = {REQUIRED[name]}",
                found=wanted,
                next_move="leave the setting out",
            )
        builder = builder.config(name, value)
    quiet = nullcontext() if os.environ.get(TRACE) else quiet_children()
    try:
        with quiet, quick_start(java, conf), deaf_to_sigterm():
            made: SparkSession = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise EnvironmentMissing(
            "Spark's JVM ended before it was ready",
            where=str(java),
            found=str(error).splitlines()[0],
            next_move="what it said itself stands above; look at the settings that it is started with "
            "(spark.driver.memory, spark.driver.extraJavaOptions) and at JAVA_TOOL_OPTIONS, and start again",
        ) from error
    if not os.environ.get(TRACE):
        made.sparkContext.setLogLevel("OFF")
    _own.context, _own.users = made.sparkContext, 0
    _own.started.add(made.sparkContext)
    # Its server in this process prints a trace when the JVM dies, which `jvm_death` tells in words.
    server: Any = made.sparkContext._accumulatorServer
    server.handle_error = lambda request, address: None
    return made


_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_ROWS_AT_MOST: Final = 1_000_000
"""What bounds the bytes of a batch between steps, too: a frame counts as a row for each KiB of it."""


def _check_batch_rows(value: str | None, where: str) -> None:
    if value is None or (value.isdecimal() and 0 < int(value) <= _BATCH_ROWS_AT_MOST):
        return
    raise SettingsError(
        f"Headrace cannot run with {_BATCH_ROWS} = {value}",
        where=where,
        expected=f"1 to {_BATCH_ROWS_AT_MOST:,}: it bounds the batches that Python gets",
        found=value,
        next_move=f"set it to {DEFAULTS[_BATCH_ROWS]}",
    )


def check_session(session: SparkSession) -> None:
    """Refuses a given session that lacks what the engine needs, with the whole list."""
    from pyspark.sql import SparkSession

    if not isinstance(session, SparkSession):
        raise SettingsError(
            "spark= takes a Spark session or settings",
            where="app.run(spark=…)",
            expected="a pyspark.sql.SparkSession, or a dict of Spark's settings",
            found=repr(session),
            next_move="give a session, or a dict: the settings of the one that is made",
        )
    _check_batch_rows(session.conf.get(_BATCH_ROWS), "app.run(spark=…)")
    found = {name: session.conf.get(name) for name in REQUIRED}
    wrong = {name: value for name, value in found.items() if str(value).lower() != REQUIRED[name].lower()}
    if wrong:
        raise SettingsError(
            "the given Spark session lacks settings that Headrace needs",
            where="app.run(spark=…)",
            expected="; ".join(f"{name} = {REQUIRED[name]}" for name in wrong),
            found="; ".join(f"{name} = {value}" for name, value in wrong.items()),
            next_move="set them (session.conf.set works for all of these), or leave spark= out to get a session made",
        )


def _with_retries(master: str) -> str:
    """``local[N]`` allows no task to fail; a killed worker should cost a retry, not the job."""
    if master == "local":
        return "local[1,4]"
    if master.startswith("local[") and "," not in master:
        return master[:-1] + ",4]"
    return master


def _choose_python(master: str) -> None:
    """Which interpreter Spark's Python processes run: what the user says, or the driver's."""
    python = _worker_python(master)
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)


def _worker_python(master: str) -> str:
    """Workers run the driver's interpreter, whatever is called python on the machine; on this one by a shorter way."""
    import pyspark

    shorter = Path(__file__).with_name("worker_python.sh")
    if not master.startswith("local") or not os.access(shorter, os.X_OK) or not Path(pyspark.__file__).is_file():
        return sys.executable
    os.environ["HEADRACE_WORKER_PYTHON"] = sys.executable
    return str(shorter)


def _show_modules_to_workers() -> None:
    """Workers of a local session import what the driver can import: the user's modules beside the program."""
    shown = [os.path.abspath(path) for path in sys.path if os.path.isdir(path or ".")]
    ours = [path for path in shown if "site-packages" not in path and not path.startswith(sys.base_prefix)]
    known = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    # In the driver's order, so that both import the same file where two have one name.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*ours, *known]))
