"""Names of the files that a files sink puts into its folder, for writers and readers.

==============================================================  ====================================================
``part-<timeline>-<epoch>-<output>-<place>.<ext>``              one part of one epoch
``part-<timeline>-<first>-<last>-<output>-<place>.<ext>``       rows of several epochs, put together
``.headrace/<output>/<bucket>/<timeline>-<epoch>-<place>-…``    a part of a released epoch that waits to be put together
``.headrace/<output>/<bucket>/<timeline>-<first>.roll``         what is being put together, and into which files
``.headrace/<output>.claim``                                    whose epochs those of the output are
``.headrace/<output>.spans/<bucket>/<name>.spans``              where the rows of which epoch end in a file of several
==============================================================  ====================================================

A bucket is the folder that rows go to by their values, or nothing. All of it follows from what is in a file, never from
when it was written. What waits lies in a folder that readers of data skip (its name begins with a dot), under names
that end in nothing they look for.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

HIDDEN: Final = ".headrace"
"""The folder, inside of the sink's, that is not for readers."""
WAITING: Final = ".part"
"""What the name of a waiting part ends with."""
PLAN: Final = ".roll"
SPANS: Final = ".spans"

_VISIBLE: Final = re.compile(
    r"part-(?P<timeline>\d+)-(?P<first>\d{12})-(?:(?P<last>\d{12})-)?(?P<output>[^-]+)-(?P<place>\d{5})\.(?P<ext>\w+)"
)
_HELD: Final = re.compile(
    r"(?P<timeline>\d+)-(?P<epoch>\d{12})-(?P<place>\d{5})of(?P<parts>\d{5})-(?P<shape>\w+)\.(?P<ext>\w+)"
    + re.escape(WAITING)
)
_PLANNED: Final = re.compile(r"(?P<timeline>\d+)-(?P<first>\d{12})" + re.escape(PLAN))


class VisibleName(NamedTuple):
    """A file that readers see: rows of the epochs from first to last."""

    timeline: int
    first: int
    last: int
    output: str
    place: int
    ext: str
    gathered: bool
    """Whether it was put together; else it is a part as it was staged."""


class WaitingName(NamedTuple):
    """A part that waits."""

    timeline: int
    epoch: int
    place: int
    parts: int
    """How many parts the epoch has, in all buckets: whether all of them are there can be seen."""
    shape: str
    """Parts of one shape can be put into one file."""
    ext: str


class PlanName(NamedTuple):
    timeline: int
    first: int


def part_name(timeline: str, epoch: int, output: str, place: int, ext: str) -> str:
    """A part of an epoch. The order of names is the order of epochs.

    >>> part_name("0", 41, "sales", 1, "json")
    'part-0-000000000041-sales-00001.json'
    """
    return f"part-{timeline}-{epoch:012d}-{output}-{place:05d}.{ext}"


def gathered_name(timeline: int, first: int, last: int, output: str, place: int, ext: str) -> str:
    """Rows of several epochs.

    >>> gathered_name(0, 41, 57, "sales", 0, "parquet")
    'part-0-000000000041-000000000057-sales-00000.parquet'
    """
    return f"part-{timeline}-{first:012d}-{last:012d}-{output}-{place:05d}.{ext}"


def waiting_name(timeline: str, epoch: int, place: int, parts: int, shape: str, ext: str) -> str:
    """A part that waits.

    >>> waiting_name("0", 41, 1, 2, "5e4c", "json")
    '0-000000000041-00001of00002-5e4c.json.part'
    """
    return f"{timeline}-{epoch:012d}-{place:05d}of{parts:05d}-{shape}.{ext}{WAITING}"


def plan_name(timeline: int, first: int) -> str:
    return f"{timeline}-{first:012d}{PLAN}"


def hidden_folder(output: str, bucket: str = "") -> str:
    """Where the parts of an output wait."""
    return f"{HIDDEN}/{output}/{bucket}" if bucket else f"{HIDDEN}/{output}"


class FolderClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a claim says, and the marker of an archive."""

    job: str = ""
    """Id of the store that writes here; empty before its first rows came."""
    ends: dict[str, int] = {}
    """Timelines that the store has abandoned → the newest epoch of each that stays."""


def spans_name(output: str, path: str) -> str:
    """What tells the epochs of a visible file apart; ``path`` is relative to the folder.

    >>> spans_name("sales", "day=2024-01-01/part-0-000000000041-000000000057-sales-00000.csv")
    '.headrace/sales.spans/day=2024-01-01/part-0-000000000041-000000000057-sales-00000.csv.spans'
    """
    return f"{HIDDEN}/{output}.spans/{path}{SPANS}"


def claim_name(output: str) -> str:
    """What says which store an output in this folder is of. Names of outputs have no dots, so it is none of theirs."""
    return f"{HIDDEN}/{output}.claim"


def parse_visible(name: str) -> VisibleName | None:
    """What a file of the folder is by its name (without folders); None: none of ours.

    >>> parse_visible("part-0-000000000041-000000000057-sales-00000.parquet").last
    57
    """
    found = _VISIBLE.fullmatch(name)
    if found is None:
        return None
    first = int(found["first"])
    last = first if found["last"] is None else int(found["last"])
    gathered = found["last"] is not None
    return VisibleName(
        int(found["timeline"]), first, last, found["output"], int(found["place"]), found["ext"], gathered
    )


def parse_waiting(name: str) -> WaitingName | None:
    found = _HELD.fullmatch(name)
    if found is None:
        return None
    timeline, epoch, place, parts = (int(found[name]) for name in ("timeline", "epoch", "place", "parts"))
    return WaitingName(timeline, epoch, place, parts, found["shape"], found["ext"])


def parse_plan(name: str) -> PlanName | None:
    found = _PLANNED.fullmatch(name)
    return None if found is None else PlanName(int(found["timeline"]), int(found["first"]))
