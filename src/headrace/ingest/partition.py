"""Writes one partition: frames at the end of the newest segment, durable before anybody learns of them.

The life of an event, and what a start after a crash finds if everything dies right after:

1. `add` gives it a number, in memory.                              Nothing.
2. `commit` writes the frames of all that was added.                Whole frames, which stay: nobody was told, and a
                                                                    sender that asks again with its key is told now.
                                                                    A frame that is not whole is cut off.
3. fsync.                                                           All of them.
4. The mark moves: readers may see them. The server answers.        All of them.

The mark itself is not made durable each time. It never says more than an fsync before it has made true; one that has
fallen back says less, and is made anew from the segments when the partition is opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from headrace.durable import make_folder, sync_data, sync_file, sync_path
from headrace.errors import CorruptFile
from headrace.ingest import layout
from headrace.ingest.frames import (
    FRAME_BYTES,
    HEAD_BYTES,
    INDEX_ENTRY,
    DamagedFrame,
    LogFrame,
    Mark,
    decode_head,
    decode_mark,
    encode_frame,
    encode_head,
    encode_mark,
    peek_frame,
)
from headrace.ingest.reading import iterate_frames

INDEX_EVERY_BYTES: Final = 64 * 1024
KEY_BYTES: Final = 255
"""Longest idempotency key."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class WriteFailed(Exception):
    """Nothing of a commit was kept."""

    def __init__(self, error: OSError, *, broken: bool) -> None:
        super().__init__(str(error))
        self.full = error.errno in _FULL
        """There is no room on the disk; it may be made."""
        self.broken = broken
        """The file cannot be written to any more: what the disk holds is known only after a new start."""


class RecoveredPartition(NamedTuple):
    """What was found when a partition was opened."""

    cut_bytes: int
    """Of frames that were not whole; nobody had been told of them."""
    keyed: list[LogFrame]
    """Frames of the newest segment that have a key."""


class PartitionWriter:
    """The one writer of a partition. `open_partition` makes it."""

    def __init__(self, folder: Path, log: bytes, segment_bytes: int, mark: Mark, last_us: int) -> None:
        self.folder = folder
        self._log = log
        self._segment_bytes = segment_bytes
        self._durable = mark
        self._next = mark.number
        self._staged: list[tuple[int, bytes]] = []
        self._last_us = last_us
        """Time of the newest frame: times never go back within a partition, whatever the clock does."""
        self._mark_file = os.open(folder / layout.DURABLE, os.O_RDWR | os.O_CREAT, 0o644)
        self._file, self._index = _open_files(layout.segment_path(folder, mark.segment))
        self._index_end = os.fstat(self._index).st_size
        self._indexed = mark.position if self._index_end else -INDEX_EVERY_BYTES

    @property
    def number(self) -> int:
        """Of the next event; all before it are durable."""
        return self._durable.number

    # --- writing

    def add(self, events: list[bytes], time_us: int, key: bytes = b"", digest: int = 0) -> int:
        """Puts the events of one request into the next commit; the number of the first."""
        number = self._next
        self._last_us = max(self._last_us, time_us)
        self._staged.append((number, encode_frame(number, self._last_us, events, key, digest)))
        self._next += len(events)
        return number

    def commit(self) -> None:
        """Makes durable what was added: all of it, or nothing, and then it raises `WriteFailed`."""
        staged, self._staged = self._staged, []
        if not staged:
            return
        try:
            if self._durable.position >= self._segment_bytes:
                self.roll()
            end = _write_at(self._file, b"".join([frame for _, frame in staged]), self._durable.position)
        except OSError as error:
            raise WriteFailed(error, broken=not self._cut_back()) from error
        try:
            sync_data(self._file)
        except OSError as error:
            # What the disk holds now is not known, and asking again may be answered wrongly.
            self._cut_back()
            raise WriteFailed(error, broken=True) from error
        self._note_in_index(staged)
        self._durable = Mark(self._next, self._durable.segment, end)
        self._write_mark()

    def roll(self) -> None:
        """Begins a new segment. The one before is durable and is not written to again."""
        number = self._durable.number
        segment = make_segment(self.folder, self._log, number)
        try:
            sync_path(self.folder)
            files = _open_files(segment)
        except OSError:
            # Nothing may stand behind the segment that is written to.
            segment.unlink()
            raise
        self._close_files()
        self._file, self._index = files
        self._durable = Mark(number, number, HEAD_BYTES)
        self._indexed, self._index_end = -INDEX_EVERY_BYTES, 0
        self._write_mark()
        with contextlib.suppress(OSError):
            sync_file(self._mark_file)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            sync_file(self._mark_file)
        self._close_files()
        os.close(self._mark_file)

    # --- retention

    def size_bytes(self) -> int:
        return sum(each.stat().st_size for each in layout.list_segments(self.folder))

    def remove_oldest(self, *, before_us: int, keep_bytes: int | None, needed: int | None = None) -> int:
        """Removes whole segments, oldest first, never the newest: those whose events are all from before a time, and
        as many as bring the rest below a size; but none with an event from ``needed`` on. Gives how many."""
        if self._durable.position > HEAD_BYTES and self._last_us < before_us:
            self.roll()
        segments = layout.list_segments(self.folder)
        sizes = [each.stat().st_size for each in segments]
        total, removed = sum(sizes), 0
        for segment, following, size in zip(segments, segments[1:], sizes):
            too_much = keep_bytes is not None and total > keep_bytes
            if not too_much and not self._is_older(following, before_us):
                break
            if needed is not None and layout.first_number(following) > needed:
                break
            layout.index_path(segment).unlink(missing_ok=True)
            segment.unlink()
            total -= size
            removed += 1
        return removed

    def _is_older(self, following: Path, before_us: int) -> bool:
        """Whether all before this segment is older: no frame is newer than the first one behind it."""
        first = next(iterate_heads(following), None)
        return (self._last_us if first is None else first.time_us) < before_us

    # --- files

    def _close_files(self) -> None:
        os.close(self._file)
        os.close(self._index)

    def _cut_back(self) -> bool:
        """As it was before the commit; False where even that fails."""
        self._next = self._durable.number
        try:
            os.ftruncate(self._file, self._durable.position)
        except OSError:
            return False
        return True

    def _note_in_index(self, staged: list[tuple[int, bytes]]) -> None:
        position, entries = self._durable.position, []
        for number, frame in staged:
            if position - self._indexed >= INDEX_EVERY_BYTES:
                entries.append(INDEX_ENTRY.pack(number, position))
                self._indexed = position
            position += len(frame)
        if entries:
            # Readers find their way without it, only later: no reason to refuse events that are durable.
            with contextlib.suppress(OSError):
                self._index_end = _write_at(self._index, b"".join(entries), self._index_end)

    def _write_mark(self) -> None:
        # The events are durable whether or not this succeeds; readers see them with the next mark at the latest.
        with contextlib.suppress(OSError):
            os.pwrite(self._mark_file, encode_mark(self._durable), 0)


def open_partition(folder: Path, log: bytes, segment_bytes: int) -> tuple[PartitionWriter, RecoveredPartition]:
    """Opens a partition for writing, and mends what a crash left behind. The caller holds the lock of the log."""
    make_folder(folder)
    marked = _last_mark(folder)
    segments = layout.list_segments(folder)
    if not segments:
        if marked is not None:
            raise _refusal(folder, f"no segment, though events up to {marked.number} were answered as durable")
        segments = [make_segment(folder, log, 0)]
        sync_path(folder)
    newest = segments[-1]
    mark, cut_bytes, frames = _mend(newest, log, marked)
    writer = PartitionWriter(folder, log, segment_bytes, mark, frames[-1].time_us if frames else 0)
    writer._write_mark()
    sync_file(writer._mark_file)
    return writer, RecoveredPartition(cut_bytes, [frame for frame in frames if frame.key])


def _open_files(segment: Path) -> tuple[int, int]:
    file = os.open(segment, os.O_RDWR)
    try:
        return file, os.open(layout.index_path(segment), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        os.close(file)
        raise


def make_segment(folder: Path, log: bytes, first: int) -> Path:
    path = layout.segment_path(folder, first)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        _write_at(file, encode_head(log, first), 0)
        sync_file(file)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(file)
    return path


def iterate_heads(segment: Path) -> Iterator[LogFrame]:
    """What the frames of a sealed segment say of themselves; their events are neither read nor checked."""
    file = os.open(segment, os.O_RDONLY)
    try:
        position = HEAD_BYTES
        while len(data := os.pread(file, FRAME_BYTES + KEY_BYTES, position)) >= FRAME_BYTES:
            frame = peek_frame(data)
            yield frame
            position += frame.end
    finally:
        os.close(file)


def _mend(segment: Path, log: bytes, marked: Mark | None) -> tuple[Mark, int, list[LogFrame]]:
    """Where the newest segment really ends, with everything behind that cut off; and its frames."""
    first = layout.first_number(segment)
    least = marked.number if marked is not None else 0
    number, end, frames = first, HEAD_BYTES, []
    file = os.open(segment, os.O_RDWR)
    try:
        size = os.fstat(file).st_size
        if size < HEAD_BYTES:
            # It was just being made.
            _write_at(file, encode_head(log, first), 0)
        elif decode_head(os.pread(file, HEAD_BYTES, 0)) != (log, first):
            raise DamagedFrame("the head of another segment or another log")
        with contextlib.suppress(DamagedFrame):
            for found in iterate_frames(file, HEAD_BYTES):
                if found.frame.number != number:
                    break
                number, end = found.frame.next_number, found.position + found.frame.end
                frames.append(found.frame)
        if number < least:
            raise DamagedFrame(f"whole frames up to event {number} only, though all up to {least} were durable")
        if size > end:
            os.ftruncate(file, end)
        # What a killed process wrote is in memory, perhaps, and on no disk.
        sync_file(file)
    except DamagedFrame as error:
        raise _refusal(segment, str(error)) from error
    finally:
        os.close(file)
    layout.index_path(segment).write_bytes(_index_of(frames))
    return Mark(number, first, end), max(0, size - end), frames


def _index_of(frames: list[LogFrame]) -> bytes:
    position, indexed, entries = HEAD_BYTES, -INDEX_EVERY_BYTES, []
    for frame in frames:
        if position - indexed >= INDEX_EVERY_BYTES:
            entries.append(INDEX_ENTRY.pack(frame.number, position))
            indexed = position
        position += frame.end
    return b"".join(entries)


def _last_mark(folder: Path) -> Mark | None:
    """The mark as the last server left it; None where there is none, or the machine stopped while it was written."""
    try:
        return decode_mark((folder / layout.DURABLE).read_bytes())
    except FileNotFoundError:
        return None


def _write_at(file: int, data: bytes, position: int) -> int:
    """Writes all of it; where it ends."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, position)
        rest, position = rest[written:], position + written
    return position


def _refusal(path: Path, found: str) -> CorruptFile:
    return CorruptFile(
        "the log is damaged",
        where=str(path),
        expected="every event that was answered as durable",
        found=found,
        next_move="bring the file back from a copy, or begin a new log in another folder",
    )
