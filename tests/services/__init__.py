"""Real servers for tests: each starts from its package on a port of its own under a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

START_S = 60.0
FETCH_S = 240.0
"""Twice this is within what a test may take."""


def needed(program: str, package: str, *folders: str) -> str:
    """The path of a program; where it is missing, the test fails in CI and is skipped elsewhere."""
    path = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
    if path is None:
        missing(f"{program} is not installed (Debian, Ubuntu: apt-get install {package})")
    return path


def at_hand() -> bool:
    """Whether broker and database can be started here. In CI they have to be: there, their tests fail without."""
    from tests.services.kafka import jars_folder
    from tests.services.postgres import PLACES

    database = shutil.which("postgres", path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))
    return bool(os.environ.get("CI")) or (database is not None and jars_folder().is_dir())


def missing(reason: str) -> None:
    """Ends a test that cannot run here: a skip at home, a failure in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def fetch(command: list[str], folder: Path) -> str | None:
    """Runs a program that fetches packages; again, where it fails, as servers are away for a moment. Why it failed."""
    said: str | None = None
    for _ in range(2):
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=FETCH_S)
        except subprocess.TimeoutExpired as error:
            said = str(error)
            continue
        if done.returncode == 0:
            return None
        said = (done.stdout + done.stderr)[-1000:]
    return said


def free_port() -> int:
    """A port that nobody else is given while this process lives; servers of a test may come and go on it.

    It stays bound, and nobody listens: whoever connects is refused, and a server that names it may have it, as it says
    ``SO_REUSEADDR`` itself. Tests run side by side: a port that was free a moment ago may be somebody else's by now.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = int(held.getsockname()[1])
    # The descriptor stays open until the process ends.
    held.detach()
    return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until somebody listens; what the server said, where it does not."""
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"nobody listens on port {port}: {log.read_text(errors='replace')[-2000:]}")


def end(process: subprocess.Popen[bytes], *, hard: bool = False) -> None:
    if hard:
        process.kill()
    else:
        process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
