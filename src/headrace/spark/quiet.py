"""What the JVM and its workers say on standard error, without the lines that mean nothing to a user.

The JVM is started with a pipe as its standard error; a thread of the driver reads it, drops known noise and passes the
rest on, so that a ``print`` in a user's function still reaches the terminal.

Also here: what the bridge to the JVM must not log.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

_NOISE = re.compile(
    r"WARNING: Using incubator modules"
    r"|Using Spark's default log4j profile"
    r"|Setting default log level to"
    r"|To adjust logging level use"
    r"|\d\d/\d\d/\d\d \d\d:\d\d:\d\d (WARN|INFO) "
    r"|.*FutureWarning: PySpark does not yet fully support pandas"
    r"|\s+require_minimum_pandas_version\(\)"
)
_TRACE = "Traceback (most recent call last):"
_TRACE_OF_A_GOING_DAEMON = re.compile(r"(BrokenPipeError|EOFError|ConnectionResetError)")


def keep_arguments_out_of_logs() -> None:
    """Py4J writes every argument of every call into its log of debugging, passwords too. A program that logs everything
    gets that only where it sets the level of Py4J's logger by name."""
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_above_debugging)


def _above_debugging(record: logging.LogRecord) -> bool:
    asked = any(logging.getLogger(name).level == logging.DEBUG for name in ("py4j", record.name))
    return record.levelno > logging.DEBUG or asked


def quiet_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines worth showing. A trace is kept back until its last line tells what it is."""
    held: list[str] = []
    for line in lines:
        if held:
            held.append(line)
            if line.startswith((" ", "\t")):
                continue
            if not _TRACE_OF_A_GOING_DAEMON.match(line):
                yield from held
            held = []
        elif line.startswith(_TRACE):
            held = [line]
        elif not _NOISE.match(line):
            yield line
    yield from held


@contextmanager
def quiet_children(show: Callable[[str], object] | None = None) -> Iterator[None]:
    """Children started inside the block, and theirs, speak through the filter for as long as they live."""
    read, write = os.pipe()
    saved = os.dup(2)
    sys.stderr.flush()
    os.dup2(write, 2)
    os.close(write)
    put = show or sys.stderr.write
    thread = threading.Thread(target=_pump, args=(read, put), name="headrace-stderr", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


def _pump(read: int, put: Callable[[str], object]) -> None:
    with os.fdopen(read, "r", errors="replace") as lines:
        for line in quiet_lines(lines):
            put(line)
