"""Small logs for tests: written by the real writer, read by the real reader."""

from __future__ import annotations

from pathlib import Path

from headrace.ingest import layout
from headrace.ingest.log import Append, AppendedEvents, Log, LogOptions
from headrace.ingest.reading import first_kept, read_mark, read_range

STREAM = "clicks"


def event(n: int) -> bytes:
    return b'{"n":%d}' % n


def folder_of(path: Path, partition: int = 0, stream: str = STREAM) -> Path:
    return layout.partition_folder(path, stream, partition)


def segments_of(path: Path, partition: int = 0) -> list[Path]:
    return layout.list_segments(folder_of(path, partition))


def append(log: Log, *events: bytes, key: bytes = b"", partition: int | None = None) -> AppendedEvents:
    """One request in a round of its own."""
    [outcome] = log.append([Append(STREAM, list(events), key=key, partition=partition)])
    assert isinstance(outcome, AppendedEvents), outcome
    return outcome


def write(path: Path, requests: list[list[bytes]], **options: int) -> None:
    """A log with these requests, closed."""
    log = Log(path, LogOptions(**options))
    for events in requests:
        append(log, *events)
    log.close()


def read(path: Path, partition: int = 0, stream: str = STREAM) -> list[bytes]:
    """All that is durable and kept."""
    folder = folder_of(path, partition, stream)
    mark = read_mark(folder)
    if mark is None:
        return []
    return [each for frame in read_range(folder, first_kept(folder), mark.number) for each in frame]
