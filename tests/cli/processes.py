"""The command line as a process of its own, as people call it.

A test that fails must fail at once and leave nothing behind. `subprocess.Popen` as a context manager does neither: it
waits for a process that nobody ends any more. `headrace` ends the whole group, so no JVM stays.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"
TIMEOUT_S = 170


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", *(str(each) for each in arguments)]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCES), "COLUMNS": "160"}


def run_headrace(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    with headrace(*arguments, cwd=cwd) as process:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


@contextlib.contextmanager
def headrace(*arguments: object, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs inside of the block; what is left of it at the end, and of all it started, is killed."""
    process = start_headrace(*arguments, cwd=cwd)
    try:
        yield process
    finally:
        kill_group(process)


def start_headrace(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    """In a session of its own, so that a signal to the group reaches what a Ctrl-C would reach."""
    return subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill_group(process: subprocess.Popen[str]) -> None:
    """Ends a process that leads a session, and what it has started; one that has ended may have left something."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
