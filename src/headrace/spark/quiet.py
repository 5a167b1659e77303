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

from py4j import java_gateway

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
_TRACE_OF_A_GOING_PROCESS = re.compile(
    r"(BrokenPipe|EOF|ConnectionReset|ConnectionRefused|FileNotFound)Error"
    r"|\S*PySparkRuntimeError: \[CANNOT_OPEN_SOCKET\]"
)
_FRAME = re.compile(r'\s+File "([^"]+)"')
_LINK = re.compile(r"\s*$|During handling of the above exception|The above exception was the direct cause")
"""What stands between the traces of a chain."""
_PYTHONS_OWN = (os.path.dirname(os.__file__), "<frozen ")


def quiet_the_bridge() -> None:
    """Keep three things out of the log of Py4J, wherever a program sends that log.

    It writes every argument of every call at the level of debugging, passwords too: those lines appear only where a
    program sets the level of Py4J's logger by name. And it writes a trace of every exception that leaves a callback.
    Exceptions of ours leave one to stop Spark's query; the run reports the reason itself. And it writes a trace of a
    call that the death of the JVM interrupts, into the log of the whole program; the call fails all the same.
    """
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_is_news)
    logging.getLogger().addFilter(_is_of_the_program)


def _is_news(record: logging.LogRecord) -> bool:
    raised = record.exc_info[0] if record.exc_info else None
    if raised is not None and raised.__module__.partition(".")[0] == "headrace":
        return False
    debugging_wanted = any(logging.getLogger(name).level == logging.DEBUG for name in ("py4j", record.name))
    return record.levelno > logging.DEBUG or debugging_wanted


def _is_of_the_program(record: logging.LogRecord) -> bool:
    return record.pathname != str(java_gateway.__file__)


def quiet_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines worth showing. A trace is kept back until its last line tells what it is.

    Processes of Spark that lose each other while a run ends tell it with a trace, or with a chain of them, whose first
    lines may stand together where two speak at once.
    """
    held: list[str] = []
    dropped = False
    for line in lines:
        if line.startswith(_TRACE):
            held.append(line)
        elif held:
            held.append(line)
            if line.startswith((" ", "\t")):
                continue
            dropped = _is_of_a_going_process(held)
            if not dropped:
                yield from held
            held = []
        elif not _NOISE.match(line) and not (dropped and _LINK.match(line)):
            dropped = False
            yield line
    yield from held


def _is_of_a_going_process(trace: list[str]) -> bool:
    """Whether a trace says no more than that Spark's other side is gone; a user's own code is in none of these."""
    files = [found[1] for found in map(_FRAME.match, trace) if found]
    ours = all("/pyspark/" in file or file.startswith(_PYTHONS_OWN) for file in files)
    return ours and _TRACE_OF_A_GOING_PROCESS.match(trace[-1]) is not None


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
