"""The process of Spark's JVM: started so that it does not hear SIGTERM, noticed when it dies, and forgotten then.

Who ends a service ends all of its processes at once: systemd, ``timeout``, a shell that goes. The driver finishes its
epoch then, for which it needs Spark. PySpark keeps Ctrl-C from the JVM for the same reason, but not SIGTERM. The JVM
ends with the driver, whatever that dies of, because it waits for the end of a pipe.

PySpark keeps one JVM per process in class attributes and goes on using it when it is dead: every call then fails with
an error of the socket. A JVM that somebody else started (a cluster's spark-submit) has no process here; of that one
nothing more is known than that it does not answer.

A class archive lets the second start of Spark on a machine take two thirds of the time of the first. The JVM reads,
checks and links some fifteen thousand classes before the first epoch. Java can write them, ready for use, into a file
that later JVMs map. The first JVM of a machine writes it while it ends, when nobody waits for it any more. A file that
is half written, or of another Java or other jars, costs nothing but the gain: Java checks it, and does without. So
nothing is locked here. ``HEADRACE_CLASS_ARCHIVE=off`` turns it off.

Java compiles what runs often, and once more, better and at ten times the cost, what runs very often. A start runs much
of Spark's code some thousand times and then hardly ever again. To begin with that later takes a quarter of the JVM's
CPU time before a first epoch away. What runs often for as long as a job does still gets there.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final

import xxhash
from py4j.protocol import Py4JNetworkError

from headrace.errors import JvmDied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_END_S: Final = 5.0
"""How long a process may take to end after its socket was closed."""
_CONNECTION: Final = (ConnectionError, Py4JNetworkError, EOFError)


def jvm_death(session: SparkSession, error: BaseException) -> JvmDied | None:
    """The error to raise where ``error`` came of a JVM that has died; None where the JVM lives."""
    process = getattr(session.sparkContext._gateway, "proc", None)
    broken = _is_broken_connection(error)
    code: int | None = None
    if process is not None:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_END_S if broken else 0)
    if code is None and not broken:
        return None
    return JvmDied(
        "Spark's JVM died",
        where="the driver's JVM" if process is None else f"the driver's JVM, process {process.pid}",
        found=f"{type(error).__name__}: {error}" if code is None else describe_exit(code),
        next_move="give it more memory (spark.driver.memory) or the machine less to do, and start again: nothing that "
        "was published is lost; --trace shows Spark's own log",
    )


def _is_broken_connection(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, _CONNECTION):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe_exit(code: int) -> str:
    """How a process ended, with the likely reason.

    >>> describe_exit(1)
    'it ended with exit code 1'
    """
    # A shell says 128 + the signal where subprocess says −signal.
    number = -code if code < 0 else code - 128
    if number == signal.SIGKILL:
        return "it was killed by SIGKILL: by the system, where the machine ran out of memory, or by somebody"
    with suppress(ValueError):
        return f"it was killed by {signal.Signals(number).name}"
    if code == 3:
        return "it ended with exit code 3: a JVM that ends on OutOfMemoryError says so"
    return f"it ended with exit code {code}"


def forget_dead_jvm() -> bool:
    """Clears what PySpark keeps of a JVM that has died, so that the next session starts another; whether it had."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None or process.poll() is None:
        return False
    with suppress(Exception):  # it has nobody to say goodbye to
        gateway.shutdown()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    return True


@contextmanager
def deaf_to_sigterm() -> Iterator[None]:
    """A JVM that is started inside the block ignores SIGTERM."""
    from pyspark import java_gateway

    # PySpark asks nobody how the process of the JVM is to begin, only what is written where.
    gateway: Any = java_gateway
    before = gateway.Popen
    gateway.Popen = _start_deaf
    try:
        yield
    finally:
        gateway.Popen = before


def _start_deaf(command: Any, preexec_fn: Callable[[], object] | None = None, **how: Any) -> Popen[bytes]:
    if preexec_fn is None:  # where there are no signals
        return Popen(command, **how)

    def become_deaf() -> None:
        preexec_fn()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    # PySpark gives one anyway; this one does little more.
    return Popen(command, preexec_fn=become_deaf, **how)  # noqa: PLW1509


# --- the class archive


SWITCH: Final = "HEADRACE_CLASS_ARCHIVE"
LAUNCH: Final = "SPARK_SUBMIT_OPTS"
"""Where Spark's launcher looks for options of the driver's JVM."""

WHOLE_BYTES: Final = 128 * 2**20
"""A smaller archive is of a session that ended before it ran a program; the next one writes it anew."""

_LATE_COMPILER: Final = (
    "-XX:Tier4InvocationThreshold=100000",
    "-XX:Tier4MinInvocationThreshold=12000",
    "-XX:Tier4CompileThreshold=300000",
    "-XX:Tier4BackEdgeThreshold=800000",
)
"""After how many calls and rounds of loops the second compiler begins: twenty times as many as Java's own."""

_OWN_CLASS_PATH: Final = ("spark.driver.extraClassPath", "spark.driver.defaultJavaOptions")
"""Settings under which the class path may be another one than most runs have."""


@contextmanager
def quick_start(java: Path, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """A JVM started inside the block uses the archive, or writes it at its end, and compiles late. What the user says
    of the same options stands behind ours, and wins."""
    compiler = _LATE_COMPILER if _is_hotspot(java) else ()
    options = [*compiler, *archive_options(java, conf, environment)]
    before = os.environ.get(LAUNCH)
    if options:
        os.environ[LAUNCH] = " ".join([*(f'"{option}"' for option in options), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(LAUNCH, None)
        else:
            os.environ[LAUNCH] = before


def archive_options(
    java: Path, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ, *, whole_bytes: int = WHOLE_BYTES
) -> list[str]:
    """The options of the JVM; none where there is no place for an archive, or the user does not want one."""
    if environment.get(SWITCH, "").lower() in ("off", "0", "false", "no"):
        return []
    file = archive_file(java, environment)
    if file is None:
        return []
    # Java would list every class that cannot be kept.
    silent = "-Xlog:cds*=off"
    if _size_bytes(file) >= whole_bytes:
        return [f"-XX:SharedArchiveFile={file}", silent]
    if any(name in conf for name in _OWN_CLASS_PATH):
        return []
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return []
    return [f"-XX:ArchiveClassesAtExit={file}", silent] if os.access(file.parent, os.W_OK) else []


def archive_file(java: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where the archive of this Java and this Spark lies; None: only HotSpot, which most are, knows such files."""
    release = _read_release(java)
    if not _is_hotspot(java):
        return None
    home = environment.get("XDG_CACHE_HOME") or (environment.get("HOME") and str(Path(environment["HOME"], ".cache")))
    if not home:
        return None
    import pyspark

    what = f"{release}\n{pyspark.__version__}\n{Path(pyspark.__file__).parent}"
    return Path(home) / "headrace" / "classes" / f"{xxhash.xxh64_hexdigest(what.encode())}.jsa"


def _read_release(java: Path) -> str:
    """What a Java says of itself; nothing where it does not."""
    try:
        return (java / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _is_hotspot(java: Path) -> bool:
    release = _read_release(java)
    variant = [line for line in release.splitlines() if line.startswith("JVM_VARIANT=")]
    return bool(release) and (not variant or "hotspot" in variant[0].lower())


def _size_bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1
