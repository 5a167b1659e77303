"""The command line as a process of its own, as people call it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"
TIMEOUT_S = 170


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", *(str(each) for each in arguments)]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCES), "COLUMNS": "160"}


def run_headrace(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=cwd, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


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
