"""Runs the counting job of Headrace over an input and checks that it counted every row exactly once."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lib.children import ChildFailed, run_child
from benchmarks.lib.events import FILES_PER_EPOCH, Events


def run_counting(events: Events, folder: Path, *, label: str, watch_memory: bool = False) -> dict:
    """A first start on an empty store, `folder/store`, until the input is read."""
    store = folder / "store"
    found = run_child(
        "headrace_process.py",
        _arguments(events, store),
        work=folder / "first",
        label=label,
        watch_memory=watch_memory,
    )
    counted = run_child("headrace_checksum.py", ["--store", str(store)], work=folder / "checksum", label=label)
    if counted["rows"] != events.total_rows:
        raise ChildFailed(f"{label}: {events.total_rows:,} rows were read and {counted['rows']:,} counted")
    return {**found, "checksum": counted["checksum"]}


def run_again(events: Events, folder: Path, *, label: str) -> float:
    """Starts the job again on the same store; seconds from the launch to the first new epoch. There must be input."""
    arguments = [*_arguments(events, folder / "store"), "--again"]
    return run_child("headrace_process.py", arguments, work=folder / "again", label=label)["startup_s"]


def _arguments(events: Events, store: Path) -> list[str]:
    return ["--input", str(events.folder), "--files-per-epoch", str(FILES_PER_EPOCH), "--store", str(store)]
