"""Reads a log, beside the server that writes it: what is durable, what is kept, and the events of a range.

Invariants
- Nothing beyond a partition's mark is ever looked at: it may vanish when the machine stops.
- Every frame is checked before an event of it is given out, and numbers follow each other without a gap.
- The index is a hint. What it says is believed only when a whole frame of that number stands there.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from headrace.errors import CorruptFile, InputLost, StoreError
from headrace.ingest import layout
from headrace.ingest.frames import (
    HEAD_BYTES,
    INDEX_ENTRY,
    DamagedFrame,
    LogFrame,
    Mark,
    check_frame,
    decode_head,
    decode_mark,
    events_of,
    frame_length,
)

FORMAT: Final = 1
_CHUNK_BYTES: Final = 2**20
_MARK_TRIES: Final = 100


class LogFile(msgspec.Struct, frozen=True):
    """What ``log.json`` says."""

    id: str
    """32 hexadecimal digits that no other log has."""
    format: int = FORMAT


class LocatedFrame(NamedTuple):
    """A checked frame in bytes that were read."""

    data: memoryview
    at: int
    frame: LogFrame
    position: int
    """Where in the file it begins."""


def read_log_file(log: Path) -> LogFile | None:
    """Which log lies in a folder; None where there is none."""
    path = log / layout.LOG
    try:
        found = msgspec.json.decode(path.read_bytes(), type=LogFile)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(
            "this file of a log cannot be read",
            where=str(path),
            expected="JSON, as `headrace ingest` writes it",
            found=str(error),
            next_move="restore the file from a copy of the log's folder",
        ) from error
    if found.format != FORMAT:
        raise StoreError(
            "this log is of another version",
            where=str(path),
            expected=f"format {FORMAT}",
            found=f"format {found.format}",
            next_move="use the version of headrace that wrote it, or a newer one",
        )
    return found


def read_mark(folder: Path) -> Mark | None:
    """How far a partition may be read; None where nothing is durable yet."""
    path = folder / layout.DURABLE
    for _ in range(_MARK_TRIES):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        mark = decode_mark(data)
        if mark is not None or not data:
            return mark
        # It was being written at that moment.
    raise CorruptFile(
        "the durable mark of the log cannot be read",
        where=str(path),
        found=f"{len(data)} bytes with a wrong checksum",
        next_move="start the server once: headrace ingest --log DIR makes it anew from the log",
    )


def first_kept(folder: Path) -> int:
    """The number of the oldest event that is still there."""
    segments = layout.list_segments(folder)
    return layout.first_number(segments[0]) if segments else 0


def iterate_frames(file: int, position: int) -> Iterator[LocatedFrame]:
    """The frames from a position on. Ends where the file does; `DamagedFrame` is raised for what is no frame."""
    wanted = _CHUNK_BYTES
    while True:
        data = memoryview(os.pread(file, wanted, position))
        at, needed = 0, None
        while (needed := frame_length(data, at)) is not None and at + needed <= len(data):
            yield LocatedFrame(data, at, check_frame(data, at), position + at)
            at += needed
        if len(data) < wanted:
            if at < len(data):
                raise DamagedFrame(f"the file ends {len(data) - at} bytes into a frame")
            return
        position += at
        wanted = max(_CHUNK_BYTES, needed or 0)


def read_range(folder: Path, first: int, stop: int) -> Iterator[list[bytes]]:
    """The events from number ``first`` up to ``stop``, which is not beyond the mark, in the frames they came in."""
    at = first
    while at < stop:
        segment = find_segment(folder, at)
        began = at
        for found in _frames_from(segment, at):
            if found.frame.number > at:
                raise _corrupt(segment, f"event {found.frame.number} where {at} should be")
            if found.frame.next_number > at:
                yield events_of(found.data, found.at, found.frame, at, stop)
                at = min(found.frame.next_number, stop)
            if at >= stop:
                return
        if at == began:
            raise _corrupt(segment, f"no event {at}, which was durable")


def find_segment(folder: Path, number: int) -> Path:
    """The segment in which an event stands."""
    segments = layout.list_segments(folder)
    place = bisect_right(segments, number, key=layout.first_number)
    if place == 0:
        raise lost(folder, number, first_kept(folder))
    return segments[place - 1]


def lost(folder: Path, number: int, kept: int) -> InputLost:
    return InputLost(
        "the log no longer has the events that come next",
        where=str(folder),
        expected=f"event {number}, where the job has stopped reading",
        found=f"events from {kept} on; older ones were removed (--keep, --keep-mb)",
        next_move="keep events for longer than a job may stand still. To go on without what is lost: run with --fresh",
    )


def _frames_from(segment: Path, number: int) -> Iterator[LocatedFrame]:
    try:
        file = os.open(segment, os.O_RDONLY)
    except FileNotFoundError:
        raise lost(segment.parent, number, first_kept(segment.parent)) from None
    try:
        _check_head(segment, file)
        yield from iterate_frames(file, _position_of(segment, file, number))
    except DamagedFrame as error:
        raise _corrupt(segment, str(error)) from error
    finally:
        os.close(file)


def _check_head(segment: Path, file: int) -> None:
    _, first = decode_head(os.pread(file, HEAD_BYTES, 0))
    if first != layout.first_number(segment):
        raise DamagedFrame(f"the events from {first} on under another name")


def _position_of(segment: Path, file: int, number: int) -> int:
    """Where to begin to look for an event: a frame at or before it, as near as the index knows one."""
    try:
        entries = list(INDEX_ENTRY.iter_unpack(_whole(layout.index_path(segment).read_bytes())))
    except FileNotFoundError:
        return HEAD_BYTES
    place = bisect_right(entries, number, key=lambda entry: entry[0])
    if place == 0:
        return HEAD_BYTES
    begins, position = entries[place - 1]
    try:
        found = next(iterate_frames(file, position), None) if position >= HEAD_BYTES else None
    except DamagedFrame:
        found = None
    return position if found is not None and found.frame.number == begins else HEAD_BYTES


def _whole(index: bytes) -> bytes:
    return index[: len(index) - len(index) % INDEX_ENTRY.size]


def _corrupt(segment: Path, found: str) -> CorruptFile:
    return CorruptFile(
        "a file of the log does not hold what was written into it",
        where=str(segment),
        found=found,
        next_move="bring the file back from a copy; the events in it were answered as durable",
    )
