"""What a task tells the driver: one small report per task, the only thing that crosses from runtime to checkpoint.

A report names files; a file that no collected report names does not exist, whatever lies in the store.
"""

from __future__ import annotations

from typing import Final

import msgspec


class RunRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """One immutable run of one step, seen through a range of key groups."""

    epoch: int
    lo: int
    """First key group this reference covers."""
    hi: int
    """One past the last key group."""
    rows: int
    size_bytes: int
    crc: int
    """CRC-32 of the whole file; also identifies an inline run."""
    file: str = ""
    """Path inside the store; empty when the run travels inline."""
    inline: bytes = b""
    level: int = 0
    """0 for a delta; grows with each fold."""
    version: int = 0
    """The version of the step that its values have (`headrace.model.job.derive_version`)."""


COUNTED: Final = "none"
"""The format of rows that were counted and dropped where they were made: nothing of them can be released."""
TAP: Final = "tap."
"""Begins the names of the outputs by which a harness looks into a program, and which go with it. No other has a dot."""


class StagedPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows that wait in the store (or inline) until their epoch is published."""

    rows: int
    size_bytes: int
    format: str
    file: str = ""
    inline: bytes = b""
    extra: dict[str, str] = {}
    crc: int | None = None
    """Of the file's content."""


LEFT_TO_SPARK: Final = "left"
"""The kind of a failure that is none to the user: the worker does not decode a file that Spark's reader may know."""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A user's function raised, or a row could not be decoded."""

    kind: str
    """``function``, ``row``, `LEFT_TO_SPARK`, or ``error`` for one of our own family, whose parts are then given."""
    step: str
    error: str
    """Type and text of the exception."""
    function: str = ""
    file: str = ""
    line: int = 0
    key: str = ""
    row: str = ""
    trace: str = ""
    way_out: str = ""
    """What can be done besides mending the function, as reading the step's ``errors``; not every step has them."""
    parts: dict[str, str] = {}
    """Of an ``error``: the name of its class, and what, where, expected, found, next_move; of a function that raised
    one, what it expected and found."""


class StepReport(msgspec.Struct, omit_defaults=True):
    """What one step did in one task."""

    step: str
    rows_in: int = 0
    rows_out: int = 0
    late: int = 0
    fired: int = 0
    counters: dict[str, int] = {}
    next_due_us: int | None = None
    """Earliest wall-clock timer that is still to come."""
    waits_for_us: int | None = None
    """Event time at which the next thing is due, for people who wonder why nothing comes; a hint, maybe too early."""
    waiting: int | None = None
    """How many more rows wait for event time than before the epoch; None for a step in which none ever do."""
    runs: list[RunRef] = []
    """The delta, newest first."""
    broadcast_runs: list[RunRef] = []
    """What changed in broadcast states; from one shard, the same for all of them."""
    broadcast: dict[str, str] = {}
    """Broadcast state (or ``!rows``, for what on_broadcast gave) → digest; every shard must report the same."""


class TaskReport(msgspec.Struct, omit_defaults=True):
    """One task: level × shard × epoch, one attempt."""

    level: int
    shard: int
    attempt: str
    """Unique per attempt, so that two attempts of one task can be told apart."""
    epoch: int
    parent: str
    """Nonce of the manifest this task started from."""
    steps: list[StepReport] = []
    staged: dict[str, list[StagedPart]] = {}
    """Output id → its parts."""
    fed: dict[str, list[StagedPart]] = {}
    """Loop → rows that go into it, for the next epoch."""
    looped: dict[str, int] = {}
    """Loop → how many rows of the epoch before this task took out of it."""
    watermarks: dict[str, int] = {}
    """Source → watermark this task computed at the end of its input."""
    marks: dict[str, dict[str, int]] = {}
    """Source → split → largest event time seen, or what was said; only from level 0."""
    kept: dict[str, dict[str, str]] = {}
    """Source → split → what its watermark generator keeps, as text; only from level 0."""
    upstream: list[str] = []
    """Attempts of the level before whose end-of-input markers this task read."""
    rows_in: int = 0
    rows_read: int = 0
    """Rows that entered the job here: those of a source's chain, or of an edge that the JVM feeds directly."""
    bytes_in: int = 0
    times_us: dict[str, int] = {}
    """open, fetch, process, write, upload: where the task's time went."""
    failures: list[Failure] = []
