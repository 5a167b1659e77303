"""What is known of parts that wait, and the plan of a roll: which of them go into which files.

Pure: who reads it from a folder and carries it out is `headrace.connectors.files.rolling`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headrace.model.part_names import gathered_name, parse_waiting

MOST_FILE_BYTES: Final = 1 << 30
"""Where no size was asked for, parts are put into files up to about this size."""


@dataclass(frozen=True)
class RollPart:
    """A part that waits."""

    name: str
    """Without folders."""
    epoch: int
    place: int
    shape: str
    ext: str
    size_bytes: int


@dataclass
class Bucket:
    """What is known of one folder of one timeline."""

    timeline: int
    folder: str
    covered: int = -1
    """Rows of epochs up to this one are visible, or noted to be."""
    single: frozenset[int] = frozenset()
    """Epochs whose parts are visible one by one: left by a program that did not roll."""
    waiting: dict[str, RollPart] = field(default_factory=dict)
    since_s: float = 0.0
    """When the first of them came."""

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.waiting.values())

    @property
    def first(self) -> int:
        return min(part.epoch for part in self.waiting.values())


class RolledFile(msgspec.Struct, frozen=True):
    name: str
    parts: list[str]
    """Names, without folders, in order."""


class Roll(msgspec.Struct, frozen=True):
    """What is noted of a roll."""

    timeline: int
    first: int
    last: int
    bucket: str
    files: list[RolledFile]
    size_bytes: int = 0

    @property
    def parts(self) -> Iterator[str]:
        return (part for file in self.files for part in file.parts)

    def until(self, epoch: int) -> Roll | None:
        """The roll without the parts behind an epoch, into files of the same names; None where none is left."""
        left = [(file, [name for name in file.parts if _epoch_of(name) <= epoch]) for file in self.files]
        files = [RolledFile(file.name, parts) for file, parts in left if parts]
        return msgspec.structs.replace(self, files=files) if files else None


def plan_roll(bucket: Bucket, output: str, last: int, file_bytes: int | None) -> Roll | None:
    """All that waits in a bucket up to an epoch, in files of at least a size; None where nothing does."""
    parts = sorted((part for part in bucket.waiting.values() if part.epoch <= last), key=_order)
    if not parts:
        return None
    files: list[list[RollPart]] = []
    limit = file_bytes or MOST_FILE_BYTES
    held, left = 0, sum(part.size_bytes for part in parts)
    for part in parts:
        alike = files and (files[-1][0].ext, files[-1][0].shape) == (part.ext, part.shape)
        if alike and (held < limit or left < limit):
            files[-1].append(part)
        else:
            files.append([part])
            held = 0
        held += part.size_bytes
        left -= part.size_bytes
    first = parts[0].epoch
    named = [
        RolledFile(
            gathered_name(bucket.timeline, first, last, output, place, mine[0].ext), [part.name for part in mine]
        )
        for place, mine in enumerate(files)
    ]
    size = sum(part.size_bytes for part in parts)
    return Roll(bucket.timeline, first, last, bucket.folder, named, size)


def _epoch_of(name: str) -> int:
    told = parse_waiting(name)
    return -1 if told is None else told.epoch


def _order(part: RollPart) -> tuple[int, int]:
    return part.epoch, part.place


def newest_waiting(buckets: Sequence[Bucket], timeline: int) -> int:
    """The newest epoch of which parts wait; −1: none."""
    mine = (part.epoch for bucket in buckets if bucket.timeline == timeline for part in bucket.waiting.values())
    return max(mine, default=-1)
