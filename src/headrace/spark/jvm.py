"""The process of Spark's JVM: started so that it does not hear SIGTERM, noticed when it dies, and forgotten then.

Who ends a service ends all of its processes at once: systemd, ``timeout``, a shell that goes. The driver finishes its
epoch then, for which it needs Spark. PySpark keeps Ctrl-C from the JVM for the same reason, but not SIGTERM. The JVM
ends with the driver, whatever that dies of, because it waits for the end of a pipe.

PySpark keeps one JVM per process in class attributes and goes on using it when it is dead: every call then fails with
an error of the socket. A JVM that somebody else started (a cluster's spark-submit) has no process here; of that one
nothing more is known than that it does not answer.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final

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
