"""Runs one benchmark program in a process of its own and brings back what it found.

The agreement with such a program: it takes `--work` (an empty folder of its own) and `--result` (where to write one
JSON object), and says how far it is on lines that begin with `PROGRESS`. Everything else it or its engine prints is
kept aside and shown only if it fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lib.memory import Watcher
from benchmarks.lib.progress import say

PROGRESS = "progress: "
_SHOWN_LINES = 40
_PROGRAMS = Path(__file__).resolve().parent.parent / "peers"


class ChildFailed(Exception):
    """A benchmark program ended badly."""


def run_child(
    program: str,
    arguments: Sequence[str],
    *,
    work: Path,
    label: str,
    python: Path | None = None,
    watch_memory: bool = False,
) -> dict:
    """Runs `peers/<program>` and returns its result. `work` is made, and must not exist yet."""
    work.mkdir(parents=True)
    result = work / "result.json"
    command = [str(python or sys.executable), str(_PROGRAMS / program), *arguments]
    command += ["--work", str(work), "--result", str(result)]
    last: deque[str] = deque(maxlen=_SHOWN_LINES)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        assert child.stdout is not None
        watcher = Watcher(child.pid)
        if watch_memory:
            watcher.start()
        try:
            for line in child.stdout:
                _tell(line.rstrip(), label, last)
        except BaseException:
            child.terminate()
            raise
    if child.returncode or not result.exists():
        shown = "\n".join(last)
        raise ChildFailed(f"{label}: {program} ended with {child.returncode}; its last lines:\n{shown}")
    found = json.loads(result.read_text())
    if watch_memory:
        peaks = watcher.finish()
        found |= {"own_bytes": peaks.own, "mapped_bytes": peaks.mapped}
    return found


def _tell(line: str, label: str, last: deque[str]) -> None:
    _, found, text = line.rpartition(PROGRESS)
    if found:
        say(f"{label}: {text}")
    else:
        last.append(line)
