"""Small programs in processes of their own, without each of them importing Headrace again.

One process has imported Headrace and forks a child for each program: the child knows no more than ``import headrace``
leaves behind, some packages of others, and nothing of the tests. What it prints is read when it has ended.

A program that needs more than that of a new process (Spark, a signal, options of Python) starts one itself.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run_program(file: Path, *, timeout_s: int = 60) -> Done:
    """Runs a file as ``__main__``, in its folder, which is also the first place where it looks for modules."""
    parent = _parent()
    assert parent.stdin is not None and parent.stdout is not None
    parent.stdin.write(json.dumps([str(file), timeout_s]) + "\n")
    parent.stdin.flush()
    answer = parent.stdout.readline()
    assert answer, "the process that forks has died"
    told = (file.with_suffix(f".{name}").read_text(encoding="utf-8") for name in ("out", "err"))
    return Done(int(answer), *told)


@cache
def _parent() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, __file__],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def fork_for_each_line() -> None:
    """What the parent does: a line in is a program, a line out is how it ended."""
    # Most programs need these, sooner or later: PyArrow asks pandas at the first array that it makes.
    import pandas  # noqa: F401
    import sqlglot  # noqa: F401

    import headrace.testing  # noqa: F401

    del sys.path[0]  # the folder of this file
    # Not readline's buffer: a child must not read what is meant for its parent.
    while line := _read_line():
        file, timeout_s = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(Path(file), timeout_s)
            return
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(1, f"{ended}\n".encode())


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


def _become(file: Path, timeout_s: int) -> None:
    signal.alarm(timeout_s)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(file.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(file.parent)
    sys.path.insert(0, str(file.parent))
    sys.argv = [str(file)]
    runpy.run_path(str(file), run_name="__main__")


if __name__ == "__main__":
    fork_for_each_line()
