"""Starting the program that is killed, and what is left of it afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from headrace.model.crash import ENVIRONMENT
from tests.jvm import LAUNCH, QUICK

ROOT = Path(__file__).parents[2]


def start_program(
    folder: Path,
    rows: int,
    per_epoch: int,
    crash: dict[str, Any] | None = None,
    *,
    until: str = "drained",
    program: str = "program",
    stdout: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """The program in a session of its own, so that everything it started can be found."""
    folder.mkdir(parents=True, exist_ok=True)
    # The sources of this checkout, whatever is installed: what is installed may be another tree that changes meanwhile.
    sources = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": sources, LAUNCH: " ".join(QUICK)}
    environment.pop(ENVIRONMENT, None)
    if crash is not None:
        environment[ENVIRONMENT] = json.dumps(crash)
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.crash.{program}", str(folder), str(rows), str(per_epoch), until],
        env=environment,
        cwd=ROOT,
        text=True,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def wait_for_end(process: subprocess.Popen[str], timeout_s: float) -> str:
    """What it said. If it does not end, everything it started is killed: the tests after it need the machine."""
    try:
        return process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        wait_for_orphans(process.pid)
        output, _ = process.communicate()
        raise AssertionError(f"it did not end within {timeout_s:.0f} s:\n{output}") from None


def members(session: int) -> list[tuple[int, str]]:
    """Process id and command line of everything that lives in a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            command = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append((int(entry.name), command))
    return found


def wait_for_orphans(session: int, timeout_s: float = 30) -> None:
    """The JVM notices by itself that its driver is gone; what is still there after a while is ended."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not members(session):
            return
        time.sleep(0.1)
    end_orphans(session)


def end_orphans(session: int) -> None:
    """As when the whole machine dies: nothing that the driver started lives on."""
    for pid, _ in members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
