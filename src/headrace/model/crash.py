"""Named crash points: every gap between two steps of an epoch, where a test may end the world.

Production code calls `reach` at each point; without a plan that is one comparison with None. The test kit puts a
plan in place (`planned`), and the crash tests put one into the environment of a child process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

ENVIRONMENT: Final = "HEADRACE_CRASH"

POINTS: Final = {
    "offsets_written": "Spark has fixed the epoch's offsets; the driver has not begun",
    "state_opening": "a task opens the runs of its shard",
    "in_function": "a task is in the middle of user code",
    "delta_half_written": "half of a delta is in a temporary file, nothing under its name",
    "outputs_staged": "delta and outputs are durable, the report is not sent",
    "reports_collected": "all reports are there, nothing is published",
    "manifest_written": "the manifest's temporary file is written, not linked",
    "manifest_answer_lost": "the manifest exists, but its writer did not learn so",
    "before_publish": "everything is checked, the next call publishes",
    "published": "the manifest is there, nothing is released",
    "between_sinks": "one sink is released, the next is not",
    "between_files": "one file of a sink is released, the next is not",
    "released": "all sinks are released, Spark has not been told",
    "base_written": "a fold has written its base, no manifest names it",
    "sweeping": "in the middle of a sweep",
    "final_published": "the last epoch of drained input is published",
    "savepoint_pinned": "a savepoint is written, its files are not verified yet",
    "stop_pinned": "the savepoint of a stopped run is taken, who asked for it is not told yet",
    "making": "some runs of a store that is made out of files or of another store are there, others are not",
    "store_made": "everything of such a store is there but the record that makes it one",
    "copying": "some files of a copy are there, others are not",
    "offline_written": "the runs of an epoch without Spark are durable, nothing is published",
    "refilling": "some key groups, or epochs, of a refill are written, others are not, or are not noted",
    "forgetting": "some of what an abandoned timeline made visible is taken back, the rest is not",
    "rewind_proved": "it is proved that a job can go back, nothing of it is written",
    "rewind_staged": "rows that bring outputs back to the state of then are staged, nothing is sealed",
    "rewind_sealed": "the timeline that is abandoned is sealed, nothing else of the rewind is done",
    "rewind_pinned": "the abandoned end is pinned, no sink has forgotten anything",
    "rewind_forgetting": "one sink has forgotten what is abandoned, the next has not",
    "rewind_forgotten": "all sinks have forgotten, the record of the store does not name the new timeline",
    "rewind_recorded": "the record names the new timeline, which has no epoch",
    "erase_rewritten": "runs without the key are written, no manifest names them",
    "erase_manifest": "some manifests name them, others the old ones",
    "erase_deleting": "no manifest names the old files, some of them are deleted",
    "copy_written": "all files of a copy are there, the record that makes it a store is not",
    "fork_made": "the store of a fork is there, its epoch is still pinned in the store of the original",
}

BESIDE: Final = frozenset({"base_written", "sweeping"})
"""Points of the work that goes on beside the epochs: folding and sweeping."""

ASKED: Final = frozenset({
    "making",
    "store_made",
    "savepoint_pinned",
    "stop_pinned",
    "copying",
    "offline_written",
    "erase_rewritten",
    "erase_manifest",
    "erase_deleting",
    "refilling",
    "forgetting",
    "rewind_proved",
    "rewind_staged",
    "rewind_sealed",
    "rewind_pinned",
    "rewind_forgetting",
    "rewind_forgotten",
    "rewind_recorded",
    "copy_written",
    "fork_made",
})  # fmt: skip
"""Points of what people ask for: they lie in no epoch, and come only when somebody asks."""


class Crash(BaseException):
    """The end of the world, in a test: nothing in production catches it."""


class CrashPlan(msgspec.Struct, frozen=True):
    """Where to die: a point, an epoch (−1 = any), and whom to kill."""

    point: str
    epoch: int = -1
    kill: str = "driver"
    """``driver`` (and whoever reached the point) or ``self`` (only the worker that reached it)."""
    pid: int = 0
    """Process id of the driver."""
    once: str = ""
    """A file that is created when the plan strikes, so that it strikes once."""


Hook = Callable[[str, int], None]
_hook: Hook | None = None


def reach(point: str, epoch: int) -> None:
    """Say that this point has been reached in this epoch."""
    if _hook is not None:
        _hook(point, epoch)


def armed() -> bool:
    """Whether anybody listens: for points that cost something to come to."""
    return _hook is not None


@contextmanager
def planned(hook: Hook) -> Iterator[None]:
    """Call ``hook`` at every point inside the block."""
    global _hook
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before


def _strike(plan: CrashPlan) -> Hook:
    def hook(point: str, epoch: int) -> None:
        if point != plan.point or (plan.epoch >= 0 and epoch < plan.epoch):
            return
        if plan.once:
            try:
                Path(plan.once).touch(exist_ok=False)
            except FileExistsError:
                return
        if plan.kill == "driver" and plan.pid and plan.pid != os.getpid():
            os.kill(plan.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    return hook


if text := os.environ.get(ENVIRONMENT):
    _hook = _strike(msgspec.json.decode(text, type=CrashPlan))
