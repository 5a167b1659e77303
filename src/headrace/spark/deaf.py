"""A JVM that does not hear SIGTERM: ending a run is the driver's business.

Who ends a service ends all of its processes at once: systemd, ``timeout``, a shell that goes. The driver finishes its
epoch then, for which it needs Spark. PySpark keeps Ctrl-C from the JVM for the same reason, but not SIGTERM. The JVM
ends with the driver, whatever that dies of, because it waits for the end of a pipe.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from subprocess import Popen
from typing import Any


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
