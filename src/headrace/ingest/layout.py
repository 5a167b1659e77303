"""Where everything of a log lies. No other module spells these names.

DIR/log.json                                   which log this is
DIR/lock                                       held by the server that writes
DIR/needed/5f3c-clicks.json                    what a job may still read again
DIR/streams/clicks/0/                          a partition
    durable                                    how far it may be read
    00000000000000000000.events                segments, named by the number of their first event
    00000000000000000000.index                 where in a segment some of its frames begin
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

LOG: Final = "log.json"
LOCK: Final = "lock"
DURABLE: Final = "durable"
_EVENTS: Final = ".events"
_INDEX: Final = ".index"
_DIGITS: Final = 20
_STREAM: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
STREAM_NAMES: Final = "a letter, then letters, digits, - and _, all lower case, 64 at most"


def is_stream_name(name: str) -> bool:
    return _STREAM.fullmatch(name) is not None


def streams_folder(log: Path) -> Path:
    return log / "streams"


def partition_folder(log: Path, stream: str, partition: int) -> Path:
    return streams_folder(log) / stream / str(partition)


def segment_path(folder: Path, first: int) -> Path:
    return folder / f"{first:0{_DIGITS}d}{_EVENTS}"


def index_path(segment: Path) -> Path:
    return segment.with_suffix(_INDEX)


def first_number(segment: Path) -> int:
    """The number of a segment's first event, of which its name consists."""
    return int(segment.stem)


def need_path(log: Path, holder: str) -> Path:
    return log / "needed" / f"{holder}.json"


def list_needs(log: Path) -> list[Path]:
    return sorted((log / "needed").glob("*.json"))


def list_streams(log: Path) -> list[str]:
    try:
        return sorted(each.name for each in streams_folder(log).iterdir() if is_stream_name(each.name))
    except FileNotFoundError:
        return []


def list_partitions(log: Path, stream: str) -> list[int]:
    try:
        return sorted(int(each.name) for each in (streams_folder(log) / stream).iterdir() if each.name.isdecimal())
    except FileNotFoundError:
        return []


def list_segments(folder: Path) -> list[Path]:
    """The segments of a partition, oldest first."""
    try:
        found = [each for each in folder.iterdir() if each.suffix == _EVENTS and each.stem.isdecimal()]
    except FileNotFoundError:
        return []
    return sorted(found, key=first_number)
