"""The bytes of a log: segments of frames, each of them one request, and the mark that says how far they may be read.

A frame is the unit in which events become durable: all of a request or nothing. Its checksum covers everything behind
it, so that a frame that was only half written when the machine stopped is known for what it is. All numbers are
little-endian; docs/formats/log.md is the same in words.

Pure: this module reads and writes no files.
"""

from __future__ import annotations

import struct
import zlib
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
import xxhash

MAGIC: Final = b"HLOG0001"
_HEAD: Final = struct.Struct("<8s16sQ")
HEAD_BYTES: Final = _HEAD.size
"""What a segment begins with: magic, log, number of its first event."""

_CHECK: Final = struct.Struct("<II")
_FRAME: Final = struct.Struct("<QQQIHH")
FRAME_BYTES: Final = _CHECK.size + _FRAME.size
"""What a frame begins with: length and checksum of the rest; number, time, digest, events, length of the key."""
MAX_FRAME_BYTES: Final = 2**30

_MARK: Final = struct.Struct("<QQQ")
MARK_BYTES: Final = _MARK.size + 4

INDEX_ENTRY: Final = struct.Struct("<QQ")
"""Number of a frame's first event, and where in the segment the frame begins."""


class LogFrame(NamedTuple):
    """What stands in front of the events of a frame."""

    number: int
    """Of its first event."""
    time_us: int
    """When it was written."""
    events: int
    key: bytes
    """Idempotency key of the request; empty where it had none."""
    digest: int
    """Of the request's events; 0 where there is no key."""
    end: int
    """Where the next frame begins, counted from the beginning of this one."""

    @property
    def next_number(self) -> int:
        return self.number + self.events


class Mark(NamedTuple):
    """How far a partition is durable."""

    number: int
    """Of the next event: all before it are durable."""
    segment: int
    """First number of the segment in which it will stand."""
    position: int
    """Where in that segment."""


class DamagedFrame(Exception):
    """Bytes that are no frame: half written, or changed since."""


def encode_head(log: bytes, first: int) -> bytes:
    return _HEAD.pack(MAGIC, log, first)


def decode_head(data: bytes) -> tuple[bytes, int]:
    """The log and first number of a segment."""
    if len(data) < HEAD_BYTES:
        raise DamagedFrame(f"{len(data)} bytes instead of a head of {HEAD_BYTES}")
    magic, log, first = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise DamagedFrame(f"{magic!r} instead of {MAGIC!r}")
    return log, first


def digest_of(events: list[bytes]) -> int:
    """Tells whether two requests say the same: of their events, however these were sent."""
    return xxhash.xxh3_64_intdigest(b"\n".join(events)) or 1


def encode_frame(number: int, time_us: int, events: list[bytes], key: bytes = b"", digest: int = 0) -> bytes:
    ends = np.fromiter(accumulate(map(len, events)), dtype="<u4", count=len(events)).tobytes()
    rest = b"".join([_FRAME.pack(number, time_us, digest, len(events), len(key), 0), key, ends, *events])
    return _CHECK.pack(len(rest), zlib.crc32(rest)) + rest


def peek_frame(data: bytes | memoryview, at: int = 0) -> LogFrame:
    """What a frame says of itself, unchecked; its events need not be there yet."""
    length, _ = _CHECK.unpack_from(data, at)
    number, time_us, digest, events, key_bytes, _ = _FRAME.unpack_from(data, at + _CHECK.size)
    keyed_at = at + FRAME_BYTES
    key = bytes(data[keyed_at : keyed_at + key_bytes])
    return LogFrame(number, time_us, events, key, digest, _CHECK.size + length)


def frame_length(data: bytes | memoryview, at: int) -> int | None:
    """How many bytes the frame at a place has; None where the data end before that is known."""
    if len(data) - at < FRAME_BYTES:
        return None
    length = int(_CHECK.unpack_from(data, at)[0])
    if not _FRAME.size <= length <= MAX_FRAME_BYTES:
        raise DamagedFrame(f"a frame of {length} bytes")
    return _CHECK.size + length


def check_frame(data: memoryview, at: int) -> LogFrame:
    """The frame at a place, all of whose bytes are there."""
    length, checksum = _CHECK.unpack_from(data, at)
    begins = at + _CHECK.size
    if zlib.crc32(data[begins : begins + length]) != checksum:
        raise DamagedFrame("a checksum that is not that of the frame")
    return peek_frame(data, at)


def events_of(data: memoryview, at: int, frame: LogFrame, first: int, stop: int) -> list[bytes]:
    """The events of a checked frame from number ``first`` up to ``stop``."""
    ends_at = at + FRAME_BYTES + len(frame.key)
    events_at = ends_at + 4 * frame.events
    ends = [0, *np.frombuffer(data, "<u4", frame.events, ends_at).tolist()]
    wanted = ends[max(first - frame.number, 0) : stop - frame.number + 1]
    return [bytes(data[events_at + a : events_at + b]) for a, b in pairwise(wanted)]


def encode_mark(mark: Mark) -> bytes:
    body = _MARK.pack(*mark)
    return body + struct.pack("<I", zlib.crc32(body))


def decode_mark(data: bytes) -> Mark | None:
    """None where the bytes are no mark: there is none yet, or it is just being written."""
    if len(data) != MARK_BYTES or zlib.crc32(data[: _MARK.size]) != struct.unpack_from("<I", data, _MARK.size)[0]:
        return None
    return Mark(*_MARK.unpack_from(data))
